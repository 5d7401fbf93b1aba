//! [`FoldNote`]: what a fold could not keep, or not yet.

use std::fmt;
use std::path::PathBuf;

use inarch_lifecycle::shown;
use inarch_tree::compare::TooDeep;

/// The most directories of a tree that are named each in a note.
const NAMED: usize = 4;

/// What a fold could not keep, or not yet. Its text is one line.
#[derive(Clone, Debug)]
pub enum FoldNote {
    /// What the reader of the guest's file system says of it.
    Reader {
        /// Where the guest has the tree.
        destination: PathBuf,
        /// The reader's words.
        line: String,
    },
    /// Directories are nested too deeply, and not kept.
    TooDeep {
        /// Where the guest has the tree.
        destination: PathBuf,
        /// The topmost of the directories.
        top: TooDeep,
    },
    /// Further such directories, which are not named.
    MoreTooDeep {
        /// Where the guest has the tree.
        destination: PathBuf,
        /// How many.
        directories: usize,
    },
    /// An overlay is still in use. The next use of the run folds it.
    InUse {
        /// The overlay's file.
        overlay: PathBuf,
        /// The name of the kept run.
        run: String,
    },
}

impl FoldNote {
    /// What a fold of the tree at `destination` left out.
    pub(crate) fn left_out(destination: PathBuf, left_out: Vec<TooDeep>) -> Vec<FoldNote> {
        let directories = left_out.len().saturating_sub(NAMED);
        let named = left_out.into_iter().take(NAMED);
        let mut notes: Vec<FoldNote> =
            named.map(|top| FoldNote::TooDeep { destination: destination.clone(), top }).collect();
        notes.extend((directories > 0).then_some(FoldNote::MoreTooDeep { destination, directories }));
        notes
    }
}

impl fmt::Display for FoldNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FoldNote::Reader { destination, line } => write!(f, "{}: {line}", shown(destination)),
            FoldNote::TooDeep { destination, top } => {
                write!(f, "{}: {top}: it is not kept, and the rest is", shown(destination))
            }
            FoldNote::MoreTooDeep { destination, directories } => {
                let destination = shown(destination);
                write!(f, "{destination}: {directories} more directories are nested too deeply, and not kept")
            }
            FoldNote::InUse { overlay, run } => write!(
                f,
                "{}: is still in use; what the command wrote is kept, and not counted yet: the next inarch diff {run} \
                 counts it",
                shown(overlay)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_is_named_in_few_lines() {
        let deep = |number: u8| TooDeep { levels: 30_000, top: vec![b'a' + number] };
        let notes = FoldNote::left_out("/w".into(), (0..6).map(deep).collect());
        let lines: Vec<String> = notes.iter().map(FoldNote::to_string).collect();
        assert_eq!(lines.len(), NAMED + 1);
        assert_eq!(
            lines[0],
            "/w: directories are nested 30000 levels deep at 'a', and too much differs there to be listed: it is not \
             kept, and the rest is"
        );
        assert_eq!(lines[NAMED], "/w: 2 more directories are nested too deeply, and not kept");
        assert!(FoldNote::left_out("/w".into(), Vec::new()).is_empty());
    }
}
