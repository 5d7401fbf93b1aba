//! Two publications over one base: whose files the cache then has.

use std::fs;

use inarch_cache::{CachePlace, Scope};
use inarch_source::{Opened, Source, open};
use inarch_tree::select::Selection;

use super::*;

/// A tree whose files are new; nothing else is known of it.
struct New;

impl Lineage for New {
    fn origin(&self, _new: InodeId) -> Option<InodeId> {
        None
    }

    fn same_content(&self, _old: InodeId, _new: InodeId) -> bool {
        false
    }
}

struct Scene {
    _home: tempfile::TempDir,
    store: Cache,
    rules: Rules,
}

impl Scene {
    fn new(name: &str) -> Scene {
        let home = tempfile::tempdir().unwrap();
        let place = CachePlace::new(&home.path().join("caches"), Scope::User, name).unwrap();
        Scene { store: Cache::make(&place).unwrap(), _home: home, rules: Rules::of(name) }
    }

    /// The tree of files with these contents.
    fn tree(files: &[(&str, &str)]) -> (tempfile::TempDir, Opened) {
        let directory = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let opened = open(&Source::Directory(directory.path().to_owned()), &Selection::default()).unwrap();
        (directory, opened)
    }

    /// Publishes over `base` that a guest has these files, and no others.
    fn publish_over(&self, base: &Snapshot, files: &[(&str, &str)]) -> Published {
        let (_directory, opened) = Scene::tree(files);
        self.publish_tree(base, &opened)
    }

    /// Publishes over `base` that a guest has this tree.
    fn publish_tree(&self, base: &Snapshot, opened: &Opened) -> Published {
        let mut pack = self.store.new_pack().unwrap();
        let newer = Newer { removes: true, ..Newer::new(&opened.tree, &*opened.content, &New) };
        let change = Change::find(&newer, &base.generation, &self.rules, Some(&mut pack)).unwrap();
        change.publish((&self.store, base), pack, &self.rules, None, "a test").unwrap()
    }

    fn publish(&self, files: &[(&str, &str)]) -> Published {
        self.publish_over(&self.store.snapshot().unwrap(), files)
    }

