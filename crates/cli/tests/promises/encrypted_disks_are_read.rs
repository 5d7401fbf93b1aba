//! Promise: what lies in LUKS volumes is read with their key, as cryptsetup and QEMU wrote it, and nothing without it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, LONG, assert_one_line, assert_status, host, inarch, scratch, stdout, within};

/// A guest's root in `plain`, a file system of 16 MiB, and keys.
fn prepare(dir: &Path) {
    let script = "mkdir -p root/etc root/home root/data
        echo NAME=Guest > root/etc/os-release
        printf 'LABEL=rootfs / ext4 x 0 0\\n/dev/mapper/data /data ext4 x 0 0\\n' > root/etc/fstab
        head -c 3000000 /dev/urandom > root/random
        truncate -s 16M plain; /sbin/mkfs.ext4 -q -b 4096 -d root -L rootfs plain
        printf secret > key; echo secret > line; printf wrong > wrong";
    host("sh", &["-ec", script], dir);
}

/// Encrypts `plain` into `name` where it is, without a device: cryptsetup shifts the data by half of the room at the end.
fn encrypt(dir: &Path, name: &str, options: &str) {
    let script = format!(
        "cp plain {name}; truncate -s 32M {name}
        cryptsetup reencrypt --encrypt --type luks2 --reduce-device-size 16M --key-file key -q {options} {name}"
    );
    host("sh", &["-ec", &script], dir);
}

/// Checks that a volume has what `plain` has, and nothing with another key or without one.
fn assert_opens(dir: &Path, image: &str) {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    for key in ["key", "line"] {
        let output = inarch(["disk", "cat", "--key", &at(key), &at(image), "random"]);
        assert_status(&output, 0);
        assert!(output.stdout == fs::read(at("root/random")).unwrap(), "{image} with {key}");
    }
    let output = inarch(["disk", "cat", "--key", &at("wrong"), &at(image), "random"]);
    assert_status(&output, 125);
    assert_one_line(&output, &[image, "no key that was given opens it"]);
    let output = inarch(["disk", "cat", &at(image), "random"]);
    assert_status(&output, 125);
    assert_one_line(&output, &[image, "--key FILE"]);
}

#[test]
fn of_luks2() {
    let dir = scratch();
    prepare(dir.path());
    let fast = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    let argon = "--pbkdf-memory 32768 --pbkdf-force-iterations 4";
    for (name, options) in [
        ("short", format!("{fast} --sector-size 512 -s 256")),
        ("long", format!("--pbkdf argon2id {argon} --sector-size 4096 -s 512 --hash sha512 --label crypt")),
        ("other", format!("--pbkdf argon2i {argon} --cipher aes-cbc-essiv:sha256 -s 256 --hash sha1")),
    ] {
        encrypt(dir.path(), name, &options);
        assert_opens(dir.path(), name);
    }
    let listed = stdout(&inarch(["disk", "list", dir.path().join("long").to_str().unwrap()]));
    assert!(listed.contains("crypto_LUKS, label crypt, UUID "), "{listed}");
}

#[test]
fn of_luks1() {
    let dir = scratch();
    prepare(dir.path());
    for cipher in ["aes-xts-plain64", "aes-xts-plain", "aes-cbc-essiv:sha256", "aes-cbc-plain64"] {
        for hash in ["sha1", "sha256", "sha512"] {
            let script = format!(
                "truncate -s 20M image
                cryptsetup luksFormat -q --type luks1 --cipher {cipher} -s 256 --hash {hash} --pbkdf-force-iterations 1000 --key-file key image
                qemu-img convert -n --object secret,id=s,file=key -f raw --target-image-opts plain driver=luks,file.filename=image,key-secret=s"
            );
            host("sh", &["-ec", &script], dir.path());
            assert_opens(dir.path(), "image");
            fs::remove_file(dir.path().join("image")).unwrap();
        }
    }
    // qemu-img measures how many iterations fit into the time, and gives up where the clock of its thread stands still
    // meanwhile ("Unable to get accurate CPU usage"), as it does on a busy machine.
    let convert = "for attempt in 1 2 3 4 5 6 7 8; do
            qemu-img convert --object secret,id=s,file=key -f raw -O luks -o key-secret=s,iter-time=10 plain image && exit
            sleep 0.$attempt
        done
        exit 1";
    host("sh", &["-ec", convert], dir.path());
    assert_opens(dir.path(), "image");
}

