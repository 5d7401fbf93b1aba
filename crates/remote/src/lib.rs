//! Objects beyond this machine, behind one narrow interface that blocks: [`Remote`].
//!
//! A remote is a flat set of objects, each a name and bytes, below a [`Location`]: a bucket of an object store (S3, Google Cloud Storage, Azure), a web
//! server that is only read, or a directory. Nothing of it is trusted: every answer has a limit of bytes and of time, and what the
//! bytes mean is for the caller to check.
//!
//! 1. [`Location`] is what a URL means. It is made of plain names only, so that no name of an object leads out of it.
//! 2. [`Remote::start`] starts one thread, with a runtime for asynchronous work that nothing else of the program sees. A caller hands it a
//!    request and waits ([`remote`]). So a thread that is confined to serving a disk can have bytes fetched: it makes no connection and opens no file itself.
//! 3. `objects` speaks to stores by the `object_store` crate; `directory` does the same with files.
//!
//! Registries of container images are another kind of place, with a protocol of their own: [`registry`].
//!
//! ```
//! use inarch_remote::{Location, LocationError};
//!
//! let caches = Location::parse("s3://bucket/caches")?;
//! assert_eq!(caches.below(&["packs", "1"])?.to_string(), "s3://bucket/caches/packs/1");
//! assert!(Location::parse("s3://bucket/../other").is_err());
//! # Ok::<(), LocationError>(())
//! ```

#![forbid(unsafe_code)]

mod connector;
mod directory;
mod error;
mod location;
mod objects;
pub mod registry;
pub mod remote;
mod worker;

pub use error::{RemoteError, WrongLength};
pub use location::{Location, LocationError};
pub use remote::{Found, Limits, Remote, Version};
