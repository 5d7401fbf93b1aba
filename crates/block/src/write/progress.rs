//! [`Progress`]: receives the progress of writing an image.

/// Receives progress while an image is written; called often, from any thread.
pub trait Progress: Send + Sync {
    /// Reports progress since the last call: bytes of content that were read, and files that were completed.
    fn advance(&self, bytes: u64, files: u64);

    /// Whether to stop. The writer then returns an error of kind `Interrupted`.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Ignores progress.
impl Progress for () {
    fn advance(&self, _: u64, _: u64) {}
}
