//! Reads little-endian fields at offsets of a byte slice; an offset outside of it gives `None`.

fn array<const N: usize>(bytes: &[u8], offset: usize) -> Option<[u8; N]> {
    bytes.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn le16(bytes: &[u8], offset: usize) -> Option<u16> {
    array(bytes, offset).map(u16::from_le_bytes)
}

pub(crate) fn le32(bytes: &[u8], offset: usize) -> Option<u32> {
    array(bytes, offset).map(u32::from_le_bytes)
}

pub(crate) fn le64(bytes: &[u8], offset: usize) -> Option<u64> {
    array(bytes, offset).map(u64::from_le_bytes)
}

/// The text from `offset` to the first NUL, at most `limit` bytes; `None` if it has no NUL or is not UTF-8.
pub(super) fn c_string(bytes: &[u8], offset: usize, limit: usize) -> Option<&str> {
    let rest = bytes.get(offset..)?;
    let rest = rest.get(..limit).unwrap_or(rest);
    let end = rest.iter().position(|&byte| byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

/// The first word of a kernel's version text, if it is a valid release. It also names a modules directory, so it must
/// start with a digit and contain only letters, digits and `.-_+~`.
pub(super) fn release(version: &str) -> Option<&str> {
    let word = version.split_whitespace().next()?;
    let plain = word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_+~".contains(&byte));
    (plain && word.starts_with(|first: char| first.is_ascii_digit())).then_some(word)
}
