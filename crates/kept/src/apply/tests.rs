//! Tests each way in which an apply could lose bytes.

mod attributes;
mod deep;
mod leftovers;
mod meanwhile;
mod owners;
mod places;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};

use super::calls::{Ability, Faults};
use super::decide::Verdict;
use super::world::{Attempt, Memory, World, files, fill, set_time};

fn world(lines: &[(&str, &str)]) -> World {
    World::new(|root| fill(root, lines))
}

fn apply(world: &mut World, asked: &[&str]) -> Attempt {
    world.apply(&mut Memory::default(), asked, Faults::default())
}

#[track_caller]
fn assert_applied(world: &mut World) {
    apply(world, &[]).assert_whole();
    assert_eq!(world.host_paths(), world.guest_paths());
}

#[test]
fn files_of_one_size_and_time_are_told_apart() {
    let mut renamed = world(&[("current", "old bytes"), ("next", "new bytes")]);
    assert!(renamed.rename("next", "current"));
    assert_applied(&mut renamed);
    assert_eq!(fs::read(renamed.host("current")).unwrap(), b"new bytes");

    let mut edited = world(&[("file", "old bytes")]);
    assert!(edited.edit("file", b'X'));
    assert_applied(&mut edited);
    assert_eq!(fs::read(edited.host("file")).unwrap(), b"Xld bytes");

    let mut swapped = world(&[("a", "one"), ("b", "two")]);
    assert!(swapped.rename("a", "t") && swapped.rename("b", "a") && swapped.rename("t", "b"));
    assert_applied(&mut swapped);

    let mut blocks = world(&[("a", "one"), ("b", "two"), ("c", "six")]);
    assert!(blocks.exchange_blocks("a", "b") && blocks.exchange_blocks("b", "c") && blocks.remove("b"));
    assert_applied(&mut blocks);
}

#[test]
fn a_file_over_one_of_the_same_bytes_is_a_rename() {
    let mut same = world(&[("a", "same"), ("b", "same"), ("c", "= b")]);
    assert!(same.rename("a", "b"));
    let ino = |world: &World, path: &str| fs::metadata(world.host(path)).unwrap().ino();
    let (was, other) = (ino(&same, "a"), ino(&same, "c"));
    assert_applied(&mut same);
    assert_eq!((ino(&same, "b"), ino(&same, "c")), (was, other));
    // The host's own edit of what is replaced is a conflict, and the name that would go stays.
    let mut edited = world(&[("a", "same"), ("b", "same")]);
    assert!(edited.rename("a", "b"));
    fs::write(edited.host("b"), "mine").unwrap();
    let attempt = apply(&mut edited, &[]);
    assert!(matches!(attempt.verdict("b"), Verdict::Refused(_)) && matches!(attempt.verdict("a"), Verdict::Held(_)));
    assert_eq!(fs::read(edited.host("a")).unwrap(), b"same");
    assert_eq!(fs::read(edited.host("b")).unwrap(), b"mine");
}

#[test]
fn what_was_applied_is_known_again() {
    let mut world = world(&[("a", "same"), ("b", "same"), ("c", "same"), ("d", "other"), ("e", "= d")]);
    assert!(world.rename("a", "b") && world.chmod("b", 0o600) && world.link("b", "f") && world.chmod("c", 0o640));
    assert!(world.rename("d", "g"));
    assert_applied(&mut world);
    // Another apply finds nothing to do, and refuses nothing.
    let attempt = apply(&mut world, &[]);
    attempt.assert_whole();
    let todo: Vec<_> = attempt.verdicts.iter().filter(|(_, verdict)| verdict.is_wanted()).collect();
    assert!(todo.is_empty(), "{todo:?}");
}

