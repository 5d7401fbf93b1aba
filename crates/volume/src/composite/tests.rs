//! Volumes that are mounted on each other.

use inarch_confine::Parse;

use super::*;
use crate::path::tests::volume;
use crate::walk;

fn guest() -> Composite {
    let mut guest = Composite::new(volume(&["boot/", "boot/hidden", "home/", "link -> home", "file"]));
    guest.mount(b"/boot", volume(&["efi/", "vmlinuz"])).unwrap();
    guest.mount(b"/boot/efi/", volume(&["EFI/", "EFI/grub"])).unwrap();
    guest.mount(b"link", volume(&["user/", "user/notes"])).unwrap();
    guest
}

fn list(volume: &dyn Volume, directory: Node) -> Vec<String> {
    let mut names = Vec::new();
    let take = &mut |item: Item<'_>| {
        let Item::Entry(entry) = item else { panic!("{item:?}") };
        names.push(String::from_utf8_lossy(entry.name).into_owned());
        true
    };
    volume.list(directory, 0, take).unwrap();
    names.sort();
    names
}

#[test]
fn what_is_mounted_covers_a_directory() {
    let guest = guest();
    let at = |path: &str| resolve(&guest, path.as_bytes(), Last::Followed).unwrap();
    assert_eq!(list(&guest, guest.root()), ["boot", "file", "home", "link"]);
    assert_eq!(list(&guest, at("boot").unwrap()), ["efi", "vmlinuz"]);
    assert_eq!(list(&guest, at("boot/efi/EFI").unwrap()), ["grub"]);
    assert_eq!(list(&guest, at("home").unwrap()), ["user"]);
    assert_eq!(at("boot/hidden"), None);
    assert_eq!(at("boot/efi/../../file"), at("file"));
    let up = |path: &str| guest.parent(at(path).unwrap()).unwrap();
    assert_eq!((up("boot/efi"), up("boot"), up("/")), (at("boot"), at("/"), at("/")));
}

#[test]
fn each_file_has_a_number_of_its_own() {
    let guest = guest();
    let paths = ["/", "boot", "boot/vmlinuz", "boot/efi", "boot/efi/EFI", "boot/efi/EFI/grub", "home", "home/user"];
    let mut numbers: Vec<_> = paths
        .map(|path| guest.attributes(resolve(&guest, path.as_bytes(), Last::Taken).unwrap().unwrap()).unwrap().inode)
        .into();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), paths.len());
}

#[test]
fn each_file_has_the_numbers_of_its_own_file_system() {
    let guest = guest();
    let inodes =
        |path: &str| guest.statistics_at(resolve(&guest, path.as_bytes(), Last::Followed).unwrap().unwrap()).inodes;
    // Each root is counted.
    assert_eq!(["/", "file", "boot", "boot/vmlinuz", "boot/efi/EFI", "home/user"].map(inodes), [6, 6, 3, 3, 3, 3]);
    assert_eq!(guest.statistics().inodes, 6 + 3 * 3);
}

#[test]
fn a_hidden_directory_is_empty() {
    let mut guest = Composite::new(volume(&["boot/", "boot/stale", "home/", "home/stale", "home/stale/below", "file"]));
    guest.hide(b"/home").unwrap();
    let stale = |guest: &Composite, path: &str| resolve(guest, path.as_bytes(), Last::Followed).unwrap();
    assert_eq!((stale(&guest, "home/stale"), stale(&guest, "boot/stale").is_some()), (None, true));
    // Nodes have other addresses from the second volume on.
    guest.mount(b"/boot", volume(&["efi/", "vmlinuz"])).unwrap();
    guest.hide(b"boot/efi").unwrap();
    let home = stale(&guest, "home").unwrap();
    assert_eq!((list(&guest, home), stale(&guest, "home/stale/below")), (Vec::new(), None));
    let walked = Parse::new().run(|parsing| walk(parsing, &guest, &mut |_| {}), || {}).unwrap().unwrap();
    assert!(walked.tree.lookup(b"home").is_some() && walked.tree.lookup(b"home/stale").is_none());
    assert!(matches!(guest.hide(b"none"), Err(NotMounted::NoDirectory)));
}

#[test]
fn a_walk_goes_through_all_volumes() {
    let guest = guest();
    let walked = Parse::new().run(|parsing| walk(parsing, &guest, &mut |_| {}), || {}).unwrap().unwrap();
    for path in ["boot/vmlinuz", "boot/efi/EFI/grub", "home/user/notes", "file"] {
        assert!(walked.tree.lookup(path.as_bytes()).is_some(), "{path}");
    }
    assert!(walked.tree.lookup(b"boot/hidden").is_none());
}

#[test]
fn a_directory_can_be_the_root() {
    let mut guest = guest();
    guest.set_root(b"/boot/efi").unwrap();
    assert_eq!(list(&guest, guest.root()), ["EFI"]);
    assert_eq!(guest.parent(guest.root()).unwrap(), Some(guest.root()));
    assert_eq!(resolve(&guest, b"../../file", Last::Taken).unwrap(), None);
    assert!(matches!(guest.set_root(b"EFI/grub"), Err(NotMounted::NoDirectory)));
}

#[test]
fn what_cannot_be_mounted_is_refused() {
    let mut guest = guest();
    let mut refused = |path: &str| guest.mount(path.as_bytes(), volume(&[])).unwrap_err().to_string();
    assert_eq!(refused("none"), "there is no such directory");
    assert_eq!(refused("file"), "there is no such directory");
    assert_eq!(refused("/"), "another volume is mounted there");
    assert_eq!(refused("home"), "another volume is mounted there");
    assert_eq!(guest.volumes.len(), 4);
    for number in 4..MOST {
        guest.mount(b"home/user", volume(&["user/"])).map_err(|error| panic!("{number}: {error}")).ok();
        guest.covered.retain(|_, over| *over < 4);
    }
    assert!(matches!(guest.mount(b"home/user", volume(&[])), Err(NotMounted::TooMany)));
}

#[test]
fn large_addresses_are_folded() {
    for node in [0, 5, 5 | 5 << 48, 1 << 40, 123_456 | 0xFFFF << 48, (1 << 56) - 1, ((1 << 40) - 1) | (0xFF << 56)] {
        let folded = folded(node).unwrap();
        assert!(folded >> NUMBER_SHIFT == 0 && unfolded(folded) == node, "{node:x}");
    }
    assert_eq!(folded(1 << 40 | 1 << 56), None);
}
