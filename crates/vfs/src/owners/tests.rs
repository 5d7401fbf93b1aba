//! The layer over a directory of the host.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use tempfile::TempDir;

use super::*;
use crate::listing::Listing;
use crate::{HostDirectory, HostOptions};

const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const ACCESS: &[u8] = b"system.posix_acl_access";
const MAKER: (u32, u32) = (77, 78);

struct Scene {
    directory: TempDir,
    layer: Arc<dyn FileSystem>,
}

fn user(uid: u32, gid: u32) -> Context<'static> {
    Context { uid, gid, ..Context::SERVER }
}

impl Scene {
    /// None where files cannot be given away.
    fn new(map: &str, users: &[&str]) -> Option<Scene> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: {}: only root gives files to others", std::thread::current().name().unwrap_or("a test"));
            return None;
        }
        let ranges: Vec<_> = users.iter().map(|range| range.parse().unwrap()).collect();
        let owners = Owners { map: map.parse().unwrap(), users: ranges.clone(), groups: ranges };
        let directory = tempfile::tempdir().unwrap();
        for (name, owner) in [("root", 0), ("user", 1000), ("mapped", 100_007)] {
            fs::write(directory.path().join(name), name).unwrap();
            chown(directory.path().join(name), Some(owner), Some(owner)).unwrap();
        }
        let below = HostDirectory::new(directory.path(), HostOptions::default()).unwrap();
        Some(Scene { layer: MappedOwners::over(Arc::new(below), &owners, MAKER), directory })
    }

    fn node(&self, name: &str) -> NodeId {
        self.layer.lookup(&Context::SERVER, NodeId::ROOT, name.as_bytes()).unwrap().node
    }

    fn seen(&self, name: &str) -> (u32, u32) {
        let entry = self.layer.lookup(&Context::SERVER, NodeId::ROOT, name.as_bytes()).unwrap();
        let attributes = self.layer.attributes(&Context::SERVER, entry.node, None).unwrap();
        assert_eq!((attributes.uid, attributes.gid), (entry.attributes.uid, entry.attributes.gid));
        (attributes.uid, attributes.gid)
    }

    fn below(&self, name: &str) -> (u32, u32) {
        let metadata = fs::symlink_metadata(self.directory.path().join(name)).unwrap();
        (metadata.uid(), metadata.gid())
    }

    fn give(&self, name: &str, uid: u32) -> Result<Attributes, Errno> {
        let set = SetAttributes { uid: Some(uid), ..SetAttributes::default() };
        self.layer.set_attributes(&Context::SERVER, self.node(name), None, &set)
    }
}

/// A list with one named user and one named group.
fn list(uid: u32, gid: u32) -> Vec<u8> {
    let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[6, 0], &id.to_le_bytes()].concat();
    let none = u32::MAX;
    let entries = [entry(1, none), entry(2, uid), entry(4, none), entry(8, gid), entry(0x10, none), entry(0x20, none)];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

#[test]
fn ranges_are_mapped_both_ways() {
    let Some(scene) = Scene::new("host", &["100000:0:65536"]) else { return };
    assert_eq!((scene.seen("mapped"), scene.seen("user")), ((7, 7), (1000, 1000)));
    let made = scene.layer.create(&user(5, 6), NodeId::ROOT, b"new", &FILE, libc::O_RDWR as u32).unwrap();
    assert_eq!((made.0.attributes.uid, made.0.attributes.gid), (5, 6));
    let directory = scene.layer.make_directory(&user(0, 0), NodeId::ROOT, b"dir", &DIRECTORY).unwrap();
    assert_eq!(directory.attributes.uid, 0);
    scene.layer.make_symlink(&user(8, 8), NodeId::ROOT, b"link", b"new").unwrap();
    let special = NewNode { mode: libc::S_IFIFO | 0o600, ..FILE };
    scene.layer.make_node(&user(9, 9), NodeId::ROOT, b"fifo", &special).unwrap();
    assert_eq!((scene.below("new"), scene.below("dir")), ((100_005, 100_006), (100_000, 100_000)));
    assert_eq!((scene.below("link"), scene.below("fifo")), ((100_008, 100_008), (100_009, 100_009)));
    let unnamed = scene.layer.create_unnamed(&user(3, 3), NodeId::ROOT, &FILE, libc::O_RDWR as u32).unwrap().0;
    assert_eq!(unnamed.attributes.uid, 3);
    assert_eq!(scene.give("new", 12).unwrap().uid, 12);
    assert_eq!(scene.below("new"), (100_012, 100_006));
    let listed = Listing::whole(&*scene.layer, NodeId::ROOT, (100, true));
    let owner = |name| listed.iter().find(|(listed, _)| listed == name).unwrap().1.unwrap().attributes.uid;
    assert_eq!((owner("new"), owner("mapped")), (12, 7));
}

