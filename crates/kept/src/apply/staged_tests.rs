//! Tests whole applies one after another, with the record and the layer that the run keeps: of everything or of single
//! paths, with and without force, whatever goes wrong. No bytes are lost. What stays under temporary names is reported,
//! and is in the record.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::read_content;
use inarch_tree::FileType;
use proptest::prelude::*;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::super::staged::{Staged, go_wrong, start};
use super::calls::{Ability, Faults};
use super::property_tests::{Change, change_host, config};
use super::world::{files, fill, set_time, tear};
use super::{ApplyReport, ApplyRequest, apply_to};
use crate::beside::still_beside;
use crate::diff::RunDiff;

const PATHS: [&str; 10] = ["a", "b", "c", "d", "x", "x/a", "x/b", "y", "y/a", "z"];

/// What goes wrong in an apply.
#[derive(Clone, Debug)]
enum Wrong {
    Nothing,
    Fails(u64, i32),
    Killed(u64),
    PowerLost(u64, Vec<u8>),
}

fn wrong() -> impl Strategy<Value = Wrong> {
    let errno = prop::sample::select(vec![libc::ENOSPC, libc::EPERM, libc::EIO, libc::EXDEV]);
    let at = || 0u64..250;
    prop_oneof![
        2 => Just(Wrong::Nothing),
        3 => (at(), errno).prop_map(|(at, errno)| Wrong::Fails(at, errno)),
        2 => at().prop_map(Wrong::Killed),
        2 => (at(), prop::collection::vec(any::<u8>(), 1..6)).prop_map(|(at, how)| Wrong::PowerLost(at, how)),
    ]
}

/// An apply: what goes wrong, whether with force, and the paths.
type Attempt = (Wrong, bool, Vec<usize>);

#[derive(Clone, Debug)]
struct Case {
    numbers: Vec<usize>,
    guest: Vec<Change>,
    host: Vec<Change>,
    attempts: Vec<Attempt>,
    lacks: Vec<Ability>,
    /// Whether the last apply is with force.
    force: bool,
}

fn grow(root: &Path, numbers: &[usize]) {
    fs::create_dir(root).unwrap();
    fill(root, &[("x", ""), ("y", "")]);
    for (path, number) in PATHS.iter().zip(numbers) {
        let place = root.join(path);
        if !place.exists() && number % 4 > 0 {
            fs::write(&place, format!("base {number}")).unwrap();
            set_time(&place);
        }
    }
}

fn change_guest(root: &Path, at: usize, (what, one, other): Change) {
    let path = root.join(PATHS[one % PATHS.len()]);
    let bytes = format!("the guest's {at} at {one} of {}", "x".repeat(other));
    // Whatever cannot be done is not.
    let _ = match what % 6 {
        0 | 1 if !path.is_dir() => fs::write(&path, bytes).map(|()| set_time(&path)),
        2 if path.is_dir() => fs::remove_dir_all(&path),
        2 => fs::remove_file(&path),
        3 => fs::create_dir(&path),
        4 => symlink("target", &path),
        5 if path.is_file() => fs::set_permissions(&path, fs::Permissions::from_mode(0o700 + other as u32 % 8)),
        _ => Ok(()),
    };
}

struct Scene {
    dir: tempfile::TempDir,
    staged: Staged,
    /// What the guest wrote.
    written: Vec<Vec<u8>>,
    /// What the host wrote, and where.
    foreign: Vec<(PathBuf, Vec<u8>)>,
    /// Where force may replace it.
    forced: HashSet<PathBuf>,
    old: HashSet<u64>,
    synced: HashSet<u64>,
    starts: u32,
    lacks: Vec<Ability>,
}

