//! Promise: an installed program has its manual pages and its completions for shells, whether `make install` or a Debian package brought
//! them, and nothing of it stays when it is removed.

use std::fs;
use std::path::Path;
use std::process::Command;

use regex::Regex;

use crate::support::{INARCH, assert_status, host, scratch, stdout};

/// A script of this project.
fn script(name: &str) -> String {
    format!("{}/../../scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The files below a directory.
fn files(directory: &Path) -> String {
    host("sh", &["-c", "find . -type f | sort"], directory)
}

/// What bash offers at the end of a line, separated by spaces.
fn offered_by_bash(prefix: &Path, dir: &Path, line: &str) -> String {
    let script = prefix.join("share/bash-completion/completions/inarch");
    let complete =
        r#". "$1"; COMP_LINE=$2; COMP_POINT=${#COMP_LINE}; _inarch inarch "" "" 2> /dev/null; echo "${COMPREPLY[@]}""#;
    let path = format!("{}/bin:{}", prefix.display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.args(["-c", complete, "bash"]).arg(script).arg(line).env("PATH", path).current_dir(dir);
    String::from_utf8(command.output().unwrap().stdout).unwrap().trim().to_owned()
}

fn assert_whole(prefix: &Path, dir: &Path) {
    let said = Command::new(prefix.join("bin/inarch")).arg("--version").output().unwrap();
    assert_status(&said, 0);
    // Its version, and if it was built from a repository, the commit with its date.
    let version = stdout(&said);
    let form = r"^inarch (\d+\.\d+\.\d+)( \([0-9a-f]{10,40} 20\d\d-[01]\d-[0-3]\d\))?\n$";
    let parts = Regex::new(form).unwrap().captures(&version).unwrap_or_else(|| panic!("{version:?}"));
    assert_eq!(&parts[1], env!("CARGO_PKG_VERSION"));
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.git");
    assert_eq!(parts.get(2).is_some(), repository.exists(), "{version}");
    let pages = format!("{}/share/man", prefix.display());
    for page in ["inarch", "inarch-run", "inarch-serve-9p", "inarch-disk-cp"] {
        let text = host("man", &["-M", &pages, page], dir);
        assert!(text.contains("SYNOPSIS") && text.contains("EXAMPLES"), "{page}: {text}");
    }
    let offered = |line: &str| offered_by_bash(prefix, dir, line);
    assert_eq!(offered("inarch ru"), "run runs");
    assert!(offered("inarch run --via ").starts_with("auto ext4"));
    assert_eq!(offered("inarch run --via=e"), "ext4 erofs");
    // What a shell would read otherwise is left to bash, which quotes it.
    let hostile = dir.join("hostile");
    fs::create_dir_all(&hostile).unwrap();
    for name in ["$(touch pwned)", "a b", "x;y", "*", "line\nend", "`id`"] {
        fs::write(hostile.join(name), "").unwrap();
        assert_eq!(offered("inarch mount hostile/"), "", "{name:?}");
        fs::remove_file(hostile.join(name)).unwrap();
    }
    fs::write(hostile.join("plain-ü.tar"), "").unwrap();
    assert_eq!(offered("inarch mount hostile/"), "hostile/plain-ü.tar");
    assert_eq!(offered("inarch mount $(touch pwned)/x"), "");
    assert_eq!(offered("inarch mount 'hos"), "");
    assert!(!dir.join("pwned").exists());
    // What only the program knows.
    fs::create_dir_all(dir.join("tree")).unwrap();
    fs::create_dir_all(dir.join("point")).unwrap();
    host(INARCH, &["mount", "--background", "-q", "tree", "point"], dir);
    let mounted = offered("inarch umount /");
    host(INARCH, &["umount", "-q", "point"], dir);
    assert!(mounted.contains(&format!("{}/point", dir.canonicalize().unwrap().display())), "{mounted}");
    for shell in ["zsh", "fish"] {
        let file = files(prefix).lines().find(|file| file.contains(&format!("/{shell}/"))).map(str::to_owned);
        let text = fs::read_to_string(prefix.join(file.unwrap())).unwrap();
        assert!(text.contains("INARCH_COMPLETE"), "{text}");
    }
}

#[test]
fn by_make_install() {
    let dir = scratch();
    let prefix = dir.path().join("usr/local");
    host(&script("install"), &[INARCH, prefix.to_str().unwrap()], dir.path());
    assert_whole(&prefix, dir.path());
    host(&script("install"), &["--remove", prefix.to_str().unwrap()], dir.path());
    assert_eq!(files(&prefix), "");
}

#[test]
fn by_a_debian_package() {
    let dir = scratch();
    // Packing takes long with the usual compression.
    let made = Command::new(script("deb"))
        .args([INARCH, "."])
        .env("DPKG_DEB_COMPRESSOR_TYPE", "none")
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert_status(&made, 0);
    let package = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let field = |name: &str| host("dpkg-deb", &["--field", &package, name], dir.path());
    assert!(field("Depends").contains("libc6 (>= "), "{}", field("Depends"));
    assert!(field("Recommends").contains("qemu-system-x86"));
    // A system of its own, with no other package.
    host(
        "sh",
        &["-c", "mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates; touch root/var/lib/dpkg/status"],
        dir.path(),
    );
    let root = dir.path().join("root");
    let dpkg = |words: &[&str]| {
        let words = [&["--root", root.to_str().unwrap(), "--force-depends", "--force-not-root"], words].concat();
        host("dpkg", &words, dir.path())
    };
    dpkg(&["--install", &package]);
    assert_whole(&root.join("usr"), dir.path());
    for name in ["copyright", "README.md", "docs/run.md", "docs/session.svg"] {
        assert!(root.join("usr/share/doc/inarch").join(name).exists(), "{name}");
    }
    dpkg(&["--purge", "inarch"]);
    assert_eq!(files(&root).matches("inarch").count(), 0, "{}", files(&root));
}
