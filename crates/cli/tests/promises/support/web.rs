//! A web server of one directory, which does what it should not when it is told to.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What the server does wrong with objects whose names contain a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// It answers 500.
    Error,
    /// It says how long the answer is, and ends before.
    Truncated,
    /// It says a shorter length, and ends there.
    Short,
    /// A byte of each answer is another one.
    Wrong,
    /// It answers after a while.
    Slow(Duration),
    /// It closes the connection without an answer.
    Gone,
    /// The answer does not end.
    Endless,
    /// It knows no ranges: it sends all.
    Whole,
    /// It sends the client to the server with this port.
    Elsewhere(u16),
}

/// The server.
pub struct Web {
    pub url: String,
    state: Arc<State>,
}

struct State {
    root: PathBuf,
    fault: Mutex<(Fault, String)>,
    /// Bytes of bodies.
    sent: AtomicU64,
    requests: AtomicU64,
}

impl Web {
    pub fn of(root: &Path) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            root: root.to_owned(),
            fault: Mutex::new((Fault::None, String::new())),
            sent: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        });
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                // A client that goes away is no failure.
                thread::spawn(move || state.serve(stream).unwrap_or_default());
            }
        });
        Web { url, state }
    }

    /// From now on it does this with objects whose path contains `name`.
    pub fn fail(&self, fault: Fault, name: &str) {
        *self.state.fault.lock().unwrap() = (fault, name.to_owned());
    }

    /// How many requests there were.
    pub fn requests(&self) -> u64 {
        self.state.requests.load(Ordering::Relaxed)
    }

    /// How many bytes of objects were sent since the last call.
    pub fn take_sent(&self) -> u64 {
        self.state.sent.swap(0, Ordering::Relaxed)
    }
}

impl State {
    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut line = String::new();
            reader.by_ref().take(8192).read_line(&mut line)?;
            let mut words = line.split_whitespace();
            let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
            let mut range = None;
            loop {
                let mut header = String::new();
                reader.by_ref().take(8192).read_line(&mut header)?;
                let header = header.trim().to_ascii_lowercase();
                if header.is_empty() {
                    break;
                }
                if let Some((start, end)) = header.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
                {
                    range = Some((start.parse().unwrap_or(0), end.parse().unwrap_or(u64::MAX)));
                }
            }
            self.answer(&mut stream, method, path, range)?;
        }
    }

    fn answer(
        &self,
        stream: &mut TcpStream,
        method: &str,
        path: &str,
        range: Option<(u64, u64)>,
    ) -> std::io::Result<()> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (fault, name) = self.fault.lock().unwrap().clone();
        let fault = if path.contains(&name) { fault } else { Fault::None };
        match fault {
            Fault::Error => {
                return write!(stream, "HTTP/1.1 500 Broken\r\nContent-Length: 9\r\n\r\nbroken \x1b\n");
            }
            Fault::Gone => return stream.shutdown(std::net::Shutdown::Both),
            Fault::Slow(time) => thread::sleep(time),
            Fault::Elsewhere(port) => {
                let head = "HTTP/1.1 307 Elsewhere\r\nContent-Length: 0\r\n";
                return write!(stream, "{head}Location: http://127.0.0.1:{port}{path}\r\n\r\n");
            }
            _ => {}
        }
        let Ok(bytes) = fs::read(self.root.join(path.trim_start_matches('/'))) else {
            return write!(stream, "HTTP/1.1 404 None\r\nContent-Length: 0\r\n\r\n");
        };
        let range = range.filter(|_| fault != Fault::Whole);
        let size = bytes.len();
        let (start, end) = range
            .map_or((0, size), |(start, end)| ((start as usize).min(size), (end as usize).saturating_add(1).min(size)));
        let mut body = bytes[start..end].to_vec();
        let status = match range {
            Some(_) => format!("206 Partial\r\nContent-Range: bytes {start}-{}/{size}", end.saturating_sub(1)),
            None => "200 Good".to_owned(),
        };
        let mut length = body.len();
        match fault {
            Fault::Wrong => body.iter_mut().take(1).for_each(|byte| *byte ^= 1),
            Fault::Truncated => body.truncate(length / 2),
            Fault::Short => {
                body.truncate(length / 2);
                length = body.len();
            }
            Fault::Endless => length = usize::MAX / 4,
            _ => {}
        }
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nAccept-Ranges: bytes\r\n\r\n")?;
        if method == "HEAD" {
            return Ok(());
        }
        stream.write_all(&body)?;
        self.sent.fetch_add(body.len() as u64, Ordering::Relaxed);
        match fault {
            Fault::Truncated => stream.shutdown(std::net::Shutdown::Both),
            Fault::Endless => loop {
                stream.write_all(&[0; 65536])?;
            },
            _ => Ok(()),
        }
    }
}