#[test]
fn what_lends_bytes_stays_until_all_of_them_are_elsewhere() {
    let lines = [("f1", "first"), ("sub", ""), ("sub/below", "below")];
    let mut taken = world(&lines);
    assert!(taken.rename("f1", "g1") && taken.rename("sub", "subdir"));
    fs::write(taken.host("g1"), "the host's").unwrap();
    fs::write(taken.host("subdir"), "the host's too").unwrap();
    let attempt = apply(&mut taken, &[]);
    assert!(matches!(attempt.verdict("g1"), Verdict::Refused(_)) && matches!(attempt.verdict("f1"), Verdict::Held(_)));
    assert_eq!(fs::read(taken.host("f1")).unwrap(), b"first");
    assert_eq!(fs::read(taken.host("sub/below")).unwrap(), b"below");
    assert_eq!(fs::read(taken.host("subdir")).unwrap(), b"the host's too");
}

#[test]
fn force_replaces_nothing_by_what_cannot_be_read() {
    let mut taken = world(&[("sub", ""), ("sub/below", "below"), ("f", "first")]);
    assert!(taken.rename("sub", "subdir") && taken.rename("f", "g"));
    fs::write(taken.host("sub/below"), "the host's below").unwrap();
    fs::write(taken.host("f"), "the host's f").unwrap();
    fs::write(taken.host("subdir"), "the host's file").unwrap();
    fs::write(taken.host("g"), "the host's g").unwrap();
    taken.force = true;
    let attempt = apply(&mut taken, &[]);
    let found = taken.host_files();
    for bytes in ["the host's below", "the host's f", "the host's file", "the host's g"] {
        assert!(found.contains(bytes.as_bytes()), "{bytes} is lost");
    }
    assert!(attempt.told().contains("/guest/subdir/below in it cannot be brought"), "{}", attempt.told());
}

#[test]
fn what_belongs_together_is_chosen_together() {
    let lines = [("sub", ""), ("sub/below", "below"), ("sub/deep", ""), ("sub/deep/er", "deeper"), ("other", "x")];
    for asked in ["sub", "subdir", "sub/below"] {
        let mut moved = world(&lines);
        assert!(moved.rename("sub", "subdir") && moved.write("other", b"y"));
        apply(&mut moved, &[asked]).assert_whole();
        assert_eq!(fs::read(moved.host("subdir/below")).unwrap(), b"below", "{asked}");
        assert!(!moved.host("sub").exists(), "{asked}");
        assert_eq!(fs::read(moved.host("other")).unwrap(), b"x");
    }
    for asked in ["f1", "f2", "f3", "z"] {
        let mut chain = world(&[("f1", "one"), ("f2", "two"), ("f3", "six")]);
        assert!(chain.rename("f1", "z") && chain.rename("f2", "f1") && chain.rename("f3", "f2"));
        apply(&mut chain, &[asked]).assert_whole();
        assert_eq!(chain.host_paths(), chain.guest_paths());
    }
}

#[test]
fn kinds_change_and_files_move_into_what_takes_their_name() {
    let mut into = world(&[("f", "bytes"), ("d", ""), ("d/x", "inner"), ("l", "-> f")]);
    assert!(into.rename("f", "t") && into.mkdir("f") && into.rename("t", "f/inside") && into.append("f/inside", b"+"));
    assert!(into.rename("d/x", "y") && into.remove("d") && into.rename("y", "d"));
    assert!(into.rename("l", "f/l") && into.mkdir("f/deep") && into.write("f/deep/new", b"new"));
    assert_applied(&mut into);
}

