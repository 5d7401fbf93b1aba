//! Promise: guests' writes to an overlay over a shared directory (`serve virtiofs`, `serve 9p`, with `--overlay` or
//! `--ephemeral`) leave the directory unchanged, are kept or thrown away as requested, and can be used like files of
//! the directory.

use std::fs;
use std::path::Path;

use crate::support::bare_guest::BareGuest;
use crate::support::served::Served;
use crate::support::{INARCH, NINEP_CLIENT, assert_one_line, host, inarch, manifest_program, scratch};

/// The same share is mounted by two machines, as far as its server knows. Each sees what the other writes after a second at most; then
/// one of them goes, and the other goes on with what it has open, removed files among it.
const GOES: &str = "mkdir /second; mount -t virtiofs second /second
    echo old > /mnt/changed; echo unlinked > /mnt/unlinked; echo and more > /second/more
    first=$(cat /second/changed); echo newer > /mnt/changed; sleep 2; echo report seen: $first $(cat /second/changed)
    echo 3 > /proc/sys/vm/drop_caches; cd /mnt/new; exec 3< /mnt/changed 4< /mnt/unlinked 5< made
    rm /mnt/unlinked /second/new/linked; umount /second
    echo report left: $(cat <&3) $(cat <&4) $(cat <&5) $(cat ../more); rm ../changed ../more; ln made linked";

/// What a guest does in the share that is mounted at `/mnt`.
const WORK: &str =
    "cd /mnt; cat file dir/inner | tr '\\n' ' ' > /word; exec 6<> gone/deep/x; rm file; mv dir/inner dir/moved; echo more >> dir/moved
    mkdir new; echo made > new/made; ln new/made new/linked; chmod 600 dir/moved; rm -r gone; mkdir gone; echo over >&6; cat /proc/self/fd/6 > /used; exec 6<&-; cd /
    echo \"report $1: $(cat /word)$(cd /mnt; find . | sort | xargs)  $(cat /mnt/dir/moved /used | xargs)\"";

fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("tree/dir")).unwrap();
    fs::create_dir_all(dir.join("tree/gone/deep")).unwrap();
    for (path, text) in [("file", "one\n"), ("dir/inner", "two\n"), ("gone/deep/x", "three\n")] {
        fs::write(dir.join("tree").join(path), text).unwrap();
    }
}

fn serve(dir: &Path, arguments: &[&str]) -> Served {
    Served::start(dir, &[&["serve"], arguments].concat())
}

/// The whiteouts and files of an upper layer.
fn upper(dir: &Path, name: &str) -> String {
    host(
        "sh",
        &["-c", &format!("cd {name}/upper && find . -type c -printf '%p gone\\n' -o -type f -printf '%p\\n' | sort")],
        dir,
    )
}

const WRITTEN: &str = "./dir/inner gone\n./dir/moved\n./file gone\n./new/linked\n./new/made\n";