/// A disk with an encrypted root and another encrypted volume, and the keys by which they are opened.
#[test]
fn on_the_disk_of_a_guest() {
    let dir = scratch();
    prepare(dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let script = "fast='--type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 -q'
        mkdir more; echo more > more/file; printf another > second
        truncate -s 4M data; /sbin/mkfs.ext4 -q -b 4096 -d more data; truncate -s 20M data
        cryptsetup reencrypt --encrypt --reduce-device-size 16M --key-file second $fast data
        uuid=$(cryptsetup luksUUID data); echo data UUID=$uuid none luks > root/etc/crypttab
        rm plain; truncate -s 16M plain; /sbin/mkfs.ext4 -q -b 4096 -d root -L rootfs plain; truncate -s 32M plain
        cryptsetup reencrypt --encrypt --reduce-device-size 16M --key-file key $fast plain
        truncate -s 64M disk; printf 'label: gpt\\nsize=33M\\nsize=21M\\n' | /sbin/sfdisk -q disk
        dd if=plain of=disk bs=1M seek=1 conv=notrunc status=none; dd if=data of=disk bs=1M seek=34 conv=notrunc status=none";
    host("sh", &["-ec", script], dir.path());
    let disk = at("disk");
    let both = ["--key", &format!("1={}", at("key")), "--key", &format!("2={}", at("second"))];
    let said = |arguments: &[&str]| {
        let output = inarch(arguments);
        assert_status(&output, 0);
        stdout(&output)
    };
    assert_eq!(said(&[&["disk", "cat"][..], &both, &[&disk, "/data/file"]].concat()), "more\n");
    let inspected = said(&[&["disk", "inspect"][..], &both, &[&disk]].concat());
    let line = inspected.lines().find(|line| line.contains("/dev/mapper/data")).expect(&inspected);
    assert!(line.contains("/dev/mapper/luks-"), "{inspected}");
    let listed = said(&[&["disk", "list"][..], &both, &[&disk]].concat());
    assert_eq!(listed.lines().filter(|line| line.contains("luks2") && line.contains("ext4")).count(), 2, "{listed}");
    // One by its name; the other one stays locked, which a line says.
    let key = at("key");
    assert_eq!(said(&["disk", "ls", "--key", &key, &format!("{disk}:1"), "/etc"]), "crypttab\nfstab\nos-release\n");
    let output = inarch(["disk", "ls", "--key", &key, &disk, "/data"]);
    assert_status(&output, 0);
    assert_eq!((stdout(&output), output.stderr.is_empty()), (String::new(), false));
    assert_status(&inarch(["disk", "list", "--key", &key, &disk]), 1);
    // By standard input, which has one key: an image, and two disks.
    let first = format!("{disk}:1");
    for words in [&["image", "--key=-", &first, "-o", &at("out.tar")][..], &["disk", "diff", "--key=-", &first, &first]]
    {
        let mut child = Command::new(INARCH).args(words).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"secret\n").unwrap();
        let output: Output = child.wait_with_output().unwrap();
        assert_status(&output, 0);
    }
    assert!(host("tar", &["tf", "out.tar"], dir.path()).contains("random"));
}

#[test]
fn or_refused_in_one_line() {
    let dir = scratch();
    prepare(dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let no_key = inarch(["disk", "ls", "--key", &at("none"), &at("plain")]);
    assert_status(&no_key, 125);
    assert_one_line(&no_key, &["none", "cannot read the key"]);
    let no_luks = inarch(["disk", "ls", "--key", &at("key"), &at("plain")]);
    assert_status(&no_luks, 125);
    assert_one_line(&no_luks, &["plain", "leave --key out"]);
}

/// What is in the memory of a process that has a key is not written when it crashes.
#[test]
fn and_their_keys_are_in_no_core_file() {
    let dir = scratch();
    prepare(dir.path());
    encrypt(dir.path(), "volume", "--pbkdf pbkdf2 --pbkdf-force-iterations 1000");
    // It waits for the passphrase of a second volume, with the first one in its memory.
    let script = "ulimit -S -c unlimited; exec \"$0\" disk ls --key key --key 2=- volume";
    let mut command = Command::new("sh");
    command
        .args(["-c", script, INARCH])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let limits = format!("/proc/{}/limits", child.id());
    let is_none = || {
        let limits = fs::read_to_string(&limits).unwrap();
        limits.lines().any(|line| line.starts_with("Max core file size") && line.split_whitespace().nth(4) == Some("0"))
    };
    let has_none = within(LONG, is_none);
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(has_none);
}
