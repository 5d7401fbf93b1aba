//! Promise: called as virtiofsd, the program takes virtiofsd's command lines, and serves what they say. So do the options of `serve virtiofs`
//! that are like virtiofsd's.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::support::bare_guest::BareGuest;
use crate::support::drawings::assert_profile;
use crate::support::{INARCH, LONG, assert_one_line, assert_status, host, scratch, stdout, within};

/// The command lines by which programs start virtiofsd, each for a socket and a directory in the current one, and what of a file's
/// extended attributes is seen and whether one can write.
const LINES: [(&str, &str, &str, &str); 7] = [
    // Its README's.
    (
        "readme",
        "--socket-path=readme.sock --shared-dir readme --announce-submounts --inode-file-handles=mandatory",
        "none",
        "writes",
    ),
    // libvirt's, for the Rust program and the C one.
    (
        "libvirt",
        "--fd=3 -o source=libvirt,cache=always,xattr,writeback,flock,posix_lock,sandbox=chroot",
        "value",
        "writes",
    ),
    ("libvirt-c", "--fd=3 -o source=libvirt-c,no_xattr,no_flock,no_posix_acl,no_security_label", "none", "writes"),
    // melange's.
    (
        "melange",
        "--socket-path=melange.sock --shared-dir=melange --sandbox=none --cache=auto --thread-pool-size=4",
        "none",
        "writes",
    ),
    // QEMU's documentation of the C program.
    ("qemu", "--socket-path=qemu.sock -o source=qemu -o cache=never -o log_level=debug,timeout=5", "none", "writes"),
    // Kata Containers'.
    (
        "kata",
        "--syslog --cache=auto --shared-dir=kata --fd=3 --xattr --seccomp kill --modcaps=+sys_admin:-mknod --killpriv-v2 -f",
        "value",
        "writes",
    ),
    (
        "readonly",
        "--readonly --xattr --posix-acl --socket-path readonly.sock --shared-dir readonly --tag readonly",
        "value",
        "refused",
    ),
];

/// Options of `serve virtiofs`, for a directory of this name; what it prints for QEMU with them, and what of a file's extended attribute is seen.
const OWN: [(&str, &[&str], &str, &str); 2] = [
    ("usual", &[], "queue-size=1024", "value"),
    (
        "few",
        &["--threads", "2", "--queue-size", "256", "--no-xattr"],
        "num-request-queues=2,queue-size=256",
        "Operation not supported",
    ),
];

/// Makes a directory of a file with an extended attribute.
fn fill(dir: &Path, name: &str) {
    fs::create_dir(dir.join(name)).unwrap();
    let file = dir.join(name).join("file");
    fs::write(&file, format!("of {name}\n")).unwrap();
    rustix::fs::setxattr(&file, "user.key", b"value", rustix::fs::XattrFlags::empty()).unwrap();
}

/// The program under the name of the other.
fn virtiofsd(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("virtiofsd");
    if !path.exists() {
        symlink(INARCH, &path).unwrap();
    }
    path
}

/// A server, killed where a test fails.
struct Server(Child);

