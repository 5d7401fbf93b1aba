//! Writing images out.

mod progress;

pub use progress::Progress;
