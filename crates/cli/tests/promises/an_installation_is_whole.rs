//! Promise: an installed program has its manual pages and its completions for shells, whether `make install` or a Debian package brought
//! them, and nothing of it stays when it is removed.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{INARCH, assert_status, host, scratch};

/// A script of this project.
fn script(name: &str) -> String {
    format!("{}/../../scripts/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// The files below a directory.
fn files(directory: &Path) -> String {
    host("sh", &["-c", "find . -type f | sort"], directory)
}

/// What bash offers for the last of `words`, separated by spaces.
fn offered_by_bash(prefix: &Path, dir: &Path, words: &str) -> String {
    let complete = format!(
        ". {0}/share/bash-completion/completions/inarch; COMP_WORDS=({words} ''); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
         $(complete -p inarch | sed 's/.*-F \\([^ ]*\\).*/\\1/') inarch '' ''; echo \"${{COMPREPLY[@]}}\"",
        prefix.display()
    );
    let path = format!("{}/bin:{}", prefix.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash").args(["-c", &complete]).env("PATH", path).current_dir(dir).output().unwrap();
    assert_status(&output, 0);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn assert_whole(prefix: &Path, dir: &Path) {
    let said = Command::new(prefix.join("bin/inarch")).arg("--version").output().unwrap();
    assert_status(&said, 0);
    let pages = format!("{}/share/man", prefix.display());
    for page in ["inarch", "inarch-run", "inarch-serve-9p", "inarch-disk-cp"] {
        let text = host("man", &["-M", &pages, page], dir);
        assert!(text.contains("SYNOPSIS") && text.contains("EXAMPLES"), "{page}: {text}");
    }
    assert!(offered_by_bash(prefix, dir, "inarch run --via").starts_with("auto ext4"));
    // What only the program knows.
    fs::create_dir_all(dir.join("tree")).unwrap();
    fs::create_dir_all(dir.join("point")).unwrap();
    host(INARCH, &["mount", "--background", "-q", "tree", "point"], dir);
    let offered = offered_by_bash(prefix, dir, "inarch umount");
    host(INARCH, &["umount", "-q", "point"], dir);
    assert!(offered.contains(&format!("{}/point", dir.canonicalize().unwrap().display())), "{offered}");
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
    assert!(root.join("usr/share/doc/inarch/copyright").exists());
    dpkg(&["--purge", "inarch"]);
    assert_eq!(files(&root).matches("inarch").count(), 0, "{}", files(&root));
}
