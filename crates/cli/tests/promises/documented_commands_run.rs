//! Promise: each command in README.md and docs/ runs, in the order of its document, and ends with status 0.
//!
//! Commands that start a guest do where `INARCH_ALL_PROGRAMS` is set, as in scripts/soak. What needs more than this machine is run by the test that
//! [`ELSEWHERE`] names. What has a placeholder, or is no more than a name, is no command ([`is_name`]).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::a_windows_disk_is_inspected::EMPTY_HIVE;
use crate::support::documented::{Documented, NAMES, documents, is_name, pieces, words};
use crate::support::{INARCH, host, programs, scratch, stderr};

/// Parts of commands, what these need that is not here, and the test or the target of make that has it.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("docker:", "a registry", "images_come_from_registries::a_guest_runs_what_an_image_of_a_registry_says"),
    ("oci:", "an image", "a_container_image_runs_as_it_says::entry_point_variables_place_and_user_are_the_images"),
    ("--entrypoint", "an image", "a_container_image_runs_as_it_says::odd_images_are_run_as_docker_would"),
    ("debian:", "packages of another machine", "make example-riscv64"),
    ("libvirt:", "libvirt's domains", "a_guest_of_several_disks_is_read::if_libvirt_knows_it"),
    ("s3:", "an object store", "caches_reach_other_machines::buckets_of_s3_are_remotes"),
    ("$URL", "a scheduler", "make example-fleet"),
    ("scope=team", "Maven", "caches_reach_other_machines::what_one_machine_adds_another_reads"),
    ("mvn verify", "Maven", "caches_outlive_the_guest::what_a_command_that_succeeds_adds_is_there_for_the_next"),
    ("npm ci", "npm", "ways_are_compared::with_package_caches_empty_and_filled"),
    ("check-llvm", "LLVM", "ways_are_compared::with_the_page_cache_empty_and_warm"),
    ("vng", "virtme-ng", "ways_are_compared::command_lines_of_this_machine_have_their_turns"),
    ("lz4:/src", "a root with a compiler, and lz4", "make bench"),
    ("apt-get update", "a network", "any_machine_has_the_disk::by_the_kernels_own_nbd_client"),
    ("--key", "an encrypted disk", "encrypted_disks_are_read::on_the_disk_of_a_guest"),
    ("'HK", "a disk of Windows", "a_windows_registry_is_read::from_a_disk_or_a_directory"),
    ("/dev/vg", "a block device", "a_block_device_is_a_source::a_guest_writes_to_it_as_to_a_disk"),
    (
        "/srv/root",
        "a directory of this machine",
        "a_run_in_a_process_is_like_one_in_a_machine::trees_disks_and_kept_writes_work_as_in_a_machine",
    ),
    ("run -t", "a terminal", "a_run_is_like_the_command_itself::a_terminal_is_a_terminal"),
    (
        "run --cache maven,npm",
        "a terminal",
        "caches_outlive_the_guest::what_a_command_that_succeeds_adds_is_there_for_the_next",
    ),
    ("run --root guest.", "a terminal", "every_source_gives_the_same_tree::whatever_it_comes_from"),
    ("git -C /", "to change this machine", "what_a_guest_changed_is_listed::changes_are_listed_and_noise_is_not"),
    ("src/a.c", "a conflict", "a_kept_run_goes_on_where_it_stopped::what_was_written_is_there_the_next_time"),
    ("virtiofsd", "to change this machine", "virtiofsd_can_be_replaced::by_the_command_lines_that_start_it"),
    ("mount -o loop", "a loop device", "the_disk_is_a_file_for_any_program::programs_read_it_as_any_image"),
    ("compare-mkfs", "minutes", "disks_are_made::tools_are_compared"),
    ("$@", "a makefile", "trace_is_of_use::make_reads_the_dependencies"),
    ("$out", "a file of ninja's", "trace_is_of_use::ninja_reads_the_dependencies"),
];

/// Parts of commands that begin with another word: they call this program, or use what it serves.
const OTHERS: [&str; 9] = [
    "(inarch ",
    "| inarch ",
    ": ; inarch ",
    "command = inarch ",
    "libexec/virtiofsd",
    "virtiofsd --",
    "nbdcopy '",
    "qemu-img map '",
    "mount -o loop,",
];

/// Beginnings of commands that start a guest, take as long, or need what such a one has left.
const GUESTS: &[&str] = &[
    "inarch run",
    "inarch compare",
    "inarch apply",
    "inarch diff",
    "inarch discard",
    "inarch disk write",
    "inarch disk rm",
    "inarch disk mkdir",
    "inarch disk cp site",
    "inarch disk resize",
    "inarch mount -b --rw guest.qcow2",
    "inarch mount --rw",
    "inarch image /usr",
];

/// Options with which they start none.
const GUESTLESS: [&str; 2] = [" --host ", " --dry-run "];

