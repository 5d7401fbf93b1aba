//! Several clients' threads at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::*;

#[test]
fn a_node_is_reached_while_it_is_renamed() {
    let scene = Scene::with(HostOptions { descriptors: Some(64), ..HostOptions::default() });
    fs::create_dir(scene.path().join("d")).unwrap();
    scene.file("a", "content");
    let (d, a) = (scene.node("d"), scene.node("a"));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                scene.layer.rename(&ME, NodeId::ROOT, b"a", d, b"b", 0).unwrap();
                scene.layer.rename(&ME, d, b"b", NodeId::ROOT, b"a", 0).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(scene.attributes(a).unwrap().size, 7);
                    for (parent, name) in [(NodeId::ROOT, "a"), (d, "b")] {
                        if let Ok(entry) = scene.lookup(parent, name) {
                            assert_eq!(entry.node, a);
                            scene.layer.forget(a, 1);
                        }
                    }
                    let handle = scene.open(a, READ);
                    scene.layer.release(a, handle, None);
                }
            });
        }
    });
    assert_eq!(scene.node("a"), a);
}

#[test]
fn many_threads_leave_the_table_as_it_was() {
    let scene = Scene::with(HostOptions { descriptors: Some(64), ..HostOptions::default() });
    for directory in 0..4 {
        fs::create_dir(scene.path().join(directory.to_string())).unwrap();
    }
    thread::scope(|scope| {
        for thread in 0..4u32 {
            let scene = &scene;
            scope.spawn(move || {
                for round in 0..500u32 {
                    let (from, to) = ((thread + round) % 4, (thread + round * 3 + 1) % 4);
                    let from = scene.lookup(NodeId::ROOT, &from.to_string()).unwrap().node;
                    let to = scene.lookup(NodeId::ROOT, &to.to_string()).unwrap().node;
                    let name = format!("{}", round % 5);
                    // Whatever the others did: each answer is one that a quiet file system could give.
                    if let Ok((entry, opened)) = scene.layer.create(&ME, from, name.as_bytes(), &NEW_FILE, WRITE) {
                        scene.write(entry.node, opened.handle, 0, "x").unwrap();
                        let _ = scene
                            .layer
                            .link(&ME, entry.node, to, b"link")
                            .map(|entry| scene.layer.forget(entry.node, 1));
                        scene.layer.release(entry.node, opened.handle, None);
                        scene.layer.forget(entry.node, 1);
                    }
                    let _ = scene.layer.rename(&ME, from, name.as_bytes(), to, b"other", 0);
                    let _ = scene.layer.unlink(&ME, to, b"link");
                    for (_, node) in scene.list(from, 3, true) {
                        if let Some(node) = node {
                            let _ = scene.attributes(node);
                            scene.layer.forget(node, 1);
                        }
                    }
                    scene.layer.forget(from, 1);
                    scene.layer.forget(to, 1);
                }
            });
        }
    });
    // What was looked up was all given back.
    assert_eq!(read(&scene.layer.table).len(), 1);
}

/// Most descriptors are taken back and opened again meanwhile: by file handles, or by names.
#[test]
fn each_file_has_its_own_content_while_descriptors_are_taken_back() {
    const DIRECTORIES: usize = 150;
    for handles in [true, false] {
        let mut scene = Scene::with(HostOptions { descriptors: Some(64), ..HostOptions::default() });
        scene.layer.handles_work &= handles;
        for directory in 0..DIRECTORIES {
            let path = scene.path().join(format!("{directory}/x"));
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("file"), directory.to_string()).unwrap();
        }
        thread::scope(|scope| {
            for stride in [1, 7, 11, 13] {
                let scene = &scene;
                scope.spawn(move || {
                    for step in 0..3 * DIRECTORIES {
                        let number = step * stride % DIRECTORIES;
                        let mut way = vec![NodeId::ROOT];
                        for name in [&*number.to_string(), "x", "file"] {
                            way.push(scene.lookup(*way.last().unwrap(), name).unwrap().node);
                        }
                        let file = way[3];
                        assert_eq!(scene.attributes(file).unwrap().size, number.to_string().len() as u64);
                        let handle = scene.open(file, READ);
                        assert_eq!(scene.read(file, handle, 0, 9).unwrap(), number.to_string().as_bytes());
                        scene.layer.release(file, handle, None);
                        way[1..].iter().for_each(|node| scene.layer.forget(*node, 1));
                    }
                });
            }
        });
        assert_eq!(read(&scene.layer.table).len(), 1);
    }
}
