//! Keeps the record of an interrupted apply while another apply takes only some of its paths.
//!
//! Until an apply has ended, a path that is not as it was scanned may be its work, or torn. An apply of other paths must keep the record:
//! without it, the host would seem to have changed these paths.

use std::collections::HashSet;
use std::path::PathBuf;

use super::Work;
use crate::bytes::Bytes;
use crate::record::{Applying, Record};

/// What a report says of it.
pub(super) const UNENDED: &str =
    "an earlier apply was interrupted, and is not finished by this one: apply everything, or the same paths as then";

/// An apply that was interrupted, or that may be torn since the machine was started again, and was for more than the one
/// that begins now.
pub(super) struct Unended {
    /// As it is recorded. After everything was applied there is no such record: then it was for all paths.
    applying: Option<Applying>,
}

impl Unended {
    /// The one of a record, unless everything that it may have changed is applied again.
    pub fn find(record: &Record, works: &[Work<'_>]) -> Option<Unended> {
        let is_left_open = |work: &Work<'_>| {
            let mut left = (0..work.chosen.len()).filter(|i| work.chosen.get(*i) == Some(&false));
            left.any(|i| work.progress.had_begun(work.sides.path(i)))
        };
        works.iter().any(is_left_open).then(|| Unended { applying: record.applying.clone() })
    }

    /// Adds what it was for to the record of an apply that begins, of the paths `chosen`.
    pub fn join(&self, begins: &mut Applying, chosen: &HashSet<PathBuf>) {
        let Some(applying) = &self.applying else {
            begins.paths.clear();
            return;
        };
        let not_chosen = |path: &&Bytes| !chosen.contains(&path.to_path());
        begins.conflicts.extend(applying.conflicts.iter().filter(not_chosen).cloned());
        match applying.paths.is_empty() {
            true => begins.paths.clear(),
            false => begins.paths.extend(applying.paths.iter().filter(not_chosen).cloned()),
        }
    }

    /// What is left of it when an apply ends that was recorded as `began`: what that one left alone stays a conflict.
    pub fn left_by(self, began: Applying) -> Applying {
        match self.applying {
            Some(applying) => Applying { conflicts: began.conflicts, ..applying },
            None => Applying { forced: Vec::new(), ..began },
        }
    }
}