#[test]
fn an_id_that_nothing_is_seen_as_is_refused() {
    let Some(scene) = Scene::new("host", &["100000:0:65536"]) else { return };
    let create = |uid| scene.layer.create(&user(uid, 0), NodeId::ROOT, b"new", &FILE, libc::O_RDWR as u32);
    assert_eq!(create(100_001).unwrap_err(), Errno::OVERFLOW);
    assert!(!scene.directory.path().join("new").exists());
    assert_eq!(scene.give("user", 100_001).unwrap_err(), Errno::OVERFLOW);
    let set = |value: &[u8]| scene.layer.set_xattr(&Context::SERVER, scene.node("user"), ACCESS, value, 0, false);
    assert_eq!(set(&list(100_001, 5)), Err(Errno::OVERFLOW));
    assert_eq!(scene.below("user"), (1000, 1000));
}

#[test]
fn access_control_lists_name_who_is_seen() {
    let Some(scene) = Scene::new("host", &["100000:0:65536"]) else { return };
    let node = scene.node("user");
    match scene.layer.set_xattr(&Context::SERVER, node, ACCESS, &list(5, 6), 0, false) {
        Err(Errno::OPNOTSUPP) => {
            return println!(
                "skipped: access_control_lists_name_who_is_seen: no access control lists on the file system of temporary files"
            );
        }
        set => set.unwrap(),
    }
    let mut below = [0; 100];
    let path = scene.directory.path().join("user");
    let length = rustix::fs::getxattr(&path, "system.posix_acl_access", &mut below[..]).unwrap();
    assert_eq!(below[..length], list(100_005, 100_006));
    assert_eq!(scene.layer.get_xattr(&Context::SERVER, node, ACCESS).unwrap(), list(5, 6));
    for torn in [&[][..], &[2, 0, 0], &list(5, 6)[..30]] {
        assert!(scene.layer.set_xattr(&Context::SERVER, node, ACCESS, torn, 0, false).is_err() || torn.len() < 5);
    }
    scene.layer.set_xattr(&Context::SERVER, node, b"user.posix_acl_access", &list(100_001, 1), 0, false).unwrap();
}

#[test]
fn where_all_are_one_whatever_is_made_is_that_ones() {
    let Some(scene) = Scene::new("5:6", &[]) else { return };
    assert_eq!((scene.seen("root"), scene.seen("user")), ((5, 6), (5, 6)));
    let made = scene.layer.create(&user(33, 44), NodeId::ROOT, b"new", &FILE, libc::O_RDWR as u32).unwrap();
    assert_eq!((made.0.attributes.uid, made.0.attributes.gid), (5, 6));
    assert_eq!(scene.below("new"), MAKER);
    assert_eq!(scene.give("user", 33).unwrap_err(), Errno::OVERFLOW);
    // It is that one's already, as far as anybody sees: so it stays whose it is.
    assert_eq!(scene.give("user", 5).unwrap().uid, 5);
    assert_eq!(scene.below("user"), (1000, 1000));
    let Some(scene) = Scene::new("squash", &[]) else { return };
    assert_eq!((scene.seen("root"), scene.seen("user")), ((0, 0), (0, 0)));
    scene.layer.create(&user(33, 44), NodeId::ROOT, b"new", &FILE, libc::O_RDWR as u32).unwrap();
    assert_eq!(scene.below("new"), MAKER);
}

#[test]
fn a_map_that_changes_nothing_is_no_layer() {
    let directory = tempfile::tempdir().unwrap();
    let below: Arc<dyn FileSystem> =
        Arc::new(HostDirectory::new(Path::new(directory.path()), HostOptions::default()).unwrap());
    let over = MappedOwners::over(Arc::clone(&below), &Owners::default(), MAKER);
    assert!(Arc::ptr_eq(&below, &over));
}
