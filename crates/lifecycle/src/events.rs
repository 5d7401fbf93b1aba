//! [`Events`]: receives what happens during a job.

use std::fmt;
use std::sync::Arc;

/// Takes the events of a job. They come from any of its threads, which wait for it: it must not block for long.
pub struct Events<E>(Arc<dyn Fn(E) + Send + Sync>);

impl<E: 'static> Events<E> {
    /// Calls `take` with each event.
    pub fn new(take: impl Fn(E) + Send + Sync + 'static) -> Events<E> {
        Events(Arc::new(take))
    }

    /// Drops every event.
    pub fn ignored() -> Events<E> {
        Events::new(drop)
    }

    /// Hands over an event.
    pub fn emit(&self, event: E) {
        (self.0)(event);
    }
}

impl<E> Clone for Events<E> {
    fn clone(&self) -> Self {
        Events(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for Events<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
