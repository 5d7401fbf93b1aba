//! Other programs that change the tree while an apply is going on.

use std::fs;
use std::path::Path;

use super::super::calls::{Ability, Act, Faults};
use super::super::world::{Memory, files};
use super::{apply, world};

#[test]
fn what_came_meanwhile_is_put_back() {
    let mut world = world(&[("a", "old bytes"), ("d", "a file"), ("gone", "old bytes")]);
    assert!(world.edit("a", b'X') && world.remove("d") && world.mkdir("d") && world.remove("gone"));
    world.meanwhile = Some(Box::new(|root| {
        for path in ["a", "d", "gone"] {
            fs::remove_file(root.join(path)).unwrap();
            fs::write(root.join(path), "the host's").unwrap();
        }
    }));
    let attempt = apply(&mut world, &[]);
    // What was to be copied from the file that is gone cannot be read.
    assert_eq!((attempt.outcome.conflicts.len(), attempt.outcome.failures.len()), (2, 1));
    for path in ["a", "d", "gone"] {
        assert_eq!(fs::read(world.host(path)).unwrap(), b"the host's");
    }
    assert_eq!(world.host_paths().len(), 4, "{:?}", world.host_paths());
}

#[test]
fn what_came_meanwhile_stays_whatever_fails() {
    let make = || {
        let mut world = world(&[("a", "old bytes"), ("d", "a file"), ("gone", "old bytes"), ("m", "moves")]);
        assert!(world.write("a", b"new bytes") && world.remove("d") && world.mkdir("d") && world.remove("gone"));
        assert!(world.write("n", b"n") && world.rename("m", "o"));
        world.meanwhile = Some(Box::new(|root| {
            for path in ["a", "d", "gone", "m"] {
                fs::remove_file(root.join(path)).unwrap();
                fs::write(root.join(path), format!("the host's {path}")).unwrap();
            }
        }));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    for lacks in [vec![], vec![Ability::Exchange]] {
        for at in 0..calls + 20 {
            for end in [at + 1, u64::MAX] {
                let mut world = make();
                let fails = Some((at..end, rustix::io::Errno::IO));
                world.apply(&mut Memory::default(), &[], Faults { fails, lacks: lacks.clone(), ..Faults::default() });
                for path in ["a", "d", "gone", "m"] {
                    let bytes = format!("the host's {path}").into_bytes();
                    assert!(world.host_files().contains(&bytes), "{path} is lost when {at} fails");
                }
            }
        }
    }
}

#[test]
fn what_is_written_to_after_it_came_out_is_put_back() {
    let make = || {
        let mut world = world(&[("log", "old"), ("goes", "moves"), ("d", "file")]);
        assert!(world.append("log", b"+new") && world.rename("goes", "comes"));
        assert!(world.remove("d") && world.mkdir("d") && world.write("d/in", b"in"));
        world
    };
    // A program keeps writing through its open descriptor after a rename of the file.
    let acts: [Act; 2] = [|root| add_to(root, b"old"), |root| add_to(root, b"file")];
    let calls = apply(&mut make(), &[]).calls;
    for (act, bytes) in acts.into_iter().zip(["old and more", "file and more"]) {
        let is_lost = |at: &u64| {
            let mut world = make();
            world.apply(&mut Memory::default(), &[], Faults { acts: Some((*at, act)), ..Faults::default() });
            world.root().with_file_name("acted").exists() && !world.host_files().contains(bytes.as_bytes())
        };
        // Between the last look at a file and its removal there is always a moment.
        let lost: Vec<u64> = (0..calls).filter(is_lost).collect();
        assert!(lost.len() <= 1, "{bytes:?} is lost at {lost:?} of {calls}");
    }
}

fn add_to(root: &Path, bytes: &[u8]) {
    for file in files(root).into_iter().filter(|file| file.bytes == bytes) {
        fs::write(&file.path, [bytes, b" and more"].concat()).unwrap();
        fs::write(root.with_file_name("acted"), "").unwrap();
    }
}

#[test]
fn what_takes_a_name_in_the_moment_of_an_exchange_stays_whatever_fails() {
    let make = || {
        let mut world = world(&[("a", "old bytes"), ("b", "old bytes")]);
        assert!(world.write("a", b"new bytes") && world.append("b", b"+"));
        world
    };
    let acts: [Act; 2] = [|root| replace(&root.join("a")), |root| replace(&root.join("b"))];
    for lacks in [vec![], vec![Ability::Exchange]] {
        let faults = || Faults { lacks: lacks.clone(), ..Faults::default() };
        let calls = make().apply(&mut Memory::default(), &[], faults()).calls;
        for (at, behind) in (0..calls).flat_map(|at| (1..6).map(move |behind| (at, behind))) {
            for act in acts {
                let mut world = make();
                let fails = Some((at + behind..at + behind + 1, rustix::io::Errno::IO));
                world.apply(&mut Memory::default(), &[], Faults { acts: Some((at, act)), fails, ..faults() });
                let is_kept = world.host_files().contains(&b"the host's"[..]);
                let acted = world.root().with_file_name("acted").exists();
                assert!(is_kept || !acted, "lost at {at}, {behind} fails, without {lacks:?}");
            }
        }
    }
}

#[test]
fn what_comes_to_a_free_name_stays_where_no_rename_promises_it() {
    let make = || {
        let mut world = world(&[("a", "old bytes")]);
        assert!(world.write("a", b"new bytes") && world.write("n", b"the guest's"));
        world
    };
    let lacks = || vec![Ability::NoReplace, Ability::Exchange, Ability::Unnamed];
    let acts: [Act; 2] = [|root| take(&root.join("a")), |root| take(&root.join("n"))];
    let calls = make().apply(&mut Memory::default(), &[], Faults { lacks: lacks(), ..Faults::default() }).calls;
    for (at, act) in (0..calls).flat_map(|at| acts.map(|act| (at, act))) {
        let mut world = make();
        world.apply(&mut Memory::default(), &[], Faults { lacks: lacks(), acts: Some((at, act)), ..Faults::default() });
        let has = |bytes: &[u8]| world.host_files().contains(bytes);
        assert!(has(b"the host's") || !world.root().with_file_name("acted").exists(), "lost at {at} of {calls}");
        assert!(has(b"old bytes") || has(b"new bytes"), "both are lost at {at} of {calls}");
    }
}

/// Makes a file, unless there is one.
fn take(path: &Path) {
    if !path.exists() {
        fs::write(path, "the host's").unwrap();
        fs::write(path.parent().unwrap().with_file_name("acted"), "").unwrap();
    }
}

fn replace(path: &Path) {
    if fs::read(path).is_ok_and(|bytes| bytes == b"old bytes") {
        fs::remove_file(path).unwrap();
        fs::write(path, "the host's").unwrap();
        fs::write(path.parent().unwrap().with_file_name("acted"), "").unwrap();
    }
}
