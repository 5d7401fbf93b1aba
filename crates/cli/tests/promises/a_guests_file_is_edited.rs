//! Promise: an editor gets a private copy of a file on a guest's disk. The copy is removed however the command ends, unless the user changed it
//! and it was not written back. Ctrl-C reaches the editor, not the command. The command refuses a file that it could not write back before the
//! editor starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::support::{INARCH, LONG, assert_one_line, assert_status, host, scratch, script_program, stderr, within};

/// A guest's disk, and an editor that says what it has got, and does what the file `do` says.
fn prepare(dir: &Path) {
    host(
        "sh",
        &[
            "-ec",
            "mkdir -p root/etc; echo old > root/etc/shadow; chmod 640 root/etc/shadow; echo 'LABEL=root / ext4 x 0 0' > root/etc/fstab
            truncate -s 100M root/etc/huge; truncate -s 64M root/etc/large
            mke2fs -q -t ext4 -L root -d root guest.img 64M; sha256sum guest.img > sums",
        ],
        dir,
    );
    let editor = "#!/bin/sh\nstat -c %a \"$(dirname \"$1\")\" > modes; echo \"$1\" > part; mv part copy; . ./do\n";
    script_program(&dir.join("editor"), editor);
}

/// Begins to edit a file with an editor that does `what`.
fn edit(dir: &Path, image: &str, file: &str, what: &str) -> Child {
    fs::write(dir.join("do"), what).unwrap();
    let _ = fs::remove_file(dir.join("copy"));
    let mut command = Command::new("sh");
    command.args(["-c", "umask 000; exec \"$0\" \"$@\"", INARCH, "disk", "edit", image, file]).current_dir(dir);
    command.env_remove("VISUAL").env("EDITOR", dir.join("editor")).env("TMPDIR", dir);
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Edits to the end.
fn edited(dir: &Path, image: &str, file: &str, what: &str) -> Output {
    edit(dir, image, file, what).wait_with_output().unwrap()
}

/// The copy that the editor got, once it has it.
fn copy(dir: &Path) -> PathBuf {
    assert!(within(LONG, || dir.join("copy").exists()), "the editor was not started");
    fs::read_to_string(dir.join("copy")).unwrap().trim_end().into()
}

/// Where the copy is that was kept, as the command says.
fn kept_place(ended: &Output) -> PathBuf {
    let told = stderr(ended);
    told.lines().find_map(|line| line.split_once("what you edited is in ")).expect(&told).1.into()
}

/// Whether the copy is gone, with its directory.
fn is_gone(copy: &Path) -> bool {
    within(LONG, || !copy.exists() && !copy.parent().unwrap().exists())
}

#[test]
fn the_copy_is_gone_when_the_command_is_killed() {
    let dir = scratch();
    let dir = dir.path();
    prepare(dir);
    for signal in [Signal::KILL, Signal::TERM, Signal::HUP] {
        let mut child = edit(dir, "guest.img", "/etc/shadow", "exec sleep 1000");
        let copy = copy(dir);
        assert_eq!(fs::read_to_string(&copy).unwrap(), "old\n");
        assert_eq!(fs::read_to_string(dir.join("modes")).unwrap(), "700\n");
        let process = Pid::from_child(&child);
        rustix::process::kill_process(process, signal).unwrap();
        child.wait().unwrap();
        assert!(is_gone(&copy), "{signal:?}: {}", copy.display());
        // The editor lost its parent and still runs.
        let _ = kill_process_group(process, Signal::KILL);
    }
    // What the editor has saved by then is the user's.
    for signal in ["TERM", "HUP"] {
        let what = format!(
            "echo mine > \"$1\"; shell=$(ps -o ppid= $$ | tr -d ' '); command=$(ps -o ppid= $shell | tr -d ' ')
            kill -{signal} $command; while ps -o stat= -p $command | grep -qv Z; do sleep 0.01; done"
        );
        let ended = edited(dir, "guest.img", "/etc/shadow", &what);
        assert_eq!(ended.status.code(), None, "{signal}: {}", stderr(&ended));
        assert_eq!(fs::read_to_string(kept_place(&ended)).unwrap(), "mine\n");
    }
    // A terminal that is closed ends the editor as well, after it has saved, or beside the file.
    for (what, suffix) in [
        ("echo mine > \"$1\"; touch ready; exec sleep 1000", ""),
        ("trap 'echo mine > \"$1.save\"; exit 1' HUP; touch ready; while :; do sleep 0.05; done", ".save"),
    ] {
        let _ = fs::remove_file(dir.join("ready"));
        let child = edit(dir, "guest.img", "/etc/shadow", what);
        assert!(within(LONG, || dir.join("ready").exists()), "the editor was not started");
        kill_process_group(Pid::from_child(&child), Signal::HUP).unwrap();
        let mut place = kept_place(&child.wait_with_output().unwrap()).into_os_string();
        place.push(suffix);
        assert_eq!(fs::read_to_string(place).unwrap(), "mine\n");
    }
    host("sha256sum", &["-c", "sums"], dir);
}

#[test]
fn an_interrupt_is_the_editors_and_what_it_leaves_is_written() {
    let dir = scratch();
    let dir = dir.path();
    prepare(dir);
    // An editor that takes Ctrl-C for something else, and that replaces the file.
    let what = "trap 'touch interrupted' INT; touch ready
        while [ ! -e interrupted ]; do sleep 0.1; done; sed -i s/old/new/ \"$1\"";
    let child = edit(dir, "guest.img", "/etc/shadow", what);
    let copy = copy(dir);
    assert!(within(LONG, || dir.join("ready").exists()), "the editor does not wait for the interrupt");
    kill_process_group(Pid::from_child(&child), Signal::INT).unwrap();
    assert_status(&child.wait_with_output().unwrap(), 0);
    assert!(is_gone(&copy));
    assert_eq!(host("debugfs", &["-R", "cat /etc/shadow", "guest.img"], dir), "new\n");
    let told = host("debugfs", &["-R", "stat /etc/shadow", "guest.img"], dir);
    assert!(told.contains("Mode:  0640"), "{told}");
    host("e2fsck", &["-fn", "guest.img"], dir);
    // Of those that fail nothing is written.
    host("sh", &["-c", "sha256sum guest.img > sums"], dir);
    assert_one_line(&edited(dir, "guest.img", "/etc/shadow", "exit 3"), &["editor", "nothing was written", "3"]);
    // What it has saved before is the user's.
    let failed = edited(dir, "guest.img", "/etc/shadow", "echo more >> \"$1\"; kill -9 $$");
    assert_status(&failed, 125);
    assert!(stderr(&failed).contains("nothing was written"), "{}", stderr(&failed));
    assert_eq!(fs::read_to_string(kept_place(&failed)).unwrap(), "new\nmore\n");
    assert_one_line(&edited(dir, "guest.img", "/etc/shadow", "rm \"$1\""), &["shadow", "No such file"]);
    let same = edited(dir, "guest.img", "/etc/shadow", "touch \"$1\"");
    assert_status(&same, 0);
    assert!(stderr(&same).contains("not changed"), "{}", stderr(&same));
    host("sha256sum", &["-c", "sums"], dir);
    // What cannot be written back any more is kept, for its user alone.
    let kept = edited(dir, "guest.img", "/etc/shadow", "echo mine > \"$1\"; mv guest.img moved");
    assert_status(&kept, 125);
    let place = kept_place(&kept);
    assert_eq!(fs::read_to_string(&place).unwrap(), "mine\n");
    let mode = fs::metadata(place.parent().unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn what_a_signal_kept_from_being_written_is_told() {
    let dir = scratch();
    let dir = dir.path();
    prepare(dir);
    for signal in ["INT", "TERM"] {
        // The signal comes once the command has the image again, to write back. It is the parent of the shell that runs the editor.
        let what = format!(
            "echo mine > \"$1\"; shell=$(ps -o ppid= $$ | tr -d ' '); command=$(ps -o ppid= $shell | tr -d ' ')
            (while kill -0 $shell; do sleep 0.01; done
            while kill -0 $command && ! ls -l /proc/$command/fd | grep guest.img; do sleep 0.01; done
            kill -{signal} $command) > killer 2>&1 &"
        );
        let ended = edited(dir, "guest.img", "/etc/shadow", &what);
        assert_eq!(ended.status.code(), None, "{signal}: {}", stderr(&ended));
        assert_eq!(fs::read_to_string(kept_place(&ended)).unwrap(), "mine\n");
    }
    // The file is the old one or the new one.
    let content = host("debugfs", &["-R", "cat /etc/shadow", "guest.img"], dir);
    assert!(["old\n", "mine\n"].contains(&content.as_str()), "{content}");
}

#[test]
fn nobody_edits_what_cannot_be_written_back() {
    let dir = scratch();
    let dir = dir.path();
    prepare(dir);
    let refused = |image: &str, file: &str, parts: &[&str]| {
        assert_one_line(&edited(dir, image, file, "echo x >> \"$1\""), parts);
        assert!(!dir.join("copy").exists(), "{image}: the editor was started");
    };
    refused("guest.img", "/etc/huge", &["/etc/huge", "64.0 MiB"]);
    refused("guest.img", "/etc/none", &["/etc/none"]);
    refused("guest.img", "/etc", &["it is a directory"]);
    let held = fs::File::open(dir.join("guest.img")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    refused("guest.img", "/etc/shadow", &["another process uses it"]);
    drop(held);
    host("qemu-img", &["create", "-q", "-f", "qcow2", "looks.img", "32M"], dir);
    refused("looks.img", "/etc/shadow", &["looks like a qcow2 image"]);
    let same = edited(dir, "guest.img", "/etc/large", "");
    assert_status(&same, 0);
    host("sha256sum", &["-c", "sums"], dir);
}
