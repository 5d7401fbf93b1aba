//! Identifiers and labels as text.

/// A GUID in the order of the UEFI specification: its first three fields are little-endian. Small letters.
pub fn guid(bytes: &[u8; 16]) -> String {
    let [a, b, c, d, e, f, g, h, rest @ ..] = *bytes;
    let [first, second] = [rest[0], rest[1]];
    let end: String = rest.iter().skip(2).map(|byte| format!("{byte:02x}")).collect();
    let (front, middle, back) =
        (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([e, f]), u16::from_le_bytes([g, h]));
    format!("{front:08x}-{middle:04x}-{back:04x}-{first:02x}{second:02x}-{end}")
}

/// A UUID in the order of RFC 9562. Small letters. None if it is zero.
pub fn uuid(bytes: &[u8; 16]) -> Option<String> {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |from: usize, to: usize| digits.get(from..to).unwrap_or_default();
    let text = [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-");
    bytes.iter().any(|byte| *byte != 0).then_some(text)
}

/// An identifier of LVM with its hyphens. None if it is no text of letters and digits.
pub fn lvm_id(bytes: &[u8; 32]) -> Option<String> {
    let id = std::str::from_utf8(bytes).ok().filter(|id| id.bytes().all(|byte| byte.is_ascii_alphanumeric()))?;
    let ends = [0, 6, 10, 14, 18, 22, 26, 32];
    let parts: Vec<&str> = ends.windows(2).filter_map(|pair| id.get(*pair.first()?..*pair.last()?)).collect();
    Some(parts.join("-"))
}

/// A label in bytes: up to the first zero, without blanks at its end. None if that is nothing.
pub fn label(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_end();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The same in UTF-16, little-endian.
pub fn wide_label(bytes: &[u8]) -> Option<String> {
    let units = bytes.as_chunks::<2>().0.iter().map(|pair| u16::from_le_bytes(*pair)).take_while(|unit| *unit != 0);
    let text: String = char::decode_utf16(units).map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
    (!text.is_empty()).then_some(text)
}