#[test]
fn links_become_files_of_their_own_and_back() {
    let mut linked = world(&[("a", "same"), ("b", "= a"), ("c", "= a"), ("d", "else")]);
    // A copy in the place of one name, which then is another file with the same bytes.
    assert!(linked.remove("b") && linked.write("b", b"same") && linked.chmod("b", 0o600));
    assert!(linked.rename("a", "e") && linked.link("d", "f") && linked.append("d", b"+"));
    assert_applied(&mut linked);
    let ino = |path: &str| fs::metadata(linked.host(path)).unwrap().ino();
    assert!(ino("e") == ino("c") && ino("b") != ino("c") && ino("d") == ino("f"));
    // All names of a file that changed.
    let mut changed = world(&[("a", "bytes"), ("b", "= a"), ("c", "= a")]);
    assert!(changed.append("a", b"+") && changed.remove("b") && changed.link("c", "d"));
    assert_applied(&mut changed);
    // The old name of a file that a new one took.
    let mut copied = world(&[("a", "same")]);
    assert!(copied.rename("a", "z") && copied.write("a", b"same") && copied.chmod("a", 0o600));
    assert_applied(&mut copied);
    assert_ne!(fs::metadata(copied.host("a")).unwrap().ino(), fs::metadata(copied.host("z")).unwrap().ino());
}

#[test]
fn the_last_place_of_what_the_guest_has_stays() {
    for content in ["bytes", "-> target"] {
        let mut world = world(&[("a", content), ("b", "= a")]);
        assert!(world.remove("a"));
        fs::remove_file(world.host("b")).unwrap();
        // Another time of a change of attributes is a conflict of its own.
        assert_eq!(apply(&mut world, &[]).verdict("a"), &Verdict::Refused("it changed on the host".to_owned()));
        // Not so where an earlier apply may have been in the midst of it.
        let mut memory = Memory::default();
        (memory.0.begun, memory.0.is_old) = (true, true);
        let attempt = world.apply(&mut memory, &[], Faults::default());
        let why = "it holds what the guest has as /guest/b, which was changed or removed on the host";
        assert_eq!(attempt.verdict("a"), &Verdict::Refused(why.to_owned()), "{content}");
        assert!(fs::symlink_metadata(world.host("a")).is_ok());
    }
}

#[test]
fn names_that_the_host_takes_for_one_are_not_two_places() {
    let case = || Faults { lacks: vec![Ability::Case], ..Faults::default() };
    let changes: [fn(&mut World) -> bool; 4] = [
        |world| world.rename("README", "readme"),
        |world| world.rename("DIR", "dir") && world.write("dir/new", b"new"),
        |world| world.write("readme", b"the only copy") && world.remove("README"),
        |world| world.rename("README", "DIR/F") && world.rename("DIR/f", "README"),
    ];
    for change in changes {
        let mut world = world(&[("README", "the only copy"), ("DIR", ""), ("DIR/f", "in")]);
        assert!(change(&mut world));
        let mut memory = Memory::default();
        let attempt = world.apply(&mut memory, &[], case());
        let is_told =
            |verdict: &Verdict| matches!(verdict, Verdict::Refused(why) if why.contains("upper from lower case"));
        assert!(attempt.verdicts.iter().any(|(_, verdict)| is_told(verdict)), "{:?}", attempt.verdicts);
        // Once more it has the name to itself, or everything is as it was.
        world.apply(&mut memory, &[], case());
        let contents: Vec<Vec<u8>> = files(&world.root()).into_iter().map(|file| file.bytes).collect();
        assert!(contents.contains(&b"the only copy".to_vec()) && contents.contains(&b"in".to_vec()), "{contents:?}");
    }
}

#[test]
fn a_file_of_another_file_system_with_the_same_number_is_another() {
    let mut world = world(&[("f", "the guest's"), ("across", "")]);
    assert!(world.rename("f", "across/f"));
    fs::write(world.host("across/f"), "the host's.").unwrap();
    set_time(&world.host("across/f"));
    let number = |path: &str| fs::metadata(world.host(path)).unwrap().ino();
    let alike = Some((number("across/f"), number("f")));
    let faults = Faults { is_across: true, alike, ..Faults::default() };
    let attempt = world.apply(&mut Memory::default(), &[], faults);
    assert!(matches!(attempt.verdict("across/f"), Verdict::Refused(_)), "{:?}", attempt.verdicts);
    assert_eq!(fs::read(world.host("f")).unwrap(), b"the guest's");
    assert_eq!(fs::read(world.host("across/f")).unwrap(), b"the host's.");
}

