//! Other programs that put something else in a place in the very moment in which an apply works there.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::super::calls::{Ability, Act, Faults};
use super::super::world::{Memory, World, fill};
use super::{apply, world};

/// Who owns the guest's programs that act in their owner's name.
const OWNER: (u32, u32) = (12, 34);

/// Puts the file `theirs` in the place of what is called `name` and holds `bytes`.
fn take_place(root: &Path, name: &str, bytes: &[u8]) {
    let place = root.join(name);
    if fs::read(&place).is_ok_and(|found| found == bytes) && root.join("theirs").exists() {
        fs::rename(root.join("theirs"), place).unwrap();
        fs::write(root.with_file_name("acted"), "").unwrap();
    }
}

/// Tries an act before every call of an apply, in a world each, and gives how often it found something to do.
fn act_before_each(make: &dyn Fn() -> World, act: Act, check: &dyn Fn(&World, u64)) -> usize {
    let calls = apply(&mut make(), &[]).calls;
    let acted = |at: &u64| {
        let mut world = make();
        world.apply(&mut Memory::default(), &[], Faults { acts: Some((*at, act)), ..Faults::default() });
        check(&world, *at);
        world.root().with_file_name("acted").exists()
    };
    (0..calls).filter(acted).count()
}

/// A program of the guest's that acts in its owner's name, at `path`.
fn give_rights(world: &mut World, path: &str) {
    assert!(world.chmod(path, 0o6755) && world.chown(path, OWNER.0, OWNER.1));
    world.set_capabilities(path);
}

fn assert_no_rights(world: &World, at: u64) {
    let theirs = super::files(&world.root()).into_iter().find(|file| file.bytes == b"theirs");
    let found = fs::symlink_metadata(theirs.expect("nothing removes it").path).unwrap();
    let is_their_own = (found.uid(), found.gid()) != OWNER && found.mode() & 0o7777 == 0o600;
    assert!(is_their_own, "call {at} gave {:o} of {}:{}", found.mode(), found.uid(), found.gid());
}

fn with_theirs(lines: &[(&str, &str)]) -> World {
    World::new(|root| {
        fill(root, lines);
        fill(root, &[("theirs", "theirs")]);
        fs::set_permissions(root.join("theirs"), fs::Permissions::from_mode(0o600)).unwrap();
    })
}

#[test]
fn a_file_in_the_place_of_one_that_gets_attributes_gets_none() {
    let make = || {
        let mut world = with_theirs(&[("stays", "ours")]);
        give_rights(&mut world, "stays");
        world
    };
    let acted = act_before_each(&make, |root| take_place(root, "stays", b"ours"), &assert_no_rights);
    assert!(acted > 5, "only {acted}");
}

#[test]
fn a_file_that_is_written_to_meanwhile_does_not_get_its_owners_rights() {
    let make = || {
        let mut world = world(&[("stays", "ours")]);
        give_rights(&mut world, "stays");
        world
    };
    // Who may not do everything takes the rights away when writing: later there is nothing to be done.
    let act: Act = |root| {
        if fs::metadata(root.join("stays")).unwrap().mode() & 0o6000 == 0 {
            fs::write(root.join("stays"), "theirs").unwrap();
            fs::write(root.with_file_name("acted"), "").unwrap();
        }
    };
    let check = |world: &World, at: u64| {
        let found = fs::metadata(world.host("stays")).unwrap();
        let is_theirs = fs::read(world.host("stays")).unwrap() == b"theirs";
        assert!(!is_theirs || found.mode() & 0o6000 == 0, "call {at}: {:o}", found.mode());
    };
    assert!(act_before_each(&make, act, &check) > 3);
}

/// Whether a file can do what only root may.
fn is_capable(path: &Path) -> bool {
    rustix::fs::getxattr(path, "security.capability", &mut [0; 64]).is_ok()
}

#[test]
fn a_file_that_is_written_to_meanwhile_gets_no_capabilities() {
    let make = || {
        let mut world = world(&[("stays", "ours")]);
        assert!(world.chown("stays", OWNER.0, OWNER.1) && world.set_capabilities("stays"));
        world
    };
    // A write takes them away: later there is nothing to be done.
    let act: Act = |root| {
        if !is_capable(&root.join("stays")) {
            fs::write(root.join("stays"), "theirs").unwrap();
            fs::write(root.with_file_name("acted"), "").unwrap();
        }
    };
    let check = |world: &World, at: u64| {
        let is_theirs = fs::read(world.host("stays")).unwrap() == b"theirs";
        assert!(!is_theirs || !is_capable(&world.host("stays")), "call {at}");
    };
    assert!(act_before_each(&make, act, &check) > 3);
}

