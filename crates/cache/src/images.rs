//! Container images that came from registries, in `$XDG_CACHE_HOME/inarch/images`:
//!
//! | file | content |
//! |---|---|
//! | `blobs/ALGORITHM/HEX` | a manifest, an index, a configuration or a layer, by its digest: as in an OCI layout |
//! | `names/HEX` | the digest that an image's name had at the last request; HEX is the digest of the name itself: [`store`] |
//! | `lock` | a program that fetches or reads holds it shared, `prune` exclusively |
//!
//! A file gets its name when it is complete, has the right digest and is on the disk, so no reader sees half of one.
//! Two programs that fetch the same file write the same bytes. A name is written when all that it needs is there.
//!
//! Nothing of a registry is trusted. A thread that speaks with it is confined to that ([`Registry`](inarch_remote::registry::Registry)). A
//! thread confined to parsing reads the documents; nothing but digests in them becomes a path. Each blob must have the size and the digest
//! in its document, which are compared again whenever an image is opened.

mod error;
mod pull;
mod store;

pub use error::PullError;
pub use pull::{PullEvent, pull};
pub use store::KeptImage;
pub use store::{ImageReport, PrunedImages, images, prune_images};
