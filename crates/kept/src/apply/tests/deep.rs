//! Tests trees so deep that their paths exceed the kernel's limit, and a recursion over them would exceed the stack.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use super::super::world::{World, reach, read};
use super::apply;

/// The stack of the thread that works on a tree, in bytes.
const STACK: usize = 512 << 10;
/// More levels than such a stack has room for: 131 bytes each.
const LEVELS: usize = 4_000;
/// So many that a call each is too much for the stack, and few enough that the path of each can be a difference.
const RENAMED_LEVELS: usize = 2_100;

/// Directories in one another, with these names, and files in the last.
fn dig(root: &Path, names: &[String], files: &[(&str, &str)]) {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = openat(CWD, root, flags, Mode::empty()).unwrap();
    for name in names {
        mkdirat(&at, name, Mode::from_raw_mode(0o755)).unwrap();
        at = openat(&at, name, flags, Mode::empty()).unwrap();
    }
    for (name, bytes) in files {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = openat(&at, *name, flags, Mode::from_raw_mode(0o644)).unwrap();
        File::from(file).write_all(bytes.as_bytes()).unwrap();
    }
}

/// A tree that is removed level by level at the end: what removes one by its paths or by recursion cannot.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |at: &OwnedFd, name: &[u8]| openat(at, name, flags, Mode::empty()).unwrap();
        let mut at = openat(CWD, &self.0, flags, Mode::empty()).unwrap();
        let mut names: Vec<Vec<u8>> = Vec::new();
        loop {
            match remove_files(&at) {
                Some(below) => {
                    at = open(&at, &below);
                    names.push(below);
                }
                None => {
                    let Some(name) = names.pop() else { return };
                    at = open(&at, b"..");
                    unlinkat(&at, name, AtFlags::REMOVEDIR).unwrap();
                }
            }
        }
    }
}

/// Removes what is in a directory but directories. Returns the name of one of these.
fn remove_files(at: &OwnedFd) -> Option<Vec<u8>> {
    let entries = rustix::fs::Dir::read_from(at).unwrap().map(|entry| entry.unwrap().file_name().to_bytes().to_vec());
    let names = entries.filter(|name| name != b"." && name != b"..");
    let is_directory = |name: &Vec<u8>| match unlinkat(at, &name[..], AtFlags::empty()) {
        Err(Errno::ISDIR) => true,
        result => result.map(|()| false).unwrap(),
    };
    names.filter(is_directory).last()
}

/// The names in a directory, sorted.
fn names_in(path: &Path) -> Vec<String> {
    let directory = openat(reach(path).unwrap(), c".", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let entries = rustix::fs::Dir::read_from(directory.as_fd()).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().to_owned()).collect();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

/// Applies what a guest did at the bottom of directories in one another, and, if it `renames` it, to the top.
fn apply_to_depths(names: Vec<String>, renames: bool) {
    let work = move || {
        let files = [("added to", "old"), ("changed", "old bytes"), ("gone", "old"), ("moves", "moved")];
        let mut world = World::new(|root| dig(root, &names, &files));
        let _removed = Removed(world.root());
        let bottom = names.join("/");
        let at = |name: &str| format!("{bottom}/{name}");
        assert!(world.write(&at("new"), b"new") && world.edit(&at("changed"), b'X'));
        assert!(world.append(&at("added to"), b"+more") && world.remove(&at("gone")));
        assert!(world.rename(&at("moves"), &at("came")));
        if renames {
            assert!(world.rename(&names[0], "the top"));
        }
        apply(&mut world, &[]).assert_whole();
        let top = if renames { "the top" } else { &names[0] };
        let bottom = names[1..].iter().fold(world.host(top), |path, name| path.join(name));
        assert_eq!(names_in(&world.root()), [top]);
        assert_eq!(names_in(&bottom), ["added to", "came", "changed", "new"]);
        let bytes = |name: &str| String::from_utf8(read(&bottom.join(name))).unwrap();
        assert_eq!(bytes("added to"), "old+more");
        assert_eq!((&bytes("came")[..], &bytes("changed")[..], &bytes("new")[..]), ("moved", "Xld bytes", "new"));
    };
    thread::Builder::new().stack_size(STACK).spawn(work).unwrap().join().unwrap();
}

/// Names of one letter.
fn letters(count: usize) -> Vec<String> {
    ('a'..='z').cycle().take(count).map(String::from).collect()
}

#[test]
fn what_a_guest_did_below_more_directories_than_a_stack_has_room_for_is_applied() {
    apply_to_depths(letters(LEVELS), false);
}

#[test]
fn a_directory_with_more_of_them_inside_than_a_stack_has_room_for_is_renamed() {
    apply_to_depths(letters(RENAMED_LEVELS), true);
}

#[test]
fn what_a_guest_did_below_the_longest_names_is_applied() {
    let long: Vec<String> = ('a'..='t').map(|letter| letter.to_string().repeat(255)).collect();
    assert!(long.join("/").len() > libc::PATH_MAX as usize);
    apply_to_depths(long.clone(), false);
    apply_to_depths(long, true);
}
