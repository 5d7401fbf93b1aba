//! Counts the requests of a client.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::wire::opcode;

/// Opcodes that are counted by themselves are below this.
const KNOWN: usize = 64;

/// How many requests of each kind a client has sent.
#[derive(Debug)]
pub struct RequestCounts([AtomicU64; KNOWN]);

impl Default for RequestCounts {
    fn default() -> RequestCounts {
        RequestCounts([const { AtomicU64::new(0) }; KNOWN])
    }
}

impl RequestCounts {
    pub(super) fn add(&self, code: u32) {
        // 0 is no opcode: those that are unknown.
        let at = usize::try_from(code).ok().filter(|at| *at < KNOWN).unwrap_or(0);
        if let Some(count) = self.0.get(at) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The name of each kind that there was, and the number of requests, by opcode.
    pub fn by_kind(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let counts = (0..).zip(&self.0).map(|(code, count)| (opcode::name(code), count.load(Ordering::Relaxed)));
        counts.filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind() {
        let counts = RequestCounts::default();
        for code in [opcode::READ, opcode::LOOKUP, opcode::READ, 63, 64, u32::MAX] {
            counts.add(code);
        }
        let counted: Vec<_> = counts.by_kind().collect();
        assert_eq!(counted, [("other", 2), ("lookup", 1), ("read", 2), ("other", 1)]);
    }
}
