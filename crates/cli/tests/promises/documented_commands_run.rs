//! Promise: each command in README.md and docs/ that names files runs, in the order of its document, and ends with status 0.
//!
//! Commands that start a guest do where `INARCH_ALL_PROGRAMS` is set, as in scripts/soak. What needs more than this machine is run by the test that
//! [`ELSEWHERE`] names.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::documented::{commands, documents, is_name, words};
use crate::support::{INARCH, host, programs, scratch, stderr};

/// Parts of commands, and why they are not run here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("docker:", "needs a registry: images_come_from_registries"),
    ("oci:", "needs an image: a_container_image_runs_as_it_says"),
    ("debian:", "fetches packages: a_guest_may_be_of_another_architecture"),
    ("libvirt:", "needs libvirt's domains: a_guest_of_several_disks_is_read"),
    ("s3:", "needs an object store: caches_reach_other_machines"),
    ("$URL", "needs a scheduler: make example-fleet"),
    ("$HOME/project", "needs a scheduler: make example-fleet"),
    ("scope=team", "needs Maven: caches_outlive_the_guest"),
    ("--key", "needs an encrypted disk: encrypted_disks_are_read"),
    ("disk reg", "needs a registry's hives: a_windows_registry_is_read"),
    ("/dev/vg", "needs a logical volume: a_guest_of_several_disks_is_read"),
    ("vng", "needs another program"),
    ("compare-mkfs", "takes minutes: disks_are_made"),
    ("-it ", "needs a terminal: a_run_is_like_the_command_itself"),
    ("run --root guest.", "needs a terminal: a_run_is_like_the_command_itself"),
    ("shell guest.qcow2 -i", "needs a terminal: a_shell_over_guests_disks"),
    ("git -C /", "changes this machine: what_a_guest_changed_is_listed"),
    ("serve --port", "an example's own command: a_container_image_runs_as_it_says"),
    ("--entrypoint", "needs an image: a_container_image_runs_as_it_says"),
    ("/src/a.c", "changes this machine: apply_is_atomic_and_resumable"),
    ("/srv/root", "needs a directory of this machine: disks_are_made"),
    ("--tree lz4:/src", "needs a root with a compiler, and lz4"),
    ("arch/x86/boot", "needs a kernel's build"),
    ("guest.qcow2 --socket", "shown for its form"),
];

/// Beginnings of commands that start a guest, or take as long.
const GUESTS: &[&str] = &[
    "inarch run",
    "inarch compare",
    "inarch apply",
    "inarch diff",
    "inarch disk write",
    "inarch disk rm",
    "inarch disk mkdir",
    "inarch disk cp site",
    "inarch disk resize",
    "inarch mount -b --rw guest.qcow2",
    "inarch mount --rw",
    "inarch image /usr",
];

/// What comes before a command: its beginning, and a script.
const BEFORE: &[(&str, &str)] = &[
    ("inarch image cache:npm", "inarch cache warm npm ~/.m2/repository"),
    ("inarch disk cp root.sqsh / rootfs", "rm -r rootfs"),
    ("inarch umount /mnt", "inarch mount -b src /mnt"),
    ("inarch disk resize guest.qcow2", "mke2fs -q -F one.img 20M; qemu-img convert -O qcow2 one.img guest.qcow2"),
    ("inarch disk create guest.img", "rm guest.img"),
    ("inarch disk partition guest.img", "rm guest.img; truncate -s 30G guest.img"),
    (
        "inarch disk format guest.img xfs",
        "rm guest.img; inarch disk create guest.img 1G; inarch disk partition guest.img",
    ),
    ("inarch trace --verify -- cc -o hello", "rm hello"),
    ("inarch trace diff", "inarch trace --json monday.json make; cp monday.json tuesday.json"),
    ("inarch trace why /usr/include/stdio.h", "inarch trace --json t.json -- cc -c hello.c"),
];

/// Words that stand for what a reader has.
const PLACEHOLDERS: [&str; 9] = ["DIR", "SRC", "DST", "FILE", "IMAGE", "CMD", "NAME", "RESULTS", "OPT"];

/// Whether a command is a form to fill in.
fn is_form(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| PLACEHOLDERS.contains(&word))
}

/// A command until its remark, which follows at some distance.
fn without_remark(text: &str) -> &str {
    let text = text.split("  ").next().unwrap_or(text).trim_end();
    text.trim_end_matches('&').trim_end()
}

/// Whether it serves until it is ended.
fn serves(text: &str) -> bool {
    let mounts = text.starts_with("inarch mount") && !text.contains(" -b ") && !text.contains("--background");
    mounts || text.starts_with("inarch serve")
}

/// Runs a command in `scene`, as its user's home; why it failed.
fn run(scene: &Path, text: &str) -> Result<(), String> {
    let before = BEFORE.iter().filter(|(start, _)| text.starts_with(start)).map(|(_, script)| *script);
    let before: String = before.map(|script| format!("{{ {script}; }} > /dev/null || exit 99\n")).collect();
    // A server says that it is ready, and ends with success when it is told to end.
    let script = match serves(text) {
        true => format!(
            "rm -f said; {text} > said 2>&1 & p=$!; until [ -s said ] || ! kill -0 $p; do sleep 0.05; done; kill $p; wait $p || {{ s=$?; cat said >&2; exit $s; }}"
        ),
        // One in the background has files that it removes when it ends.
        false if text.starts_with("inarch mount") => format!("{text} || exit\ninarch umount /mnt"),
        false => text.to_owned(),
    };
    // Nothing that it mounts, and no process, outlives it; /mnt, /tmp and /dev/shm are its own.
    let inside = "for d in /tmp /mnt /dev/shm; do mount -t tmpfs scene $d; done\nexec bash -c \"$0\"";
    let mut path = scene.join("bin").into_os_string();
    path.push(":");
    path.push(programs());
    let output = Command::new("unshare")
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "timeout", "-k", "5", "300"])
        .args(["bash", "-c", inside, &format!("{before}{script}")])
        .current_dir(scene)
        .env("HOME", scene)
        .env("PATH", path)
        .env("EDITOR", "true")
        .env_remove("VISUAL")
        .env_remove("XDG_STATE_HOME")
        .env_remove("XDG_CACHE_HOME")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{}: {}", output.status, stderr(&output).trim())),
    }
}

#[test]
fn each_in_its_documents_order() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: each_in_its_documents_order: only root has mounts of its own for each command");
    }
    let with_guests = std::env::var_os("INARCH_ALL_PROGRAMS").is_some();
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut ran, mut failures) = (0, Vec::new());
    for document in documents(&top) {
        let name = document.file_name().unwrap().display().to_string();
        let scene = scratch();
        host("sh", &["-ec", &format!("INARCH='{INARCH}'\n{}", include_str!("support/documented.sh"))], scene.path());
        for command in commands(&fs::read_to_string(&document).unwrap()) {
            let text = without_remark(&command.text);
            let Some(words) = words(text).filter(|words| !is_name(words)) else { continue };
            let is_elsewhere = ELSEWHERE.iter().any(|(part, _)| text.contains(part));
            let is_guests = GUESTS.iter().any(|start| text.starts_with(start));
            if is_form(text) || is_elsewhere || (is_guests && !with_guests) || words.len() < 2 {
                continue;
            }
            ran += 1;
            if let Err(why) = run(scene.path(), text) {
                failures.push(format!("{name}:{}: {text}\n    {why}", command.line));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {ran} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(ran > 70, "{ran}");
}
