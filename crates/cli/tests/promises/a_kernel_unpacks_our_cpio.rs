//! Promise: a cpio archive of inarch is an initramfs: a kernel unpacks it at boot, and finds the whole tree in it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::{assert_status, host, inarch, scratch};

/// What a kernel has of its own in its root, and one of everything that a cpio can hold.
const TREE: &str = r#"
    mkdir -p tree/bin tree/dev tree/dir/deeper tree/empty tree/many; mkdir -m 700 tree/root; cd tree
    cp /bin/busybox bin/; for tool in sh find sort tr xargs stat sha1sum poweroff; do ln -s busybox bin/$tool; done
    mknod -m 600 dev/console c 5 1; mknod null c 1 3; mknod -m 640 disk b 259 70000; mkfifo -m 620 fifo
    : > nothing; printf x > one; seq 200000 > numbers; head -c 4096 /dev/urandom > page; truncate -s 300000 hole
    ln numbers dir/hard; ln numbers dir/deeper/hard; ln nothing dir/none; ln -s ../one dir/link; ln -s nowhere dangling
    ln -s "$(printf 't/%.0s' $(seq 1000))t" long; echo d > "dir/$(printf 'd%.0s' $(seq 200))"; echo ü > ' ü "quoted" '
    for i in $(seq 50); do echo $i > many/$i; done; chown 1000:70000 page; chown -h 7:8 dangling
    chmod 6755 one; chmod 0 nothing; chmod 1777 empty; find . -exec touch -h -d @1234567890 {} +"#;

/// Lists a directory, but for the sizes of directories, which each file system counts in its own way, and for the
/// console, which has just been written to.
const LIST: &str = "find . -xdev -type d | sort | tr '\\n' '\\0' | xargs -0 stat -c '%n %f %u %g %Y'
    find . -xdev ! -type d ! -path ./dev/console | sort | tr '\\n' '\\0' | xargs -0 stat -c '%N %f %u %g %h %s %t:%T %Y'
    find . -xdev -type f | sort | tr '\\n' '\\0' | xargs -0 sha1sum";

/// The newest of Debian's kernels.
fn kernel() -> Option<PathBuf> {
    let entries = std::fs::read_dir("/boot").ok()?;
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz-"));
    paths.filter(is_kernel).max()
}

#[test]
fn and_finds_the_whole_tree_in_it() {
    let Some(kernel) = kernel() else {
        eprintln!("skipped: and_finds_the_whole_tree_in_it: there is no kernel in /boot");
        return;
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: and_finds_the_whole_tree_in_it: device nodes and owners: they need root");
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    host("sh", &["-euc", TREE], dir);
    let tree = dir.join("tree");
    let init = format!("#!/bin/sh\necho; echo BEGIN; {LIST}\necho END; poweroff -f\n");
    std::fs::write(tree.join("init"), init).unwrap();
    host("chmod", &["755", "init"], &tree);
    host("touch", &["-d", "@1234567890", "."], &tree);
    let mut shell = Command::new("/bin/busybox");
    let shell = shell.args(["sh", "-c", LIST]).env("PATH", tree.join("bin")).current_dir(&tree);
    let expected = shell.output().unwrap();
    let expected = String::from_utf8_lossy(&expected.stdout).into_owned();

    let image = dir.join("initramfs.cpio");
    assert_status(&inarch(["image", "--quiet", tree.to_str().unwrap(), "-o", image.to_str().unwrap()]), 0);
    let machine = Command::new("timeout")
        .args(["180", "qemu-system-x86_64", "-accel", "tcg", "-cpu", "max", "-m", "512", "-nographic", "-no-reboot"])
        .args(["-append", "console=ttyS0 quiet panic=-1 random.trust_cpu=on", "-net", "none"])
        .arg("-kernel")
        .arg(&kernel)
        .arg("-initrd")
        .arg(&image)
        .stdin(Stdio::null())
        .output()
        .expect("QEMU is installed");
    let console = String::from_utf8_lossy(&machine.stdout).replace("\r\n", "\n");
    let found = console.split("BEGIN\n").nth(1).and_then(|text| text.split("END\n").next());
    let found = found.unwrap_or_else(|| panic!("the guest does not say it: {console}"));
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count(), "{found}");
    assert!(expected.lines().count() > 120, "{expected}");
}
