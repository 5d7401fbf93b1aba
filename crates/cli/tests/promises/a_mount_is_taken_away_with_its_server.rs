//! Promise: `inarch umount` unmounts what Inarch mounted, and nothing else; when it returns, the servers have ended, or a line
//! names the users of a mount.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::mounted::{Scene, Server, WAYS, is_mount_point, is_mounted, is_there, last_process, unmount};
use crate::support::{
    INARCH, LONG, assert_one_line, assert_status, copy_command, host, inarch, stderr, stdout, within,
};

/// Mounts of file systems that are mounted nowhere else: they live as long as somebody uses them.
const OWN_FILE_SYSTEMS: [(&str, &str); 2] = [("fuse", ""), ("auto", "--ephemeral --overlay-dir .")];

#[test]
fn the_next_mount_has_the_same_overlay_at_once() {
    for via in WAYS {
        let scene = Scene::via(via);
        for round in 0..5 {
            let script = format!(
                "set -e; $INARCH mount -b tree point --overlay upper 2> said; echo {round} > point/{round}; ls point
                 $INARCH umount point; flock --nonblock upper true"
            );
            let used = scene.shell(&script);
            assert_status(&used, 0);
            assert_eq!(stdout(&used).lines().count(), round + 2);
            assert_eq!(stderr(&used), "");
            assert!(!is_mounted(scene.path()) && !is_there(last_process(&scene.usual_log())));
        }
        let used = scene
            .shell("$INARCH mount -qb tree point --ephemeral --overlay-dir . && : > point/new && $INARCH umount point");
        assert_status(&used, 0);
        let left = fs::read_dir(scene.path()).unwrap().flatten().map(|entry| entry.file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("inarch-mount-")));
    }
}

#[test]
fn the_mount_is_found_however_it_is_named() {
    for via in WAYS {
        let scene = Scene::via(via);
        symlink("point", scene.path().join("link")).unwrap();
        fs::create_dir(scene.path().join("a b")).unwrap();
        for (point, name) in [("point", "link"), ("point", "tree/../point/"), ("a b", "a b"), ("tree", "tree")] {
            let used = scene
                .shell(&format!("$INARCH mount -qb tree '{point}' && $INARCH umount '{name}' && ls -A point 'a b'"));
            assert_status(&used, 0);
            assert_eq!((stdout(&used).as_str(), stderr(&used).as_str()), ("a b:\n\npoint:\n", ""), "{name}");
        }
        // The caller's own directory, that of a process that becomes this one, and with a descriptor of it.
        let used = scene.shell("$INARCH mount -qb tree point && cd point && exec 3< file && exec $INARCH umount .");
        assert_status(&used, 0);
        assert!(!is_mounted(scene.path()));
    }
}

#[test]
fn other_mounts_stay() {
    for via in WAYS {
        let scene = Scene::via(via);
        let refused = |point: &str, parts: &[&str]| assert_one_line(&inarch(["umount", point]), parts);
        refused("/proc", &["/proc: proc is mounted there (proc), which Inarch did not mount"]);
        refused("/", &["/: it is the root of all files, which Inarch did not mount\n"]);
        refused(&scene.path().display().to_string(), &["nothing is mounted there"]);
        refused("/nonexistent", &["/nonexistent", "No such file"]);
        assert!(Path::new("/proc/self").exists());
        // What can be taken away is, beside what cannot.
        let used =
            scene.shell("$INARCH mount -qb tree point && $INARCH umount point/file; $INARCH umount tree point /proc");
        assert_status(&used, 125);
        let text = stderr(&used);
        let said: Vec<&str> = text.lines().collect();
        assert!(
            said[0].contains("nothing is mounted there; it lies in the mount") && said[0].ends_with("/point"),
            "{text}"
        );
        assert!(
            said[1].contains("tree: nothing is mounted there") && said[2].contains("/proc") && said.len() == 3,
            "{text}"
        );
        assert!(!is_mounted(scene.path()));
    }
}

