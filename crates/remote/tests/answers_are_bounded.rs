//! What a server does wrong costs a request a bounded time and bounded memory, and ends in one line.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use inarch_remote::{Limits, Location, Remote, RemoteError, WrongLength};

/// Answers each connection by `answer`, and counts them.
fn server(answer: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> (Location, Arc<AtomicU32>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = Location::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let (count, answer) = (Arc::new(AtomicU32::new(0)), Arc::new(answer));
    let counted = Arc::clone(&count);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            counted.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::clone(&answer);
            thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                answer(&mut stream);
            });
        }
    });
    (location, count)
}

/// Limits that a busy machine does not reach.
fn limits() -> Limits {
    const LONG: Duration = Duration::from_secs(60);
    Limits { connect: LONG, silence: LONG, request: LONG, retries: 1, failures: 2, pause: Duration::from_secs(600) }
}

fn remote(location: &Location) -> Remote {
    Remote::start(location.clone(), limits(), || {}).unwrap()
}

#[test]
fn an_endless_answer_ends() {
    let (location, _) = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 Good\r\nContent-Length: 99999999999\r\n\r\n");
        while stream.write_all(&[0; 65536]).is_ok() {}
    });
    let error = remote(&location).get("a", 1000).unwrap_err();
    assert!(matches!(error, RemoteError::Length(WrongLength::TooLong { most: 1000 })), "{error}");
}

#[test]
fn a_server_that_says_nothing_more_is_given_up_and_left_alone() {
    let (location, count) = server(|stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 Good\r\nContent-Length: 100\r\n\r\nx");
        thread::sleep(Duration::from_secs(600));
    });
    let short = Limits { silence: Duration::from_millis(400), request: Duration::from_secs(2), ..limits() };
    let remote = Remote::start(location, short, || {}).unwrap();
    for _ in 0..2 {
        let line = remote.get("a", 1000).unwrap_err().to_string();
        assert_eq!(line.lines().count(), 1, "{line}");
    }
    // From then on it is not asked.
    let before = count.load(Ordering::SeqCst);
    assert!(matches!(remote.get("a", 1000), Err(RemoteError::Down)));
    assert!(matches!(remote.get_range("a", 0..5), Err(RemoteError::Down)));
    assert_eq!(count.load(Ordering::SeqCst), before);
}

#[test]
fn a_message_of_a_server_cannot_change_a_terminal() {
    let (location, _) = server(|stream| {
        let body = "\u{1b}[31mred\r\n".repeat(1000);
        let _ = write!(stream, "HTTP/1.1 403 No\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    });
    let line = remote(&location).get("a", 1000).unwrap_err().to_string();
    assert!(!line.contains(char::is_control) && line.len() < 2000, "{line}");
}

#[test]
fn nobody_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = Location::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
    drop(listener);
    let line = remote(&location).get("a", 1000).unwrap_err().to_string();
    assert_eq!(line.lines().count(), 1, "{line}");
}

#[test]
fn names_of_objects_lead_nowhere_else() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("secret"), "x").unwrap();
    let location = Location::parse(&format!("file://{}/below", place.path().display())).unwrap();
    let remote = remote(&location);
    for key in ["../secret", "/etc/passwd", "a/../../secret", "", ".", "a//b", ".lock"] {
        assert!(remote.get(key, 100).is_err(), "{key}");
        assert!(remote.put(key, || Ok(None)).is_err(), "{key}");
        assert!(remote.put_if(key, Vec::new(), None, 100).is_err(), "{key}");
    }
    assert!(!place.path().join("below").exists());
}

#[test]
fn of_those_that_replace_an_object_at_once_one_does() {
    let place = tempfile::tempdir().unwrap();
    let location = Location::parse(&format!("file://{}", place.path().display())).unwrap();
    let first = remote(&location);
    assert!(first.put_if("head", b"0".to_vec(), None, 100).unwrap());
    assert!(!first.put_if("head", b"x".to_vec(), None, 100).unwrap());
    let replaced: u32 = thread::scope(|scope| {
        let add = || {
            let remote = remote(&location);
            let mut done = 0;
            while done < 20 {
                let found = remote.get("head", 100).unwrap();
                let number: u32 = String::from_utf8(found.bytes).unwrap().parse().unwrap();
                let next = (number + 1).to_string().into_bytes();
                done += u32::from(remote.put_if("head", next, Some(&found.version), 100).unwrap());
            }
            done
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(add)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(first.get("head", 100).unwrap().bytes, replaced.to_string().into_bytes());
    // A range is all or nothing.
    assert_eq!(first.get_range("head", 0..1).unwrap(), b"6");
    assert!(matches!(
        first.get_range("head", 0..9),
        Err(RemoteError::Length(WrongLength::TooShort { got: 2, wanted: 9 }))
    ));
}
