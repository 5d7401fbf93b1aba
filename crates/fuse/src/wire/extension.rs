//! Parses the extensions that follow the body of a request that creates something. One kind is used: the caller's
//! supplementary group.

use zerocopy::FromBytes;

use super::structs::ExtHeader;

/// `FUSE_EXT_GROUPS` of `enum fuse_ext_type`.
const GROUPS: u32 = 32;

/// The group of the parent directory, if the caller is in it and it is not the caller's primary group; the kernel
/// sends no other.
///
/// Skips extensions of other kinds. `None` if their sizes exceed the bytes there are.
pub fn supplementary_group(mut bytes: &[u8]) -> Option<Option<u32>> {
    let mut group = None;
    while !bytes.is_empty() {
        let (header, _) = ExtHeader::read_from_prefix(bytes).ok()?;
        let (whole, rest) = bytes.split_at_checked(header.size as usize)?;
        let body = whole.get(size_of::<ExtHeader>()..)?;
        if header.kind == GROUPS {
            let (count, groups) = u32::read_from_prefix(body).ok()?;
            if count > 0 {
                group = Some(u32::read_from_prefix(groups).ok()?.0);
            }
        }
        bytes = rest;
    }
    Some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn the_first_group_is_found_behind_other_extensions() {
        assert_eq!(supplementary_group(&[]), Some(None));
        assert_eq!(supplementary_group(&words(&[16, 32, 1, 77])), Some(Some(77)));
        assert_eq!(supplementary_group(&words(&[16, 1, 0, 0, 16, 32, 1, 77])), Some(Some(77)));
        assert_eq!(supplementary_group(&words(&[16, 32, 0, 0])), Some(None));
    }

    #[test]
    fn sizes_that_lie_are_refused() {
        for wrong in [&[0, 32, 1, 77][..], &[7, 32, 1, 77], &[17, 32, 1, 77], &[u32::MAX, 1, 0, 0], &[8], &[12, 32, 1]]
        {
            assert_eq!(supplementary_group(&words(wrong)), None, "{wrong:?}");
        }
    }
}