#[test]
fn a_file_with_a_link_here_and_a_name_in_another_file_system_comes_to_both() {
    let across = || Faults { is_across: true, ..Faults::default() };
    let make = || {
        let mut world = world(&[("d", ""), ("d/f", "data"), ("across", "")]);
        assert!(world.link("d/f", "d/l") && world.rename("d/f", "across/m"));
        world
    };
    let calls = make().apply(&mut Memory::default(), &[], across()).calls;
    for at in 0..=calls {
        let (mut world, mut memory) = (make(), Memory::default());
        world.apply(&mut memory, &[], Faults { dies: Some(at), ..across() });
        world.apply(&mut memory, &[], across()).assert_whole();
        assert!(!world.host("d/f").exists());
        for path in ["d/l", "across/m"] {
            assert_eq!(fs::read(world.host(path)).unwrap(), b"data", "{path}, killed at {at}");
        }
    }
}

#[test]
fn what_lends_to_another_file_system_stays_until_that_one_is_synced() {
    let across = || Faults { is_across: true, ..Faults::default() };
    // More than are synced one by one.
    let names: Vec<String> = (0..40).map(|number| format!("{number:02}")).collect();
    let make = || {
        let mut world = World::new(|root| {
            fill(root, &[("across", "")]);
            names.iter().for_each(|name| fill(root, &[(name, &format!("the bytes of {name}"))]));
        });
        for name in &names {
            assert!(world.rename(name, &format!("across/{name}")) && world.append(&format!("across/{name}"), b"+"));
        }
        world
    };
    let calls = make().apply(&mut Memory::default(), &[], across()).calls;
    for at in (0..calls + 1).step_by(7) {
        let (mut world, mut memory) = (make(), Memory::default());
        world.apply(&mut memory, &[], Faults { dies: Some(at), ..across() });
        world.lose_power(&mut memory, &[1, 3, 2]);
        world.apply(&mut memory, &[], across()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "power lost at {at} of {calls}");
    }
}

#[test]
fn a_torn_file_is_brought_again_whatever_its_size() {
    for torn in [&b""[..], b"new", b"new by\0\0\0", b"\0\0\0\0\0\0\0\0\0"] {
        let mut world = world(&[("gone", "old bytes"), ("changed", "old bytes")]);
        assert!(world.write("new", b"new bytes") && world.write("changed", b"new bytes") && world.remove("gone"));
        let mut memory = Memory::default();
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        for path in ["new", "changed"] {
            fs::write(world.host(path), torn).unwrap();
            set_time(&world.host(path));
        }
        (memory.0.begun, memory.0.restarted) = (true, true);
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths());
        // Another program's file is not taken for it.
        fs::write(world.host("new"), "new Bytes").unwrap();
        set_time(&world.host("new"));
        (memory.0.begun, memory.0.restarted) = (true, true);
        let attempt = world.apply(&mut memory, &[], Faults::default());
        assert!(matches!(attempt.verdict("new"), Verdict::Refused(_)));
    }
}

#[test]
fn another_root_is_refused() {
    let world = world(&[("a", "bytes")]);
    let root = world.root();
    let base = inarch_tree::scan::scan(&root, &Default::default()).unwrap().tree;
    let is_root = || {
        let host = super::host::Host::open(&root, false).ok()?;
        host.is_root(base.inode(inarch_tree::InodeId::ROOT), None).ok()
    };
    assert_eq!(is_root(), Some(true));
    let moved = root.with_file_name("moved");
    fs::rename(&root, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &root).unwrap();
    assert_eq!(is_root(), None, "a symlink");
    fs::remove_file(&root).unwrap();
    fs::create_dir(&root).unwrap();
    assert_eq!(is_root(), Some(false), "another directory");
    fs::remove_dir(&root).unwrap();
    fs::rename(&moved, &root).unwrap();
}

