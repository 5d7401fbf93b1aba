//! Owners, modes and extended attributes: which of them an apply sets, and when.

use proptest::prelude::*;

use super::super::property_tests::config;
use super::*;

#[test]
fn attributes_of_directories_are_set_only_where_the_guest_changed_them() {
    let mut world = world(&[("d", ""), ("e", ""), ("e/x", "x"), ("f", "")]);
    assert!(world.write("d/new", b"new") && world.chmod("e", 0o700) && world.chmod("f", 0o711));
    fs::set_permissions(world.host("d"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(world.host("f"), fs::Permissions::from_mode(0o750)).unwrap();
    let attempt = apply(&mut world, &[]);
    let mode = |path: &str| fs::metadata(world.host(path)).unwrap().mode() & 0o7777;
    assert_eq!((mode("d"), mode("e"), mode("f")), (0o700, 0o700, 0o750));
    assert!(matches!(attempt.verdict("f"), Verdict::Refused(_)));
    assert!(world.host("d/new").exists());
}

/// The value of an ACL (`include/uapi/linux/posix_acl_xattr.h`), with the rights of the owner, user 13, the group, the
/// mask and others.
fn acl(rights: [u16; 5]) -> Vec<u8> {
    let entry = |((tag, id), rights): ((u16, u32), u16)| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let whose = [(1, u32::MAX), (2, 13), (4, u32::MAX), (16, u32::MAX), (32, u32::MAX)];
    let entries = whose.into_iter().zip(rights).flat_map(entry);
    2u32.to_le_bytes().into_iter().chain(entries).collect()
}

#[test]
fn extended_attributes_of_directories_are_the_hosts_but_for_those_that_the_guest_set() {
    const ACL: &str = "system.posix_acl_default";
    let set = |path: &Path, name: &str, value: &[u8]| setxattr(path, name, value, XattrFlags::empty());
    for guests in [None, Some("user.c")] {
        let mut world = World::new(|root| {
            fill(root, &[("d", ""), ("d/in", "in")]);
            set(&root.join("d"), "user.a", b"scanned").unwrap();
            set(&root.join("d"), ACL, &acl([7, 5, 5, 5, 5])).unwrap();
        });
        let d = world.host("d");
        set(&d, "user.a", b"the host's").unwrap();
        set(&d, "user.b", b"the host's").unwrap();
        removexattr(&d, ACL).unwrap();
        assert!(world.write("d/new", b"new"));
        if let Some(name) = guests {
            assert!(world.set_xattr("d", name, b"the guest's"));
        }
        assert_eq!(world.paths().contains(&"d".to_owned()), guests.is_some());
        apply(&mut world, &[]).assert_whole();
        assert_eq!(fs::read(world.host("d/new")).unwrap(), b"new");
        let value = |name: &str| {
            let mut bytes = [0; 64];
            getxattr(&d, name, &mut bytes).ok().map(|length| String::from_utf8(bytes[..length].to_vec()).unwrap())
        };
        assert_eq!([value("user.a"), value("user.b")], [Some("the host's".to_owned()), Some("the host's".to_owned())]);
        assert_eq!((value("user.c"), value(ACL)), (guests.map(|_| "the guest's".to_owned()), None));
    }
}

#[test]
fn an_extended_attribute_of_a_directory_that_both_changed_is_a_conflict() {
    const NAME: &str = "user.a";
    for (guests, hosts, is_conflict) in [
        (Some("the guest's"), Some("the host's"), true),
        (Some("the guest's"), None, true),
        (None, Some("the host's"), true),
        (Some("one"), Some("one"), false),
        (None, None, false),
        (Some("the guest's"), Some("scanned"), false),
    ] {
        let mut world = World::new(|root| {
            fill(root, &[("d", ""), ("d/in", "in")]);
            setxattr(root.join("d"), NAME, b"scanned", XattrFlags::empty()).unwrap();
        });
        assert!(world.remove_xattr("d", NAME) && world.write("d/new", b"new"));
        if let Some(value) = guests {
            assert!(world.set_xattr("d", NAME, value.as_bytes()));
        }
        let d = world.host("d");
        match hosts {
            Some(value) => setxattr(&d, NAME, value.as_bytes(), XattrFlags::empty()).unwrap(),
            None => removexattr(&d, NAME).unwrap(),
        }
        let attempt = apply(&mut world, &[]);
        assert_eq!(matches!(attempt.verdict("d"), Verdict::Refused(_)), is_conflict, "{guests:?} {hosts:?}");
        let mut bytes = [0; 64];
        let value = getxattr(&d, NAME, &mut bytes).ok().map(|length| str::from_utf8(&bytes[..length]).unwrap());
        assert_eq!(value, if is_conflict { hosts } else { guests }, "{guests:?} {hosts:?}");
        assert_eq!(fs::read(world.host("d/new")).unwrap(), b"new", "the rest comes");
    }
}

#[test]
fn an_acl_that_goes_leaves_the_group_nothing_of_its_mask() {
    const ACL: &str = "system.posix_acl_access";
    let list = acl([7, 7, 0, 7, 0]);
    let make = || {
        let mut world = World::new(|root| {
            fill(root, &[("shared", "x")]);
            setxattr(root.join("shared"), ACL, &list, XattrFlags::empty()).unwrap();
            fs::set_permissions(root.join("shared"), fs::Permissions::from_mode(0o4770)).unwrap();
        });
        assert!(world.remove_xattr("shared", ACL) && world.chmod("shared", 0o700));
        assert!(world.chown("shared", OWNER.0, OWNER.1));
        world
    };
    let calls = apply(&mut make(), &[]).calls;
    let mut seen = std::collections::BTreeSet::new();
    for at in 0..=calls {
        let mut world = make();
        world.apply(&mut Memory::default(), &[], Faults { dies: Some(at), ..Faults::default() });
        let path = world.host("shared");
        let has_list = getxattr(&path, ACL, &mut [0; 64]).is_ok();
        let found = fs::metadata(&path).unwrap();
        let mode = found.mode() & 0o7777;
        assert!(has_list || mode & 0o070 == 0, "killed at call {at}: {mode:o}");
        let is_given = (found.uid(), found.gid()) == OWNER;
        assert!(!is_given || mode & 0o6000 == 0, "killed at call {at}: {mode:o}, of the new owner");
        seen.insert((has_list, mode));
    }
    assert!(seen.len() > 2, "{seen:?}");
}

/// The host's programs of a name that have rights of who does not own them in the guest, and whether all have what the
/// guest's have.
fn rights(world: &World) -> (Vec<String>, bool) {
    let (mut wrong, mut all) = (Vec::new(), true);
    for path in ["new", "changed", "only-attributes", "was-set", "moved"] {
        let Ok(found) = fs::symlink_metadata(world.host(path)) else {
            all = false;
            continue;
        };
        let is_capable = rustix::fs::getxattr(world.host(path), "security.capability", &mut [0; 64]).is_ok();
        let has_rights = found.mode() & 0o6000 != 0 || is_capable;
        // What could not be replaced is as it was.
        let is_old = fs::read(world.host(path)).unwrap() == b"old";
        if has_rights && !is_old && (found.uid(), found.gid()) != OWNER {
            wrong.push(format!("{path}: {:o} of {}:{}", found.mode(), found.uid(), found.gid()));
        }
        all &= found.mode() & 0o6000 == 0o6000 && (is_capable || !rustix::process::geteuid().is_root());
    }
    (wrong, all)
}

#[test]
fn what_gives_an_owners_rights_comes_only_with_that_owner() {
    let make = || {
        let mut world = World::new(|root| {
            fill(root, &[("changed", "old bytes"), ("only-attributes", "x"), ("was-set", "old"), ("goes", "moves")]);
            // The host's own, of who applies.
            fs::set_permissions(root.join("was-set"), fs::Permissions::from_mode(0o6755)).unwrap();
        });
        assert!(world.write("new", b"new") && world.edit("changed", b'X') && world.append("was-set", b"+"));
        assert!(world.rename("goes", "moved"));
        for path in ["new", "changed", "only-attributes", "was-set", "moved"] {
            assert!(world.chmod(path, 0o6755) && world.chown(path, OWNER.0, OWNER.1) && world.set_capabilities(path));
        }
        world
    };
    let mut world = make();
    let attempt = apply(&mut world, &[]);
    attempt.assert_whole();
    let (wrong, all) = rights(&world);
    assert_eq!(wrong, Vec::<String>::new());
    if !rustix::process::geteuid().is_root() {
        // Every chown(2) has failed by itself.
        assert_eq!((attempt.outcome.lost.owners, attempt.outcome.lost.privileges, all), (5, 5, false));
        return;
    }
    assert!(all && attempt.outcome.lost.privileges == 0, "else nothing is checked here");
    let mut dropped = 0;
    for at in 0..attempt.calls {
        let mut world = make();
        let fails = Some((at..at + 1, rustix::io::Errno::PERM));
        let lost = world.apply(&mut Memory::default(), &[], Faults { fails, ..Faults::default() }).outcome.lost;
        assert_eq!(rights(&world).0, Vec::<String>::new(), "call {at} failed");
        assert!(lost.owners == lost.privileges, "call {at}: {lost:?}");
        dropped += lost.privileges;
    }
    // One chown(2) each.
    assert_eq!(dropped, 5);
}

#[test]
fn a_file_that_lends_bytes_gets_attributes_only_after_them() {
    for conflict in [false, true] {
        let mut world = world(&[("a", "bytes"), ("b", "= a"), ("z", "bytes")]);
        assert!(world.append("a", b"+more") && world.chmod("a", 0o600) && world.exchange_blocks("a", "z"));
        if conflict {
            fs::write(world.host("z"), "the host's").unwrap();
        }
        apply(&mut world, &["a"]);
        let readable = world.guest_files().into_iter().any(|(bytes, readable)| readable && bytes == b"bytes+more");
        let brought = fs::read(world.host("z")).unwrap() == b"bytes+more";
        assert!(readable || brought);
        assert_eq!(brought, !conflict);
    }
}

/// What a side sets: indices into [`MODES`] and [`VALUES`].
type Sets = (Option<usize>, Option<usize>);

const PATHS: [&str; 4] = ["d", "e", "f", "g"];
const MODES: [u32; 3] = [0o700, 0o750, 0o711];
const VALUES: [Option<&str>; 3] = [Some("one"), Some("other"), None];
const XATTR: &str = "user.x";

/// Permissions and an extended attribute.
#[derive(Clone, Debug, PartialEq)]
struct State {
    mode: u32,
    value: Option<String>,
}

impl State {
    fn of(path: &Path) -> State {
        let mut bytes = [0; 64];
        let value = getxattr(path, XATTR, &mut bytes).ok();
        let value = value.map(|length| String::from_utf8(bytes[..length].to_vec()).unwrap());
        State { mode: fs::metadata(path).unwrap().mode() & 0o7777, value }
    }

    fn with(&self, (mode, value): Sets) -> State {
        let value = value.map(|value| VALUES[value].map(str::to_owned));
        State { mode: mode.map_or(self.mode, |mode| MODES[mode]), value: value.unwrap_or_else(|| self.value.clone()) }
    }
}

fn set_on_host(path: &Path, (mode, value): Sets) {
    match value.map(|value| VALUES[value]) {
        Some(Some(value)) => setxattr(path, XATTR, value.as_bytes(), XattrFlags::empty()).unwrap(),
        Some(None) => removexattr(path, XATTR).unwrap(),
        None => {}
    }
    if let Some(mode) = mode {
        fs::set_permissions(path, fs::Permissions::from_mode(MODES[mode])).unwrap();
    }
}

fn set_in_guest(world: &mut World, path: &str, (mode, value): Sets) {
    if let Some(value) = value {
        assert!(world.remove_xattr(path, XATTR));
        assert!(VALUES[value].is_none_or(|value| world.set_xattr(path, XATTR, value.as_bytes())));
    }
    assert!(mode.is_none_or(|mode| world.chmod(path, MODES[mode])));
}

fn sets() -> impl Strategy<Value = Vec<(Sets, Sets)>> {
    let one = || (prop::option::of(0..3usize), prop::option::of(0..3usize));
    prop::collection::vec((one(), one()), PATHS.len())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..config() })]

    #[test]
    fn what_the_host_changed_stays_and_nothing_comes_but_the_guests(
        sets in sets(),
        wrong in prop::option::of((0..80u64, any::<bool>())),
    ) {
        let mut world = World::new(|root| {
            fill(root, &[("d", ""), ("d/in", "in"), ("e", ""), ("f", "f"), ("g", "g")]);
            for path in PATHS {
                setxattr(root.join(path), XATTR, b"scanned", XattrFlags::empty()).unwrap();
            }
        });
        let scanned = PATHS.map(|path| State::of(&world.host(path)));
        for (path, (guest, host)) in PATHS.iter().zip(&sets) {
            set_in_guest(&mut world, path, *guest);
            set_on_host(&world.host(path), *host);
        }
        let faults = match wrong {
            Some((at, true)) => Faults { dies: Some(at), ..Faults::default() },
            Some((at, false)) => Faults { fails: Some((at..at + 1, rustix::io::Errno::NOSPC)), ..Faults::default() },
            None => Faults::default(),
        };
        world.apply(&mut Memory::default(), &[], faults);
        for ((path, scanned), (guest, host)) in PATHS.iter().zip(&scanned).zip(&sets) {
            let (hosts, guests, now) = (scanned.with(*host), scanned.with(*guest), State::of(&world.host(path)));
            let modes = [scanned, &hosts, &guests, &now].map(|state| state.mode);
            prop_assert!(is_kept(modes), "{path}: {modes:?}");
            let values = [scanned, &hosts, &guests, &now].map(|state| state.value.clone());
            prop_assert!(is_kept(values.clone()), "{path}: {values:?}");
            if wrong.is_none() && hosts == *scanned {
                prop_assert_eq!(now, guests, "{}", path);
            }
        }
    }
}

/// Whether what is there now is the host's, or the guest's in the place of what was scanned.
fn is_kept<T: PartialEq>([scanned, hosts, guests, now]: [T; 4]) -> bool {
    now == hosts || (hosts == scanned && now == guests)
}
