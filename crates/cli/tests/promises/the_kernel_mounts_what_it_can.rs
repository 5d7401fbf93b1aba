//! Promise: as root, the kernel serves a mount by itself wherever it can do what is asked for, and the line at the start says why where
//! it does not; either way means the same, and one takes up what the other left.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crate::support::mounted::{Scene, Server, is_mount_point, is_mounted, is_there, last_process, unmount};
use crate::support::{LONG, assert_one_line, assert_status, host, stderr, stdout, within};

/// Whether only root's mounts can be tested.
fn is_user(test: &str) -> bool {
    let is_user = !rustix::process::geteuid().is_root();
    if is_user {
        println!("skipped: {test}: only root mounts by the kernel");
    }
    is_user
}

/// The type of the file system that is mounted on `point` in `dir`, and its options.
fn kind(dir: &Path) -> (String, String) {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let point = format!(" {} ", dir.join("point").display());
    let line = table.lines().find(|line| line.contains(&point)).unwrap();
    let options = line.split(' ').nth(5).unwrap().to_owned();
    (line.split_once(" - ").unwrap().1.split(' ').next().unwrap().to_owned(), options)
}

#[test]
fn what_can_be_is_the_kernels_and_for_all_else_there_is_a_reason() {
    if is_user("what_can_be_is_the_kernels_and_for_all_else_there_is_a_reason") {
        return;
    }
    let scene = Scene::new();
    host("tar", &["-cf", "tree.tar", "tree"], scene.path());
    host("tar", &["-czf", "tree.tar.gz", "tree"], scene.path());
    for (source, options, reason) in [
        ("tree", "", ""),
        ("tree", "--ro", ""),
        ("tree", "--cross", ""),
        ("tree", "--changes guest", ""),
        ("tree", "--locks host", ""),
        ("tree", "--owner map", ""),
        ("tree", "--map-uid 7:8:1 --map-uid 8:7:1", ""),
        ("tree", "--ephemeral", ""),
        ("tree", "--ephemeral --in-memory 1M", ""),
        ("tree", "--overlay over", ""),
        ("tree", "--overlay over --changes guest --nodev", ""),
        ("tree", "--overlay over --changes host", "--changes host and --overlay"),
        ("tree", "--record record", "--record"),
        ("tree", "--nodev", "--nosuid or --nodev"),
        ("tree", "--map-uid 7:8:1", "several owners are seen as one"),
        ("tree", "--owner 1:2", "several owners are seen as one"),
        ("tree", "--overlay over --map-uid 7:8:1", "other owners and --overlay"),
        ("tree.tar", "", ""),
        ("tree.tar", "--ephemeral", ""),
        ("tree.tar", "--overlay over-archive", ""),
        ("tree.tar.gz", "", "it is compressed"),
        ("tree.tar", "--map-uid 7:8:1 --map-uid 8:7:1", "other owners of an archive"),
    ] {
        let words: Vec<&str> = options.split_whitespace().collect();
        let mut server = Server::start(scene.path(), source, &words);
        let (found, flags) = kind(scene.path());
        assert_eq!(found == "fuse.inarch", !reason.is_empty(), "{source} {options}: {found}");
        assert!(flags.contains("nosuid,nodev"), "{options}: {flags}");
        let way = if reason.is_empty() { "; by the kernel".to_owned() } else { format!("; by FUSE ({reason})") };
        assert!(server.line.trim_end().ends_with(&way), "{source} {options}: {}", server.line);
        assert!(fs::exists(scene.path().join("point/file")).unwrap() || source.starts_with("tree.tar"));
        assert_eq!(server.end("-TERM"), Some(0));
        let refused =
            scene.shell(&format!("exec timeout 60 $INARCH mount {source} point {options} --via kernel -b --log log"));
        if reason.is_empty() {
            assert_status(&refused, 0);
            assert_status(&scene.shell("$INARCH umount point"), 0);
        } else {
            assert_one_line(&refused, &["--via kernel: the kernel cannot do that by itself: ", reason]);
        }
        assert!(!is_mounted(scene.path()));
    }
}

