//! What several fuzz targets build their inputs from.

pub mod archive;
pub mod asked;
pub mod container;
pub mod files;
pub mod guest;
pub mod hives;
pub mod image;
pub mod vhdx;