/// What comes before a command: its beginning, and a script.
const BEFORE: &[(&str, &str)] = &[
    ("inarch image cache:npm", "inarch cache warm npm ~/.m2/repository"),
    ("inarch disk cp root.sqsh / rootfs", "rm -r rootfs"),
    ("inarch disk cp guest.img /etc/fstab /home/user copies/", "mkdir copies"),
    ("inarch disk cp site.conf robots.txt", "touch robots.txt"),
    ("inarch umount /mnt", "inarch mount -b src /mnt"),
    ("inarch disk resize guest.qcow2", "mke2fs -q -F one.img 20M; qemu-img convert -O qcow2 one.img guest.qcow2"),
    (
        "inarch disk ls overlay.qcow2",
        "cp guest.qcow2 base.qcow2; qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 overlay.qcow2",
    ),
    ("inarch disk create guest.img", "rm guest.img"),
    ("inarch disk partition guest.img", "rm guest.img; truncate -s 30G guest.img"),
    (
        "inarch disk format guest.img xfs",
        "rm guest.img; inarch disk create guest.img 1G; inarch disk partition guest.img",
    ),
    (
        "inarch disk reg --export SYSTEM",
        r#"python3 -c "$EMPTY_HIVE" SYSTEM; echo '[HKEY\Select]' | hivexregedit --merge --prefix HKEY SYSTEM"#,
    ),
    ("inarch trace --verify -- cc -o hello", "rm hello"),
    ("inarch trace diff", "inarch trace --json monday.json make; cp monday.json tuesday.json"),
    ("inarch trace why /usr/include/stdio.h", "inarch trace --json t.json -- cc -c hello.c"),
    ("nbdcopy ", SERVE_NBD),
    ("qemu-img map ", SERVE_NBD),
];

const SERVE_NBD: &str =
    "inarch serve nbd ~/src --socket /tmp/src.sock & until [ -S /tmp/src.sock ] || ! kill -0 $!; do sleep 0.05; done";

/// The project's directory.
fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The commands of a document.
fn commands(document: &Path) -> Vec<Documented> {
    let mut found = pieces(&fs::read_to_string(document).unwrap());
    found.iter_mut().for_each(|piece| piece.text = without_remark(&piece.text).to_owned());
    found.retain(|piece| is_command(&piece.text));
    found
}

/// A command until its remark, which follows at some distance.
fn without_remark(text: &str) -> &str {
    let text = text.split("  ").next().unwrap_or(text).trim_end();
    text.trim_end_matches('&').trim_end()
}

/// Whether a piece of code is a command that a reader may type as it is.
fn is_command(text: &str) -> bool {
    match text.starts_with("inarch ") {
        // With its input it is more than a name: `inarch shell < script`.
        true => words(text).is_some_and(|words| !is_name(&words) || text.contains(" < ")),
        false => OTHERS.iter().any(|part| text.contains(part)),
    }
}

/// What runs a command in the place of this test: the first entry for it.
fn elsewhere(text: &str) -> Option<&'static (&'static str, &'static str, &'static str)> {
    ELSEWHERE.iter().find(|(part, ..)| text.contains(part))
}

/// Whether a command starts a guest.
fn is_guests(text: &str) -> bool {
    let is_guestless = GUESTLESS.iter().any(|option| text.contains(option));
    !is_guestless && GUESTS.iter().any(|start| text.starts_with(start))
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
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "timeout", "-k", "5", "600"])
        .args(["bash", "-c", inside, &format!("{before}{script}")])
        .current_dir(scene)
        .env("HOME", scene)
        .env("PATH", path)
        .env("USER", "root")
        .env("EDITOR", "true")
        .env("EMPTY_HIVE", EMPTY_HIVE)
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
    let (mut ran, mut failures) = (0, Vec::new());
    for document in documents(&top()) {
        let name = document.file_name().unwrap().display().to_string();
        let mut commands = commands(&document);
        commands.retain(|command| elsewhere(&command.text).is_none() && (with_guests || !is_guests(&command.text)));
        if commands.is_empty() {
            continue;
        }
        let scene = scratch();
        host("sh", &["-ec", &format!("INARCH='{INARCH}'\n{}", include_str!("support/documented.sh"))], scene.path());
        for Documented { line, text } in commands {
            ran += 1;
            if let Err(why) = run(scene.path(), &text) {
                failures.push(format!("{name}:{line}: {text}\n    {why}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {ran} failed:\n{}", failures.len(), failures.join("\n"));
    assert!(ran > 110, "{ran}");
}

#[test]
fn what_is_run_elsewhere_is_run_there() {
    let makefile = fs::read_to_string(top().join("Makefile")).unwrap();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises");
    for (part, _, place) in ELSEWHERE {
        let is_there = match place.strip_prefix("make ") {
            Some(target) => makefile.contains(&format!("\n{target}:")),
            None => {
                let (module, test) = place.split_once("::").unwrap();
                let source = fs::read_to_string(sources.join(format!("{module}.rs"))).unwrap_or_default();
                let is_compiled = include_str!("main.rs").contains(&format!("\nmod {module};\n"));
                is_compiled && source.contains(&format!("#[test]\nfn {test}()"))
            }
        };
        assert!(is_there, "{part}: there is no {place}");
    }
}

/// An entry for what no document has any more would be one for another command some day.
#[test]
fn each_exception_is_one_of_a_command() {
    let documents = documents(&top());
    let all: Vec<String> = documents.iter().flat_map(|document| commands(document)).map(|one| one.text).collect();
    let here: Vec<&String> = all.iter().filter(|text| elsewhere(text).is_none()).collect();
    for (part, ..) in ELSEWHERE {
        let is_used = all.iter().any(|text| elsewhere(text).is_some_and(|(found, ..)| found == part));
        assert!(is_used, "ELSEWHERE: {part}");
    }
    for start in BEFORE.iter().map(|(start, _)| start).chain(GUESTS) {
        assert!(here.iter().any(|text| text.starts_with(start)), "BEFORE or GUESTS: {start}");
    }
    for part in OTHERS.iter().chain(&GUESTLESS) {
        assert!(all.iter().any(|text| text.contains(part)), "OTHERS or GUESTLESS: {part}");
    }
    let named: Vec<String> = documents
        .iter()
        .flat_map(|document| pieces(&fs::read_to_string(document).unwrap()))
        .map(|piece| piece.text)
        .collect();
    for name in NAMES {
        assert!(named.iter().any(|text| text == name), "NAMES: {name}");
    }
}