#[test]
fn what_is_mounted_beneath_shows_nothing_that_it_hides() {
    if is_user("what_is_mounted_beneath_shows_nothing_that_it_hides") {
        return;
    }
    let scene = Scene::new();
    let tree = scene.path().join("tree");
    fs::create_dir(tree.join("sub")).unwrap();
    fs::write(tree.join("sub/hidden"), "").unwrap();
    host("mount", &["-t", "tmpfs", "tmpfs", "tree/sub"], scene.path());
    fs::write(tree.join("sub/seen"), "seen").unwrap();
    let found = |options: &str| {
        let used = scene
            .shell(&format!("$INARCH mount -qb tree point {options} && ls point/sub && $INARCH umount point; echo $?"));
        (stdout(&used), stderr(&used))
    };
    let plain = ["", "--ephemeral --overlay-dir .", "--ro"].map(found);
    let crossed = ["--cross", "--cross --ro", "--cross --via kernel"].map(found);
    // What is in use there keeps the whole.
    let used = scene.shell(
        "$INARCH mount -qb tree point --cross && (cd point/sub && ! $INARCH umount ../../point 2> ../../said) && grep -o 'in use by .*' said
         ls point/sub; $INARCH umount -q --lazy point; ls point",
    );
    unmount(&scene.path().join("tree/sub"));
    assert_eq!(plain, [(); 3].map(|()| ("0\n".to_owned(), String::new())));
    assert_eq!(crossed, [(); 3].map(|()| ("seen\n0\n".to_owned(), String::new())));
    assert!(stdout(&used).contains("sh (") && stdout(&used).ends_with("\nseen\n"), "{}", stdout(&used));
    assert!(!is_mounted(scene.path()) && !is_mount_point(&scene.path().join("point/sub")));
    assert!(tree.join("sub/hidden").exists());
}

#[test]
fn owners_are_mapped_by_the_kernel_where_no_two_become_one() {
    if is_user("owners_are_mapped_by_the_kernel_where_no_two_become_one") {
        return;
    }
    let scene = Scene::new();
    chown(scene.path().join("tree/file"), Some(100_007), Some(100_008)).unwrap();
    for via in ["kernel", "fuse"] {
        let maps = ["100000:0:65536", "0:100000:65536"].map(|map| format!("--map-uid {map} --map-gid {map}")).join(" ");
        let used = scene.shell(&format!(
            "$INARCH mount -qb tree point {maps} --via {via} && stat -c %u:%g point/file && chmod 777 point && touch point/{via} &&
             setpriv --reuid 7 --regid 8 --clear-groups sh -c 'echo >> point/file && touch point/{via}-7'
             $INARCH umount point"
        ));
        assert_eq!((stdout(&used).as_str(), stderr(&used).as_str()), ("7:8\n", ""), "{via}");
        let owner =
            |name: &str| fs::metadata(scene.path().join("tree").join(name)).map(|it| (it.uid(), it.gid())).unwrap();
        assert_eq!((owner(via), owner(&format!("{via}-7"))), ((100_000, 100_000), (100_007, 100_008)));
    }
}

#[test]
fn what_is_in_use_keeps_its_layer_to_itself() {
    if is_user("what_is_in_use_keeps_its_layer_to_itself") {
        return;
    }
    let scene = Scene::new();
    assert_status(&scene.shell("$INARCH mount -b tree point --overlay over --via kernel"), 0);
    let server = last_process(&scene.usual_log());
    let file = fs::File::create(scene.path().join("point/new")).unwrap();
    host("kill", &[&server.to_string()], scene.path());
    assert!(within(LONG, || !is_mounted(scene.path())));
    let second = scene.shell("$INARCH mount -b tree point --overlay over; echo $?");
    let is_first_there = is_there(server);
    drop(file);
    assert!(is_first_there && within(LONG, || !is_there(server)));
    assert_eq!(stdout(&second), "125\n");
    assert!(stderr(&second).contains("another inarch keeps writes there"), "{}", stderr(&second));
    let third = scene.shell("$INARCH mount -b tree point --overlay over && ls point && $INARCH umount point");
    assert_eq!(stdout(&third), "file\nnew\n");
}

/// The files that loop devices have.
fn looped(dir: &Path) -> Vec<String> {
    let devices = fs::read_dir("/sys/block").unwrap().flatten();
    let files = devices.filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    files.filter(|file| file.starts_with(dir.to_str().unwrap())).collect()
}

