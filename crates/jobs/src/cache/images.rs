//! Container images that came from registries, in `$XDG_CACHE_HOME/inarch/images`:
//!
//! | file | content |
//! |---|---|
//! | `blobs/ALGORITHM/HEX` | a manifest, an index, a configuration or a layer, by its digest: as in an OCI layout |
//! | `names/HEX` | what an image's name (of which HEX is the digest) stood for when it was last asked for: [`store`] |
//! | `lock` | locked (shared) by whoever fetches or reads, exclusively to prune |
//!
//! A file gets its name when it is complete, has the right digest and is on the disk, so nobody sees half of one. Two that fetch the same write the same
//! bytes. A name is written when all that it needs is there.
//!
//! Nothing of a registry is trusted. A thread that speaks with it is confined to that ([`Registry`](inarch_remote::registry::Registry)). The
//! documents that it answers are read by a thread that is confined to parsing; what they say of names becomes a path only as a digest. Each blob has the size and
//! the digest that the document has for it, and those are compared again whenever an image is opened.

mod error;
mod pull;
mod store;

pub use error::PullError;
pub(crate) use pull::pull;
pub use pull::{PullEvent, tell_pulls};
pub(crate) use store::KeptImage;
pub use store::{ImageReport, PrunedImages, images, prune_images};
