//! What an apply leaves behind, and what the next one makes of it.

use rustix::io::Errno;

use super::super::calls::{Ability, Faults};
use super::super::world::{Memory, World};
use super::world;

/// Applies twice, and lets one call of the first apply fail: each in turn. `check` gets the call, and what the second
/// did.
fn each_call_fails(make: impl Fn() -> World, lacks: &[Ability], check: impl Fn(u64, &mut World, &mut Memory)) {
    let faults = |fails| Faults { fails, lacks: lacks.to_vec(), ..Faults::default() };
    let calls = make().apply(&mut Memory::default(), &[], faults(None)).calls;
    for at in 0..calls {
        let (mut world, mut memory) = (make(), Memory::default());
        world.apply(&mut memory, &[], faults(Some((at..at + 1, Errno::NOSPC))));
        check(at, &mut world, &mut memory);
    }
}

#[test]
fn to_put_a_link_in_order_is_no_change_of_the_hosts() {
    let make = || {
        let mut world = world(&[("a", "third"), ("c", "= a"), ("z", "longer than that")]);
        assert!(world.exchange_blocks("c", "z") && world.rename("z", "a"));
        world.rehearses = true;
        world
    };
    // Where names cannot be exchanged, the temporary name is another name of `c`.
    let lacks = [Ability::Exchange];
    each_call_fails(make, &lacks, |at, world, memory| {
        let attempt = world.apply(memory, &[], Faults { lacks: lacks.to_vec(), ..Faults::default() });
        assert_eq!(attempt.dry, attempt.verdicts, "call {at} fails");
        attempt.assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "call {at} fails");
    });
}

#[test]
fn names_of_one_file_are_applied_together() {
    let lines = [("a", "bytes"), ("b", "= a"), ("c", "= a"), ("d", "else")];
    for asked in ["a", "b", "c"] {
        let mut world = world(&lines);
        assert!(world.chmod("c", 0o600) && world.remove("a") && world.remove("b") && world.remove("d"));
        let mut memory = Memory::default();
        world.apply(&mut memory, &[asked], Faults::default()).assert_whole();
        assert!(world.host("d").exists(), "it was not asked for");
        // What was left is no conflict.
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "{asked}");
    }
}

#[test]
fn what_an_apply_linked_is_known_again_after_several_that_failed() {
    let make = || {
        let mut world = world(&[("g", "moved")]);
        assert!(world.rename("g", "g2"));
        world
    };
    let calls = make().apply(&mut Memory::default(), &[], Faults::default()).calls;
    for (first, second) in (0..calls).flat_map(|first| (0..calls).map(move |second| (first, second))) {
        let (mut world, mut memory) = (make(), Memory::default());
        for at in [first, second] {
            let fails = Some((at..at + 1, Errno::PERM));
            world.apply(&mut memory, &[], Faults { fails, ..Faults::default() });
        }
        world.apply(&mut memory, &[], Faults::default()).assert_whole();
        assert_eq!(world.host_paths(), world.guest_paths(), "calls {first} and {second} fail");
    }
}