#[test]
fn a_file_in_the_place_of_a_directory_that_stays_is_left_where_it_was() {
    for (file, directory) in [("b", "y"), ("y", "b")] {
        let mut swapped = world(&[(directory, ""), (&format!("{directory}/in"), "inner"), ("x", ""), (file, "bytes")]);
        assert!(swapped.rename(directory, "x/moved") && swapped.rename(file, directory));
        // The directory has no place to go to, with force neither.
        fs::rename(swapped.host("x"), swapped.host("gone")).unwrap();
        let before = swapped.host_paths();
        swapped.force = true;
        let attempt = apply(&mut swapped, &[]);
        let why = "its directory is not there on the host";
        assert_eq!(attempt.verdict("x/moved"), &Verdict::Refused(why.to_owned()));
        assert!(attempt.outcome.failures.is_empty(), "{:?}", attempt.outcome.failures);
        assert_eq!(swapped.host_paths(), before, "{file} -> {directory}");
    }
    // What the host has taken out of the directory does not keep it.
    for (file, directory) in [("a", "x"), ("x", "a")] {
        let inside = |name: &str| format!("{directory}/{name}");
        let mut swapped = world(&[(directory, ""), (&inside("1"), "one"), (&inside("2"), "two"), (file, "bytes")]);
        assert!(swapped.rename(directory, "t") && swapped.rename(file, directory) && swapped.rename("t", file));
        fs::remove_file(swapped.host(&inside("1"))).unwrap();
        let attempt = apply(&mut swapped, &[]);
        assert!(!swapped.host_paths().keys().any(|path| path.contains(".inarch")), "{:?}", attempt.outcome.failures);
        assert_eq!(fs::read(swapped.host(directory)).unwrap(), b"bytes");
    }
}

#[test]
fn a_copy_of_what_is_linked_is_known_again_after_a_kill() {
    let make = || {
        let lines = [("a", "bytes"), ("c", "= a"), ("x", ""), ("x/a", "bytes"), ("x/b", "= a")];
        let mut world = world(&lines);
        assert!(world.exchange_blocks("x/a", "x/b") && world.rename("x", "d"));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    assert!(calls > 10);
    for at in 0..calls {
        let (mut world, mut memory) = (make(), Memory::default());
        world.apply(&mut memory, &[], Faults { dies: Some(at), ..Faults::default() });
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "killed at {at}");
    }
}

/// Who owns the guest's programs that give their users the rights of others.
const OWNER: (u32, u32) = (12, 34);

#[test]
fn a_torn_file_in_the_place_of_a_directory_is_brought_again() {
    let make = || {
        let mut world = world(&[("x", ""), ("y", ""), ("y/x", "")]);
        assert!(world.rename("y/x", "x/c") && world.write("y/x", b"other"));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    for at in 0..calls {
        let (mut world, mut memory) = (make(), Memory::default());
        world.apply(&mut memory, &[], Faults { dies: Some(at), ..Faults::default() });
        world.lose_power(&mut memory, &[1, 1]);
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "power lost at {at}");
    }
}

#[test]
fn a_file_stays_whose_bytes_another_has_in_the_guest_alone() {
    let mut world = world(&[("a", "same"), ("b", "same")]);
    assert!(world.exchange_blocks("a", "b") && world.remove("b"));
    // In place, of the same size and time.
    fs::write(world.host("a"), "mine").unwrap();
    set_time(&world.host("a"));
    let attempt = apply(&mut world, &[]);
    let why = "it holds what the guest has as /guest/a, which was changed or removed on the host";
    assert_eq!(attempt.verdict("b"), &Verdict::Refused(why.to_owned()));
    assert_eq!(fs::read(world.host("b")).unwrap(), b"same");
}

