//! What several fuzz targets build their inputs from.

pub mod archive;
pub mod container;
pub mod asked;
pub mod guest;
pub mod image;
