//! Writes lines with a bounded wait for their reader, and limits their number where there could be very many.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::say;

/// Writes lines in a thread of its own, in their order.
#[derive(Debug)]
pub(super) struct Writer {
    queue: SyncSender<(Vec<u8>, Sender<()>)>,
    patience: Duration,
    /// A line waits for its reader.
    stuck: Arc<AtomicBool>,
}

impl Writer {
    /// Lines that wait, at most; further ones are lost.
    const QUEUE: usize = 64;

    /// Starts the thread that writes to `to`. A line is waited for as long as `patience`, and those behind it not at all.
    pub fn start(to: impl Write + Send + 'static, patience: Duration) -> io::Result<Writer> {
        let (queue, lines) = sync_channel(Writer::QUEUE);
        let stuck = Arc::new(AtomicBool::new(false));
        let is_stuck = Arc::clone(&stuck);
        thread::Builder::new().name("lines".to_owned()).spawn(move || write_all(to, &lines, &is_stuck))?;
        Ok(Writer { queue, patience, stuck })
    }

    /// Writes a line, unless the last one still waits: then it comes after that.
    pub fn write(&self, line: Vec<u8>) {
        let (done, written) = channel();
        if self.queue.try_send((line, done)).is_ok()
            && !self.stuck.load(Ordering::Acquire)
            && written.recv_timeout(self.patience).is_err()
        {
            self.stuck.store(true, Ordering::Release);
        }
    }
}

fn write_all(mut to: impl Write, lines: &Receiver<(Vec<u8>, Sender<()>)>, stuck: &AtomicBool) {
    for (line, done) in lines {
        // An error of writing is not worth a failure.
        let _ = to.write_all(&line);
        stuck.store(false, Ordering::Release);
        // The sender may have stopped waiting.
        let _ = done.send(());
    }
}

/// Says events, the first `few` of many: clients that connect and go by the thousand must not fill a log. The others are
/// counted, and the count is said at most once a second and at the end.
pub fn limited<E: Display>(few: u32) -> impl Fn(E) + Send + Sync + 'static {
    let said = Said(Mutex::new(Burst::new(few, Instant::now())));
    move |event| {
        let line = said.0.lock().unwrap_or_else(PoisonError::into_inner).line(&event, Instant::now());
        line.into_iter().for_each(say);
    }
}

/// Says at the end what was only counted.
struct Said(Mutex<Burst>);

impl Drop for Said {
    fn drop(&mut self) {
        let burst = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        burst.rest().into_iter().for_each(say);
    }
}

/// How many lines may be said now.
struct Burst {
    /// Lines said at once, at most.
    most: u32,
    lines: u32,
    /// When the last line was earned.
    since: Instant,
    /// What was counted and not said.
    more: u64,
}

impl Burst {
    /// One more line is earned after this time.
    const INTERVAL: Duration = Duration::from_secs(1);

    fn new(most: u32, now: Instant) -> Burst {
        Burst { most, lines: most, since: now, more: 0 }
    }

    /// The line for an event that came `now`, if there is one.
    fn line(&mut self, event: &dyn Display, now: Instant) -> Option<String> {
        let passed = now.saturating_duration_since(self.since).as_secs() / Burst::INTERVAL.as_secs();
        if passed > 0 {
            self.lines = self.lines.saturating_add(u32::try_from(passed).unwrap_or(u32::MAX)).min(self.most);
            self.since = now;
        }
        let Some(left) = self.lines.checked_sub(1) else {
            self.more += 1;
            return None;
        };
        self.lines = left;
        Some(match std::mem::take(&mut self.more) {
            0 => event.to_string(),
            more => format!("{event}, and {more} more before it"),
        })
    }

    fn rest(&mut self) -> Option<String> {
        match std::mem::take(&mut self.more) {
            0 => None,
            more => Some(format!("and {more} more of such lines")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_line_that_nobody_reads_holds_up_nothing() {
        let (mut reader, pipe) = io::pipe().unwrap();
        // Until it is full, as a command's output makes it.
        rustix::io::ioctl_fionbio(&pipe, true).unwrap();
        let mut before = 0;
        let full = loop {
            match rustix::io::write(&pipe, &[b'x'; 4096]) {
                Ok(length) => before += length,
                Err(errno) => break errno,
            }
        };
        assert_eq!(full, Errno::AGAIN);
        rustix::io::ioctl_fionbio(&pipe, false).unwrap();
        let writer = Writer::start(pipe, Duration::from_millis(10)).unwrap();
        let lines = Writer::QUEUE * 3;
        (0..lines).for_each(|number| writer.write(format!("{number}\n").into_bytes()));
        // What a reader that comes late finds: the first lines in their order.
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let numbers: Vec<usize> = text[before..].lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(numbers[..Writer::QUEUE], (0..Writer::QUEUE).collect::<Vec<_>>());
        assert!(numbers.len() < lines, "no more wait than there is room for");
    }

    #[test]
    fn lines_that_are_read_are_written_when_the_call_returns() {
        let (mut reader, pipe) = io::pipe().unwrap();
        let writer = Writer::start(pipe, Duration::from_secs(600)).unwrap();
        for line in [&b"one\n"[..], b"two\n"] {
            writer.write(line.to_vec());
            let mut read = vec![0; line.len()];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(read, line);
        }
    }

    #[test]
    fn many_events_are_few_lines() {
        const EVENTS: u64 = 20_000;
        let start = Instant::now();
        let mut burst = Burst::new(5, start);
        // In four seconds.
        let at = |event| start + Duration::from_micros(200 * event);
        let mut lines: Vec<String> = (0..EVENTS).filter_map(|event| burst.line(&"it failed", at(event))).collect();
        lines.extend(burst.rest());
        assert_eq!(lines[..5], ["it failed"; 5]);
        assert!(lines.len() <= 10, "{lines:?}");
        let counted = |line: &String| line.split(' ').find_map(|word| word.parse::<u64>().ok()).unwrap_or(0);
        let told = lines.iter().filter(|line| line.starts_with("it failed")).count() as u64;
        assert_eq!(lines.iter().map(counted).sum::<u64>() + told, EVENTS, "{lines:?}");
        assert_eq!(burst.rest(), None);
        // After a while events are lines again.
        assert_eq!(burst.line(&"it failed", start + Duration::from_secs(60)).as_deref(), Some("it failed"));
    }
}
