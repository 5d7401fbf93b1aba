//! Receives and sends whole messages on a connected socket, with timeouts.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_keepalive, set_socket_timeout, set_tcp_nodelay};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, recv, sendmsg, shutdown};

/// Why a connection ended before the client ended it.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// The client hung up in the middle of a message.
    #[error("the client hung up in the middle of a message")]
    Cut,
    /// The client sent something that the protocol does not allow.
    #[error("the client does not speak the protocol: {0}")]
    Protocol(&'static str),
    /// The client sent or received nothing for too long.
    #[error("the client stalled: {0}")]
    Stalled(&'static str),
    /// The socket failed.
    #[error("the socket failed: {0}")]
    Socket(#[from] io::Error),
    /// A request made the server panic.
    #[error("a request panicked")]
    Panicked,
}

/// How long a message may stall once it has begun, in either direction. Between messages a client may be idle without
/// limit.
const STALL: Duration = Duration::from_secs(300);

/// How long to poll for the next message before sleeping, if the last ones came that soon. A wake-up took 30
/// microseconds on a virtual machine, more than most requests; polling serves a client that waits for each answer three
/// times as fast.
const LOOK_OUT: Duration = Duration::from_micros(100);

/// After a poll in vain the next one is half as long. A poll shorter than this is left out.
const SHORTEST_LOOK_OUT: Duration = Duration::from_micros(2);

/// Bytes received at once: many requests, or the front of a write's data.
const BUFFER: usize = 32 << 10;

/// Sets socket options; those that do not apply to this kind of socket are skipped.
///
/// # Errors
/// `socket` is not a socket.
pub fn prepare(socket: &OwnedFd) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Send, Some(STALL))?;
    // Answers are small and the client waits for them. A Unix socket does not support this option.
    let _ = set_tcp_nodelay(socket, true);
    let _ = set_socket_keepalive(socket, true);
    Ok(())
}

/// The receiving side.
pub struct Receiver<'s> {
    socket: &'s OwnedFd,
    buffer: Box<[u8]>,
    /// The part of the buffer that was received and not yet taken.
    ahead: std::ops::Range<usize>,
    negotiation: Duration,
    deadline: Option<Instant>,
    /// How long to poll for the next message before sleeping.
    look_out: Duration,
}

