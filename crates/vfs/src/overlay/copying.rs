//! Serializes copies of a file's content: one request copies a file, and others for the same file wait. Other files
//! are not affected.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::hold;
use crate::{Attributes, Context, Entry, HandleId, NodeId};

/// The most interrupted copies that may be continued.
const MAX_HALFWAY: usize = 8;

/// A partial copy without a name.
///
/// With it, a program that repeats its request after each interrupt finishes, even at a hundred interrupts a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halfway {
    pub entry: Entry,
    pub handle: HandleId,
    /// Bytes copied so far.
    pub at: u64,
    /// The original's attributes when the copy began.
    pub source: Attributes,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Copying {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    busy: HashSet<NodeId>,
    halfway: Vec<(NodeId, Halfway)>,
}

/// The exclusive right to copy a file, until dropped.
pub(super) struct Turn<'a> {
    copying: &'a Copying,
    node: NodeId,
}

impl Copying {
    /// Waits until no other request copies the file.
    ///
    /// # Errors
    /// `EINTR` if the request is interrupted.
    pub fn begin(&self, context: &Context<'_>, node: NodeId) -> Result<Turn<'_>, Errno> {
        /// In case an interrupt is not reported.
        const LOOK_AGAIN: Duration = Duration::from_secs(1);
        let mut state = hold(&self.state);
        while state.busy.contains(&node) {
            if context.is_interrupted() {
                return Err(Errno::INTR);
            }
            state = self.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.busy.insert(node);
        Ok(Turn { copying: self, node })
    }

    /// A request was interrupted, possibly one that waits here.
    pub fn interrupted(&self) {
        // A request may have checked already but not wait yet; the lock waits for it.
        drop(hold(&self.state));
        self.changed.notify_all();
    }

    /// Takes the partial copies of the nodes that `is_wanted` selects.
    pub fn take(&self, is_wanted: impl Fn(NodeId) -> bool) -> Vec<Halfway> {
        let mut state = hold(&self.state);
        let (taken, left) = std::mem::take(&mut state.halfway).into_iter().partition(|(node, _)| is_wanted(*node));
        state.halfway = left;
        let taken: Vec<(NodeId, Halfway)> = taken;
        taken.into_iter().map(|(_, halfway)| halfway).collect()
    }
}

impl Turn<'_> {
    /// The partial copy of an earlier, interrupted request.
    pub fn halfway(&self) -> Option<Halfway> {
        self.copying.take(|node| node == self.node).pop()
    }

    /// Stores a partial copy for the next request; returns one that is dropped for it.
    pub fn leave(&self, halfway: Halfway) -> Option<Halfway> {
        let mut state = hold(&self.copying.state);
        state.halfway.push((self.node, halfway));
        (state.halfway.len() > MAX_HALFWAY).then(|| state.halfway.remove(0).1)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        hold(&self.copying.state).busy.remove(&self.node);
        self.copying.changed.notify_all();
    }
}
