//! [`ImageEvent`]: what happens while an image is made.

/// Something that happened while an image was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageEvent {
    /// A stage begins that handles so many bytes of so many files, including the padding of their blocks.
    Stage {
        /// Which.
        stage: Stage,
        /// Bytes that it handles.
        bytes: u64,
        /// Files that they are of.
        files: u64,
    },
    /// This much more of the stage is done. Sent often, by several threads.
    Advanced {
        /// Bytes.
        bytes: u64,
        /// Files that were begun.
        files: u64,
    },
    /// From now on the unfinished image has a temporary name. If the process dies it is left behind; if the job is
    /// stopped it is removed.
    Named,
}

/// A stage of the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The image is written.
    Writing,
    /// It is read back.
    Verifying,
}