#[test]
fn an_archive_is_as_it_was_packed() {
    if is_user("an_archive_is_as_it_was_packed") {
        return;
    }
    let scene = Scene::via("kernel");
    let make = "set -e; cd tree; mkdir -p many 'a b/c/d' empty; for n in $(seq 700); do echo $n > many/$n-$(printf %0$((n % 240))d 0); done
        ln -s $(printf %01000d 7) long; ln -s file short; ln file hard; mkfifo fifo; mknod device c 1 3; printf '' > nothing; echo x > 'a b/c/x'
        truncate -s 3M holes; printf x | dd of=holes bs=1 seek=1500000 conv=notrunc status=none; chmod 4711 file
        head -c 3000001 /dev/urandom > large; mkdir $(printf %0255d 1); cd ..
        tar --format=gnu -C tree -cf tree.tar .; tar --format=gnu -C tree --sparse -cf sparse.tar .";
    host("sh", &["-c", make], scene.path());
    let list = |root: &str| {
        let script = format!(
            "cd '{root}' && find . -printf '%p %y %m %U:%G %l %Ts ' \\( -type d -printf '\\n' -o -printf '%n %s\\n' \\) | sort &&
             find . -type f -print0 | sort -z | xargs -0 sha256sum"
        );
        host("sh", &["-c", &script], scene.path())
    };
    for (archive, part) in [
        ("tree.tar", "tree"),
        ("sparse.tar", "tree"),
        ("tree.tar:/many", "tree/many"),
        ("sparse.tar:/a b/c", "tree/a b/c"),
    ] {
        let expected = list(part);
        for options in ["", "--ephemeral --overlay-dir ."] {
            assert_status(&scene.shell(&format!("$INARCH mount -qb '{archive}' point {options}")), 0);
            let found = list("point");
            let wrong: Vec<&str> = found.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
            assert_status(&scene.shell("$INARCH umount point"), 0);
            assert_eq!((wrong, found.lines().count()), (vec![], expected.lines().count()), "{archive} {options}");
        }
    }
    assert!(within(LONG, || looped(scene.path()).is_empty()));
}

#[test]
fn an_archive_that_is_written_to_is_an_error_and_is_named() {
    if is_user("an_archive_that_is_written_to_is_an_error_and_is_named") {
        return;
    }
    for (options, change) in [
        ("", "printf new | dd of=tree.tar bs=1 seek=20000000 conv=notrunc status=none"),
        ("", ": > tree.tar"),
        ("--ephemeral --overlay-dir .", "yes | dd of=tree.tar bs=1M count=40 status=none iflag=fullblock"),
    ] {
        let scene = Scene::via("kernel");
        host("sh", &["-c", "yes old | head -c 32M > tree/large && tar -cf tree.tar tree"], scene.path());
        let mounted = format!("$INARCH mount -b tree.tar point {options} --log log && head -c 8 point/tree/large");
        let mounted = scene.shell(&mounted);
        assert_eq!((assert_status(&mounted, 0), stdout(&mounted).as_str()), ((), "old\nold\n"));
        let server = last_process(&scene.path().join("log"));
        // Somebody reads all the time, what the kernel does not keep in memory, and finds what was there or an error.
        let changed = scene.shell(&format!(
            "(while cat point/tree/large && dd if=point/tree/large iflag=nocache count=0 status=none; do :; done 2> error | tr -d 'old\\n' | head -c 100 > other) & sleep 0.2
             timeout 30 sh -c '{change}' && echo changed; wait; cat error other; cat log"
        ));
        let text = stdout(&changed);
        assert!(
            text.starts_with("changed\ncat: point/tree/large: Input/output error\n"),
            "{text} {}",
            stderr(&changed)
        );
        assert!(text.contains("tree.tar: somebody writes to it while it is mounted"), "{text}");
        assert_eq!(fs::metadata(scene.path().join("other")).unwrap().len(), 0, "{text}");
        assert_status(&scene.shell("$INARCH umount point"), 0);
        assert!(!is_mounted(scene.path()) && !is_there(server) && within(LONG, || looped(scene.path()).is_empty()));
    }
}

#[test]
fn a_killed_server_leaves_no_archive_in_use() {
    if is_user("a_killed_server_leaves_no_archive_in_use") {
        return;
    }
    let scene = Scene::via("kernel");
    host("tar", &["-cf", "tree.tar", "tree"], scene.path());
    for options in ["", "--ephemeral --overlay-dir ."] {
        let mounted =
            scene.shell(&format!("$INARCH mount -b tree.tar point {options} --log log && cat point/tree/file"));
        assert_eq!((assert_status(&mounted, 0), stdout(&mounted).as_str()), ((), "content"));
        assert_eq!(looped(scene.path()).len(), 1);
        host("kill", &["-KILL", &last_process(&scene.path().join("log")).to_string()], scene.path());
        assert!(within(LONG, || !is_mounted(scene.path()) && looped(scene.path()).is_empty()), "something is left");
        // Nobody waits for a lease that is left.
        assert_status(&scene.shell("timeout 20 sh -c ': >> tree.tar'"), 0);
    }
    // The kernel refuses to mount an archive that a process has open for writing.
    let used = scene.shell("exec 3>> tree.tar; timeout 60 $INARCH mount tree.tar point");
    assert_one_line(&used, &["--via kernel", "somebody has it open for writing"]);
}

