//! Parsing in a thread that can do nothing else.
//!
//! An image, an archive or a container image is whatever its maker wanted it to be. A thread parses it that opens no file,
//! makes no descriptor or socket and starts no program: it has the files that were opened for it, and memory. It is a thread and
//! not a process, so that what it makes of the bytes need not be copied from one to another.
//!
//! [`Parsing`] makes that a matter of types: a reader's entry points take one, and it exists nowhere but in such a thread.

use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::path::Path;

use crate::{Access, Confinement, Work};

/// The proof that the calling thread is confined to parsing, by the mechanisms that this kernel has. It cannot leave its thread:
///
/// ```compile_fail
/// inarch_confine::Parse::new().run(|parsing| {
///     std::thread::scope(|scope| scope.spawn(|| parsing).join().is_ok())
/// }, || {});
/// ```
///
/// ```compile_fail
/// let parsing = inarch_confine::Parse::new().run(|parsing| parsing, || {});
/// ```
///
/// Threads that the thread starts are confined as it is; what they call is not an entry point.
#[derive(Clone, Copy)]
pub struct Parsing {
    /// Neither `Send` nor `Sync`.
    thread: PhantomData<*mut ()>,
}

impl fmt::Debug for Parsing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Parsing")
    }
}

impl Parsing {
    /// For tests and fuzz targets, whose bytes are their own. Only they have the feature that this takes.
    #[cfg(feature = "unconfined")]
    pub fn unconfined() -> Parsing {
        Parsing { thread: PhantomData }
    }
}

/// What a thread keeps while it parses.
#[derive(Debug)]
pub struct Parse {
    confinement: Confinement,
}

impl Default for Parse {
    fn default() -> Parse {
        Parse::new()
    }
}

impl Parse {
    /// Nothing but what it is given.
    pub fn new() -> Parse {
        Parse { confinement: Confinement::new(Work::Parse) }
    }

    /// The files at `path` and beneath it may be opened for reading.
    ///
    /// # Errors
    /// Nothing is at `path`, or it is out of reach.
    pub fn reading(self, path: &Path) -> io::Result<Parse> {
        Ok(Parse { confinement: self.confinement.grant(path, Access::Read)? })
    }

    /// As [`Confinement::run`]: has `read` run in a confined thread, while the calling one answers what it asks for.
    pub fn run<T: Send>(&self, read: impl FnOnce(Parsing) -> T + Send, meanwhile: impl FnOnce()) -> io::Result<T> {
        self.confinement.run(|| read(Parsing { thread: PhantomData }), meanwhile)
    }
}

#[cfg(test)]
mod tests;