#[test]
fn who_uses_it_is_named() {
    for (via, options) in OWN_FILE_SYSTEMS {
        let scene = Scene::via(via);
        assert_status(
            &scene.shell(&format!("mkdir tree/sub; cp /bin/sleep tree; $INARCH mount -b tree point {options}")),
            0,
        );
        let server = last_process(&scene.usual_log());
        let point = scene.path().join("point");
        let umount = |options: &[&str]| inarch([&["umount", point.to_str().unwrap()], options].concat());
        for script in ["exec point/sleep 1000", "cd point/sub; exec sleep 1000", "exec sleep 1000 < point/file"] {
            let mut user = Command::new("sh").args(["-c", script]).current_dir(scene.path()).spawn().unwrap();
            let name = || fs::read_to_string(format!("/proc/{}/comm", user.id())).unwrap();
            assert!(within(LONG, || name() == "sleep\n"));
            let refused = umount(&[]);
            let its_name = format!("it is in use by sleep ({})", user.id());
            user.kill().unwrap();
            user.wait().unwrap();
            assert_one_line(&refused, &["cannot be unmounted", &its_name, "--lazy"]);
        }
        host("mount", &["-t", "tmpfs", "none", "point/sub"], scene.path());
        let refused = umount(&[]);
        unmount(&scene.path().join("point/sub"));
        assert_one_line(&refused, &["point/sub is mounted in it", "--lazy"]);
        let file = fs::File::open(point.join("file")).unwrap();
        let taken = umount(&["--lazy"]);
        assert_status(&taken, 0);
        let own = format!("({}); its server ends after them", std::process::id());
        assert!(stderr(&taken).trim_end().ends_with(&own), "{}", stderr(&taken));
        assert!(!is_mounted(scene.path()) && is_there(server));
        assert_eq!(std::io::read_to_string(&file).unwrap(), "content");
        drop(file);
        assert!(within(LONG, || !is_there(server)), "the server is still there");
    }
}

/// What is mounted over it stays, and once that is gone, it goes, too.
#[test]
fn a_killed_servers_mount_goes_when_nothing_covers_it() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_killed_servers_mount_goes_when_nothing_covers_it: not root");
        return;
    }
    for via in WAYS {
        let scene = Scene::via(via);
        let server = Server::start(scene.path(), "tree", scene.way());
        let process = server.child.id().to_string();
        // As another server that mounts in the moment of the kill.
        host("mount", &["-t", "tmpfs", "above", "point"], scene.path());
        host("kill", &["-KILL", &process], scene.path());
        drop(server);
        let mounts = || fs::read_to_string("/proc/self/mountinfo").unwrap();
        let point = scene.path().join("point").canonicalize().unwrap();
        let count = || mounts().lines().filter(|line| line.split(' ').nth(4) == point.to_str()).count();
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(count(), 2, "{}", mounts());
        unmount(&scene.path().join("point"));
        assert!(within(LONG, || count() == 0), "{}", mounts());
    }
}

/// In the moment of its end, a killed server has closed the guard's input, and not yet its output.
#[test]
fn a_killed_servers_mount_goes_although_its_server_seems_to_listen() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_killed_servers_mount_goes_although_its_server_seems_to_listen: not root");
        return;
    }
    let scene = Scene::via("auto");
    let server = Server::start(scene.path(), "tree", scene.way());
    let id = server.child.id().to_string();
    let guard = stdout(&scene.shell(&format!("pgrep -P {id} -f clear-away-at-end-of-input"))).trim().to_owned();
    let words = fs::read(format!("/proc/{guard}/cmdline")).unwrap();
    let words: Vec<&OsStr> = words.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    host("kill", &["-KILL", &guard, &id], scene.path());
    drop(server);
    assert!(is_mounted(scene.path()), "nobody takes it away");
    host("mount", &["-t", "tmpfs", "above", "point"], scene.path());
    let mut another = Command::new(INARCH);
    another.args(&words[1..words.len() - 1]).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut another = another.spawn().unwrap();
    let reads_nothing = another.stdout.take().unwrap();
    let place = format!("/proc/{}/syscall", another.id());
    let sleeps = || {
        let call = fs::read_to_string(&place).unwrap_or_default();
        call.split(' ').next() == Some(&libc::SYS_clock_nanosleep.to_string())
    };
    assert!(within(LONG, || sleeps() || another.try_wait().unwrap().is_some()));
    unmount(&scene.path().join("point"));
    assert!(within(LONG, || !is_mounted(scene.path())));
    drop(reads_nothing);
    assert!(another.wait().unwrap().success());
}

