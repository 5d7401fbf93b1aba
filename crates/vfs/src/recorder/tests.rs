//! The recorder over a file system in memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::queue::Taken;
use super::recording::Writer;
use super::seen::Seen;
use super::*;
use crate::listing::Listing;
use crate::{Caching, Context, FileSystem, HandleId, MemoryFiles, NewNode, NodeId, SetAttributes, WriteKind};

const ME: Context<'static> = Context { pid: 77, ..Context::SERVER };
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;
const BOTH: u32 = libc::O_RDWR as u32;

/// Words for each access.
#[derive(Default)]
struct Lines(Vec<String>);

impl AccessSink for Lines {
    fn record(&mut self, access: &Access<'_>) -> io::Result<()> {
        let Access { kind, path, nameless, to, detail, error, process, .. } = *access;
        assert!(process.is_none_or(|process| process == ME.pid + 1));
        let words = [
            Some(kind.name().to_owned()),
            Some(String::from_utf8_lossy(path).into_owned()),
            to.map(|to| format!("-> {}", String::from_utf8_lossy(to))),
            detail.map(|detail| format!("({})", String::from_utf8_lossy(detail))),
            nameless.then(|| "nameless".to_owned()),
            error.map(|error| format!("{error:?}")),
        ];
        self.0.push(words.into_iter().flatten().collect::<Vec<_>>().join(" "));
        Ok(())
    }