impl Scene {
    fn new(case: &Case) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (host, guest) = (dir.path().join("host"), dir.path().join("guest"));
        [&host, &guest, &dir.path().join("base")].into_iter().for_each(|root| grow(root, &case.numbers));
        case.guest.iter().enumerate().for_each(|(at, change)| change_guest(&guest, at, *change));
        start("first");
        let staged = Staged::new(&host, &guest);
        case.host.iter().for_each(|change| change_host(&host, *change));
        let is_written = |bytes: &Vec<u8>| bytes.starts_with(b"the guest");
        let written = files(&guest).into_iter().map(|file| file.bytes).filter(is_written).collect();
        let theirs = files(&host).into_iter().filter(|file| file.bytes.starts_with(b"the h"));
        let foreign = theirs.map(|file| (file.path, file.bytes)).collect();
        let old = files(&host).into_iter().map(|file| file.ino).collect();
        let (forced, synced) = Default::default();
        Scene { dir, staged, written, foreign, forced, old, synced, starts: 1, lacks: case.lacks.clone() }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("host")
    }

    /// What of the guest's can be read from what is kept.
    fn kept(&self) -> HashSet<Vec<u8>> {
        let record = self.staged.run.record.as_ref().unwrap();
        let diff = RunDiff::of(&self.staged.run, record).unwrap();
        let mut found = HashSet::new();
        for tree in diff.trees() {
            let guest = &tree.disk.guest;
            for (id, inode) in guest.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular) {
                let mut bytes = vec![0; inode.size() as usize];
                if read_content(&*tree.disk.content, id, 0, &mut bytes).is_ok() {
                    found.insert(bytes);
                }
            }
        }
        found
    }

    fn check(&self, when: &str) -> Result<(), TestCaseError> {
        let there: HashSet<Vec<u8>> = files(&self.root()).into_iter().map(|file| file.bytes).collect();
        let kept = self.kept();
        for bytes in &self.written {
            let text = String::from_utf8_lossy(bytes);
            prop_assert!(there.contains(bytes) || kept.contains(bytes), "{when}: {text:?} is lost");
        }
        for (path, bytes) in &self.foreign {
            let text = String::from_utf8_lossy(bytes);
            let is_replaced = self.forced.contains(path) && self.is_as_in_the_guest(path, &kept);
            prop_assert!(is_replaced || there.contains(bytes), "{when}: {text:?} at {} is lost", path.display());
        }
        Ok(())
    }

    /// Whether the host has the guest's version at this path of it, if the guest has one. An apply of everything does not wait for the disk: if
    /// the power was lost, the run must have that version.
    fn is_as_in_the_guest(&self, path: &Path, kept: &HashSet<Vec<u8>>) -> bool {
        let guests = self.dir.path().join("guest").join(path.strip_prefix(self.root()).unwrap());
        let Ok(found) = guests.symlink_metadata() else { return true };
        if found.is_symlink() {
            return fs::read_link(path).ok() == fs::read_link(&guests).ok();
        }
        if found.is_dir() {
            return path.is_dir();
        }
        let bytes = fs::read(&guests).unwrap();
        fs::read(path).is_ok_and(|there| there == bytes) || self.starts > 1 && kept.contains(&bytes)
    }

    /// The paths in the guest at which something is still to be applied.
    fn differing(&self) -> Vec<PathBuf> {
        let diff = RunDiff::of(&self.staged.run, self.staged.run.record.as_ref().unwrap()).unwrap();
        let trees = diff.trees().iter();
        trees.flat_map(|tree| tree.differences.iter().map(|one| tree.in_guest(&one.path))).collect()
    }

    /// One apply; nothing is known of what came of it if the process was killed.
    fn apply(&mut self, request: &ApplyRequest, faults: Faults) -> (Option<ApplyReport>, u64) {
        let faults = Arc::new(Faults { root: self.root(), lacks: self.lacks.clone(), ..faults });
        go_wrong(Some(Arc::clone(&faults)));
        let report = apply_to(&mut self.staged.run, request);
        go_wrong(None);
        self.staged.run.reload();
        self.synced.extend(faults.synced.lock().unwrap().iter());
        let calls = faults.count.load(std::sync::atomic::Ordering::Relaxed);
        (report.ok().filter(|_| !faults.is_dead()), calls)
    }

    fn lose_power(&mut self, how: &[u8]) {
        self.starts += 1;
        start(&self.starts.to_string());
        tear(&self.root(), &|ino| self.old.contains(&ino) || self.synced.contains(&ino), how);
    }

    fn left(&self) -> Vec<PathBuf> {
        let mut left = Vec::new();
        let mut stack = vec![self.root()];
        while let Some(directory) = stack.pop() {
            for entry in fs::read_dir(directory).unwrap() {
                let path = entry.unwrap().path();
                if path.file_name().unwrap().to_string_lossy().starts_with(".inarch-") {
                    left.push(path.clone());
                }
                if path.symlink_metadata().unwrap().is_dir() {
                    stack.push(path);
                }
            }
        }
        left
    }

    /// Every change of the guest is on the host: if the run says that nothing is left to be applied.
    fn check_applied(&self) -> Result<(), TestCaseError> {
        let (host, guest, base) = (self.root(), self.dir.path().join("guest"), self.dir.path().join("base"));
        let has = |path: &Path| path.symlink_metadata().is_ok();
        for path in PATHS {
            let [there, is, was] = [&host, &guest, &base].map(|root| root.join(path));
            if has(&was) && !has(&is) {
                prop_assert!(!has(&there), "{path} is still there");
            } else if is.is_symlink() {
                prop_assert_eq!(fs::read_link(&there).ok(), fs::read_link(&is).ok(), "{}", path);
            } else if is.is_dir() && !was.is_dir() {
                prop_assert!(there.is_dir(), "{path} is no directory");
            } else if let Ok(bytes) = fs::read(&is)
                && bytes.starts_with(b"the guest")
            {
                prop_assert_eq!(fs::read(&there).ok(), Some(bytes), "{}", path);
            }
        }
        Ok(())
    }

    /// Everything under a temporary name is told, and known to the run.
    fn check_left(&self, report: &ApplyReport) -> Result<(), TestCaseError> {
        let record = self.staged.run.record.as_ref().unwrap();
        let known = still_beside(record);
        let told: Vec<String> =
            report.failures.iter().chain(&report.conflicts).map(|(path, reason)| format!("{path}: {reason}")).collect();
        for left in self.left() {
            let name = left.file_name().unwrap().to_string_lossy();
            prop_assert!(told.iter().any(|line| line.contains(&*name)), "{name} stays, and nothing tells: {told:?}");
            prop_assert!(known.contains(&left.display().to_string()), "{name} stays, and is not known: {known:?}");
        }
        Ok(())
    }
}

