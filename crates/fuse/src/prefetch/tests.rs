//! When a directory is listed, who waits for that, and what a child may say.

use std::sync::Arc;
use std::thread;
use std::thread::JoinHandle;

use super::*;

/// A prefetch whose child is the test. Two threads each of two queues may wait.
struct Scene {
    prefetch: Arc<Prefetch>,
    orders: File,
    reports: Option<File>,
}

const LONG: Duration = Duration::from_secs(3600);

const DIRECTORY: NodeId = NodeId(7 << 32 | 5);

impl Scene {
    fn new() -> Scene {
        Scene::with_patience(LONG, LONG)
    }

    fn with_patience(patience: Duration, arrival: Duration) -> Scene {
        let scene = Scene::before_the_child_is_ready(patience, arrival);
        scene.say(0, 2);
        while scene.prefetch.state().threads == 0 {
            thread::yield_now();
        }
        scene
    }

    fn before_the_child_is_ready(patience: Duration, arrival: Duration) -> Scene {
        let pipe = || rustix::pipe::pipe().map(|(from, to)| (File::from(from), File::from(to))).unwrap();
        let ((orders, to_child), (from_child, reports)) = (pipe(), pipe());
        rustix::io::ioctl_fionbio(&orders, true).unwrap();
        let mut prefetch = Prefetch::new(to_child, vec![4, 4]);
        (prefetch.patience, prefetch.arrival) = (patience, arrival);
        let prefetch = Arc::new(prefetch);
        let attendant = Arc::clone(&prefetch);
        thread::spawn(move || attendant.attend(from_child));
        Scene { prefetch, orders, reports: Some(reports) }
    }

    fn say(&self, node: u64, offset: u64) {
        self.reports.as_ref().unwrap().write_all(Order { node, offset }.as_bytes()).unwrap();
    }

    /// What the child is told next, if it is told something.
    fn order(&mut self) -> Option<Order> {
        let mut order = Order { node: 0, offset: 0 };
        self.orders.read_exact(order.as_mut_bytes()).ok().map(|()| order)
    }

    fn next_order(&mut self) -> Order {
        loop {
            if let Some(order) = self.order() {
                return order;
            }
            thread::yield_now();
        }
    }

    fn found(&self, thread: usize, name: &str) {
        self.prefetch.found(thread, DIRECTORY, name.as_bytes());
    }

    /// The same in a thread, where it has to wait.
    fn found_by_one_who_waits(&mut self, thread: usize, directory: NodeId, offset: u64) -> JoinHandle<()> {
        let prefetch = Arc::clone(&self.prefetch);
        let waits = thread::spawn(move || prefetch.found(thread, directory, b"two"));
        assert_eq!(self.next_order(), Order { node: directory.0, offset });
        waits
    }

    /// Until nobody waits any more.
    fn all_answered(&self) {
        while self.prefetch.state().waiting.iter().any(|waiting| *waiting > 0) {
            thread::yield_now();
        }
    }
}

#[test]
fn the_second_name_has_its_directory_listed_and_waits_for_that() {
    let mut scene = Scene::new();
    scene.found(0, "one");
    assert_eq!(scene.order(), None);
    let waits = scene.found_by_one_who_waits(0, DIRECTORY, 0);
    assert_eq!(scene.prefetch.arrived(DIRECTORY), Some(Box::from(&b"two"[..])));
    assert_eq!(scene.prefetch.arrived(NodeId(5)), None);
    // Who asks meanwhile does not wait, nor has it listed twice.
    scene.found(1, "three");
    assert_eq!(scene.order(), None);
    scene.say(DIRECTORY.0, END);
    waits.join().unwrap();
    assert_eq!(scene.prefetch.arrived(DIRECTORY), None);
}

#[test]
fn of_a_large_directory_the_next_part_follows_when_as_many_more_were_asked_for() {
    let mut scene = Scene::new();
    let mut offset = 0;
    for (names, listed_to) in [(FIRST, 1000), (AGAIN, 1 << 40), (AGAIN, END), (AGAIN, 1000)] {
        for _ in 1..names {
            scene.found(0, "name");
            assert_eq!(scene.order(), None);
        }
        let waits = scene.found_by_one_who_waits(0, DIRECTORY, offset);
        scene.say(DIRECTORY.0, listed_to);
        waits.join().unwrap();
        scene.all_answered();
        offset = if listed_to == END { 0 } else { listed_to };
    }
}

