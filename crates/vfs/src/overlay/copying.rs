//! Who copies which file's content: one request at a time does it for a file, and others of the same file wait for it. All
//! else goes on.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::hold;
use crate::{Attributes, Context, Entry, HandleId, NodeId};

/// Copies that were interrupted and may be gone on with, at most.
const MAX_HALFWAY: usize = 8;

/// A copy without a name, which has some of the content.
///
/// A program that asks again after each interruption, as some do that are interrupted a hundred times a second, gets to the
/// end of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halfway {
    pub entry: Entry,
    pub handle: HandleId,
    /// Bytes that are there.
    pub at: u64,
    /// Of what is copied, as it was at the beginning.
    pub source: Attributes,
}

/// See the module's text.
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

/// The right to copy a file, until it is dropped.
pub(super) struct Turn<'a> {
    copying: &'a Copying,
    node: NodeId,
}

impl Copying {
    /// Waits until nobody else copies the file.
    ///
    /// # Errors
    /// `EINTR`: nobody waits for the answer any more.
    pub fn begin(&self, context: &Context<'_>, node: NodeId) -> Result<Turn<'_>, Errno> {
        /// In case an interruption is not told of.
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

    /// A request was interrupted, maybe one that waits.
    pub fn interrupted(&self) {
        // Who has looked and does not wait yet is waited for.
        drop(hold(&self.state));
        self.changed.notify_all();
    }

    /// Takes what there is of the nodes for which `is_wanted` says so.
    pub fn take(&self, is_wanted: impl Fn(NodeId) -> bool) -> Vec<Halfway> {
        let mut state = hold(&self.state);
        let (taken, left) = std::mem::take(&mut state.halfway).into_iter().partition(|(node, _)| is_wanted(*node));
        state.halfway = left;
        let taken: Vec<(NodeId, Halfway)> = taken;
        taken.into_iter().map(|(_, halfway)| halfway).collect()
    }
}

impl Turn<'_> {
    /// What an interrupted request left of the file.
    pub fn halfway(&self) -> Option<Halfway> {
        self.copying.take(|node| node == self.node).pop()
    }

    /// Leaves what there is of the file for the next request; gives what is to be given back for it.
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
