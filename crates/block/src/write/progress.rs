//! Who is told how far an image is.

/// Told of progress while an image is written; called often, from any thread.
pub trait Progress: Send + Sync {
    /// So many more bytes of content were read, of so many more files that are now done.
    fn advance(&self, bytes: u64, files: u64);

    /// Whether to stop: whoever asks gives an error of kind `Interrupted`.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody is told.
impl Progress for () {
    fn advance(&self, _: u64, _: u64) {}
}