#[test]
fn a_new_program_that_its_owner_writes_to_before_it_is_complete_gets_no_rights() {
    let make = || {
        let mut world = world(&[]);
        assert!(world.write("new", b"ours"));
        give_rights(&mut world, "new");
        world
    };
    // Its owner can open it by a temporary name, where files without names do not exist.
    let act: Act = |root| {
        for file in super::files(root) {
            let found = fs::symlink_metadata(&file.path).unwrap();
            if (found.uid(), found.gid()) == OWNER && found.mode() & 0o6000 == 0 && file.bytes == b"ours" {
                fs::write(&file.path, "theirs").unwrap();
                fs::write(root.with_file_name("acted"), "").unwrap();
            }
        }
    };
    let faults = || Faults { lacks: vec![Ability::Unnamed], ..Faults::default() };
    let calls = make().apply(&mut Memory::default(), &[], faults()).calls;
    let acted = |at: &u64| {
        let mut world = make();
        world.apply(&mut Memory::default(), &[], Faults { acts: Some((*at, act)), ..faults() });
        for file in super::files(&world.root()).into_iter().filter(|file| file.bytes == b"theirs") {
            let mode = fs::symlink_metadata(&file.path).unwrap().mode();
            assert!(mode & 0o6000 == 0 && !is_capable(&file.path), "call {at}: {mode:o}");
        }
        world.root().with_file_name("acted").exists()
    };
    assert!((0..calls).filter(acted).count() > 0);
}

#[test]
fn a_file_in_the_place_of_one_that_moves_is_neither_linked_nor_given_attributes() {
    let make = || {
        let mut world = with_theirs(&[("goes", "ours")]);
        assert!(world.rename("goes", "comes"));
        give_rights(&mut world, "comes");
        world
    };
    let acts: [Act; 2] = [|root| take_place(root, "goes", b"ours"), |root| take_place(root, "comes", b"ours")];
    for (act, place) in acts.into_iter().zip(["goes", "comes"]) {
        let check = |world: &World, at: u64| {
            assert_no_rights(world, at);
            let is_theirs = |path: &str| fs::read(world.host(path)).is_ok_and(|bytes| bytes == b"theirs");
            let other = if place == "goes" { "comes" } else { "goes" };
            assert!(!is_theirs(other), "call {at} linked what came to {place}");
        };
        assert!(act_before_each(&make, act, &check) > 0);
    }
}

#[test]
fn a_directory_in_the_place_of_a_new_one_keeps_its_attributes() {
    let make = || {
        let mut world = World::new(|root| {
            fill(root, &[("theirs", ""), ("theirs/in", "theirs")]);
            fs::set_permissions(root.join("theirs"), fs::Permissions::from_mode(0o700)).unwrap();
        });
        assert!(world.mkdir("new") && world.chmod("new", 0o755) && world.chown("new", OWNER.0, OWNER.1));
        world
    };
    let act: Act = |root| {
        if root.join("new").exists() && root.join("theirs").exists() {
            fs::remove_dir(root.join("new")).unwrap();
            fs::rename(root.join("theirs"), root.join("new")).unwrap();
            fs::write(root.with_file_name("acted"), "").unwrap();
        }
    };
    let check = |world: &World, at: u64| {
        let Ok(file) = fs::metadata(world.host("new/in")) else { return };
        assert!(file.is_file());
        let found = fs::metadata(world.host("new")).unwrap();
        assert!(found.uid() != OWNER.0 && found.mode() & 0o777 == 0o700, "call {at}: {:o}", found.mode());
    };
    assert!(act_before_each(&make, act, &check) > 0);
}

#[test]
fn attributes_of_what_is_no_file_reach_it_alone() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: attributes_of_what_is_no_file_reach_it_alone: only root gives files to others");
        return;
    }
    let mut world = world(&[("target", "bytes"), ("link", "-> target")]);
    assert!(world.chown("link", OWNER.0, OWNER.1) && world.symlink("new", "target"));
    assert!(world.chown("new", OWNER.0, OWNER.1));
    apply(&mut world, &[]).assert_whole();
    let owner = |path: &str| fs::symlink_metadata(world.host(path)).map(|found| (found.uid(), found.gid())).unwrap();
    assert_eq!((owner("link"), owner("new")), (OWNER, OWNER));
    assert_ne!(owner("target"), OWNER);
}

fn removal() -> World {
    let mut world = with_theirs(&[("gone", "old bytes"), ("sub", ""), ("sub/gone", "old bytes")]);
    assert!(world.remove("gone") && world.remove("sub/gone") && world.remove("sub"));
    world
}

