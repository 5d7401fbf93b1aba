//! Removes or reports what earlier applies left under temporary names in trees that this apply does not change.
//!
//! An apply searches only the trees that it changes for leftovers. For all other trees it relies on the run's record,
//! which lists the leftovers of every apply.

use rustix::fs::Stat;

use super::host::Host;
use super::leftovers::{UNKNOWN, USELESS};
use super::seen::Seen;
use super::{ApplyReport, Work};
use crate::beside::{besides, place};
use crate::record::{BesideFile, Record};

/// The leftovers in trees that nothing is to be applied to.
pub(super) struct Elsewhere {
    /// Those that nobody needs: they are removed.
    useless: Vec<(Host, BesideFile)>,
    /// Those that stay, and are told.
    rest: Vec<BesideFile>,
}

impl Elsewhere {
    /// Finds them, and tells which will stay.
    pub fn find(record: &Record, works: &[Work<'_>], report: &mut ApplyReport) -> Elsewhere {
        let mut found = Elsewhere { useless: Vec::new(), rest: Vec::new() };
        let of_works = |ordinal: u8| works.iter().any(|work| work.tree.tree.ordinal == ordinal);
        for (tree, file) in besides(record).filter(|(_, file)| !of_works(file.ordinal)) {
            let Ok(mut host) = Host::open(&tree.source(), tree.cross) else {
                found.rest.push(file.clone());
                continue;
            };
            let Some((path, useless)) = file.of(file.ordinal) else { continue };
            let is_useless = |stat: &Stat| useless == Some(Seen::of(stat));
            match host.stat(&path) {
                Ok(None) => {}
                Ok(Some(stat)) if is_useless(&stat) => found.useless.push((host, file.clone())),
                _ => {
                    report.failures.push((place(tree, &file.path), UNKNOWN.to_owned()));
                    found.rest.push(file.clone());
                }
            }
        }
        found
    }

    /// Removes those that nobody needs. Returns the others.
    pub fn clear(mut self, record: &Record, report: &mut ApplyReport) -> Vec<BesideFile> {
        for (mut host, file) in self.useless {
            let path = file.of(file.ordinal).map(|(path, _)| path).unwrap_or_default();
            if host.remove(&path).is_err() {
                let tree = record.trees.iter().find(|tree| tree.ordinal == file.ordinal && !tree.read_only);
                report.failures.extend(tree.map(|tree| (place(tree, &file.path), USELESS.to_owned())));
                self.rest.push(file);
            }
        }
        self.rest
    }
}