impl Case {
    fn play(&self) -> Result<(), TestCaseError> {
        let mut scene = Scene::new(self);
        let everything = |force: bool, dry_run: bool| {
            let paths = Vec::new();
            ApplyRequest { name: "staged".to_owned(), paths, force, dry_run }
        };
        // Without anything that goes wrong it makes about so many calls.
        let calls = scene.apply(&everything(true, true), Faults::default()).1 * 3;
        for (wrong, force, choice) in &self.attempts {
            let differing = scene.differing();
            let chosen = choice.iter().filter_map(|number| differing.get(number % differing.len().max(1)).cloned());
            let request = ApplyRequest { paths: chosen.collect(), ..everything(*force, false) };
            if *force {
                let places = differing.iter().map(|path| scene.root().join(path.strip_prefix("/guest").unwrap()));
                scene.forced.extend(places.collect::<Vec<_>>());
            }
            let place = |at: &u64| at % calls.max(1);
            let faults = match wrong {
                Wrong::Nothing => Faults::default(),
                Wrong::Fails(at, errno) => {
                    let at = place(at);
                    let fails = Some((at..at + 1, Errno::from_raw_os_error(*errno)));
                    Faults { fails, ..Faults::default() }
                }
                Wrong::Killed(at) | Wrong::PowerLost(at, _) => Faults { dies: Some(place(at)), ..Faults::default() },
            };
            let report = scene.apply(&request, faults).0;
            if let Wrong::PowerLost(_, how) = wrong {
                scene.lose_power(how);
            }
            scene.check(&format!("after {wrong:?}"))?;
            if let (Some(report), Wrong::Nothing | Wrong::Fails(..)) = (&report, wrong) {
                scene.check_left(report)?;
            }
        }
        if self.force {
            let places =
                scene.differing().into_iter().map(|path| scene.root().join(path.strip_prefix("/guest").unwrap()));
            scene.forced.extend(places.collect::<Vec<_>>());
        }
        let before = scene.left();
        let dry = scene.apply(&everything(self.force, true), Faults::default()).0;
        prop_assert_eq!(&before, &scene.left(), "a dry run changes nothing");
        let report = scene.apply(&everything(self.force, false), Faults::default()).0;
        scene.check("at the end")?;
        let (Some(dry), Some(report)) = (dry, report) else { return Err(TestCaseError::fail("nothing was done")) };
        scene.check_left(&report)?;
        prop_assert_eq!(&dry.conflicts, &report.conflicts);
        for (path, reason) in &dry.failures {
            prop_assert!(report.failures.iter().any(|(other, _)| other == path), "{path}: {reason}");
        }
        if report.failures.is_empty() {
            prop_assert_eq!(&dry.done, &report.done);
        }
        prop_assert!(scene.left().is_empty() || !report.complete);
        if report.complete {
            scene.check_applied()?;
        }
        // After kills and power losses alone the same command finishes. After a call that failed something may stay that
        // nobody knows.
        let is_failed = |(wrong, ..): &Attempt| matches!(wrong, Wrong::Fails(..));
        prop_assert!(report.complete || !self.host.is_empty() || self.attempts.iter().any(is_failed), "{report:?}");
        Ok(())
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_bytes_are_lost_in_several_applies_of_a_kept_run(
        numbers in prop::collection::vec(0usize..60, PATHS.len()),
        guest in prop::collection::vec((0u8..13, 0..PATHS.len(), 0..PATHS.len()), 0..8),
        host in prop::collection::vec((0u8..13, 0..PATHS.len(), 0..PATHS.len()), 0..4),
        attempts in prop::collection::vec((wrong(), any::<bool>(), prop::collection::vec(0usize..20, 0..3)), 0..4),
        lacks in prop::sample::subsequence(vec![Ability::Exchange, Ability::Unnamed, Ability::Link, Ability::NoReplace], 0..=4),
        force in any::<bool>(),
    ) {
        Case { numbers, guest, host, attempts, lacks, force }.play()?;
    }
}

#[test]
fn what_force_took_out_and_could_not_remove_goes_with_the_next_apply() {
    let case = Case {
        numbers: vec![0, 0, 0, 0, 0, 0, 1, 0, 0, 0],
        guest: vec![(5, 6, 0)],
        host: vec![(5, 7, 0)],
        attempts: vec![(Wrong::Fails(33, 1), true, vec![2]), (Wrong::PowerLost(74, vec![63, 192, 153]), true, vec![0])],
        lacks: vec![],
        force: true,
    };
    case.play().unwrap();
}

#[test]
fn what_stays_is_known_even_if_its_directory_cannot_be_read() {
    // One of the calls that fail asks for the names in the directory, after an apply of another path.
    for at in 0..18 {
        let case = Case {
            numbers: vec![0, 0, 0, 0, 0, 1, 0, 0, 0, 0],
            guest: vec![(0, 5, 0)],
            host: vec![(0, 0, 0)],
            attempts: vec![(Wrong::Killed(176), false, vec![]), (Wrong::Fails(at, 28), false, vec![5])],
            lacks: vec![],
            force: false,
        };
        case.play().unwrap();
    }
}

#[test]
fn a_directory_goes_after_what_was_in_it_was_applied_alone() {
    // Of `y` and `y/a`, which the guest removed, the first apply is of `y/a`.
    let case = Case {
        numbers: vec![0, 0, 0, 0, 0, 0, 0, 0, 1, 0],
        guest: vec![(2, 7, 0)],
        host: vec![],
        attempts: vec![(Wrong::Nothing, false, vec![2])],
        lacks: vec![],
        force: false,
    };
    case.play().unwrap();
}

#[test]
fn files_of_a_run_that_claim_one_place_of_its_overlay_stay_behind() {
    for force in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (host, guest) = (dir.path().join("host"), dir.path().join("guest"));
        [&host, &guest].into_iter().for_each(|root| fs::create_dir(root).unwrap());
        fill(&host, &[("there", "the host's")]);
        fill(&guest, &[("there", "whose is this?"), ("new", "whose is this?"), ("plain", "the guest's")]);
        let mut staged = Staged::with_shared_places(&host, &guest);
        let request = ApplyRequest { name: "staged".to_owned(), paths: Vec::new(), force, dry_run: false };
        let report = apply_to(&mut staged.run, &request).unwrap();
        let reason = "its blocks on the guest's disk are those of another file too: the file system is damaged";
        let refused = |name: &str| (host.join(name).display().to_string(), reason.to_owned());
        assert_eq!(report.conflicts, ["new", "there"].map(refused), "force: {force}");
        assert!(!report.complete && !host.join("new").exists());
        assert_eq!(fs::read(host.join("there")).unwrap(), b"the host's");
        assert_eq!(fs::read(host.join("plain")).unwrap(), b"the guest's", "the rest comes");
    }
}

