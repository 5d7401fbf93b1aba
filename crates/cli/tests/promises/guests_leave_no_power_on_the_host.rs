//! Promise: with `nosuid` and `nodev`, a guest or a mount's program leaves no set-user-ID file, file capability or device on the host, and
//! its calls succeed as before, except mknod of a device.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::mounted::Server;
use crate::support::{
    INARCH, LONG, NINEP_CLIENT, any_machine, assert_status, host, run_script_in, scratch, stderr, stdout, within,
};

/// Files of the host that `powers.py` uses, with the bits.
const THERE: usize = 9;

/// What `powers.py` cannot do where devices are refused.
const REFUSED: &str = "c EPERM\nb EPERM\nchmod of a device EPERM\nlink of a device EPERM\n";

/// A new directory with the files that `powers.py` wants.
fn fill(dir: &Path, name: &str) {
    let tree = dir.join(name);
    fs::create_dir(&tree).unwrap();
    let names = (0..THERE).map(|number| format!("there-{number}")).chain(["there-read".to_owned()]);
    for path in names.map(|name| tree.join(name)) {
        fs::write(&path, "x".repeat(100)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    }
    host("mknod", &["-m", "600", "there-device", "c", "1", "5"], &tree);
    let capable = tree.join("there-capable");
    fs::write(&capable, "x".repeat(100)).unwrap();
    fs::set_permissions(&capable, fs::Permissions::from_mode(0o777)).unwrap();
    // Version 2, CAP_SETUID, effective and permitted.
    let capabilities = [1, 0, 0, 2, 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(&capable, "security.capability", &capabilities, rustix::fs::XattrFlags::empty()).unwrap();
}

/// The names in a directory that give power.
fn powers(dir: &Path, name: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir.join(name)).unwrap() {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        let kind = metadata.file_type();
        let is_device = (kind.is_char_device() || kind.is_block_device()) && metadata.mode() & 0o7777 != 0o600;
        let bits = if kind.is_dir() { 0o4000 } else { 0o6000 };
        let has_capabilities = kind.is_file()
            && !host("getfattr", &["-hm", "security.capability", path.to_str().unwrap()], dir).is_empty();
        if is_device || metadata.mode() & bits != 0 || has_capabilities {
            found.push(path.file_name().unwrap().to_str().unwrap().to_owned());
        }
    }
    found.sort();
    found
}

/// Checks what was left where it may be, and what where it may not.
fn check(dir: &Path, plain: &[&str], refusing: &[&str]) {
    for name in refusing {
        // What could not be done to it (fallocate(2)) has left it as it was.
        let untouched = if name.starts_with("9p") { &["there-5", "there-read"][..] } else { &["there-read"] };
        assert_eq!(powers(dir, name), untouched, "{name}");
        assert!(fs::read(dir.join(name).join("there-capable")).unwrap().starts_with(b"z"), "{name}");
        for there in ["new-open", "new-by-tar", "new-by-cp", "new-install", "new-link", "new-fifo", "new-socket"] {
            assert!(dir.join(name).join(there).symlink_metadata().is_ok(), "{name}: {there}");
        }
        assert_eq!(fs::metadata(dir.join(name).join("new-mkdir")).unwrap().mode() & 0o7777, 0o2775, "{name}");
    }
    for name in plain {
        // Else nothing would be checked here.
        let found = powers(dir, name);
        for expected in ["b", "by-cp", "by-tar", "c", "chmod", "device", "install", "link", "mknod", "open", "setcap"] {
            assert!(found.contains(&format!("new-{expected}")), "{name}: {expected} is not among {found:?}");
        }
        for number in 0..THERE - 1 {
            assert!(found.contains(&format!("there-{number}")), "{name}: {number} is not among {found:?}");
        }
    }
}

fn program() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/support/powers.py")
}