/// However the server ends, and whatever of it is killed first.
#[test]
fn what_an_ended_server_leaves_in_use_shows_nothing_that_is_written_later() {
    if is_user("what_an_ended_server_leaves_in_use_shows_nothing_that_is_written_later") {
        return;
    }
    let (killed, stopped) = ("kill -KILL $server", "kill -TERM $server");
    let without_guard = "kill -KILL $(pgrep -P $server) && kill -TERM $server";
    for (options, end, ends) in [
        ("", killed, true),
        ("--ephemeral --overlay-dir .", killed, true),
        ("", stopped, true),
        ("", without_guard, true),
        ("", "umount --lazy point", false),
        ("", "$INARCH umount --lazy point", false),
        ("--ephemeral --overlay-dir .", "$INARCH umount --lazy point", false),
    ] {
        let scene = Scene::via("kernel");
        host("sh", &["-c", "yes old | head -c 32M > tree/large && tar -cf tree.tar tree"], scene.path());
        assert_status(&scene.shell(&format!("$INARCH mount -b tree.tar point {options} --log log")), 0);
        let server = last_process(&scene.path().join("log"));
        // It reads the first bytes, and the rest only when the archive has changed.
        let changed = scene.shell(&format!(
            "exec 3< point/tree/large; head -c 8 <&3; server={server}; {end} 2> said
             while {{ {ends} && test -d /proc/{server}; }} || ls point/* > list 2>&1; do sleep 0.1; done
             timeout 20 sh -c 'yes new | dd of=tree.tar bs=1M count=33 conv=notrunc status=none iflag=fullblock' && echo written
             cat <&3 > rest 2> error; tr -d 'old\\n' < rest | head -c 100 > other; cat error"
        ));
        let text = stdout(&changed);
        assert!(text.starts_with("old\nold\nwritten\n"), "{end} {options}: {text} {}", stderr(&changed));
        assert!(text.contains("Input/output error"), "{end} {options}: {text}");
        assert_eq!(fs::read(scene.path().join("other")).unwrap(), b"", "{end} {options}: {text}");
        assert!(!is_mounted(scene.path()) && within(LONG, || looped(scene.path()).is_empty() && !is_there(server)));
    }
}

/// What lies there can change without a call of this kernel's that a lease would hold back.
#[test]
fn an_archive_where_leases_guard_nothing_is_no_matter_for_the_kernel() {
    if is_user("an_archive_where_leases_guard_nothing_is_no_matter_for_the_kernel") {
        return;
    }
    let scene = Scene::new();
    host("tar", &["-cf", "tree.tar", "tree"], scene.path());
    for (kind, mounted) in [
        ("overlay", "mount -t overlay over over -o lowerdir=lower,upperdir=upper,workdir=work"),
        ("fuse.inarch", "$INARCH mount -qb lower over --via fuse"),
    ] {
        let made = format!("mkdir -p lower upper work over; cp tree.tar lower && {mounted}");
        assert_status(&scene.shell(&made), 0);
        let refused = scene.shell("timeout 60 $INARCH mount over/tree.tar point --via kernel");
        let chosen = scene
            .shell("$INARCH mount -b over/tree.tar point --via auto && cat point/tree/file && $INARCH umount point");
        let cleared = scene.shell("umount over");
        assert_status(&cleared, 0);
        let reason = format!("it lies on {kind}, where it can change in spite of a lease");
        assert_one_line(&refused, &["--via kernel: the kernel cannot do that by itself: ", &reason]);
        assert_eq!((assert_status(&chosen, 0), stdout(&chosen).as_str()), ((), "content"));
        assert!(stderr(&chosen).contains(&format!("; by FUSE ({reason})")), "{}", stderr(&chosen));
    }
}

/// A few bytes of an archive can say that a file has a map of any size.
#[test]
fn an_archive_of_holes_takes_no_memory_of_the_kernels() {
    if is_user("an_archive_of_holes_takes_no_memory_of_the_kernels") {
        return;
    }
    let scene = Scene::new();
    let pack = |size: &str| {
        format!("printf first > tree/holes; truncate -s {size} tree/holes; tar --sparse -cf {size}.tar tree")
    };
    host("sh", &["-c", &format!("{}; {}", pack("128G"), pack("1G"))], scene.path());
    for (size, way) in [("128G", "; by FUSE (its metadata has more than "), ("1G", "; by the kernel")] {
        assert!(fs::metadata(scene.path().join(format!("{size}.tar"))).unwrap().len() < 100_000);
        let used = scene.shell(&format!(
            "$INARCH mount -b {size}.tar point && head -c 5 point/tree/holes && stat -c ' %s' point/tree/holes; $INARCH umount point"
        ));
        let bytes: u64 = size.trim_end_matches('G').parse::<u64>().unwrap() << 30;
        assert_eq!(stdout(&used), format!("first {bytes}\n"), "{}", stderr(&used));
        assert!(stderr(&used).contains(way), "{}", stderr(&used));
    }
}