const REMOVALS: [(&str, Act); 2] = [
    ("gone", |root| take_place(root, "gone", b"old bytes")),
    ("sub/gone", |root| take_place(root, "sub/gone", b"old bytes")),
];

#[test]
fn a_file_in_the_place_of_one_that_is_removed_is_put_back() {
    for (path, act) in REMOVALS {
        let check = |world: &World, at: u64| {
            let is_there = |name: &str| fs::read(world.host(name)).is_ok_and(|bytes| bytes == b"theirs");
            assert!(is_there(path) || is_there("theirs"), "call {at}: {:?}", world.host_paths());
            let names: Vec<String> = world.host_paths().into_keys().filter(|path| path.contains(".inarch-")).collect();
            assert!(names.is_empty(), "call {at} left {names:?}");
        };
        assert!(act_before_each(&removal, act, &check) > 2);
    }
}

#[test]
fn a_file_in_the_place_of_one_that_is_removed_is_back_after_a_kill_or_a_failure() {
    let calls = apply(&mut removal(), &[]).calls;
    for (path, act) in REMOVALS {
        for (at, behind) in (0..calls).flat_map(|at| (1..6).map(move |behind| (at, behind))) {
            let last = at + behind;
            let ends = [
                Faults { acts: Some((at, act)), dies: Some(last), ..Faults::default() },
                Faults {
                    acts: Some((at, act)),
                    fails: Some((last..last + 1, rustix::io::Errno::IO)),
                    ..Faults::default()
                },
                Faults {
                    acts: Some((at, act)),
                    fails: Some((last..u64::MAX, rustix::io::Errno::IO)),
                    ..Faults::default()
                },
                Faults {
                    acts: Some((at, act)),
                    fails: Some((last..last + 1, rustix::io::Errno::NOSPC)),
                    ..Faults::default()
                },
            ];
            for faults in ends {
                let when = format!("{faults:?}");
                let mut world = removal();
                let mut memory = Memory::default();
                world.apply(&mut memory, &[], faults);
                assert!(world.host_files().contains(&b"theirs"[..]), "lost: {when}");
                world.apply(&mut memory, &[], Faults::default());
                let is_there = |name: &str| fs::read(world.host(name)).is_ok_and(|bytes| bytes == b"theirs");
                assert!(is_there(path) || is_there("theirs"), "{:?}: {when}", world.host_paths());
            }
        }
    }
}

#[test]
fn what_cannot_be_put_back_since_its_place_is_taken_is_told() {
    let act: Act = |root| {
        take_place(root, "gone", b"old bytes");
        let is_aside = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with(".inarch-gone-");
        if fs::read_dir(root).unwrap().any(|entry| is_aside(entry.unwrap())) && !root.join("gone").exists() {
            fs::write(root.join("gone"), "a third").unwrap();
        }
    };
    let mut told = 0;
    for at in 0..apply(&mut removal(), &[]).calls {
        let mut world = removal();
        let mut memory = Memory::default();
        let faults = Faults { acts_from: Some((at, act)), ..Faults::default() };
        let outcome = world.apply(&mut memory, &[], faults).outcome;
        assert!(world.host_files().contains(&b"theirs"[..]), "lost at {at}");
        let beside = world.host_paths().into_keys().find(|path| path.contains(".inarch-gone-"));
        let Some(name) = beside.as_ref().map(|path| path.trim_start_matches('/')) else { continue };
        told += 1;
        assert!(outcome.conflicts.iter().any(|(_, reason)| reason.ends_with(name)), "{:?}", outcome.conflicts);
        // It stays there as long as something has its place, and comes back when nothing has.
        world.apply(&mut memory, &[], Faults::default());
        assert_eq!(fs::read(world.host("gone")).unwrap(), b"a third");
        assert_eq!(fs::read(world.host(name)).unwrap(), b"theirs");
        fs::remove_file(world.host("gone")).unwrap();
        world.apply(&mut memory, &[], Faults::default());
        assert_eq!(fs::read(world.host("gone")).unwrap(), b"theirs");
    }
    assert!(told > 0);
}

#[test]
fn what_was_about_to_go_goes_after_a_kill_and_without_power() {
    let calls = apply(&mut removal(), &[]).calls;
    for lacks in [vec![], vec![Ability::Exchange]] {
        for at in 0..calls {
            let mut world = removal();
            let mut memory = Memory::default();
            world.apply(&mut memory, &[], Faults { dies: Some(at), lacks: lacks.clone(), ..Faults::default() });
            world.lose_power(&mut memory, &[1]);
            world.apply(&mut memory, &[], Faults::default()).assert_whole();
            assert_eq!(world.host_paths(), world.guest_paths(), "killed at {at}");
        }
    }
}