impl<'s> Receiver<'s> {
    /// A receiver that has received nothing; the negotiation's timeout starts.
    pub fn new(socket: &'s OwnedFd, negotiation: Duration) -> Receiver<'s> {
        let deadline = Some(Instant::now() + negotiation);
        Receiver {
            socket,
            buffer: vec![0; BUFFER].into(),
            ahead: 0..0,
            negotiation,
            deadline,
            look_out: Duration::ZERO,
        }
    }

    /// Restarts the negotiation's timeout, because the client has waited for us.
    pub fn restart_negotiation(&mut self) {
        self.deadline = Some(Instant::now() + self.negotiation);
    }

    /// Ends the negotiation: from now on only a message that has begun has a timeout.
    ///
    /// # Errors
    /// The socket refuses.
    pub fn end_negotiation(&mut self) -> Result<(), ConnectionError> {
        self.deadline = None;
        set_socket_timeout(self.socket, Timeout::Recv, Some(STALL)).map_err(io::Error::from)?;
        Ok(())
    }

    /// Fills `out` with the next message's first bytes; false if the client hung up instead of sending one.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn begin(&mut self, out: &mut [u8]) -> Result<bool, ConnectionError> {
        while self.ahead.is_empty() {
            match self.fill_soon() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                // Between messages it may be idle.
                Err(ConnectionError::Stalled(_)) if self.deadline.is_none() => {}
                Err(error) => return Err(error),
            }
        }
        self.receive(out)?;
        Ok(true)
    }

    /// The bytes that were received and not yet taken.
    pub fn ahead(&self) -> &[u8] {
        self.buffer.get(self.ahead.clone()).unwrap_or_default()
    }

    /// Fills `out` with the next bytes.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn receive(&mut self, mut out: &mut [u8]) -> Result<(), ConnectionError> {
        while !out.is_empty() {
            if self.ahead.is_empty() && out.len() >= self.buffer.len() {
                let got = receive_some(self.socket, self.deadline, out)?;
                if got == 0 {
                    return Err(ConnectionError::Cut);
                }
                out = out.get_mut(got..).unwrap_or_default();
                continue;
            }
            if self.ahead.is_empty() && !self.fill()? {
                return Err(ConnectionError::Cut);
            }
            let ahead = self.ahead();
            let count = ahead.len().min(out.len());
            let (now, later) = out.split_at_mut(count);
            now.copy_from_slice(ahead.split_at(count).0);
            self.ahead.start += count;
            out = later;
        }
        Ok(())
    }

    /// Discards `count` bytes, a piece at a time.
    ///
    /// # Errors
    /// The connection cannot go on.
    pub fn skip(&mut self, count: u64) -> Result<(), ConnectionError> {
        let mut piece = [0; 4096];
        let mut left = count;
        while left > 0 {
            let now = left.min(piece.len() as u64);
            self.receive(piece.split_at_mut(now as usize).0)?;
            left -= now;
        }
        Ok(())
    }

    /// Like [`Receiver::fill`], but polls before it sleeps if recent messages came soon enough.
    fn fill_soon(&mut self) -> Result<bool, ConnectionError> {
        let begun = Instant::now();
        while !self.look_out.is_zero() && begun.elapsed() < self.look_out {
            match recv(self.socket, &mut *self.buffer, RecvFlags::DONTWAIT) {
                Ok((got, _)) if got > 0 => {
                    self.ahead = 0..got;
                    return Ok(true);
                }
                // Gives the processor to another thread that has work.
                Err(Errno::AGAIN) => thread::yield_now(),
                // The blocking receive reports the error.
                _ => break,
            }
        }
        let filled = self.fill()?;
        if self.deadline.is_none() {
            self.look_out = next_look_out(self.look_out, begun.elapsed());
        }
        Ok(filled)
    }

    /// Receives what there is, at least a byte, into the empty buffer; false if the client hung up.
    fn fill(&mut self) -> Result<bool, ConnectionError> {
        let got = receive_some(self.socket, self.deadline, &mut self.buffer)?;
        self.ahead = 0..got;
        Ok(got > 0)
    }
}

/// The next polling time after a message that came after `waited` in spite of polling for `before`.
fn next_look_out(before: Duration, waited: Duration) -> Duration {
    let halved = Some(before / 2).filter(|halved| *halved >= SHORTEST_LOOK_OUT);
    if waited <= LOOK_OUT { LOOK_OUT } else { halved.unwrap_or_default() }
}

/// Receives into `out`; returns 0 at the end of the stream.
fn receive_some(socket: &OwnedFd, deadline: Option<Instant>, out: &mut [u8]) -> Result<usize, ConnectionError> {
    loop {
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ConnectionError::Stalled("it did not finish the negotiation in time"));
            }
            // The kernel counts in whole ticks, and a timeout of zero would mean none.
            let left = left.max(Duration::from_millis(10));
            set_socket_timeout(socket, Timeout::Recv, Some(left)).map_err(io::Error::from)?;
        }
        match recv(socket, &mut *out, RecvFlags::empty()) {
            Ok((got, _)) => return Ok(got),
            Err(Errno::AGAIN) if deadline.is_some() => {}
            Err(Errno::AGAIN) => return Err(ConnectionError::Stalled("a message was begun and not ended")),
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(0),
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
}

/// The sending side: whole messages, from any thread.
pub struct Sender<'s> {
    socket: &'s OwnedFd,
    /// Set when nothing more can be sent: the error, or success if the client ended the connection.
    ended: Mutex<Option<Result<(), ConnectionError>>>,
    /// The same as a flag, for threads that only check.
    has_ended: AtomicBool,
}

