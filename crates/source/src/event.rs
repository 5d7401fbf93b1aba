//! [`SourceEvent`]: what happens while a source is fetched, or read from elsewhere.

use inarch_cache::PullEvent;
use inarch_lifecycle::Events;

use super::Source;

/// Something that happened.
#[derive(Clone, Debug)]
pub enum SourceEvent {
    /// To an image of a registry.
    Pull(PullEvent),
    /// To the remote of a cache or a tree: a line for the user.
    Remote(String),
}

impl Source {
    /// The same, which tells what happens while it is fetched and read. A job that has events of its own for a remote may take these over.
    pub fn telling(self, events: Events<SourceEvent>) -> Source {
        match self {
            Source::Registry(image) => Source::Registry(Box::new(image.telling(events))),
            Source::Cache(cache) => {
                if let Some(far) = cache.far() {
                    far.on_line(move |line| events.emit(SourceEvent::Remote(line.to_owned())));
                }
                Source::Cache(cache)
            }
            other => other,
        }
    }
}
