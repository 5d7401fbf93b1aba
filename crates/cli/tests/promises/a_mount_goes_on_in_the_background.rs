//! Promise: `inarch mount --background` returns when its mount answers, keeps nothing of its caller, tells a log what it has to
//! say, and ends when it is unmounted.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::support::mounted::{Scene, Server, WAYS, is_mounted, is_there, last_process, unmount};
use crate::support::{INARCH, LONG, assert_status, host, inarch, stderr, stdout, within};

/// What the numbers in /proc/PID/stat say from the fourth on: parent, group, session, terminal.
fn relations(process: u32) -> Vec<i64> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let numbers = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(1).take(4);
    numbers.map(|number| number.parse().unwrap()).collect()
}

#[test]
fn the_command_returns_when_the_mount_answers() {
    for via in WAYS {
        the_command_returns(&Scene::via(via));
    }
}

fn the_command_returns(scene: &Scene) {
    // A pipe to which the server still wrote would not end.
    let used = scene.shell("said=$($INARCH mount --background tree point 2>&1) && cat point/file && echo \" $said\"");
    assert_status(&used, 0);
    let text = stdout(&used);
    assert!(text.starts_with("content mounted tree on "), "{text}");
    assert!(text.contains(&format!("log:    {}", scene.usual_log().display())), "{text}");
    let server = last_process(&scene.usual_log());
    let said = fs::read_to_string(scene.usual_log()).unwrap();
    let tree = scene.path().join("tree");
    assert!(said.contains(&format!("]: mounted {} on ", tree.display())) && said.starts_with("20"), "{said}");
    // It has a session of its own without a terminal, and neither the caller's files nor its directory.
    let [_, group, session, terminal] = relations(server)[..] else { panic!() };
    assert_eq!((group, session, terminal), (i64::from(server), i64::from(server), 0));
    let link = |name: &str| fs::read_link(format!("/proc/{server}/{name}")).unwrap();
    assert_eq!((link("cwd"), link("fd/0")), (PathBuf::from("/"), PathBuf::from("/dev/null")));
    assert_eq!((link("fd/1"), link("fd/2")), (scene.usual_log(), scene.usual_log()));
    fs::write(scene.path().join("point/new"), "written").unwrap();
    assert_eq!(fs::read_to_string(scene.path().join("tree/new")).unwrap(), "written");
    unmount(&scene.path().join("point"));
    assert!(within(LONG, || !is_there(server)), "the server is still there");
    let said = fs::read_to_string(scene.usual_log()).unwrap();
    assert!(said.trim_end().ends_with("point is unmounted"), "{said}");
}

#[test]
fn the_log_names_places_whole() {
    let scene = Scene::new();
    let used = scene.shell("$INARCH mount -b tree point --overlay changes && umount point");
    assert_status(&used, 0);
    assert!(stderr(&used).contains(": writes are kept in changes;"), "{}", stderr(&used));
    let (log, kept) = (fs::read_to_string(scene.usual_log()).unwrap(), scene.path().join("changes"));
    assert!(log.contains(&format!(": writes are kept in {};", kept.display())), "{log}");
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: the_log_names_places_whole: a full disk: not root");
        return;
    }
    let mounted =
        "mkdir small && mount -t tmpfs -o size=64k tmpfs small && $INARCH mount -b tree point --record small/record";
    assert_status(&scene.shell(mounted), 0);
    let until_it_fails = "import os, itertools\n\
                          for number in itertools.count():\n\
                          \x20   try: os.stat(f'point/{number}')\n\
                          \x20   except FileNotFoundError: pass\n\
                          \x20   except OSError as error: print(error.errno); break\n";
    assert_eq!(host("python3", &["-c", until_it_fails], scene.path()).trim(), libc::EIO.to_string());
    let is_said = || fs::read_to_string(scene.usual_log()).unwrap().contains("the record is not complete");
    assert!(within(LONG, is_said));
    assert_status(&scene.shell("$INARCH umount point; umount small"), 0);
    let (log, record) = (fs::read_to_string(scene.usual_log()).unwrap(), scene.path().join("small/record"));
    assert!(log.contains(&format!("{}: the record is not complete", record.display())), "{log}");
}

#[test]
fn an_overlay_that_is_refused_stays_as_it_was() {
    let scene = Scene::new();
    for (made, left, reason) in [
        ("mkdir -m 700 shared; echo dear > shared/letter", "125\n700\nletter\n", "it has other things in it (letter)"),
        ("rm -r shared; mkdir -m 1777 shared", "125\n1777\n", "other users can enter it (mode 1777)"),
        ("chmod 755 shared", "125\n755\n", "other users can enter it (mode 0755)"),
    ] {
        let used = "$INARCH mount -b tree point --overlay shared; echo $?; stat -c %a shared; ls -A shared";
        let refused = scene.shell(&format!("{made}; {used}"));
        assert_eq!(stdout(&refused), left, "{}", stderr(&refused));
        assert_eq!(stderr(&refused).lines().count(), 1, "{}", stderr(&refused));
        assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
    }
}