#[test]
fn a_server_that_takes_its_time_is_waited_for() {
    for via in WAYS {
        let scene = Scene::via(via);
        let mut server = Server::start(scene.path(), "tree", scene.way());
        let signal = |name: &str| host("kill", &[name, &server.child.id().to_string()], Path::new("/"));
        signal("-STOP");
        let point = scene.path().join("point");
        let mut umount = Command::new(INARCH).arg("umount").arg(point).stderr(Stdio::piped()).spawn().unwrap();
        let is_gone = within(LONG, || !is_mounted(scene.path()));
        let waits = umount.try_wait().unwrap().is_none();
        signal("-CONT");
        assert!(is_gone && waits, "gone: {is_gone}, waits: {waits}");
        assert_status(&umount.wait_with_output().unwrap(), 0);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn users_take_their_own_mounts_away() {
    if !Path::new("/usr/bin/fusermount3").exists() || !rustix::process::geteuid().is_root() {
        println!("skipped: users_take_their_own_mounts_away: that takes fusermount3, and root to be several users");
        return;
    }
    let scene = Scene::new();
    // The built command may lie where only root can go.
    copy_command(&scene.path().join("inarch"));
    for name in ["", "point"] {
        fs::set_permissions(scene.path().join(name), fs::Permissions::from_mode(0o777)).unwrap();
    }
    let user = "setpriv --reuid 65534 --regid 65534 --clear-groups ./inarch";
    let used = scene.shell(&format!("{user} mount -b tree point --log log && {user} umount point"));
    assert_status(&used, 0);
    assert!(!is_mounted(scene.path()) && !is_there(last_process(&scene.path().join("log"))));
    assert_status(&scene.shell("./inarch mount -qb tree point"), 0);
    assert_one_line(&scene.shell(&format!("{user} umount point")), &["root mounted it"]);
    let other = "setpriv --reuid 65533 --regid 65533 --clear-groups ./inarch";
    let used = scene.shell(&format!("./inarch umount point && {user} mount -qb tree point --log log"));
    assert_status(&used, 0);
    assert_one_line(&scene.shell(&format!("{other} umount --lazy point")), &["user 65534 mounted it"]);
    let busy = "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'cd point && ../inarch umount ../point'";
    assert_one_line(&scene.shell(busy), &["it is in use by sh ("]);
    // Root takes all mounts away, also those that let nobody in but their user.
    assert_status(&scene.shell("./inarch umount point"), 0);
    assert!(!is_mounted(scene.path()) && !is_there(last_process(&scene.path().join("log"))));
}

/// The owner of a directory above a mount puts a symbolic link in its place, which leads to another mount.
#[test]
fn a_mount_in_the_way_stays() {
    for via in WAYS {
        let scene = Scene::via(via);
        let used = scene.shell(
            "mkdir -p above/p others/p && mount -t tmpfs none others/p && echo precious > others/p/file
             for try in $(seq 20); do
                 $INARCH mount -qb tree above/p --log log || exit 99
                 (cd above/p && exec sleep 1000) & user=$!
                 until [ \"$(readlink /proc/$user/cwd)\" = \"$PWD/above/p\" ]; do sleep 0.01; done
                 $INARCH umount --lazy above/p & umount=$!
                 while open=$(readlink /proc/$umount/fd/*) && ! echo \"$open\" | grep -q above; do sleep 0.01; done
                 mv above elsewhere; ln -s others above
                 readlink /proc/$umount/fd/* | grep -q elsewhere && met=1
                 wait $umount; kill $user; wait $user
                 [ \"$met\" ] && break
                 rm above; mv elsewhere above; $INARCH umount --quiet above/p
             done 2> /dev/null
             echo met: $met; cat others/p/file; umount others/p; ls elsewhere/p",
        );
        assert_eq!(stdout(&used), "met: 1\nprecious\n", "{}", stderr(&used));
        // The same of a server that ends.
        let used = scene.shell(
            "rm above; mv elsewhere above; mount -t tmpfs none others/p && echo precious > others/p/file
             $INARCH mount -q tree above/p & server=$!
             until test -e above/p/file; do sleep 0.01; done
             (for i in $(seq 300); do mv above elsewhere; ln -s others above; rm above; mv elsewhere above; done) 2>/dev/null &
             sleep 0.1; kill $server; wait $server; echo $?; wait; cat others/p/file; umount others/p; ls above/p",
        );
        assert_eq!(stdout(&used), "0\nprecious\n", "{}", stderr(&used));
    }
}

#[test]
fn a_mount_that_is_elsewhere_too_is_not_waited_for() {
    for (via, options) in OWN_FILE_SYSTEMS {
        let scene = Scene::via(via);
        let bound = scene.shell(&format!(
            "mkdir other; $INARCH mount -qb tree point --log log {options} && mount --bind point other || exit 99
             timeout 100 $INARCH umount --quiet point; status=$?; cat other/file; umount other; exit $status",
        ));
        assert_status(&bound, 125);
        assert_eq!(stdout(&bound), "content");
        assert!(stderr(&bound).contains("goes on: it is mounted at ") && stderr(&bound).contains("/other, too"));
        // The directory is a mount of its own: what is private beneath it leaves the mounts of other tests alone.
        let copied = scene.shell(&format!(
            "mount --bind . . && cd \"$PWD\" && $INARCH mount -qb tree point --log log {options} || exit 99; mkfifo ready end
             unshare --mount --propagation slave sh -c 'mount --make-private . && : > ready; read line < end' & : < ready
             timeout 100 $INARCH umount --quiet point; status=$?; echo > end; wait; cd / && umount \"$OLDPWD\"; exit $status",
        ));
        assert_status(&copied, 125);
        let text = stderr(&copied);
        assert!(text.contains("/point for process ") && text.lines().count() == 1, "{text}");
        assert!(within(LONG, || !is_mounted(scene.path())));
    }
}

#[test]
fn a_server_whose_mount_is_covered_ends() {
    for via in WAYS {
        let scene = Scene::via(via);
        let both = "$INARCH mount -b tree point --log lower && $INARCH mount -qb tree point --log upper";
        assert_status(&scene.shell(both), 0);
        let lower = last_process(&scene.path().join("lower"));
        host("kill", &[&lower.to_string()], scene.path());
        let has_ended = within(LONG, || !is_there(lower));
        let used = scene.shell("cat point/file && $INARCH umount point; umount point; cat lower");
        assert!(has_ended, "the server is still there");
        assert!(stdout(&used).starts_with("content") && !is_mounted(scene.path()), "{}", stdout(&used));
        assert!(stdout(&used).contains("cannot be unmounted: another mount covers it"), "{}", stdout(&used));
    }
}

#[test]
fn a_mount_whose_directory_has_another_name_is_taken_away() {
    for via in WAYS {
        for end in ["kill -KILL", "kill -TERM"] {
            let scene = Scene::via(via);
            let used =
                scene.shell("mkdir -p a/point; $INARCH mount -b tree a/point --log log && mv a b && cat b/point/file");
            assert_eq!((assert_status(&used, 0), stdout(&used).as_str()), ((), "content"));
            let server = last_process(&scene.path().join("log"));
            assert_status(&scene.shell(&format!("{end} {server}")), 0);
            let is_gone = within(LONG, || !is_there(server) && !is_mount_point(&scene.path().join("b/point")));
            scene.shell("umount -q --lazy b/point");
            assert!(is_gone, "{end}: the mount is still there");
        }
        // It is one of several, and waited for.
        let scene = Scene::via(via);
        let used = scene.shell(
            "set -e; mkdir -p a/point; for n in 1 2 3; do $INARCH mount -b tree a/point --overlay upper --log log
             mv a b; $INARCH umount b/point; mv b a; done; ls a/point",
        );
        assert_eq!((assert_status(&used, 0), stdout(&used).as_str()), ((), ""));
        assert!(!is_there(last_process(&scene.path().join("log"))));
    }
}

#[test]
fn what_covers_a_mount_is_named() {
    let scene = Scene::via("fuse");
    let point = scene.path().join("point");
    let mount = |log: &str| {
        assert_status(&scene.shell(&format!("$INARCH mount -b tree point --log {log}")), 0);
        last_process(&scene.path().join(log))
    };
    let kill = |server: u32| {
        host("kill", &["-KILL", &server.to_string()], scene.path());
        assert!(within(LONG, || !is_there(server)));
    };
    let server = mount("one");
    host("mount", &["-t", "tmpfs", "the-cover", "point"], scene.path());
    kill(server);
    let first = format!("take that away first: umount {}", point.display());
    assert_one_line(&scene.shell("$INARCH umount point"), &["the-cover (tmpfs) covers what Inarch mounted", &first]);
    unmount(&point);
    // A late guard of the killed server may be quicker.
    let is_taken_away = || {
        let used = scene.shell("$INARCH umount point");
        let text = stderr(&used);
        assert!((used.status.success() && text.is_empty()) || text.contains("nothing is mounted there"), "{text}");
        assert!(!is_mounted(scene.path()));
    };
    is_taken_away();

    // What covers it is of Inarch as well.
    let lower = mount("lower");
    mount("upper");
    kill(lower);
    let used = scene.shell("$INARCH umount point");
    assert_status(&used, 0);
    let is_visible = is_mounted(scene.path());
    assert!(!is_visible || stderr(&used).contains("tree, was covered and is visible now"), "{}", stderr(&used));
    is_taken_away();

    // A directory above it is covered.
    assert_status(&scene.shell("mkdir -p a/point; $INARCH mount -qb tree a/point && mount -t tmpfs high a"), 0);
    let refused = scene.shell("$INARCH umount a/point");
    let first = format!("take that away first: umount {}", scene.path().join("a").display());
    let used = scene.shell("umount a && $INARCH umount a/point");
    assert_one_line(&refused, &["high (tmpfs) covers", &first]);
    assert_status(&used, 0);
}

/// A server that enters a mount namespace of its own sees the mount until it is there. It is not the process to go to.
#[test]
fn a_mount_of_another_mount_namespace_is_told_of() {
    let delayed = "strace -f -qq -o calls -e trace=pivot_root -e inject=pivot_root:delay_enter=1000000";
    let delayed = if has_strace() { delayed } else { "" };
    for via in WAYS {
        let scene = Scene::via(via);
        let script = format!(
            "{delayed} unshare --mount --propagation slave $INARCH mount -b tree point --log log > said 2>&1 &
             for try in $(seq 1000); do grep -q ^mounted said && test -s log && exit; sleep 0.05; done; cat said; exit 1"
        );
        assert_status(&scene.shell(&script), 0);
        let server = last_process(&scene.path().join("log"));
        let refused = scene.shell("$INARCH umount point");
        let text = stderr(&refused);
        let (_, command) = text.trim_end().split_once("as root: ").unwrap_or_default();
        let used = scene.shell(&command.replace(" inarch ", " $INARCH "));
        let has_ended = !is_there(server);
        let _ = Command::new("kill").arg(server.to_string()).stderr(Stdio::null()).status();
        assert_one_line(&refused, &["nothing is mounted there but in the mount namespace of process", "nsenter"]);
        assert_eq!((assert_status(&used, 0), stderr(&used).as_str(), has_ended), ((), "", true));
        assert_one_line(&scene.shell("$INARCH umount point"), &["nothing is mounted there\n"]);
    }
}

fn has_strace() -> bool {
    Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_ok()
}

/// The kill comes in the very call by which the mount appears.
#[test]
fn a_server_that_is_killed_as_it_mounts_leaves_nothing() {
    if !has_strace() || !rustix::process::geteuid().is_root() {
        return println!("skipped: a_server_that_is_killed_as_it_mounts_leaves_nothing: that takes strace, and root");
    }
    for (command, point) in [
        ("mount tree point", "point"),
        ("mount tree.tar point", "point"),
        ("mount tree point --ephemeral --overlay-dir .", "point"),
        ("mount tree point --via fuse", "point"),
        ("serve file tree disk.raw", "disk.raw"),
    ] {
        let scene = Scene::new();
        host("tar", &["-cf", "tree.tar", "tree"], scene.path());
        let killed = scene.shell(&format!(
            "strace -f -qq -o calls -e trace=mount,move_mount -e inject=mount,move_mount:delay_exit=60000000 \
             sh -c 'echo $$ > server; exec $INARCH {command}' & strace=$!
             for try in $(seq 1000); do grep -q \" $PWD/{point} \" /proc/self/mountinfo && echo mounted && break; sleep 0.05; done
             kill -KILL $(cat server) $strace; wait"
        ));
        let place = scene.path().join(point);
        let is_gone = within(LONG, || !is_mount_point(&place));
        let is_removed = point == "point" || within(LONG, || place.symlink_metadata().is_err());
        let _ = Command::new("umount").args(["-q", "--lazy"]).arg(&place).status();
        assert_eq!(
            (stdout(&killed).as_str(), is_gone, is_removed),
            ("mounted\n", true, true),
            "{command}: {}",
            stderr(&killed)
        );
        if point == "point" {
            assert_status(&scene.shell(&format!("$INARCH {command} -b && $INARCH umount point")), 0);
        }
    }
}
