//! What the agent reports of the guest's processes: `PROCESS_*` of `agent/protocol.h`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

mod kind {
    pub(super) const STARTED: u8 = 1;
    pub(super) const EXECUTED: u8 = 2;
    pub(super) const ENDED: u8 = 3;
    pub(super) const LOST: u8 = 4;
}

/// What happened to a process of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// A thread was started: the first one of its process if it has that number.
    Started {
        /// The process that started it.
        by: u32,
        /// The thread's number.
        thread: u32,
        /// Its process's number.
        process: u32,
    },
    /// A process executed a program.
    Executed {
        /// Its number.
        process: u32,
        /// Program and arguments; cut if they are long, empty if the process was gone before they could be read.
        command: Vec<OsString>,
    },
    /// A thread ended.
    Ended {
        /// The thread's number.
        thread: u32,
        /// Its process's number.
        process: u32,
        /// The status, as of wait(2).
        status: i32,
    },
    /// Events are missing here.
    Lost,
}

/// The events of a frame; `None` if one is unknown or cut.
pub(super) fn parse(mut payload: &[u8]) -> Option<Vec<ProcessEvent>> {
    let mut events = Vec::new();
    while let Some((kind, rest)) = payload.split_first() {
        let event;
        (event, payload) = match *kind {
            kind::STARTED => {
                let ([by, thread, process], rest) = numbers(rest)?;
                (ProcessEvent::Started { by, thread, process }, rest)
            }
            kind::EXECUTED => {
                let ([process, length], rest) = numbers(rest)?;
                let (words, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                (ProcessEvent::Executed { process, command: command(words) }, rest)
            }
            kind::ENDED => {
                let ([thread, process, status], rest) = numbers(rest)?;
                (ProcessEvent::Ended { thread, process, status: status.cast_signed() }, rest)
            }
            kind::LOST => (ProcessEvent::Lost, rest),
            _ => return None,
        };
        events.push(event);
    }
    Some(events)
}

fn numbers<const N: usize>(mut bytes: &[u8]) -> Option<([u32; N], &[u8])> {
    let mut numbers = [0; N];
    for number in &mut numbers {
        let (first, rest) = bytes.split_first_chunk()?;
        (*number, bytes) = (u32::from_le_bytes(*first), rest);
    }
    Some((numbers, bytes))
}

/// Words that end with NUL.
fn command(words: &[u8]) -> Vec<OsString> {
    let whole = words.strip_suffix(b"\0").unwrap_or(words);
    if words.is_empty() {
        return Vec::new();
    }
    whole.split(|byte| *byte == 0).map(|word| OsString::from_vec(word.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agents_header_has_the_same_kinds() {
        let header = include_str!("../../../../agent/protocol.h");
        for (name, kind) in
            [("STARTED", kind::STARTED), ("EXECUTED", kind::EXECUTED), ("ENDED", kind::ENDED), ("LOST", kind::LOST)]
        {
            assert!(header.contains(&format!("PROCESS_{name} = {kind:#04x},")), "{name}");
        }
    }

    #[test]
    fn events_are_read_and_cut_ones_are_refused() {
        let mut payload = vec![1, 1, 0, 0, 0, 44, 1, 0, 0, 44, 1, 0, 0];
        payload.extend([2, 44, 1, 0, 0, 7, 0, 0, 0]);
        payload.extend(b"cc\0\0-c\0");
        payload.extend([4, 2, 45, 1, 0, 0, 0, 0, 0, 0]);
        payload.extend([3, 44, 1, 0, 0, 44, 1, 0, 0, 0, 3, 0, 0]);
        let words = |words: &[&str]| words.iter().map(OsString::from).collect();
        let expected = [
            ProcessEvent::Started { by: 1, thread: 300, process: 300 },
            ProcessEvent::Executed { process: 300, command: words(&["cc", "", "-c"]) },
            ProcessEvent::Lost,
            ProcessEvent::Executed { process: 301, command: words(&[]) },
            ProcessEvent::Ended { thread: 300, process: 300, status: 0x300 },
        ];
        assert_eq!(parse(&payload).unwrap(), expected);
        let whole = [13, 29, 30, 39, payload.len()];
        for length in 0..=payload.len() {
            assert_eq!(parse(&payload[..length]).is_some(), length == 0 || whole.contains(&length), "{length}");
        }
        for wrong in [&[0][..], &[5], &[2, 0, 0, 0, 0, 255, 255, 255, 255]] {
            assert_eq!(parse(wrong), None);
        }
    }
}
