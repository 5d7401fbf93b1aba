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

/// The child's threads, and another one.
const THREADS: [u32; 2] = [1001, 1002];
const PROGRAM: u32 = 7;

const DIRECTORY: NodeId = NodeId(7 << 32 | 5);

impl Scene {
    fn new() -> Scene {
        Scene::with_patience(LONG, LONG)
    }

    fn with_patience(patience: Duration, arrival: Duration) -> Scene {
        let scene = Scene::before_the_child_is_ready(patience, arrival);
        THREADS.into_iter().for_each(|thread| scene.report(READY, thread.into(), 0));
        while scene.prefetch.state().threads.len() < THREADS.len() {
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

    fn report(&self, kind: u64, number: u64, offset: u64) {
        self.reports.as_ref().unwrap().write_all(Report { kind, number, offset }.as_bytes()).unwrap();
    }

    fn say(&self, node: u64, offset: u64) {
        self.report(LISTED, node, offset);
    }

    /// A program lists a directory, and is told of these subdirectories.
    fn lists(&self, directory: u64, subdirectories: &[(u64, &str)]) {
        assert!(matches!(self.prefetch.asked(NodeId(directory), PROGRAM, 0), Occasion::Program { .. }));
        let told = subdirectories.iter().map(|(node, name)| (NodeId(*node), name.as_bytes().into())).collect();
        self.prefetch.told(NodeId(directory), 0, told);
    }

    /// The names that the child is told to list, and in which directory.
    fn ordered(&mut self) -> Vec<(u64, String)> {
        let name = |order: Order| (order.node, String::from_utf8(order.name().unwrap().into()).unwrap());
        std::iter::from_fn(|| self.order()).map(name).collect()
    }

    /// What the child is told next, if it is told something.
    fn order(&mut self) -> Option<Order> {
        let mut order = Order::of(0, 0);
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
        assert_eq!(self.next_order(), Order::of(directory.0, offset));
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
    // So is everybody told who lists it meanwhile: the kernel would have them wait for that name.
    for thread in [PROGRAM, THREADS[0]] {
        assert_eq!(scene.prefetch.asked(DIRECTORY, thread, 0), Occasion::Search(b"two"[..].into()));
    }
    assert_eq!(scene.prefetch.asked(NodeId(5), PROGRAM, 0), Occasion::Program { is_followed: false });
    // Who asks meanwhile does not wait, nor has it listed twice.
    scene.found(1, "three");
    assert_eq!(scene.order(), None);
    scene.say(DIRECTORY.0, END);
    waits.join().unwrap();
    assert_eq!(scene.prefetch.asked(DIRECTORY, PROGRAM, 0), Occasion::Program { is_followed: false });
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
    while !scene.prefetch.state().threads.is_empty() {
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
        [0, LISTED, WALKED, READY, 4, u64::MAX].into_iter().for_each(|kind| scene.report(kind, node, 17));
    }
    scene.report(READY, 1003, 0);
    while !scene.prefetch.state().threads.contains(&1003) {
        thread::yield_now();
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
    scene.prefetch.directories_are_kept();
    scene.lists(1, &[(2, "a"), (3, "b"), (4, "c")]);
    scene.lists(2, &[]);
    assert_eq!(scene.orders.read(&mut [0; 512]).unwrap(), 0);
    scene.all_answered();
}

#[test]
fn who_lists_one_directory_after_the_other_is_gone_ahead_of() {
    let mut scene = Scene::new();
    scene.prefetch.directories_are_kept();
    scene.lists(1, &[(11, "a"), (12, "b"), (13, "c"), (14, "d")]);
    assert_eq!(scene.ordered(), []);
    scene.lists(11, &[]);
    assert_eq!(scene.ordered(), [(1, "b".into()), (1, "c".into())]);
    // The child's own listings say nothing of where the program is.
    for node in [12, 13] {
        assert_eq!(scene.prefetch.asked(NodeId(node), THREADS[1], 0), Occasion::Walk);
        scene.report(WALKED, 1, END);
    }
    while scene.prefetch.state().reported < 2 {
        thread::yield_now();
    }
    assert_eq!(scene.ordered(), []);
}

#[test]
fn nobody_is_gone_ahead_of_where_directories_are_not_kept() {
    let mut scene = Scene::new();
    scene.lists(1, &[(11, "a"), (12, "b"), (13, "c")]);
    scene.lists(11, &[]);
    assert_eq!(scene.ordered(), []);
}

#[test]
fn a_child_that_is_slow_is_told_of_few_directories_and_of_searches_before_the_others() {
    let mut scene = Scene::new();
    scene.prefetch.directories_are_kept();
    for walk in 1..100 {
        let names: Vec<_> = (0..9).map(|number| (1000 * walk + number, "name")).collect();
        scene.lists(walk, &names);
        names.iter().for_each(|(node, _)| scene.lists(*node, &[]));
    }
    let at_once = WALKED_EACH * THREADS.len();
    assert_eq!(scene.ordered().len(), at_once);
    scene.found(0, "one");
    let waits = scene.found_by_one_who_waits(0, DIRECTORY, 0);
    scene.say(DIRECTORY.0, END);
    waits.join().unwrap();
    // Each that is listed makes room for another one, until there is none left.
    for listed in 0..at_once + MOST_KEPT_BACK {
        scene.report(WALKED, 1, END);
        while scene.prefetch.state().reported < listed as u64 + 2 {
            thread::yield_now();
        }
        assert_eq!(scene.ordered().len(), usize::from(listed < MOST_KEPT_BACK));
    }
    assert_eq!(scene.prefetch.state().walked, 0);
}

#[test]
fn those_that_wait_in_vain_at_the_same_time_are_as_good_as_one() {
    let mut state = State { ordered: 20, ..State::default() };
    (0..20).for_each(|number| state.judge(number, &Outcome::InVain));
    assert_eq!((state.passes, state.left), (0, 0));
    // The next one after them is the second.
    state.ordered = 21;
    state.judge(20, &Outcome::InVain);
    assert_eq!((state.passes, state.left), (1, 1));
    // One that never had its turn says nothing, one that was listed that it pays again.
    state.judge(21, &Outcome::Undecided);
    assert_eq!(state.passes, 1);
    state.judge(22, &Outcome::Done);
    assert_eq!((state.passes, state.was_in_vain), (0, false));
}

#[test]
fn an_order_has_a_name_as_long_as_names_are() {
    for length in [1, 255] {
        let name = vec![b'x'; length];
        assert_eq!(Order::beneath(7, &name).unwrap().name(), Some(&name[..]));
    }
    assert_eq!(Order::beneath(7, &[b'x'; 256]), None);
    assert_eq!(Order::of(7, 0).name(), None);
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
    scene.prefetch.asked(NodeId(1000), THREADS[0], 0);
    let arrives = thread::spawn(arrives);
    assert_eq!(order(&mut scene, 1)(), Outcome::InVain);
    scene.prefetch.state().waiting[0] = 0;
    let behind = thread::spawn(order(&mut scene, 2));
    thread::sleep(Duration::from_millis(20));
    assert!(!arrives.is_finished() && !behind.is_finished());
    scene.say(1000, END);
    assert_eq!(arrives.join().unwrap(), Outcome::Done);
    assert_eq!(behind.join().unwrap(), Outcome::InVain);
}

#[test]
fn after_two_that_were_waited_for_in_vain_some_are_left_out() {
    let mut scene = Scene::with_patience(LONG, Duration::from_micros(10));
    let mut directory = 0;
    let mut ordered = |scene: &mut Scene| {
        directory += 1;
        [b"one", b"two"].into_iter().for_each(|name| scene.prefetch.found(0, NodeId(1000 + directory), name));
        let is_ordered = scene.order().is_some();
        if is_ordered {
            // Too late.
            let reported = scene.prefetch.state().reported;
            scene.say(1000 + directory, END);
            while scene.prefetch.state().reported == reported {
                thread::yield_now();
            }
        }
        is_ordered
    };
    assert_eq!([(); 7].map(|()| ordered(&mut scene)), [true, true, false, true, false, false, false]);
}