#[test]
fn by_a_mount() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: by_a_mount: only root makes devices");
    }
    let dir = scratch();
    for (name, options, said) in [
        ("plain", &[][..], ""),
        ("options", &["--nosuid", "--nodev"], REFUSED),
        ("words", &["-o", "nosuid,nodev", "--changes", "guest"], REFUSED),
    ] {
        fill(dir.path(), name);
        let mut server = Server::start(dir.path(), name, options);
        assert_eq!(host("python3", &[program(), "point"], dir.path()), said, "{name}");
        assert_eq!(server.line.contains("without set-user-ID bits and devices"), !said.is_empty(), "{}", server.line);
        assert_eq!(server.end("-TERM"), Some(0));
    }
    check(dir.path(), &["plain"], &["options", "words"]);
    // An overlay keeps all, for it is its owner's alone.
    fill(dir.path(), "below");
    let mut server = Server::start(dir.path(), "below", &["--overlay", "over", "--nosuid", "--nodev"]);
    assert_eq!(host("python3", &[program(), "point"], dir.path()), "");
    assert_eq!(server.end("-TERM"), Some(0));
    check(dir.path(), &["over/upper"], &[]);
    assert_eq!(fs::metadata(dir.path().join("over")).unwrap().mode() & 0o7777, 0o700);
}

/// What `serve ARGUMENTS` says when it serves in `dir` on the socket `socket`, while `client` runs.
fn said_by_a_server(dir: &Path, arguments: &[&str], client: impl FnOnce()) -> String {
    let socket = dir.join("socket");
    let mut command = Command::new(INARCH);
    command.arg("serve").args(arguments).args(["--socket", "socket"]).current_dir(dir).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    assert!(within(LONG, || socket.exists()));
    client();
    host("kill", &["-TERM", &child.id().to_string()], dir);
    let output = child.wait_with_output().unwrap();
    assert_status(&output, 0);
    stderr(&output)
}

#[test]
fn by_the_clients_of_servers() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: by_the_clients_of_servers: only root makes devices");
    }
    let dir = scratch();
    fs::create_dir(dir.path().join("source")).unwrap();
    let work = "
client = NinepClient('socket')
client.create('created', 0o106755)
client.make_node('fifo', 0o010644)
for kind in 0o020666, 0o060666:
    try:
        client.make_node('device', kind, 1, 5)
    except OSError as error:
        print(error.strerror)";
    let refusing = ["9p", "source", "--nosuid", "--nodev"];
    let said = said_by_a_server(dir.path(), &refusing, || {
        let told = host("python3", &["-c", &format!("{NINEP_CLIENT}{work}")], dir.path());
        assert_eq!(told, "Operation not permitted\n".repeat(2));
    });
    assert!(said.contains("tree:   writes change it, without set-user-ID bits and devices\n"), "{said}");
    assert!(said.contains("8 of "), "the capability to make devices is kept: {said}");
    assert_eq!(fs::metadata(dir.path().join("source/created")).unwrap().mode() & 0o7777, 0o755);
    assert!(fs::metadata(dir.path().join("source/fifo")).unwrap().file_type().is_fifo());
    let said = said_by_a_server(dir.path(), &["virtiofs", "source", "--nosuid"], || {});
    assert!(
        said.contains("host may change it: the guest sees that after a second at most; writes change it, without set")
    );
}

#[test]
fn by_a_guest() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: by_a_guest: only root makes devices");
    }
    let dir = scratch();
    let shares = [
        ("fs", "rw"),
        ("fs-refusing", "rw,nosuid,nodev"),
        ("fs-back", "rw,nosuid,nodev,changes=guest,writeback"),
        ("9p", "rw,via=9p"),
        ("9p-refusing", "rw,via=9p,nosuid,nodev"),
    ];
    let options = shares.map(|(name, options)| {
        fill(dir.path(), name);
        format!("--tree={}:/{name},{options}", dir.path().join(name).display())
    });
    fs::copy(program(), dir.path().join("powers.py")).unwrap();
    let script = "for t in fs fs-refusing fs-back 9p 9p-refusing; do echo $t; python3 powers.py /$t || exit; done";
    let output = run_script_in(any_machine(), dir.path(), &options.each_ref().map(String::as_str), script, b"");
    assert_status(&output, 0);
    let told: Vec<String> = shares
        .map(|(name, options)| {
            let refused = if options.contains("nodev") { REFUSED } else { "" };
            // 9P has no files without names, nor fallocate(2).
            let lacking = if name.starts_with("9p") { "unnamed ENOTSUP\nfallocate 1\n" } else { "" };
            format!("{name}\n{lacking}{refused}")
        })
        .into();
    assert_eq!(stdout(&output), told.concat());
    let names = |refusing: bool| {
        let chosen = shares.iter().filter(move |(_, options)| options.contains("nodev") == refusing);
        chosen.map(|(name, _)| *name).collect::<Vec<_>>()
    };
    check(dir.path(), &names(false), &names(true));
}
