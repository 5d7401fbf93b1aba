//! A program that is not `inarch` makes an image, mounts it and compares commands, is told what happens, and stops each of them.
//!
//! It is a program of its own without a harness: its mounts start it again as the process that clears them away.

use std::fs;
use std::path::Path;
use std::sync::mpsc;

use inarch_jobs::compare::{self, CompareRequest, HostPlace, HostWay, PageCache};
use inarch_jobs::image::{self, ImageError, ImageEvent, ImageRequest, Stage};
use inarch_jobs::mount::{self, By, MountEvent, MountRequest, Via};
use inarch_jobs::run::{RunRequest, Streams};
use inarch_jobs::source::Source;
use inarch_jobs::{Events, JobError, as_child};

fn main() {
    if let Some(status) = as_child() {
        std::process::exit(status.into());
    }
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("tree")).unwrap();
    fs::write(directory.path().join("tree/file"), "content").unwrap();
    an_image_is_made(directory.path());
    an_image_is_stopped(directory.path());
    a_comparison_is_stopped(directory.path());
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: a_mount_is_seen_and_stopped: there is no /dev/fuse");
        return;
    }
    a_mount_is_seen_and_stopped(directory.path());
    a_mount_that_cannot_be_is_an_error(directory.path());
}

/// Events, and where they can be asked for.
fn told<E: Send + 'static>() -> (Events<E>, mpsc::Receiver<E>) {
    let (sender, receiver) = mpsc::channel();
    (Events::new(move |event| drop(sender.send(event))), receiver)
}

fn an_image_is_made(directory: &Path) {
    let source = Source::parse(directory.join("tree").as_os_str()).unwrap();
    let (events, told) = told();
    let report = image::make(ImageRequest::new(source, directory.join("tree.tar")), events).unwrap();
    assert_eq!((report.format, report.files, report.content_bytes), ("tar", 1, 7));
    assert_eq!(fs::metadata(directory.join("tree.tar")).unwrap().len(), report.image_bytes);
    let told: Vec<ImageEvent> = told.into_iter().collect();
    assert!(matches!(told[0], ImageEvent::Stage { stage: Stage::Writing, bytes: 7, files: 1 }), "{told:?}");
}

fn an_image_is_stopped(directory: &Path) {
    let source = Source::parse(directory.join("tree").as_os_str()).unwrap();
    let (ready, may_go_on) = (mpsc::channel::<()>(), mpsc::channel::<()>());
    let (is_ready, going_on) = (ready.0, std::sync::Mutex::new(may_go_on.1));
    // The receiver of events holds the job up until it is stopped.
    let events = Events::new(move |event| {
        if let ImageEvent::Stage { .. } = event {
            let _ = is_ready.send(());
            let _ = going_on.lock().unwrap().recv();
        }
    });
    let making = image::start(ImageRequest::new(source, directory.join("stopped.tar")), events).unwrap();
    ready.1.recv().unwrap();
    making.stop();
    drop(may_go_on.0);
    let stopped = making.wait();
    assert!(matches!(stopped, Err(JobError::Image(ImageError::Stopped))), "{stopped:?}");
    assert!(!directory.join("stopped.tar").exists());
}

fn a_comparison_is_stopped(directory: &Path) {
    let streams = Streams {
        input: None,
        output: tempfile::tempfile().unwrap().into(),
        error: tempfile::tempfile().unwrap().into(),
    };
    let started = directory.join("started");
    let script = format!("touch {}; exec sleep 100000", started.display());
    let way = HostWay {
        name: "endless".to_owned(),
        words: ["sh".into(), "-c".into(), script.into()].into(),
        place: HostPlace::Here,
    };
    let request = CompareRequest {
        run: RunRequest::new(vec!["true".into()], streams),
        ways: Vec::new(),
        host_ways: vec![way],
        runs: 2,
        page_caches: vec![PageCache::Warm],
        package_caches: Vec::new(),
    };
    let comparing = compare::start(request, Events::ignored()).unwrap();
    while !started.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    comparing.stop();
    let stopped = comparing.wait();
    assert!(matches!(stopped, Err(JobError::Stopped)), "{:?}", stopped.err());
}

fn a_mount_is_seen_and_stopped(directory: &Path) {
    let point = directory.join("point");
    fs::create_dir(&point).unwrap();
    let before = std::env::current_dir().unwrap();
    let source = Source::parse(directory.join("tree.tar").as_os_str()).unwrap();
    let (events, told) = told();
    let request = MountRequest { via: Via::Fuse, ..MountRequest::new(source, point.clone()) };
    let mounted = mount::start(request, events).unwrap();
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "content");
    assert_eq!(
        (mounted.report().by, mounted.report().point.as_path()),
        (By::Fuse, point.canonicalize().unwrap().as_path())
    );
    assert!(mounted.report().line().starts_with("mounted "), "{:?}", mounted.report());
    mounted.answers().unwrap();
    mounted.stop();
    mounted.wait().unwrap();
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0, "it is still mounted");
    assert_eq!(std::env::current_dir().unwrap(), before);
    let told: Vec<MountEvent> = told.into_iter().collect();
    assert!(told.iter().any(|event| matches!(event, MountEvent::Mounting)), "{told:?}");
}

fn a_mount_that_cannot_be_is_an_error(directory: &Path) {
    let source = Source::parse(directory.join("tree").as_os_str()).unwrap();
    let refused = mount::start(MountRequest::new(source, directory.join("none")), Events::ignored());
    assert!(matches!(&refused, Err(JobError::Path(error)) if error.path.ends_with("none")), "{refused:?}");
}
