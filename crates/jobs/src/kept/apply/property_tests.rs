//! Whatever happens, no bytes are lost: those that were visible on the host or in the guest are there afterwards, on the
//! host or in the run. Random trees, random changes on both sides, choices, failing calls, kills and losses of power.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rustix::io::Errno;

use super::calls::Faults;
use super::world::{Attempt, Memory, World, fill, set_time};

/// Where things are: files and directories take each other's places.
const PATHS: [&str; 14] = ["a", "b", "c", "d", "e", "x", "x/a", "x/b", "x/c", "y", "y/a", "y/x", "y/x/a", "z"];

/// Contents of one length, and of others.
const BYTES: [&str; 6] = ["first", "other", "third", "longer than these", "fifth", "sixth and again longer"];

type Change = (u8, usize, usize);

fn changes(count: usize) -> impl Strategy<Value = Vec<Change>> {
    prop::collection::vec((0u8..13, 0..PATHS.len(), 0..PATHS.len()), 0..count)
}

/// The host's tree before.
fn grow(root: &Path, numbers: &[usize]) {
    fill(root, &[("x", ""), ("y", ""), ("y/x", "")]);
    for (at, path) in PATHS.iter().enumerate() {
        let number = numbers[at % numbers.len()];
        let place = root.join(path);
        if place.exists() {
            continue;
        }
        match number % 10 {
            0..=5 => fs::write(place, BYTES[number % BYTES.len()]).unwrap(),
            6 => drop(fs::hard_link(root.join("a"), place)),
            7 => std::os::unix::fs::symlink(BYTES[number % BYTES.len()], place).unwrap(),
            _ => {}
        }
    }
}

fn change_guest(world: &mut World, (what, one, other): Change) {
    let (path, to) = (PATHS[one], PATHS[other]);
    match what {
        0 => world.write(path, BYTES[other % BYTES.len()].as_bytes()),
        1 => world.append(path, b"+more"),
        2 => world.edit(path, b'A' + other as u8),
        3..=5 => world.rename(path, to),
        6 => world.remove(path),
        7 => world.mkdir(path),
        8 => world.link(path, to),
        9 => world.exchange_blocks(path, to),
        10 => world.chmod(path, 0o700 + other as u32 % 8),
        11 => world.symlink(path, to),
        // A swap.
        _ => world.rename(path, "t") && world.rename(to, path) && world.rename("t", to),
    };
}

fn change_host(root: &Path, (what, one, other): Change) {
    let (path, to) = (root.join(PATHS[one]), root.join(PATHS[other]));
    let bytes = format!("the host's {one} {other}");
    // Whatever cannot be done is not.
    let _ = match what % 6 {
        0 if !path.is_dir() => fs::write(&path, bytes),
        // In place, with the old time and size.
        1 if path.is_file() => {
            let size = fs::metadata(&path).unwrap().len() as usize;
            fs::write(&path, bytes.repeat(3).as_bytes().get(..size).unwrap_or_default()).map(|()| set_time(&path))
        }
        2 => fs::remove_file(&path),
        3 if !to.exists() => fs::rename(&path, &to),
        4 => fs::create_dir(&path),
        5 if path.is_file() => fs::set_permissions(&path, fs::Permissions::from_mode(0o640)),
        _ => Ok(()),
    };
}

/// What has to be there afterwards.
struct Visible {
    /// Contents of the guest's files that can be read.
    guest: Vec<Vec<u8>>,
    /// Contents of the host that the guest has never seen.
    foreign: Vec<Vec<u8>>,
}

impl Visible {
    fn of(world: &World) -> Visible {
        let guest = world.guest_files().into_iter().filter(|(_, readable)| *readable);
        Visible { guest: guest.map(|(bytes, _)| bytes).collect(), foreign: world.foreign_files() }
    }

    fn check(&self, world: &World, when: &str) -> Result<(), TestCaseError> {
        let host = world.host_files();
        let readable: Vec<Vec<u8>> =
            world.guest_files().into_iter().filter(|(_, readable)| *readable).map(|(bytes, _)| bytes).collect();
        for bytes in &self.guest {
            let text = String::from_utf8_lossy(bytes);
            prop_assert!(host.contains(bytes) || readable.contains(bytes), "{when}: the guest's {text:?} is lost");
        }
        for bytes in &self.foreign {
            prop_assert!(host.contains(bytes), "{when}: the host's {:?} is lost", String::from_utf8_lossy(bytes));
        }
        Ok(())
    }
}