#[test]
fn directories_that_both_made_keep_the_hosts_attributes_and_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (host, guest) = (dir.path().join("host"), dir.path().join("guest"));
    [&host, &guest].into_iter().for_each(|root| fs::create_dir(root).unwrap());
    fill(&guest, &[("a", ""), ("a/in", "in"), ("b", ""), ("same", "")]);
    let mut staged = Staged::new(&host, &guest);
    fill(&host, &[("a", ""), ("b", ""), ("same", "")]);
    for name in ["a", "b"] {
        fs::set_permissions(host.join(name), fs::Permissions::from_mode(0o700)).unwrap();
    }
    let report = staged.apply().unwrap();
    let expected = format!(
        "{}: this machine made it, too; it and another such directory keep their owners, permissions and extended attributes",
        host.join("a").display()
    );
    assert_eq!((report.complete, report.notes), (true, vec![expected]));
    assert_eq!(fs::metadata(host.join("a")).unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(fs::read(host.join("a/in")).unwrap(), b"in");
}

#[test]
fn attributes_that_could_not_be_set_are_set_by_the_same_command_again() {
    let go = |at: Option<u64>| {
        let dir = tempfile::tempdir().unwrap();
        let (host, guest) = (dir.path().join("host"), dir.path().join("guest"));
        for root in [&host, &guest] {
            fs::create_dir(root).unwrap();
            fill(root, &[("old", ""), ("old/in", "in")]);
            set_time(&root.join("old/in"));
        }
        fill(&guest, &[("new", ""), ("new/in", "in"), ("file", "bytes")]);
        for (name, mode) in [("new", 0o711), ("old", 0o700), ("file", 0o640)] {
            fs::set_permissions(guest.join(name), fs::Permissions::from_mode(mode)).unwrap();
            setxattr(guest.join(name), "user.name", name.as_bytes(), XattrFlags::empty()).unwrap();
        }
        let mut staged = Staged::new(&host, &guest);
        let fails = at.map(|at| (at..at + 1, Errno::DQUOT));
        let faults = Arc::new(Faults { root: host.clone(), fails, ..Faults::default() });
        go_wrong(Some(Arc::clone(&faults)));
        let report = staged.apply();
        go_wrong(None);
        (dir, staged, report, faults.count.load(std::sync::atomic::Ordering::Relaxed))
    };
    let (.., calls) = go(None);
    let mut unfinished = 0;
    for at in 0..calls {
        let (dir, mut staged, first, _) = go(Some(at));
        let has_failed = |(_, reason): &(String, String)| reason.contains("cannot set");
        unfinished += u32::from(first.is_ok_and(|report| report.failures.iter().any(has_failed)));
        let report = staged.apply().unwrap();
        assert!(report.complete, "call {at}: {report:?}");
        for (name, expected) in [("new", 0o711), ("old", 0o700), ("file", 0o640)] {
            let path = dir.path().join("host").join(name);
            let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
            let mut value = [0; 64];
            let length = getxattr(&path, "user.name", &mut value).unwrap_or(0);
            assert_eq!((mode, &value[..length]), (expected, name.as_bytes()), "call {at}: {name}");
        }
    }
    assert!(unfinished > 3, "else nothing is checked here");
}