#[test]
fn by_virtiofs() {
    let Some(guest) = BareGuest::or_skip("by_virtiofs") else { return };
    let dir = scratch();
    tree(dir.path());
    let program = manifest_program(dir.path());
    let manifest = || host("python3", &[program.to_str().unwrap(), "."], &dir.path().join("tree"));
    let before = manifest();
    let thrown = dir.path().join("thrown");
    fs::create_dir(&thrown).unwrap();
    let of = |name: &'static str, options: &[&'static str]| {
        [&["virtiofs", "tree", "--socket", name, "--tag", name], options].concat()
    };
    let shares = [
        of("kept", &["--overlay", "upper"]),
        of("alone", &["--overlay", "alone-upper", "--changes", "guest"]),
        of("ephemeral", &["--ephemeral", "--overlay-dir", "thrown"]),
        of("memory", &["--ephemeral", "--in-memory", "16M", "--changes", "none"]),
    ];
    let servers: Vec<Served> = shares.iter().map(|arguments| serve(dir.path(), arguments)).collect();
    // Another machine's device, for all that the server knows.
    let second = ["virtiofs", "tree", "--socket", "kept", "--tag", "second", "--overlay", "upper"];
    let mut devices = String::new();
    for share in shares.iter().map(|share| &share[..]).chain([&second[..]]) {
        devices +=
            &host(INARCH, &[&["serve"], share, &["--print-qemu-args", "--qemu-memory", "none"]].concat(), dir.path())
                .replace('\n', " ");
    }
    let each = "for tag in kept alone ephemeral memory; do mount -t virtiofs $tag /mnt; /work $tag; umount /mnt; done\n\
                mount -t virtiofs kept /mnt; echo \"report again $(cat /mnt/new/linked) $(ls /mnt | xargs)\"";
    let script = format!("cat > /work <<'end'\n#!/bin/sh\n{WORK}\nend\nchmod +x /work\n{each}\n{GOES}");
    let reports = guest.run(dir.path(), "virtio_pci virtiofs", &script, &devices);
    let seen = "one two . ./dir ./dir/moved ./gone ./new ./new/linked ./new/made two more over";
    for (tag, report) in ["kept", "alone", "ephemeral", "memory"].iter().zip(&reports) {
        let report = report.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(report, format!("{tag}: {seen}"));
    }
    assert_eq!(reports[4], "again made dir gone new");
    assert_eq!(reports[5..7], ["seen: old newer", "left: newer unlinked made and more"]);
    assert!(fs::read_dir(&thrown).unwrap().next().is_some(), "writes that are to be thrown away are there meanwhile");
    servers.into_iter().for_each(Served::end);
    assert_eq!(manifest(), before);
    assert_eq!((upper(dir.path(), "upper"), upper(dir.path(), "alone-upper")), (WRITTEN.into(), WRITTEN.into()));
    assert!(fs::read_dir(&thrown).unwrap().next().is_none(), "thrown-away writes are left behind");
}

#[test]
fn by_9p() {
    let dir = scratch();
    tree(dir.path());
    let arguments = ["9p", "tree", "--socket", "socket", "--overlay", "upper"];
    let work = |script: &str| {
        let server = serve(dir.path(), &arguments);
        let script = format!("{NINEP_CLIENT}\nclient = NinepClient('socket')\n{script}");
        let said = host("python3", &["-c", &script], dir.path());
        server.end();
        said
    };
    let first = "f = client.walk('file'); client.open(f, os.O_RDWR); client.write(f, b'ONE'); print(client.read(f))\n\
                 n = client.create('made'); client.write(n, b'new'); print(client.size(client.walk('made')))";
    assert_eq!(work(first), "b'ONE\\n'\n3\n");
    // It is still there for the next server, and the directory is as it was.
    let second = "f = client.walk('file'); client.open(f); print(client.read(f), client.size(client.walk('made')))";
    assert_eq!(work(second), "b'ONE\\n' 3\n");
    assert_eq!(fs::read(dir.path().join("tree/file")).unwrap(), b"one\n");
    assert!(!dir.path().join("tree/made").exists());
    assert_eq!(upper(dir.path(), "upper"), "./file\n./made\n");
}

#[test]
fn what_belongs_to_another_directory_gets_one_line() {
    let dir = scratch();
    tree(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let server = serve(dir.path(), &["9p", "tree", "--socket", "socket", "--overlay", "upper"]);
    let again = ["serve", "9p", &path("tree"), "--socket", &path("other"), "--overlay", &path("upper")];
    assert_one_line(&inarch(again), &["another inarch keeps writes there"]);
    server.end();
    let another = ["serve", "virtiofs", &path("tree/dir"), "--socket", &path("other"), "--overlay", &path("upper")];
    assert_one_line(&inarch(another), &["it has those over", "tree", "name another directory"]);
    let contrary = ["serve", "9p", &path("tree"), "--socket", &path("other"), "--overlay", &path("upper"), "--ro"];
    assert_one_line(&inarch(contrary), &["--overlay", "--ro"]);
    assert!(!Path::new(&path("other")).exists());
}