impl Server {
    fn status(&mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts it, with a listening socket as descriptor 3.
fn start(dir: &Path, name: &str, line: &str) -> Server {
    let listen = format!(
        "import socket, os, sys; s = socket.socket(socket.AF_UNIX); s.bind('{name}.new'); s.listen(1)
os.rename('{name}.new', '{name}.sock')
os.dup2(s.fileno(), 3) if s.fileno() != 3 else os.set_inheritable(3, True)
os.execv(sys.argv[1], sys.argv[1:])"
    );
    let mut command = if line.contains("--fd=3") {
        let mut command = Command::new("python3");
        command.args(["-c", &listen]).arg(virtiofsd(dir));
        command
    } else {
        Command::new(virtiofsd(dir))
    };
    let command = command.args(line.split(' ')).current_dir(dir).stdin(Stdio::null()).stdout(Stdio::null());
    Server(command.stderr(Stdio::null()).spawn().unwrap())
}

fn said(dir: &Path, line: &str) -> Output {
    let mut command = Command::new("timeout");
    command.arg("60").arg(virtiofsd(dir)).args(line.split(' '));
    command.current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn by_the_command_lines_that_start_it() {
    let Some(guest) = BareGuest::or_skip("by_the_command_lines_that_start_it") else { return };
    let dir = scratch();
    let mut servers = Vec::new();
    let (mut arguments, mut script) = (String::new(), String::new());
    for (name, line, ..) in LINES {
        fill(dir.path(), name);
        servers.push((name, start(dir.path(), name, line)));
        let socket = dir.path().join(format!("{name}.sock"));
        assert!(within(LONG, || socket.exists()), "{line}");
        arguments += &format!(
            " -chardev socket,id={name},path={name}.sock -device vhost-user-fs-pci,chardev={name},tag={name},queue-size=1024"
        );
        script += &format!(
            "mount -t virtiofs {name} /mnt; content=$(cat /mnt/file); value=$(getfattr -n user.key --only-values /mnt/file 2> /dev/null)
             if (echo new > /mnt/new) 2> /dev/null; then access=writes; else access=refused; fi
             if mknod /mnt/device c 1 3 2> /dev/null; then echo report {name} device; fi
             echo \"report $content, ${{value:-none}}, $access\"; umount /mnt\n"
        );
    }
    for (name, options, printed, _) in OWN {
        fill(dir.path(), name);
        let (socket, profile) = (format!("{name}.sock"), format!("{name}.svg"));
        let words = [&["serve", "virtiofs", name, "--socket", &socket, "--tag", name, "--once"][..], options].concat();
        let line = host(INARCH, &[&words[..], &["--print-qemu-args", "--qemu-memory", "none"]].concat(), dir.path());
        assert!(line.contains(printed), "{line}");
        arguments += &format!(" {}", line.trim());
        let mut command = Command::new(INARCH);
        command.args(words).args(["--profile", &profile]).current_dir(dir.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        servers.push((name, Server(command.spawn().unwrap())));
        assert!(within(LONG, || dir.path().join(&socket).exists()), "{name}");
        script += &format!(
            "mount -t virtiofs {name} /mnt; said=$(getfattr --absolute-names -n user.key --only-values /mnt/file 2>&1)
             echo new > /mnt/new; echo \"report $(cat /mnt/file), ${{said##*: }}\"; umount /mnt\n"
        );
    }
    // busybox has no getfattr.
    host("sh", &["-c", "mkdir -p r/bin r/lib; cp $(command -v getfattr) r/bin/"], dir.path());
    let libraries = "ldd r/bin/getfattr | grep -o '/[^ ]*' | xargs -I LIBRARY cp --parents -L LIBRARY r";
    host("sh", &["-c", libraries], dir.path());
    let mut expected = Vec::new();
    for (name, _, value, access) in LINES {
        // Where writes are refused, and where the starter takes the capability away.
        if !["kata", "readonly"].contains(&name) {
            expected.push(format!("{name} device"));
        }
        expected.push(format!("of {name}, {value}, {access}"));
    }
    expected.extend(OWN.map(|(name, .., value)| format!("of {name}, {value}")));
    expected.push("the end".to_owned());
    assert_eq!(guest.run(dir.path(), "virtio_pci virtiofs", &script, &arguments), expected);
    // Each ends with its machine, as virtiofsd does.
    for (name, mut server) in servers {
        assert_eq!(server.status(), Some(0), "{name}");
        assert_eq!(dir.path().join(name).join("new").exists(), name != "readonly", "{name}");
    }
    for (name, ..) in OWN {
        assert_profile(&dir.path().join(format!("{name}.svg")), &[" lookup "]);
    }
}

#[test]
fn queues_have_a_size_that_a_machine_takes() {
    let dir = scratch();
    for size in ["0", "64", "100", "384", "2048", "many"] {
        let mut command = Command::new(INARCH);
        command.args(["serve", "virtiofs", ".", "--socket", "s", "--queue-size", size]);
        let said = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
        assert_one_line(&said, &["--queue-size", size, "128, 256, 512 or 1024"]);
        assert!(!dir.path().join("s").exists(), "{size}");
    }
}

#[test]
fn what_it_cannot_do_is_refused_in_one_line() {
    let dir = scratch();
    for (line, parts) in [
        ("--socket-path s --shared-dir missing", &["missing", "No such file"][..]),
        ("--socket-path s --shared-dir . --xattrmap :map::user.:", &["--xattrmap", "not supported"]),
        ("--socket-path s --shared-dir . --uid-map :0:100000:65536:", &["--uid-map", "not supported"]),
        ("--socket-path s --shared-dir . --security-label", &["--security-label"]),
        ("--socket-path s --shared-dir . --translate-uid squash:1:2:3", &["translate-uid"]),
        ("--socket-path s --shared-dir . --modcaps=+sys_admin:-chown", &["--modcaps -chown", "only mknod"]),
        ("--socket-path s --shared-dir . --socket-group 4294967295", &["4294967295", "no such group"]),
        ("--socket-path s --shared-dir . --socket-group no-such-group", &["no-such-group", "no such group"]),
        ("--fd 77 --shared-dir .", &["descriptor 77", "not open"]),
        ("--fd 0 --shared-dir .", &["descriptor 0", "no Unix socket"]),
        ("--socket-path s -o cache=sometimes,source=.", &["sometimes"]),
        ("--socket-path s -o", &["-o", "missing"]),
        ("--socket-path s", &["shared-dir"]),
        ("--shared-dir .", &["socket-path"]),
        ("--socket-path s --shared-dir . --no-such-option", &["no-such-option"]),
        ("--socket-path s -o source=a,cache=auto -o source=/", &["a and /", "only one directory"]),
        ("--socket-path s --shared-dir a -o source=/", &["a and /", "only one directory"]),
    ] {
        let said = said(dir.path(), line);
        assert_status(&said, 125);
        assert_one_line(&said, parts);
        assert!(!dir.path().join("s").exists(), "{line}");
    }
    let capabilities = said(dir.path(), "--print-capabilities");
    assert_status(&capabilities, 0);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&stdout(&capabilities)).unwrap()["type"], "fs");
}

/// Others may write to the directory of the socket. Nothing but the socket gets its group and mode.
#[test]
fn nothing_else_gets_what_its_socket_gets() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: nothing_else_gets_what_its_socket_gets: not root");
        return;
    }
    let dir = scratch();
    let (secret, socket) = (dir.path().join("secret"), dir.path().join("s"));
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    for round in 0..8 {
        let link = dir.path().join("link");
        symlink(&secret, &link).unwrap();
        let swap = {
            let socket = socket.clone();
            std::thread::spawn(move || {
                while fs::symlink_metadata(&socket).is_err() {}
                fs::rename(link, socket).unwrap();
            })
        };
        let mut server = start(dir.path(), "s", "--socket-path s --shared-dir . --socket-group daemon");
        swap.join().unwrap();
        // It notices, or was done before.
        if !within(Duration::from_secs(2), || server.0.try_wait().unwrap().is_some()) {
            drop(server);
        }
        let metadata = fs::metadata(&secret).unwrap();
        assert_eq!((metadata.gid(), metadata.permissions().mode() & 0o777), (0, 0o600), "round {round}");
        let _ = fs::remove_file(&socket);
    }
}

#[test]
fn its_socket_is_for_the_group_that_is_named() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: its_socket_is_for_the_group_that_is_named: not root");
        return;
    }
    let dir = scratch();
    let mut server = start(dir.path(), "s", "--socket-path s --shared-dir . --socket-group daemon");
    let socket = dir.path().join("s");
    let is_given = || fs::metadata(&socket).is_ok_and(|socket| socket.permissions().mode() & 0o777 == 0o660);
    assert!(within(LONG, is_given));
    let metadata = fs::metadata(&socket).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.gid().to_string(), host("sh", &["-c", "getent group daemon | cut -d: -f3"], dir.path()).trim());
    host("kill", &[&server.0.id().to_string()], dir.path());
    assert_eq!(server.status(), Some(0));
    assert!(!socket.exists());
}