fn has_names_of_ours(world: &World) -> Vec<String> {
    world.host_paths().into_keys().filter(|path| path.contains(".inarch-")).collect()
}

fn asked(world: &World, choice: &[usize]) -> Vec<String> {
    let paths = world.paths();
    let choice = choice.iter().filter_map(|number| paths.get(number % paths.len().max(1)));
    choice.cloned().collect()
}

/// What goes wrong.
#[derive(Clone, Debug)]
enum Fault {
    Fails(u64, i32),
    Killed(Vec<u64>),
    PowerLost(Vec<u64>, Vec<u8>),
}

fn fault() -> BoxedStrategy<Fault> {
    let errno = prop::sample::select(vec![libc::ENOSPC, libc::EPERM, libc::EIO, libc::EINVAL, libc::EXDEV]);
    let places = || prop::collection::vec(0u64..400, 1..3);
    let fails = (0u64..400, errno).prop_map(|(at, errno)| Fault::Fails(at, errno));
    prop_oneof![
        fails,
        places().prop_map(Fault::Killed),
        (places(), prop::collection::vec(any::<u8>(), 1..8)).prop_map(|(at, how)| Fault::PowerLost(at, how)),
    ]
    .boxed()
}

/// The call at which something goes wrong: of so many as there are without.
fn place(number: u64, calls: u64) -> u64 {
    number % calls.max(1)
}

/// The same cases each time, so that a change is judged by itself; INARCH_TEST_SEED=N gives others.
fn seed() -> RngSeed {
    let seed = std::env::var("INARCH_TEST_SEED").ok().and_then(|text| text.parse().ok());
    RngSeed::Fixed(seed.unwrap_or(2))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, max_shrink_iters: 2000, failure_persistence: None, rng_seed: seed(), ..ProptestConfig::default() })]

    #[test]
    fn no_bytes_are_lost(
        numbers in prop::collection::vec(0usize..60, 14),
        guest in changes(10),
        host in changes(4),
        choice in prop::collection::vec(0usize..50, 0..3),
        fault in fault(),
    ) {
        let make = || {
            let mut world = World::new(|root| grow(root, &numbers));
            guest.iter().for_each(|change| change_guest(&mut world, *change));
            host.iter().for_each(|change| change_host(&world.root(), *change));
            world.age();
            world
        };
        // Once without anything that goes wrong.
        let mut world = make();
        let visible = Visible::of(&world);
        let chosen = asked(&world, &choice);
        let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
        let attempt = world.apply(&mut Memory::default(), &chosen, Faults::default());
        visible.check(&world, "applied")?;
        prop_assert_eq!(has_names_of_ours(&world), Vec::<String>::new());
        if host.is_empty() {
            attempt.assert_whole();
            if choice.is_empty() {
                prop_assert_eq!(world.host_paths(), world.guest_paths());
            }
        }
        let calls = attempt.calls;

        let mut world = make();
        let visible = Visible::of(&world);
        let mut memory = Memory::default();
        match &fault {
            Fault::Fails(at, errno) => {
                let fails = Some((place(*at, calls), Errno::from_raw_os_error(*errno)));
                world.apply(&mut memory, &chosen, Faults { fails, ..Faults::default() });
                visible.check(&world, "failed")?;
            }
            Fault::Killed(at) => {
                for at in at {
                    let dies = Some(place(*at, calls));
                    world.apply(&mut memory, &chosen, Faults { dies, ..Faults::default() });
                    visible.check(&world, "killed")?;
                }
            }
            Fault::PowerLost(at, how) => {
                for at in at {
                    let dies = Some(place(*at, calls));
                    world.apply(&mut memory, &chosen, Faults { dies, ..Faults::default() });
                    world.lose_power(&mut memory, how);
                    visible.check(&world, "without power")?;
                }
            }
        }
        let attempt = world.apply(&mut memory, &chosen, Faults::default());
        visible.check(&world, "gone on with")?;
        let left = has_names_of_ours(&world);
        let Attempt { verdicts, outcome, .. } = &attempt;
        // After a call that failed what cannot be made again may stay beside its place, under a name that is told.
        let may_stay = matches!(fault, Fault::Fails(..));
        prop_assert!(left.is_empty() || may_stay, "{left:?} {verdicts:?} {:?} {:?}", outcome.conflicts, outcome.failures);
        if host.is_empty() && !matches!(fault, Fault::Fails(..)) {
            attempt.assert_whole();
            if choice.is_empty() {
                prop_assert_eq!(world.host_paths(), world.guest_paths());
            }
        }
    }
}
