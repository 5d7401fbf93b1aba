//! Caches: directories of package managers and compilers that outlive the guests which fill them.
//!
//! A guest reads a snapshot, the cache's *current generation*, as a disk like any other tree. What it writes goes to the disk's overlay. When its
//! command has succeeded, the new and changed files are *published*: they become a part of the next generation. So any number of guests
//! use a cache at once; none of them waits for another, and none sees what another one has half written.
//!
//! | path below `caches/SCOPE/NAME` | content |
//! |---|---|
//! | `current` | a symbolic link to a generation; it is replaced by a rename |
//! | `generations/N` | names and attributes of all files, and for each file its digest and where its bytes lie ([`generation`]); immutable |
//! | `packs/N` | the bytes of the files that one publication added ([`pack`]); immutable, but bytes that no generation needs become holes |
//! | `turn` | locked exclusively by the run that uses the cache in mode `locked` ([`turn`]) |
//! | `live` | a directory that guests share live, with what is written there; it is in no generation |
//! | `live.lock` | locked (shared) by each run that has `live`; the cache is removed only when no run has it |
//! | `packs/DIGEST` | the parts of a remote's pack that were read ([`lazy`]) |
//! | `synced` | which generation here and which at a remote are the same ([`Synced`]) |
//! | `lock` | locked exclusively to publish or prune; readers do not need it |
//!
//! A reader locks its generation's file (shared) and opens its packs. What is locked so is not removed ([`store`]).
//!
//! 1. [`mod@tool`] has the tools whose caches are known by name: where each tool keeps its cache, and which of its files are taken.
//! 2. [`place`] says where a cache is, from its name and its scope.
//! 3. [`far`] is such a place at a remote; [`lazy`] fetches the parts that are read; `caches/pull.rs` and `caches/push.rs` of crates/jobs
//!    sync both.
//! 4. [`mod@images`] are another kind: container images that came from registries.
//! 5. `run/cached.rs` of crates/jobs gives the guest the disks, finds what was changed, and publishes it.
//!
//! ```
//! use inarch_cache::{Cache, CachePlace, Scope};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let home = tempfile::tempdir()?;
//! let cache = Cache::make(&CachePlace::new(home.path(), Scope::User, "maven")?)?;
//! // A guest that reads it finds an empty directory.
//! assert!(cache.is_new()?);
//! assert_eq!(cache.snapshot()?.generation.tree.entry_count(), 0);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod adopt;
mod ahead;
mod branch;
mod chunks;
mod error;
mod far;
mod generation;
mod images;
mod lazy;
mod pack;
mod pack_chunks;
mod parent;
mod place;
mod store;
mod stored;
mod synced;
mod tool;
mod turn;

pub use adopt::{Adopted, adopt, make_packs, without_absent};
pub use chunks::{CHUNK, Lists, is_of, of_part};
pub use error::{CacheError, InUse};
pub use far::{CacheRemote, read_remote};
pub use far::{Far, MOST_PACKS, fetching};
pub use generation::{Body, Generation, has_bytes};
pub use images::{ImageReport, PrunedImages, PullError, PullEvent, images, prune_images};
pub use images::{KeptImage, pull};
pub use inarch_remote::registry::{ImageName, NameError};
pub use inarch_remote::{Location, LocationError};
pub use pack::{NewPack, content_digest};
pub use place::{CachePlace, PROJECT_FILE, Scope};
pub use place::{home, sweep_removed};
pub use store::{Cache, Next, Snapshot, all, empty, with_names};
pub use stored::{Digest, Stored};
pub use synced::Synced;
pub use tool::Rules;
pub use tool::{TOOLS, Tool, tool};
pub use turn::{Closed, Turn};
