//! Promise: a guest of another architecture sees its trees as they are, by every way, and what it does with them is thrown away,
//! kept or let through as for any guest. The same program tells of a tree on this machine and in the guest.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// The program, for this machine and for the guest, and a tree.
struct Scene {
    dir: tempfile::TempDir,
    arch: &'static str,
    /// The directory that the guest has at /bin.
    programs: PathBuf,
    /// What the first run said.
    said: String,
}

impl Scene {
    /// `None`, and why, if the guest's program or kernel cannot be made here.
    fn or_skip(test: &str, arch: &'static str, foreign: bool) -> Option<Scene> {
        let skip = |reason: &str| {
            println!("skipped: {test}: {reason}");
            None
        };
        let dir = scratch();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/support/check.c");
        let programs = dir.path().join("programs");
        fs::create_dir(&programs).unwrap();
        let compiler = if foreign { format!("{arch}-linux-gnu-gcc") } else { "gcc".to_owned() };
        for (compiler, program) in [("gcc", dir.path().join("check")), (&compiler, programs.join("check"))] {
            let built = Command::new(compiler).args(["-static", "-O1", "-o"]).arg(&program).arg(source).status();
            match built {
                Err(_) => return skip(&format!("there is no {compiler}")),
                Ok(status) => assert!(status.success(), "{compiler}"),
            }
        }
        let mut scene = Scene { dir, arch, programs, said: String::new() };
        scene.fill("tree");
        let first = scene.run(&[], &["/bin/check", "machine", "7"], "a line\n");
        let said = stderr(&first);
        if first.status.code() == Some(125) && said.contains("cannot fetch") {
            return skip(said.trim().trim_start_matches("inarch: "));
        }
        // The first command: status, streams and the processor's name are the guest's own.
        assert_status(&first, 7);
        assert!(
            stdout(&first).starts_with(&format!("{arch} ")) && stdout(&first).ends_with(" a line\n"),
            "{}",
            stdout(&first)
        );
        assert!(said.ends_with("error output\n"), "{said}");
        scene.said = said;
        Some(scene)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Makes a tree with all that ways may differ in.
    fn fill(&self, name: &str) {
        let top = self.at(name);
        fs::create_dir_all(top.join("deep/er")).unwrap();
        for (name, bytes) in [("file", b"host\n".to_vec()), ("gone", vec![]), ("deep/large", vec![b'x'; 300_000])] {
            fs::write(top.join(name), bytes).unwrap();
        }
        let sparse = fs::File::create(top.join("deep/er/sparse")).unwrap();
        sparse.set_len(5 << 20).unwrap();
        fs::hard_link(top.join("file"), top.join("deep/other name")).unwrap();
        symlink("../file", top.join("deep/link")).unwrap();
        fs::set_permissions(top.join("gone"), fs::Permissions::from_mode(0o640)).unwrap();
        let _ = Command::new("setfattr").args(["-n", "user.note", "-v", "kept"]).arg(top.join("deep/large")).status();
    }

    fn run(&self, options: &[&str], command: &[&str], input: &str) -> Output {
        let programs = format!("{}:/bin,ro", self.programs.display());
        let mut child = Command::new(INARCH)
            .args(["run", "--arch", self.arch, "--root", "none", "--tree", &programs, "-u", "0"])
            .args(options)
            .arg("--")
            .args(command)
            .current_dir(self.dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("inarch starts");
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        child.wait_with_output().expect("inarch ends")
    }

    /// What the program tells of a tree here; without the line that names it.
    fn told(&self, name: &str) -> String {
        let told = host("./check", &["tell", name], self.dir.path());
        told.split_once('\n').expect("a line").1.to_owned()
    }
}

/// What was told of each place, in order.
fn sections(output: &Output) -> Vec<String> {
    let text = stdout(output);
    text.split("== ").skip(1).map(|section| section.split_once('\n').expect("a line").1.to_owned()).collect()
}

fn by_every_way(scene: &Scene) {
    const WAYS: [&str; 5] = ["ext4", "erofs", "squashfs", "virtiofs", "9p"];
    scene.fill("live");
    let expected = scene.told("tree");
    let tree = scene.at("tree");
    let trees = WAYS.map(|way| format!("--tree={}:/{way},via={way}", tree.display()));
    let others = [
        format!("{}:/live,rw", scene.at("live").display()),
        format!("{}:/owned,via=virtiofs,owner=12:34", tree.display()),
    ];
    let options: Vec<&str> =
        trees.iter().map(String::as_str).chain(["--tree", &others[0], "--tree", &others[1]]).collect();
    let places: Vec<String> = WAYS.map(|way| format!("/{way}")).into();
    let program = "/bin/check";
    let words: Vec<&str> =
        [program, "tell"].into_iter().chain(places.iter().map(String::as_str)).chain(["/owned"]).collect();
    let told = scene.run(&options, &words, "");
    assert_status(&told, 0);
    let metadata = tree.metadata().unwrap();
    let own = format!(" {}:{} ", metadata.uid(), metadata.gid());
    let sections = sections(&told);
    assert_eq!(sections.len(), WAYS.len() + 1);
    for (way, section) in WAYS.iter().zip(&sections) {
        assert_eq!(*section, expected, "{way}");
    }
    assert_eq!(sections[WAYS.len()], expected.replace(&own, " 12:34 "), "other owners");
    // Writes are thrown away, but for those to a live directory.
    let words: Vec<&str> =
        [program, "write"].into_iter().chain(places.iter().map(String::as_str)).chain(["/live"]).collect();
    let written = scene.run(&options, &words, "");
    assert_status(&written, 0);
    for section in self::sections(&written) {
        assert!(section.contains("/made 100640 ") && !section.contains("/gone "), "{section}");
    }
    assert_eq!(scene.told("tree"), expected);
    assert_eq!(fs::read(scene.at("live/made")).unwrap(), b"guest\n");
    assert_eq!(fs::read(scene.at("live/file")).unwrap(), b"host\nmore\n");
    assert!(!scene.at("live/gone").exists());
}

fn and_kept(scene: &Scene) {
    let name = format!("inarch-test-{}-{}", scene.arch, std::process::id());
    let tree = format!("{}:/tree", scene.at("tree").display());
    let kept = scene.run(&["--tree", &tree, "--keep", &name], &["/bin/check", "write", "/tree"], "");
    let diff = inarch(["diff", &name]);
    let applied = inarch(["apply", &name]);
    let discarded = inarch(["discard", &name]);
    assert_status(&kept, 0);
    for change in ["tree/made", "tree/file", "tree/gone"] {
        assert!(stdout(&diff).contains(change), "{}", stdout(&diff));
    }
    assert_status(&applied, 0);
    assert_status(&discarded, 0);
    assert_eq!(fs::read(scene.at("tree/made")).unwrap(), b"guest\n");
    assert_eq!(fs::read(scene.at("tree/file")).unwrap(), b"host\nmore\n");
    assert!(!scene.at("tree/gone").exists());
}

#[test]
fn risc_v() {
    if let Some(scene) = Scene::or_skip("risc_v", "riscv64", std::env::consts::ARCH != "riscv64") {
        by_every_way(&scene);
        and_kept(&scene);
        // OpenSBI before 1.3, which QEMU brings up to 8.0, may start the kernel twice.
        let version = host("qemu-system-riscv64", &["--version"], scene.dir.path());
        let is_old = ["6.", "7.", "8.0"].iter().any(|old| version.starts_with(&format!("QEMU emulator version {old}")));
        let line = scene.run(&["--dry-run"], &["/bin/check"], "");
        assert!(
            !is_old
                || scene.said.contains("cannot fetch the firmware")
                || stdout(&line).contains("/opensbi/generic/fw_dynamic.bin"),
            "{}",
            stdout(&line)
        );
    }
}

#[test]
fn arm() {
    if let Some(scene) = Scene::or_skip("arm", "aarch64", std::env::consts::ARCH != "aarch64") {
        by_every_way(&scene);
        and_kept(&scene);
    }
}

#[test]
fn what_does_not_fit_is_said() {
    if std::env::consts::ARCH != "x86_64" {
        return println!("skipped: what_does_not_fit_is_said: it is written for x86-64 machines");
    }
    let run = |options: &[&str]| inarch([&["run", "--dry-run"], options, &["--", "true"]].concat());
    assert_one_line(&run(&["--arch", "riscv64"]), &["this machine's own programs are for x86_64", "--root"]);
    let dir = scratch();
    // Nothing is fetched before that.
    let real =
        Command::new(INARCH).args(["run", "--arch", "riscv64", "true"]).env("XDG_CACHE_HOME", dir.path()).output();
    assert_one_line(&real.unwrap(), &["this machine's own programs are for x86_64", "--root"]);
    let kernel = |name: &str, magic: &[u8]| {
        let path: &Path = dir.path();
        let path = path.join(name);
        let mut bytes = vec![0; 4096];
        bytes[0x38..0x38 + magic.len()].copy_from_slice(magic);
        fs::write(&path, bytes).unwrap();
        path.display().to_string()
    };
    let (arm, riscv, none) = (kernel("arm", b"ARM\x64"), kernel("riscv", b"RSC\x05"), kernel("none", b""));
    let at = |arch: &str, kernel: &str| run(&["--arch", arch, "--root", "none", "--kernel", kernel]);
    assert_one_line(&at("riscv64", &arm), &[&arm, "a kernel for aarch64", "--arch aarch64"]);
    assert_one_line(&at("amd64", &riscv), &[&riscv, "a kernel for riscv64", "--arch riscv64"]);
    assert_one_line(&at("arm64", &none), &[&none, "not a kernel for aarch64"]);
    assert_one_line(&at("riscv64", &riscv), &[&riscv, "does not say which release"]);
    let root = |root: &str| run(&["--root", root]);
    assert_one_line(&root("debian:../x"), &["no name of a suite", "debian:SUITE"]);
    assert_one_line(&root("debian:trixie+a_b"), &["no name of a package"]);
    assert_one_line(&root("debian:trixie+no-such-package"), &["not in the cache yet", "--dry-run"]);
    let kvm = run(&["--arch", "riscv64", "--root", "none", "--kernel", &riscv, "--vmm", "uml"]);
    assert_one_line(&kvm, &["--arch"]);
}