impl<'s> Sender<'s> {
    /// Nothing was sent yet.
    pub fn new(socket: &'s OwnedFd) -> Sender<'s> {
        Sender { socket, ended: Mutex::new(None), has_ended: AtomicBool::new(false) }
    }

    /// Sends one message, made of `parts` in order. On failure it shuts the connection down in both directions, so that
    /// the receiving thread sees its end.
    pub fn send(&self, parts: &[&[u8]]) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if ended.is_none() {
            *ended = match send_all(self.socket, parts) {
                Ok(true) => return,
                Ok(false) => Some(Ok(())),
                Err(error) => Some(Err(error)),
            };
            self.hang_up();
        }
    }

    /// Whether nothing more can be sent, so that executing requests is pointless.
    pub fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Ends the connection for this reason.
    pub fn fail(&self, error: ConnectionError) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(Err(error));
        self.hang_up();
    }

    fn hang_up(&self) {
        self.has_ended.store(true, Ordering::Release);
        // Fails only if the other side has hung up already.
        let _ = shutdown(self.socket, Shutdown::Both);
    }

    /// What ended the connection.
    ///
    /// # Errors
    /// The connection ended otherwise than by the client.
    pub fn into_result(self) -> Result<(), ConnectionError> {
        self.ended.into_inner().unwrap_or_else(PoisonError::into_inner).unwrap_or(Ok(()))
    }
}

/// Sends all of `parts`; false if the client has gone.
fn send_all(socket: &OwnedFd, parts: &[&[u8]]) -> Result<bool, ConnectionError> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut left = &mut slices[..];
    IoSlice::advance_slices(&mut left, 0);
    while !left.is_empty() {
        match sendmsg(socket, left, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL) {
            Ok(sent) => IoSlice::advance_slices(&mut left, sent),
            Err(Errno::INTR) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Ok(false),
            Err(Errno::AGAIN) => return Err(ConnectionError::Stalled("it did not take its answers")),
            Err(errno) => return Err(io::Error::from(errno).into()),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A client that asks again right after each answer is polled for, gets every byte in order, and its end is
    /// noticed.
    #[test]
    fn messages_arrive_whether_they_are_looked_out_for_or_slept_for() {
        let (mut client, server) = UnixStream::pair().unwrap();
        let server = OwnedFd::from(server);
        let mut receiver = Receiver::new(&server, Duration::from_secs(10));
        receiver.end_negotiation().unwrap();
        let pauses = [0, 0, 20, 50, 0, 3000, 0, 90, 20_000, 0, 0, 10];
        let sends = thread::spawn(move || {
            for (number, pause) in (0..2400_u32).zip(pauses.into_iter().cycle()) {
                thread::sleep(Duration::from_micros(if number < 2000 { pause % 60 } else { pause }));
                client.write_all(&number.to_be_bytes()).unwrap();
            }
        });
        for number in 0..2400_u32 {
            let mut message = [0; 4];
            assert!(receiver.begin(&mut message).unwrap());
            assert_eq!(u32::from_be_bytes(message), number);
        }
        let mut message = [0; 4];
        assert!(!receiver.begin(&mut message).unwrap());
        sends.join().unwrap();
    }

    /// A client that asks seldom soon costs no polling.
    #[test]
    fn a_look_out_in_vain_becomes_shorter_and_ends() {
        let soon = next_look_out(Duration::ZERO, Duration::from_micros(80));
        assert_eq!(soon, LOOK_OUT);
        let steps: Vec<_> = std::iter::successors(Some(soon), |before| {
            (!before.is_zero()).then(|| next_look_out(*before, Duration::from_millis(1)))
        })
        .collect();
        assert!(steps.len() <= 8 && steps.is_sorted_by(|a, b| a > b), "{steps:?}");
        assert_eq!(steps.last(), Some(&Duration::ZERO));
    }
}
