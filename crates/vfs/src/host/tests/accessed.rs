//! How listings refresh the attributes of files read.

use super::*;
use crate::Caching;

const AGAIN: HostOptions = HostOptions {
    changes: Changes::Guest,
    uncached: false,
    read_only: false,
    refused: Refused { privileges: false, devices: false },
    submounts: Submounts::Empty,
    writeback: false,
    without_opening: true,
    opens_directories: true,
    locks: false,
    host_files_from: 0,
    descriptors: None,
};

const NONE: HandleId = HandleId(0);

/// Four files that the client knows; it has read their directory.
fn scene() -> (Scene, Vec<NodeId>) {
    let scene = Scene::with(AGAIN);
    for name in ["a", "b", "c", "d"] {
        scene.file(name, "content");
    }
    assert_eq!(told(&scene).len(), 4);
    assert!(told(&scene).is_empty());
    let nodes = ["a", "b", "c", "d"].map(|name| scene.node(name)).to_vec();
    (scene, nodes)
}

/// The names and sizes in a listing of the root with attributes.
fn told(scene: &Scene) -> Vec<(String, u64)> {
    let listed = read_root(scene);
    let mut told: Vec<_> =
        listed.into_iter().filter_map(|(name, entry)| Some((name, entry?.attributes.size))).collect();
    told.sort();
    told
}

/// Lists the root, as a client does that has opened it before.
fn read_root(scene: &Scene) -> Vec<(String, Option<Entry>)> {
    let (mut all, mut next) = (Vec::new(), 0);
    loop {
        let part = Listing::of(&scene.layer, &ME, (NodeId::ROOT, NONE), next, (2, true)).unwrap();
        if part.entries.is_empty() {
            return all;
        }
        next = part.next;
        all.extend(part.entries);
    }
}

fn open(scene: &Scene) -> Result<Caching, Errno> {
    scene.layer.open_directory(&ME, NodeId::ROOT).map(|opened| opened.caching)
}

#[test]
fn a_directory_of_which_files_were_read_is_read_again_once_with_their_attributes() {
    let (scene, nodes) = scene();
    assert_eq!(open(&scene), Ok(Caching::Keep));
    for node in &nodes[..2] {
        assert_eq!(scene.read(*node, NONE, 0, 9).unwrap(), b"content");
    }
    // Another listing would take as many requests as it saves.
    assert_eq!(open(&scene), Ok(Caching::Keep));
    for node in &nodes[..3] {
        assert_eq!(scene.read(*node, NONE, 0, 9).unwrap(), b"content");
    }
    assert_eq!(open(&scene), Ok(Caching::Fresh));
    assert_eq!(told(&scene).iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(open(&scene), Ok(Caching::Keep));
    assert!(told(&scene).is_empty());
    // Each was a lookup.
    for (node, lookups) in nodes.iter().zip([3, 3, 3, 2]) {
        scene.layer.forget(*node, lookups - 1);
        assert!(scene.attributes(*node).is_ok());
        scene.layer.forget(*node, 1);
        assert_eq!(scene.attributes(*node).unwrap_err(), Errno::STALE);
    }
}

#[test]
fn what_was_asked_for_or_is_gone_is_not_told_again() {
    let (scene, nodes) = scene();
    for node in &nodes {
        scene.read(*node, NONE, 0, 9).unwrap();
    }
    scene.attributes(nodes[0]).unwrap();
    scene.set(nodes[1], SetAttributes { mode: Some(0o600), ..SetAttributes::default() }).unwrap();
    assert_eq!(open(&scene), Ok(Caching::Keep));
    assert_eq!(told(&scene).len(), 2);
    for node in &nodes {
        scene.read(*node, NONE, 0, 9).unwrap();
    }
    scene.layer.unlink(&ME, NodeId::ROOT, b"a").unwrap();
    scene.layer.rename(&ME, NodeId::ROOT, b"b", NodeId::ROOT, b"c", 0).unwrap();
    assert_eq!(open(&scene), Ok(Caching::Keep));
}

#[test]
fn what_a_client_has_written_is_told_as_it_is_now() {
    let (scene, nodes) = scene();
    assert_eq!(scene.write(nodes[0], NONE, 7, " and more"), Ok(9));
    scene.read(nodes[1], NONE, 0, 9).unwrap();
    scene.write(nodes[2], NONE, 0, "C").unwrap();
    assert_eq!(open(&scene), Ok(Caching::Fresh));
    assert_eq!(told(&scene), [("a".to_owned(), 16), ("b".to_owned(), 7), ("c".to_owned(), 7)]);
}

#[test]
fn links_that_were_read_count_too_and_subdirectories_do_not() {
    let scene = Scene::with(AGAIN);
    for name in ["a", "b", "c"] {
        fs::create_dir(scene.path().join(name)).unwrap();
        std::os::unix::fs::symlink("a", scene.path().join(format!("link-{name}"))).unwrap();
    }
    assert_eq!(told(&scene).len(), 6);
    for name in ["a", "b", "c"] {
        scene.list(scene.node(name), 9, true);
    }
    assert_eq!(open(&scene), Ok(Caching::Keep));
    for name in ["link-a", "link-b", "link-c"] {
        assert_eq!(scene.layer.read_link(&ME, scene.node(name)).unwrap(), b"a");
    }
    assert_eq!(open(&scene), Ok(Caching::Fresh));
    let names: Vec<_> = told(&scene).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["link-a", "link-b", "link-c"]);
}

#[test]
fn a_list_that_was_read_in_part_is_kept() {
    let scene = Scene::with(AGAIN);
    let nodes = ["a", "b", "c", "d"].map(|name| {
        scene.file(name, "content");
        scene.node(name)
    });
    Listing::of(&scene.layer, &ME, (NodeId::ROOT, NONE), 0, (2, true)).unwrap();
    for node in nodes {
        scene.read(node, NONE, 0, 9).unwrap();
    }
    assert_eq!(open(&scene), Ok(Caching::Keep));
}

#[test]
fn directories_are_opened_until_it_costs_more_than_it_saves() {
    let (scene, nodes) = scene();
    let openings = || std::iter::repeat_with(|| open(&scene)).take_while(Result::is_ok).take(10_000).count();
    let some = openings();
    assert!((100..2000).contains(&some), "{some}");
    assert_eq!(open(&scene), Err(Errno::NOSYS));
    // The next client starts anew; it goes on for longer while it reads.
    scene.layer.disconnected();
    let nodes = nodes.iter().zip(["a", "b", "c", "d"]).map(|(_, name)| scene.node(name));
    for node in nodes {
        scene.read(node, NONE, 0, 9).unwrap();
    }
    // The directory was not read this time, which would have been worth three openings.
    assert_eq!(openings(), some + 2 - 3);
    let usual = Scene::with(HostOptions { opens_directories: false, ..AGAIN });
    assert_eq!(open(&usual), Err(Errno::NOSYS));
}