#[test]
fn nothing_of_the_caller_is_kept() {
    let scene = Scene::new();
    // A lock, a directory that the mount is not for, and a pipe that an archive came by.
    let script = "set -e; mkdir elsewhere; cd elsewhere; exec 9> ../lock; flock 9
                  tar -cf - ../tree 2> tar | $INARCH mount -b - ../point --ephemeral --overlay-dir .. --log log 2>&1 | cat
                  cat ../point/tree/file";
    let mounted = scene.shell(script);
    assert_status(&mounted, 0);
    assert!(stdout(&mounted).ends_with("\ncontent"), "{}", stdout(&mounted));
    host("flock", &["--nonblock", "lock", "true"], scene.path());
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let here =
        processes.filter(|process| fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd.starts_with(scene.path())));
    assert_eq!(here.collect::<Vec<_>>(), Vec::<PathBuf>::new());
    assert!(!scene.usual_log().exists());
    let server = last_process(&scene.path().join("elsewhere/log"));
    host("kill", &[&server.to_string()], scene.path());
    assert!(within(LONG, || !is_there(server) && !is_mounted(scene.path())), "it is still there");
    let left = fs::read_dir(scene.path()).unwrap().flatten().map(|entry| entry.file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("inarch-mount-")));
}

#[test]
fn what_cannot_be_mounted_is_told_in_one_line() {
    let scene = Scene::new();
    for (arguments, part) in [
        ("none point", "none"),
        ("tree none", "cannot be a mount point"),
        ("tree tree/file", "no directory"),
        ("tree point --ephemeral --overlay-dir tree", "lies in"),
        ("tree point --log none/log", "cannot write the log there"),
        ("tree point --record none/record", "cannot record there"),
        ("tree point -o ro --ephemeral", "-o ro"),
    ] {
        let refused = scene.shell(&format!("$INARCH mount --background {arguments}"));
        assert_status(&refused, 125);
        let text = stderr(&refused);
        assert!(text.lines().count() == 1 && text.starts_with("inarch: ") && text.contains(part), "{text}");
        assert!(!is_mounted(scene.path()));
    }
    // A state that cannot be written is no reason: what is lost is said.
    let lost = scene.shell("XDG_STATE_HOME=/proc/none $INARCH mount --background tree point && ls point");
    assert_status(&lost, 0);
    assert!(stderr(&lost).contains("no log of what the server says later"), "{}", stderr(&lost));
}

#[test]
fn a_caller_that_is_killed_leaves_nothing() {
    let scene = Scene::new();
    let mut caller = Command::new(INARCH);
    caller.args(["mount", "--background", "-", "point", "--ephemeral", "--overlay-dir", ".", "--log", "log"]);
    // An archive that does not come.
    let mut caller = caller.current_dir(scene.path()).stdin(Stdio::piped()).spawn().unwrap();
    let children = || fs::read_to_string(format!("/proc/{0}/task/{0}/children", caller.id())).unwrap();
    assert!(within(LONG, || !children().is_empty() && scene.path().join("log").exists()));
    let server = children().trim().parse().unwrap();
    let input = caller.stdin.take();
    caller.kill().unwrap();
    caller.wait().unwrap();
    assert!(within(LONG, || !is_there(server)), "the server waits for its archive");
    drop(input);
    assert!(!is_mounted(scene.path()));
}

#[test]
fn a_quiet_mount_says_what_went_wrong_only() {
    let scene = Scene::new();
    let mounted = scene.shell("$INARCH mount --background --quiet tree point && cat point/file && umount point");
    assert_status(&mounted, 0);
    assert_eq!((stdout(&mounted), stderr(&mounted)), ("content".to_owned(), String::new()));
    let mut server = Command::new(INARCH);
    let server = server.args(["mount", "-q", "tree", "point"]).current_dir(scene.path());
    let child = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(within(LONG, || is_mounted(scene.path()) && scene.path().join("point/file").exists()));
    unmount(&scene.path().join("point"));
    let ended = child.wait_with_output().unwrap();
    assert_status(&ended, 0);
    assert_eq!((stdout(&ended), stderr(&ended)), (String::new(), String::new()));
    assert!(stderr(&inarch(["mount", "-q", "/nonexistent", "/mnt"])).contains("/nonexistent"));
    let mut loud = Server::start(scene.path(), "tree", &[]);
    assert_eq!(loud.end("-TERM"), Some(0));
}

#[test]
fn a_caller_that_ignores_its_children_mounts_and_unmounts() {
    for via in WAYS {
        a_caller_ignores_its_children(&Scene::via(via));
    }
}

fn a_caller_ignores_its_children(scene: &Scene) {
    let used = scene.shell(
        "env --ignore-signal=CHLD $INARCH mount -qb tree point && cat point/file &&
         env --ignore-signal=CHLD $INARCH umount point",
    );
    assert_status(&used, 0);
    assert_eq!((stdout(&used), stderr(&used)), ("content".to_owned(), String::new()));
    assert!(!is_mounted(scene.path()));
    // One in the foreground, too, whose guard unmounts it.
    let mut server = Command::new("env");
    server.args(["--ignore-signal=CHLD", INARCH, "mount", "-q", "tree", "point"]).current_dir(scene.path());
    let server = server.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(within(LONG, || is_mounted(scene.path()) && scene.path().join("point/file").exists()));
    host("kill", &[&server.id().to_string()], scene.path());
    let ended = server.wait_with_output().unwrap();
    assert_status(&ended, 0);
    assert_eq!(stderr(&ended), "");
}
