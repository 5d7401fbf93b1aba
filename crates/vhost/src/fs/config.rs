//! The configuration space of a file system device (virtio 1.2, section 5.11.4).

use std::str::FromStr;

use zerocopy::little_endian::U32;
use zerocopy::{Immutable, IntoBytes, KnownLayout};

/// Most bytes of a tag.
pub const TAG_SIZE: usize = 36;

/// The name that a guest mounts: 1 to 36 bytes, the rest zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag([u8; TAG_SIZE]);

/// The text is not a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a tag has 1 to {TAG_SIZE} bytes, none of them a NUL, a comma or a space")]
pub struct InvalidTag;

impl FromStr for Tag {
    type Err = InvalidTag;

    /// Parses a tag. Refuses characters that separate words in a command line or a mount table.
    fn from_str(text: &str) -> Result<Tag, InvalidTag> {
        let unfit = |byte: &u8| *byte <= b' ' || *byte == b',' || *byte == 0x7f;
        let mut tag = [0; TAG_SIZE];
        let place = tag.get_mut(..text.len()).filter(|place| !place.is_empty()).ok_or(InvalidTag)?;
        if text.as_bytes().iter().any(unfit) {
            return Err(InvalidTag);
        }
        place.copy_from_slice(text.as_bytes());
        Ok(Tag(tag))
    }
}

/// `struct virtio_fs_config` of Linux's include/uapi/linux/virtio_fs.h.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct FsConfig {
    tag: [u8; TAG_SIZE],
    num_request_queues: U32,
}

impl FsConfig {
    /// The configuration of a device with so many request queues.
    pub fn new(tag: Option<Tag>, request_queues: u16) -> FsConfig {
        let Tag(tag) = tag.unwrap_or(Tag([0; TAG_SIZE]));
        FsConfig { tag, num_request_queues: U32::new(request_queues.into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let config = FsConfig::new(Some("tree".parse().unwrap()), 3);
        let bytes = config.as_bytes();
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..5], *b"tree\0");
        assert_eq!(bytes[36..], 3u32.to_le_bytes());
    }

    #[test]
    fn a_tag_is_one_word() {
        let longest = "x".repeat(TAG_SIZE);
        assert!(["a", "my-tree.1", "bäume", &longest].iter().all(|text| text.parse::<Tag>().is_ok()));
        let too_long = "x".repeat(TAG_SIZE + 1);
        assert!(["", "a b", "a,b", "a\0", "a\n", &too_long].iter().all(|text| text.parse::<Tag>().is_err()));
    }
}
