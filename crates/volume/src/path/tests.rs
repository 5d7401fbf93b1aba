//! Paths in a volume: links resolve inside it, and end.

use std::sync::Arc;

use inarch_block::BackedFiles;
use inarch_tree::{Attributes, Builder, Extents, InodeId, Tree};

use super::*;
use crate::TreeVolume;

/// A tree of directories (`a/`), links (`a -> target`) and empty files (`a`), each after its directory.
pub(crate) fn volume(entries: &[&str]) -> Arc<TreeVolume> {
    let attributes = |mode| Attributes { mode, ..Attributes::default() };
    let mut builder = Builder::new(&attributes(0o040_755)).unwrap();
    let mut directories: Vec<(String, InodeId)> = vec![(String::new(), InodeId::ROOT)];
    let name_of = |entry: &str| entry.split(" -> ").next().unwrap().trim_end_matches('/').to_owned();
    let mut entries = entries.to_vec();
    entries.sort_by_key(|entry| name_of(entry));
    let mut next = 0;
    while let Some((directory, inode)) = directories.get(next).cloned() {
        next += 1;
        builder.list(inode).unwrap();
        for entry in &entries {
            let (path, target) = entry.split_once(" -> ").map_or((*entry, None), |(path, target)| (path, Some(target)));
            let plain = path.trim_end_matches('/');
            let (above, name) = plain.rsplit_once('/').unwrap_or(("", plain));
            if above != directory {
                continue;
            }
            let mode = match target {
                Some(_) => 0o120_777,
                None if path.ends_with('/') => 0o040_755,
                None => 0o100_644,
            };
            let made = builder.add(name.as_bytes(), &attributes(mode)).unwrap();
            match target {
                Some(target) => builder.set_target(made, target.as_bytes()).unwrap(),
                None if path.ends_with('/') => directories.push((plain.to_owned(), made)),
                None => {}
            }
        }
    }
    let tree: Arc<Tree> = Arc::new(builder.finish().unwrap());
    let content = Arc::new(BackedFiles::new(Arc::clone(&tree), Extents::default(), Vec::new()));
    Arc::new(TreeVolume::new(tree, content))
}

fn same(volume: &dyn Volume, path: &str, as_path: &str) {
    let found = |path: &str| resolve(volume, path.as_bytes(), Last::Followed).unwrap();
    assert!(found(as_path).is_some(), "{as_path}");
    assert_eq!(found(path), found(as_path), "{path} is not {as_path}");
    let real = |path: &str| canonical(volume, path.as_bytes()).unwrap().unwrap();
    assert_eq!(real(path), real(as_path), "{path} is not {as_path}");
}

#[test]
fn a_path_leads_where_it_leads_in_a_guest() {
    let volume = volume(&[
        "etc/",
        "usr/",
        "usr/lib/",
        "usr/lib/os-release",
        "lib -> usr/lib",
        "etc/os-release -> ../usr/lib/os-release",
        "etc/absolute -> /usr/lib/os-release",
        "etc/up -> ../../../../etc",
        "etc/broken -> ../nothing",
    ]);
    let volume = &*volume;
    for (path, real) in [("etc/os-release", "/usr/lib/os-release"), ("lib/../..", "/"), ("etc/up", "/etc"), ("", "/")] {
        assert_eq!(canonical(volume, path.as_bytes()).unwrap().unwrap(), real.as_bytes());
    }
    assert_eq!(canonical(volume, b"etc/broken").unwrap(), None);
    for path in [
        "etc/os-release",
        "/lib/os-release",
        "//etc/./absolute",
        "etc/up/os-release",
        "../../etc/os-release",
        "lib/../lib/os-release",
    ] {
        same(volume, path, "/usr/lib/os-release");
    }
    same(volume, "lib/..", "/usr");
    same(volume, "", "/");
    let found = |path: &str, last| resolve(volume, path.as_bytes(), last).unwrap();
    for absent in ["nothing", "etc/broken", "usr/lib/os-release/x", "usr/lib/os-release/x/y", "etc/broken/.."] {
        assert_eq!(found(absent, Last::Followed), None, "{absent}");
    }
    let link = found("etc/os-release", Last::Taken).unwrap();
    assert_eq!(volume.target(link).unwrap(), b"../usr/lib/os-release");
    assert_eq!(found("lib/", Last::Taken), found("usr/lib", Last::Taken));
    assert_eq!(read_small(volume, b"etc/os-release", 0).unwrap(), Some(Vec::new()));
    assert_eq!(read_small(volume, b"etc", 0).unwrap(), None);
}

#[test]
fn links_without_end_are_refused() {
    let long = format!("long -> {}", "./a/../".repeat(500) + "long");
    let volume = volume(&["a/", "a/b -> ../c", "c -> a/b", "self -> self", &long]);
    for path in ["a/b", "c", "self", "self/x", "long"] {
        let error = resolve(&*volume, path.as_bytes(), Last::Followed).unwrap_err();
        assert!(matches!(error, VolumeError::Damaged(_)), "{path}: {error}");
    }
}