    fn caught_up(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What was told so far.
struct Told {
    recording: Recording,
    writer: Writer,
}

impl Told {
    fn take(&mut self) -> Vec<String> {
        let (mut lines, mut messages) = (Lines::default(), Vec::new());
        while self.recording.queue.take(&mut messages) == Taken::Some {
            messages.drain(..).for_each(|message| self.writer.take(message, &mut lines).unwrap());
        }
        lines.0
    }
}

fn scene(level: RecordLevel) -> (Recorder, Told) {
    let recording = Recording::new(level);
    let told = Told { recording: recording.clone(), writer: Writer::new(level, level == RecordLevel::Process) };
    (Recorder::new(Arc::new(MemoryFiles::new(1 << 20)), recording, |thread, _| thread + 1), told)
}

#[test]
fn each_access_is_told_by_its_path() {
    let (layer, mut told) = scene(RecordLevel::Process);
    assert!(layer.lookup(&ME, NodeId::ROOT, b"d").is_err());
    let d = layer.make_directory(&ME, NodeId::ROOT, b"d", &DIRECTORY).unwrap().node;
    let e = layer.make_directory(&ME, d, b"e", &DIRECTORY).unwrap().node;
    let (a, opened) = layer.create(&ME, e, b"a", &FILE, libc::O_WRONLY as u32).unwrap();
    assert_eq!((a.valid, a.attributes.valid, layer.absence_valid(d)), Default::default());
    let mut text = *b"text";
    let slices = [VolatileSlice::from(&mut text[..])];
    for _ in 0..3 {
        layer.write(&ME, a.node, opened.handle, 0, &slices, WriteKind::default()).unwrap();
        layer.read(&ME, a.node, opened.handle, 0, &slices).unwrap();
    }
    layer.release(a.node, opened.handle, None);
    let lines = ["absent d", "create d", "create d/e", "create d/e/a", "open-write d/e/a", "write d/e/a", "read d/e/a"];
    assert_eq!(told.take(), lines);
    layer.rename(&ME, NodeId::ROOT, b"d", NodeId::ROOT, b"f", 0).unwrap();
    let again = layer.open(&ME, a.node, READ).unwrap();
    assert_eq!(again.caching, Caching::Fresh);
    layer.read(&ME, a.node, again.handle, 0, &[]).unwrap();
    layer.seek(&ME, a.node, again.handle, 0, libc::SEEK_HOLE as u32).unwrap();
    layer.attributes(&ME, a.node, None).unwrap();
    layer.make_symlink(&ME, e, b"s", b"x").unwrap();
    let s = layer.lookup(&ME, e, b"s").unwrap();
    layer.read_link(&ME, s.node).unwrap();
    layer.set_attributes(&ME, s.node, None, &SetAttributes::default()).unwrap();
    layer.statistics(&ME, d).unwrap();
    let lines = [
        "rename d -> f",
        "open-read f/e/a",
        "read f/e/a",
        "attributes f/e/a",
        "create f/e/s (x)",
        "found f/e/s",
        "read-link f/e/s (x)",
        "set-attributes f/e/s",
        "statistics f",
    ];
    assert_eq!(told.take(), lines);
    layer.rename(&ME, e, b"s", e, b"a", libc::RENAME_EXCHANGE).unwrap();
    layer.attributes(&ME, a.node, None).unwrap();
    layer.attributes(&ME, s.node, None).unwrap();
    assert_eq!(told.take(), ["exchange f/e/s -> f/e/a", "attributes f/e/s", "attributes f/e/a"]);
    assert!(layer.host_file(a.node, again.handle).is_none());
    let writable = layer.open(&ME, a.node, BOTH | libc::O_TRUNC as u32).unwrap();
    layer.fallocate(&ME, a.node, writable.handle, 0, 0, 99).unwrap();
    layer.set_attributes(&ME, a.node, None, &SetAttributes { size: Some(3), ..SetAttributes::default() }).unwrap();
    layer.set_xattr(&ME, a.node, b"user.x", b"value", 0, false).unwrap();
    layer.get_xattr(&ME, a.node, b"user.x").unwrap();
    layer.list_xattrs(&ME, a.node).unwrap();
    layer.remove_xattr(&ME, a.node, b"user.x").unwrap();
    let told = told.take().into_iter().map(|line| line.replace("f/e/s", "*")).collect::<Vec<_>>();
    let lines = [
        "truncate *",
        "open-read *",
        "open-write *",
        "allocate *",
        "truncate *",
        "set-xattr * (user.x)",
        "get-xattr * (user.x)",
        "list-xattrs *",
        "remove-xattr * (user.x)",
    ];
    assert_eq!(told, lines);
}

#[test]
fn what_is_executed_is_told_from_what_is_only_read() {
    for level in [RecordLevel::Process, RecordLevel::Command] {
        let (layer, mut told) = scene(level);
        let (a, _) = layer.create(&ME, NodeId::ROOT, b"a", &FILE, BOTH).unwrap();
        told.take();
        layer.open(&ME, a.node, READ).unwrap();
        layer.open(&ME, a.node, READ | crate::OPEN_TO_EXECUTE).unwrap();
        layer.open(&ME, NodeId(99), READ | crate::OPEN_TO_EXECUTE).unwrap_err();
        let lines = told.take();
        let count = |start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
        assert_eq!((count("execute a"), count("execute ?")), (1, 1), "{lines:?}");
        assert_eq!(count("open-read a"), if level == RecordLevel::Process { 2 } else { 0 }, "{lines:?}");
    }
}

#[test]
fn what_fails_is_told() {
    let (layer, mut told) = scene(RecordLevel::Process);
    let d = layer.make_directory(&ME, NodeId::ROOT, b"d", &DIRECTORY).unwrap().node;
    let (a, opened) = layer.create(&ME, d, b"a", &FILE, READ).unwrap();
    told.take();
    let mut no_room = [0; 1];
    let slices = [VolatileSlice::from(&mut no_room[..])];
    let failed = [
        layer.lookup(&ME, a.node, b"x").map(drop),
        layer.make_directory(&ME, NodeId::ROOT, b"d", &DIRECTORY).map(drop),
        layer.make_node(&ME, NodeId::ROOT, b"d", &FILE).map(drop),
        layer.make_symlink(&ME, NodeId::ROOT, b"d", b"t").map(drop),
        layer.create(&ME, d, b"a", &FILE, READ).map(drop),
        layer.create_unnamed(&ME, a.node, &FILE, BOTH).map(drop),
        layer.link(&ME, a.node, d, b"a").map(drop),
        layer.unlink(&ME, NodeId::ROOT, b"d"),
        layer.remove_directory(&ME, NodeId::ROOT, b"d"),
        layer.rename(&ME, d, b"x", d, b"y", 0),
        layer.open(&ME, d, BOTH).map(drop),
        layer.read_link(&ME, a.node).map(drop),
        layer.write(&ME, a.node, opened.handle, 0, &slices, WriteKind::default()).map(drop),
        layer.write(&ME, a.node, opened.handle, 0, &slices, WriteKind::default()).map(drop),
        layer.read(&ME, a.node, HandleId(u64::MAX), 0, &slices).map(drop),
        layer.copy_range(&ME, (a.node, opened.handle, 0), (a.node, opened.handle, 0), 1).map(drop),
        layer.fallocate(&ME, a.node, opened.handle, 0, 0, 1),
        layer.get_xattr(&ME, a.node, b"user.x").map(drop),
        layer.remove_xattr(&ME, a.node, b"user.x"),
        layer.open_directory(&ME, a.node).map(drop),
        layer.attributes(&ME, NodeId(99), None).map(drop),
    ];
    let lines = [
        "look-up d/a/x",
        "create d",
        "create d",
        "create d (t)",
        "create d/a",
        "create-unnamed d/a nameless",
        "link d/a -> d/a",
        "remove d",
        "remove d",
        "rename d/x -> d/y",
        "open-read d",
        "read-link d/a",
        "write d/a",
        "write d/a",
        "read d/a",
        "copy d/a -> d/a",
        "allocate d/a",
        "get-xattr d/a (user.x)",
        "remove-xattr d/a (user.x)",
        "list d/a",
        "attributes ? nameless",
    ];
    let mut expected: Vec<_> =
        std::iter::zip(lines, failed).map(|(line, failed)| format!("{line} {:?}", failed.unwrap_err())).collect();
    // An open for reading and writing counts as both.
    let opening = expected.iter().position(|line| line.starts_with("open-read")).unwrap();
    expected.insert(opening + 1, expected[opening].replace("open-read", "open-write"));
    assert_eq!(told.take(), expected);
}

#[test]
fn paths_are_right_after_names_have_changed() {
    let (layer, mut told) = scene(RecordLevel::Process);
    let make = |parent, name: &[u8]| layer.make_directory(&ME, parent, name, &DIRECTORY).unwrap().node;
    let asked = |node| layer.attributes(&ME, node, None).map(drop).unwrap();
    let (d, e) = (make(NodeId::ROOT, b"d"), make(NodeId::ROOT, b"e"));
    let deep = make(make(d, b"1"), b"2");
    let (a, opened) = layer.create(&ME, deep, b"a", &FILE, BOTH).unwrap();
    layer.rename(&ME, NodeId::ROOT, b"d", e, b"moved", 0).unwrap();
    told.take();
    asked(a.node);
    layer.link(&ME, a.node, e, b"b").unwrap();
    asked(a.node);
    // The name now belongs to another file; this file keeps its other name.
    layer.make_symlink(&ME, NodeId::ROOT, b"new", b"x").unwrap();
    layer.rename(&ME, NodeId::ROOT, b"new", e, b"b", 0).unwrap();
    asked(a.node);
    layer.unlink(&ME, deep, b"a").unwrap();
    asked(a.node);
    layer.create(&ME, deep, b"a", &FILE, BOTH).unwrap();
    let mut text = *b"text";
    let slices = [VolatileSlice::from(&mut text[..])];
    layer.write(&ME, a.node, opened.handle, 0, &slices, WriteKind::default()).unwrap();
    let lines = [
        "attributes e/moved/1/2/a",
        "link e/moved/1/2/a -> e/b",
        "attributes e/b",
        "create new (x)",
        "rename new -> e/b",
        "attributes e/moved/1/2/a",
        "remove e/moved/1/2/a",
        "attributes e/moved/1/2/a nameless",
        "create e/moved/1/2/a",
        "open-read e/moved/1/2/a",
        "open-write e/moved/1/2/a",
        "write e/moved/1/2/a nameless",
    ];
    assert_eq!(told.take(), lines);
    let (unnamed, opened) = layer.create_unnamed(&ME, e, &FILE, BOTH).unwrap();
    layer.write(&ME, unnamed.node, opened.handle, 0, &slices, WriteKind::default()).unwrap();
    layer.link(&ME, unnamed.node, NodeId::ROOT, b"named").unwrap();
    asked(unnamed.node);
    let lines = [
        "create-unnamed e nameless",
        "open-read e nameless",
        "open-write e nameless",
        "write e nameless",
        "link e nameless -> named",
        "attributes named",
    ];
    let lines = lines.map(|line| line.replace("nameless -> named", "-> named nameless"));
    assert_eq!(told.take(), lines);
}

#[test]
fn what_is_given_back_is_known_no_more() {
    let (layer, mut told) = scene(RecordLevel::Process);
    for name in [b"a", b"b"] {
        let made = layer.make_directory(&ME, NodeId::ROOT, name, &DIRECTORY).unwrap();
        layer.forget(made.node, 1);
    }
    told.take();
    assert!(told.writer.paths.is_empty());
    // A listing is no look-up of the names in it.
    let listed = Listing::of(&layer, &ME, (NodeId::ROOT, HandleId::default()), 0, (100, true)).unwrap().entries;
    assert!(listed.len() == 4 && listed.iter().all(|(_, entry)| entry.is_none()));
    assert_eq!((told.take(), told.writer.paths.len()), (vec!["list ".to_owned()], 0));
    let a = layer.lookup(&ME, NodeId::ROOT, b"a").unwrap().node;
    let inner = layer.make_directory(&ME, a, b"inner", &DIRECTORY).unwrap().node;
    layer.link(&ME, inner, a, b"no").unwrap_err();
    // The path stays while something lies there.
    layer.forget(a, u64::MAX);
    layer.attributes(&ME, inner, None).unwrap();
    let lines = ["found a", "create a/inner", "link a/inner -> a/no Os { code: 1", "attributes a/inner"];
    assert!(std::iter::zip(told.take(), lines).all(|(told, line)| told.starts_with(line)));
    layer.forget(inner, u64::MAX);
    told.take();
    assert!(told.writer.paths.is_empty());
    let (file, _) = layer.create(&ME, NodeId::ROOT, b"file", &FILE, BOTH).unwrap();
    layer.link(&ME, file.node, NodeId::ROOT, b"second").unwrap();
    layer.lookup(&ME, NodeId::ROOT, b"file").unwrap();
    layer.forget(file.node, 3);
    told.take();
    assert!(told.writer.paths.is_empty());
    layer.lookup(&ME, NodeId::ROOT, b"a").unwrap();
    layer.disconnected();
    told.take();
    assert!(told.writer.paths.is_empty());
}

#[test]
fn of_a_command_each_access_is_told_once() {
    let (layer, mut told) = scene(RecordLevel::Command);
    for _ in 0..3 {
        layer.lookup(&ME, NodeId::ROOT, b"d").unwrap_err();
        let (a, opened) = layer.create(&ME, NodeId::ROOT, b"a", &FILE, libc::O_WRONLY as u32).unwrap();
        assert!(!a.valid.is_zero() && !a.attributes.valid.is_zero() && !layer.absence_valid(NodeId::ROOT).is_zero());
        assert_ne!(layer.open(&ME, a.node, READ).unwrap().caching, Caching::Fresh);
        layer.get_xattr(&ME, a.node, b"user.x").unwrap_err();
        layer.unlink(&ME, NodeId::ROOT, b"a").unwrap();
        layer.release(a.node, opened.handle, None);
    }
    let lines = ["absent d", "create a", "open-write a", "open-read a", "get-xattr a (user.x) NODATA", "remove a"];
    let told = told.take();
    assert_eq!(told.len(), lines.len(), "{told:?}");
    assert!(
        std::iter::zip(&told, lines).all(|(told, line)| told.starts_with(line.trim_end_matches(" NODATA"))),
        "{told:?}"
    );
}

/// The names of each listing.
#[derive(Default)]
struct Names(Vec<String>);

impl AccessSink for Names {
    fn record(&mut self, _: &Access<'_>) -> io::Result<()> {
        Ok(())
    }

    fn list(&mut self, listed: &Listed<'_>) -> io::Result<()> {
        let names: Vec<_> = listed.names().map(String::from_utf8_lossy).collect();
        self.0.push(format!("{}: {}", String::from_utf8_lossy(listed.path), names.join(" ")));
        Ok(())
    }

    fn caught_up(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn names_that_the_client_got_are_told() {
    for with_names in [true, false] {
        let recording = Recording::new(RecordLevel::Command);
        let recording = if with_names { recording.with_names() } else { recording };
        let layer = Recorder::new(Arc::new(MemoryFiles::new(1 << 20)), recording.clone(), |thread, _| thread);
        let d = layer.make_directory(&ME, NodeId::ROOT, b"d", &DIRECTORY).unwrap().node;
        for name in [&b"a"[..], b"b", b"c"] {
            layer.make_directory(&ME, d, name, &DIRECTORY).unwrap();
        }
        let list = |from, room| Listing::of(&layer, &ME, (d, HandleId::default()), from, (room, false)).unwrap();
        // `.` and `..` come first. A name for which there is no room was not told to the client.
        let next = list(0, 3).next;
        list(next, 9);
        layer.remove_directory(&ME, d, b"a").unwrap();
        list(0, 9);
        recording.end();
        let mut names = Names::default();
        recording.write_to(&mut names).unwrap();
        let told: &[&str] = if with_names { &["d: a", "d: b c", "d: b c"] } else { &[] };
        assert_eq!(names.0, told);
    }
}

#[test]
fn of_a_file_with_several_names_a_caching_client_may_have_used_any() {
    for (level, others) in [(RecordLevel::Command, true), (RecordLevel::Process, false)] {
        let (layer, mut told) = scene(level);
        let (a, _) = layer.create(&ME, NodeId::ROOT, b"a", &FILE, BOTH).unwrap();
        layer.link(&ME, a.node, NodeId::ROOT, b"b").unwrap();
        told.take();
        layer.read_link(&ME, a.node).unwrap_err();
        layer.unlink(&ME, NodeId::ROOT, b"b").unwrap();
        layer.set_attributes(&ME, a.node, None, &SetAttributes::default()).unwrap();
        let lines: &[&str] = match others {
            true => &["read-link b", "read-link a", "remove b", "set-attributes a"],
            false => &["read-link b", "remove b", "set-attributes a"],
        };
        let told = told.take();
        assert!(std::iter::zip(&told, lines).all(|(told, line)| told.starts_with(line)), "{told:?}");
        assert_eq!(told.len(), lines.len(), "{told:?}");
    }
}

/// Counts accesses, and takes some time about them; or fails at once.
struct Counting(Arc<AtomicU64>, Option<io::ErrorKind>);

impl AccessSink for Counting {
    fn record(&mut self, access: &Access<'_>) -> io::Result<()> {
        assert_eq!(access.kind, AccessKind::Absent);
        if self.0.fetch_add(1, Ordering::Relaxed).is_multiple_of(10_000) {
            thread::yield_now();
        }
        self.1.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn caught_up(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_is_lost_if_who_writes_is_slower_than_who_asks() {
    const EACH: u64 = 50_000;
    let recording = Recording::new(RecordLevel::Process);
    let layer = Recorder::new(Arc::new(MemoryFiles::new(1 << 20)), recording.clone(), |thread, _| thread);
    let (count, asked) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    thread::scope(|scope| {
        let askers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        layer.lookup(&ME, NodeId::ROOT, b"x").unwrap_err();
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        // Nobody takes messages yet, so the requests stop when the queue is full.
        let mut before = u64::MAX;
        while before != asked.load(Ordering::Relaxed) || before == 0 {
            before = asked.load(Ordering::Relaxed);
            thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(before < 3 * EACH);
        let writer = scope.spawn(|| recording.write_to(&mut Counting(Arc::clone(&count), None)).unwrap());
        askers.into_iter().for_each(|asker| asker.join().unwrap());
        recording.end();
        assert_eq!(writer.join().unwrap(), 3 * EACH);
    });
    assert_eq!(count.load(Ordering::Relaxed), 3 * EACH);
}

#[test]
fn who_cannot_be_written_down_does_nothing() {
    let recording = Recording::new(RecordLevel::Process);
    let layer = Recorder::new(Arc::new(MemoryFiles::new(1 << 20)), recording.clone(), |thread, _| thread);
    let failed = AtomicBool::new(false);
    thread::scope(|scope| {
        // The requests go on until the writer has failed; then they are not blocked.
        let asker = scope.spawn(|| {
            while !matches!(layer.lookup(&ME, NodeId::ROOT, b"x"), Err(Errno::IO)) {}
            failed.load(Ordering::Relaxed)
        });
        failed.store(true, Ordering::Relaxed);
        let kind = Some(io::ErrorKind::StorageFull);
        let error = recording.write_to(&mut Counting(Arc::default(), kind)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(asker.join().unwrap());
    });
    assert_eq!(layer.make_directory(&ME, NodeId::ROOT, b"x", &DIRECTORY).map(drop), Err(Errno::IO));
    let error = recording.write_to(&mut Lines::default());
    assert_eq!(error.unwrap(), 0);
}

#[test]
fn what_was_seen_takes_few_bytes() {
    const COUNT: u64 = 1_000_000;
    let mut seen = Seen::default();
    assert!((0..COUNT).all(|number| seen.is_new(number)));
    assert!(!(0..COUNT).any(|number| seen.is_new(number)));
    assert!(seen.bytes() < 100 * COUNT as usize, "{}", seen.bytes());
}