#[test]
fn threads_are_left_that_answer_the_child() {
    let mut scene = Scene::new();
    let directory = |thread| NodeId(100 + thread as u64);
    (0..8).for_each(|thread| scene.prefetch.found(thread, directory(thread), b"one"));
    let waits: Vec<_> = [0, 1, 4, 5].map(|thread| scene.found_by_one_who_waits(thread, directory(thread), 0)).into();
    // Two of either queue wait; the others answer at once.
    [2, 3, 6, 7].into_iter().for_each(|thread| scene.prefetch.found(thread, directory(thread), b"two"));
    assert_eq!(scene.order(), None);
    [0, 1, 4, 5].into_iter().for_each(|thread| scene.say(directory(thread).0, END));
    waits.into_iter().for_each(|wait| wait.join().unwrap());
    scene.all_answered();
    // Now there is room for the others.
    scene.found_by_one_who_waits(2, directory(2), 0);
    drop(scene.reports.take());
    scene.all_answered();
    // A number of a thread that there is not.
    scene.prefetch.found(8, NodeId(3), b"one");
    scene.prefetch.found(usize::MAX, NodeId(3), b"two");
    assert_eq!(scene.order(), None);
}

#[test]
fn nobody_waits_for_a_child_that_is_not_ready_or_gone() {
    let mut scene = Scene::before_the_child_is_ready(PATIENCE, ARRIVAL);
    for _ in 0..1000 {
        scene.found(0, "name");
    }
    assert_eq!(scene.order(), None);
    let mut scene = Scene::new();
    scene.found(0, "one");
    let waits = scene.found_by_one_who_waits(0, DIRECTORY, 0);
    drop(scene.reports.take());
    waits.join().unwrap();
    while scene.prefetch.state().threads > 0 {
        thread::yield_now();
    }
    for _ in 0..1000 {
        scene.found(0, "name");
    }
    assert_eq!(scene.order(), None);
}

#[test]
fn what_the_child_says_of_other_directories_changes_nothing() {
    let scene = Scene::new();
    for node in [u64::MAX, 1, DIRECTORY.0] {
        scene.say(node, 17);
    }
    scene.found(0, "one");
    assert_eq!(scene.prefetch.state().reported, 0);
    assert_eq!(scene.prefetch.state().directories.len(), 1);
}

#[test]
fn only_so_many_directories_are_remembered() {
    let scene = Scene::new();
    for number in 0..2 * REMEMBERED as u64 {
        scene.prefetch.found(0, NodeId(number + 10), b"name");
    }
    let state = scene.prefetch.state();
    assert!(state.directories.len() <= REMEMBERED && state.order.len() <= REMEMBERED);
}

#[test]
fn nothing_is_ordered_after_the_end() {
    let mut scene = Scene::new();
    scene.prefetch.end();
    scene.found(0, "one");
    scene.found(0, "two");
    assert_eq!(scene.orders.read(&mut [0; 16]).unwrap(), 0);
    scene.all_answered();
}

#[test]
fn an_answer_waits_for_a_moment_at_most() {
    let mut scene = Scene::with_patience(PATIENCE, LONG);
    scene.found(0, "one");
    scene.found(0, "two");
    assert!(scene.next_order().node == DIRECTORY.0);
}

#[test]
fn nobody_waits_for_a_child_that_is_kept_from_listing() {
    let mut scene = Scene::with_patience(LONG, Duration::from_micros(10));
    let order = |scene: &mut Scene, number: u64| {
        let directory = NodeId(1000 + number);
        scene.prefetch.found(0, directory, b"one");
        let (number, done) = scene.prefetch.begin(0, directory, b"two").unwrap();
        scene.next_order();
        let prefetch = Arc::clone(&scene.prefetch);
        move || prefetch.wait(directory, number, &done)
    };
    // The child lists two at a time. One is asked for, two never are; of these the second does not begin before another one ends.
    let arrives = order(&mut scene, 0);
    scene.prefetch.arrived(NodeId(1000)).unwrap();
    let arrives = thread::spawn(arrives);
    assert!(!order(&mut scene, 1)());
    scene.prefetch.state().waiting[0] = 0;
    let behind = thread::spawn(order(&mut scene, 2));
    thread::sleep(Duration::from_millis(20));
    assert!(!arrives.is_finished() && !behind.is_finished());
    scene.say(1000, END);
    assert!(arrives.join().unwrap());
    assert!(!behind.join().unwrap());
}

#[test]
fn after_one_that_was_waited_for_in_vain_some_are_left_out() {
    let mut scene = Scene::with_patience(LONG, Duration::from_micros(10));
    let mut directory = 0;
    let mut ordered = |scene: &mut Scene| {
        directory += 1;
        [b"one", b"two"].into_iter().for_each(|name| scene.prefetch.found(0, NodeId(1000 + directory), name));
        scene.order().is_some()
    };
    // The child lists two at a time, and is kept from both.
    assert_eq!([(); 6].map(|()| ordered(&mut scene)), [true, false, true, false, false, false]);
}