    /// Paths and contents of the current generation's files.
    fn files(&self) -> Vec<(String, String)> {
        let snapshot = self.store.snapshot().unwrap();
        let (tree, content) = (&snapshot.generation.tree, snapshot.content());
        let files = tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular);
        let mut files: Vec<_> = files
            .map(|(id, inode)| {
                let mut bytes = vec![0; inode.size() as usize];
                inarch_block::read_content(&*content, id, 0, &mut bytes).unwrap();
                (String::from_utf8(tree.path(id)).unwrap(), String::from_utf8(bytes).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    fn assert_files(&self, expected: &[(&str, &str)]) {
        let files = self.files();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, content)| (&path[..], &content[..])).collect();
        assert_eq!(files, expected);
    }

    fn names(&self, below: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.store.dir().join(below))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn what_two_add_is_there_and_of_one_name_the_first_stays() {
    let scene = Scene::new("maven");
    let base = scene.store.snapshot().unwrap();
    let first = scene.publish_over(&base, &[("a/1/a.jar", "first"), ("a/maven-metadata.xml", "one"), ("b.jar", "b")]);
    assert_eq!((first.generation, first.files, first.lost), (Some(1), 3, 0));
    let second = [("a/1/a.jar", "second"), ("a/maven-metadata.xml", "two"), ("c/c.jar", "c"), ("c/c.jar.part", "half")];
    let second = scene.publish_over(&base, &second);
    assert_eq!((second.generation, second.files, second.lost), (Some(2), 2, 1));
    scene.assert_files(&[("a/1/a.jar", "first"), ("a/maven-metadata.xml", "two"), ("b.jar", "b"), ("c/c.jar", "c")]);
}

#[test]
fn a_file_that_a_guest_saw_and_replaced_is_replaced() {
    let scene = Scene::new("maven");
    scene.publish(&[("a.jar", "damaged"), ("b.jar", "b")]);
    // Its other files are not removed: for Maven nothing is.
    scene.publish(&[("a.jar", "whole")]);
    scene.assert_files(&[("a.jar", "whole"), ("b.jar", "b")]);
}

#[test]
fn nothing_is_published_where_nothing_is_new() {
    let scene = Scene::new("maven");
    let base = scene.store.snapshot().unwrap();
    scene.publish(&[("a.jar", "first")]);
    // Another run published the only file meanwhile.
    let late = scene.publish_over(&base, &[("a.jar", "second")]);
    assert_eq!((late.generation, late.lost), (None, 1));
    scene.assert_files(&[("a.jar", "first")]);
    assert_eq!(scene.names("packs"), ["00000001"]);
}

#[test]
fn where_files_are_deleted_their_bytes_are_freed() {
    let scene = Scene::new("own");
    let long = "x".repeat(1 << 20);
    scene.publish(&[("a", &long), ("b", "b")]);
    let blocks = |scene: &Scene| {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(scene.store.dir().join("packs/00000001")).unwrap().blocks() * 512
    };
    assert!(blocks(&scene) > 1 << 20);
    scene.publish(&[("b", "b"), ("c", "c")]);
    scene.assert_files(&[("b", "b"), ("c", "c")]);
    assert!(blocks(&scene) < 64 << 10, "{}", blocks(&scene));
    // A reader keeps what it reads.
    let reader = scene.store.snapshot().unwrap();
    scene.publish(&[("b", "other")]);
    let id = reader.generation.tree.lookup(b"c").unwrap();
    let mut byte = [0];
    inarch_block::read_content(&*reader.content(), id, 0, &mut byte).unwrap();
    assert_eq!((&byte, scene.names("generations").len()), (b"c", 2));
    drop(reader);
    scene.publish(&[("b", "third")]);
    assert_eq!(scene.names("generations").len(), 1);
    scene.assert_files(&[("b", "third")]);
}

#[test]
fn the_same_bytes_are_stored_once() {
    let scene = Scene::new("npm");
    let first = scene.publish(&[("a", "the same"), ("b", "the same"), ("c/d", "other")]);
    assert_eq!((first.files, first.bytes), (3, 13));
    let again = scene.publish(&[("e", "the same"), ("f", "new")]);
    assert_eq!((again.files, again.bytes), (2, 3));
    scene.assert_files(&[("a", "the same"), ("b", "the same"), ("c/d", "other"), ("e", "the same"), ("f", "new")]);
}

#[test]
fn many_publications_leave_few_packs() {
    let scene = Scene::new("maven");
    let mut expected = Vec::new();
    for number in 0..80 {
        let name = format!("{number:02}/file");
        scene.publish(&[(&name, &name)]);
        expected.push((name.clone(), name));
        let packs = scene.names("packs").len();
        assert!(packs <= 33, "{packs}");
    }
    assert_eq!(scene.files(), expected);
}

#[test]
fn what_is_no_file_is_not_taken() {
    let scene = Scene::new("own");
    let (directory, _) = Scene::tree(&[("a", "a")]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        directory.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    std::os::unix::fs::symlink("a", directory.path().join("link")).unwrap();
    fs::hard_link(directory.path().join("a"), directory.path().join("hard")).unwrap();
    let opened = open(&Source::Directory(directory.path().to_owned()), &Selection::default()).unwrap();
    let base = scene.store.snapshot().unwrap();
    scene.publish_tree(&base, &opened);
    let tree = scene.store.snapshot().unwrap().generation.tree;
    assert!(tree.lookup(b"fifo").is_none());
    assert_eq!(tree.symlink_target(tree.lookup(b"link").unwrap()), b"a");
    assert_eq!(tree.lookup(b"a"), tree.lookup(b"hard"));
}