#[test]
fn a_torn_file_is_brought_again_where_another_name_of_the_old_one_stays() {
    let make = || {
        let mut world = world(&[("a", "bytes"), ("b", "= a")]);
        assert!(world.remove("b") && world.write("b", b"other"));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    for at in 0..calls {
        for how in [[0, 0], [1, 0], [1, 1], [3, 1]] {
            let (mut world, mut memory) = (make(), Memory::default());
            world.apply(&mut memory, &[], Faults { dies: Some(at), ..Faults::default() });
            world.lose_power(&mut memory, &how);
            world.apply(&mut memory, &[], Faults::default()).assert_whole();
            assert_eq!(world.host_paths(), world.guest_paths(), "power lost at {at}");
        }
    }
}

#[test]
fn a_pipe_is_renamed_as_a_file_is() {
    let mut world = World::new(|root| {
        fill(root, &[("d", "")]);
        rustix::fs::mknodat(rustix::fs::CWD, root.join("pipe"), rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0)
            .unwrap();
    });
    assert!(world.rename("pipe", "d/moved"));
    apply(&mut world, &[]).assert_whole();
    assert!(fs::symlink_metadata(world.host("d/moved")).unwrap().file_type().is_fifo());
    assert!(!world.host("pipe").exists());
}

#[test]
fn another_name_of_a_copy_of_what_is_linked_is_known_again_after_a_kill() {
    let make = || {
        let mut world = world(&[("a", "third"), ("c", "other"), ("m", "moved"), ("z", "= a")]);
        assert!(world.edit("a", b'X') && world.exchange_blocks("a", "c") && world.link("c", "n"));
        assert!(world.remove("m") && world.rename("z", "m"));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    for at in 0..calls {
        let (mut world, mut memory) = (make(), Memory::default());
        world.apply(&mut memory, &[], Faults { dies: Some(at), ..Faults::default() });
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "killed at {at}");
    }
}

#[test]
fn what_is_kept_beside_its_place_stays_there_while_it_cannot_be_made_again() {
    let make = || {
        let mut world = world(&[("y", ""), ("y/a", "first"), ("z", "-> first")]);
        assert!(world.append("y/a", b"+more"));
        assert!(world.rename("z", "t") && world.rename("y/a", "z") && world.rename("t", "y/a"));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    for at in 0..calls {
        let (mut world, mut memory) = (make(), Memory::default());
        // The file system takes nothing more from then on, until the next apply.
        let fails = Some((at..u64::MAX, rustix::io::Errno::ROFS));
        world.apply(&mut memory, &[], Faults { fails, ..Faults::default() });
        world.apply(&mut memory, &[], Faults::default());
        let is_readable = world.guest_files().into_iter().any(|(bytes, readable)| readable && bytes == b"first+more");
        assert!(is_readable || world.host_files().contains(&b"first+more"[..]), "lost where call {at} failed");
    }
}

#[test]
fn a_file_that_moves_is_not_replaced_before_it_is_linked() {
    let mut world = world(&[("a", "first"), ("x", ""), ("x/a", "other"), ("y", "other")]);
    assert!(world.exchange_blocks("x/a", "y") && world.rename("x/a", "a") && world.write("x/a", b"third"));
    assert_applied(&mut world);
}

#[test]
fn what_the_disk_refused_is_brought_again() {
    let make = || {
        let lines = [("a", "third"), ("c", "other"), ("m", "moved"), ("z", "= a"), ("d", "six")];
        let mut world = world(&lines);
        // What has blocks of a file that is linked is waited for before that, and again before what it replaces goes.
        assert!(world.edit("a", b'X') && world.exchange_blocks("a", "c") && world.link("c", "n"));
        assert!(world.remove("m") && world.rename("z", "m") && world.edit("d", b'X') && world.write("new", b"new"));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    let mut refused = 0;
    for at in 0..calls {
        for how in [[1, 0], [1, 1], [3, 0]] {
            let (mut world, mut memory) = (make(), Memory::default());
            let fails = Some((at..at + 1, rustix::io::Errno::IO));
            let attempt = world.apply(&mut memory, &[], Faults { fails, ..Faults::default() });
            if !attempt.outcome.in_doubt {
                continue;
            }
            refused += 1;
            world.tear(&how);
            world.apply(&mut memory, &[], Faults::default()).assert_whole();
            assert_eq!(world.host_paths(), world.guest_paths(), "call {at} failed");
        }
    }
    assert!(refused > 0, "else nothing is checked here");
}

#[test]
fn a_file_stays_whose_bytes_another_has_that_changed_on_the_host() {
    let mut world = world(&[("a", "same"), ("b", "same")]);
    assert!(world.write("a", b"other") && world.chmod("a", 0o700) && world.exchange_blocks("a", "b"));
    fs::write(world.host("a"), "mine").unwrap();
    let attempt = apply(&mut world, &[]);
    assert!(matches!(attempt.verdict("b"), Verdict::Refused(_)), "{:?}", attempt.verdicts);
    assert_eq!(fs::read(world.host("b")).unwrap(), b"same");
}

#[test]
fn links_of_files_that_exchanged_their_blocks_do_not_wait_for_each_other() {
    let mut circle = world(&[("a", "same"), ("b", "same"), ("c", "other")]);
    assert!(circle.exchange_blocks("a", "b") && circle.link("a", "la") && circle.link("b", "lb"));
    assert_applied(&mut circle);

    let mut swapped = world(&[("a", "same"), ("b", "= a"), ("c", "same"), ("d", "other")]);
    assert!(swapped.exchange_blocks("a", "c") && swapped.link("c", "e"));
    assert!(swapped.rename("b", "t") && swapped.rename("d", "b") && swapped.rename("t", "d"));
    assert_applied(&mut swapped);
}

#[test]
fn files_that_claim_the_same_blocks_stay_behind() {
    for force in [false, true] {
        let mut damaged = world(&[("there", "as scanned"), ("plain", "one")]);
        assert!(damaged.write("new", b"whose?") && damaged.append("there", b"whose?") && damaged.append("plain", b"+"));
        (damaged.force, damaged.overlapping) = (force, vec!["new", "there"]);
        let attempt = apply(&mut damaged, &[]);
        for path in ["new", "there"] {
            let reason = "its blocks on the guest's disk are those of another file too: the file system is damaged";
            assert_eq!(attempt.verdict(path), &Verdict::Refused(reason.to_owned()), "{path} {force}");
        }
        assert!(!damaged.host("new").exists());
        assert_eq!(fs::read(damaged.host("there")).unwrap(), b"as scanned");
        assert_eq!(fs::read(damaged.host("plain")).unwrap(), b"one+", "the rest comes");
    }
}

#[test]
fn a_directory_comes_into_the_place_of_the_hosts_file_after_a_failure() {
    // Whichever call fails, and all behind it.
    for first in 0..60 {
        let mut forced = world(&[("x", ""), ("x/b", "b")]);
        assert!(forced.mkdir("x/a") && forced.write("x/a/new", b"new"));
        fs::write(forced.host("x/a"), "the host's").unwrap();
        forced.force = true;
        let mut memory = Memory::default();
        let fails = Some((first..u64::MAX, rustix::io::Errno::NOSPC));
        forced.apply(&mut memory, &[], Faults { fails, ..Faults::default() });
        let attempt = forced.apply(&mut memory, &[], Faults::default());
        assert_eq!(fs::read(forced.host("x/a/new")).ok().as_deref(), Some(&b"new"[..]), "{first}: {}", attempt.told());
        // What came out and could not be removed is told.
        let left: Vec<_> = forced.host_paths().into_keys().filter(|path| path.contains(".inarch-")).collect();
        let is_told = left.iter().all(|path| attempt.told().contains(path.trim_start_matches('/')));
        assert!(is_told, "{first}: {left:?} {}", attempt.told());
    }
}
