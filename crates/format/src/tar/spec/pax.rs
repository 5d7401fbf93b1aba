//! Parses and formats the records of PAX extended headers: `LENGTH KEYWORD=VALUE\n`.

use super::number;

/// Iterates over records; ends with an error at the first invalid one.
pub(crate) struct Records<'a>(pub(crate) &'a [u8]);

/// The rest of an extended header is not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadRecord;

impl<'a> Iterator for Records<'a> {
    type Item = Result<(&'a [u8], &'a [u8]), BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        // Some writers pad the block with NULs, and count them.
        if self.0.iter().all(|byte| *byte == 0) {
            return None;
        }
        let record = split(self.0);
        self.0 = record.map_or(&[], |(_, rest)| rest);
        Some(record.map(|(record, _)| record).ok_or(BadRecord))
    }
}

type Record<'a> = (&'a [u8], &'a [u8]);

fn split(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(number::decimal(bytes.get(..space)?)?).ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let body = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = body.iter().position(|byte| *byte == b'=')?;
    Some(((body.get(..equals)?, body.get(equals + 1..)?), rest))
}

/// Appends a record.
pub(crate) fn write_record(out: &mut Vec<u8>, keyword: &[u8], value: &[u8]) {
    let body = keyword.len() + value.len() + 3;
    // The length includes its own digits.
    let mut length = body + digits(body);
    length = body + digits(length);
    out.extend_from_slice(length.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(keyword);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

fn digits(number: usize) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

/// The name of an extended attribute as GNU tar writes it after `SCHILY.xattr.`: a keyword cannot contain `=`.
pub(crate) fn encode_attribute(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'%' => out.extend_from_slice(b"%25"),
            b'=' => out.extend_from_slice(b"%3D"),
            other => out.push(*other),
        }
    }
    out
}

/// Reverses [`encode_attribute`].
pub(crate) fn decode_attribute(mut keyword: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(keyword.len());
    loop {
        keyword = match keyword {
            [] => return out,
            [b'%', b'2', b'5', rest @ ..] => {
                out.push(b'%');
                rest
            }
            [b'%', b'3', b'D', rest @ ..] => {
                out.push(b'=');
                rest
            }
            [byte, rest @ ..] => {
                out.push(*byte);
                rest
            }
        };
    }
}

/// Decodes URL encoding, which libarchive uses for the names of attributes.
pub(crate) fn decode_url(keyword: &[u8]) -> Vec<u8> {
    let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut out = Vec::with_capacity(keyword.len());
    let mut rest = keyword;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if let (b'%', [high, low, after @ ..]) = (byte, after)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            out.push(high << 4 | low);
            rest = after;
        } else {
            out.push(*byte);
        }
    }
    out
}

/// Decodes base64, with or without padding, which libarchive uses for the values of attributes; `None` if it is
/// invalid.
pub(crate) fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 3);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.iter().take_while(|byte| **byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_every_length_read_back() {
        for length in [0, 1, 5, 89, 90, 91, 92, 93, 94, 95, 96, 985, 986, 987, 988, 989, 990, 9_984, 9_985, 9_986] {
            let value = vec![b'\n'; length];
            let mut bytes = Vec::new();
            write_record(&mut bytes, b"path", &value);
            write_record(&mut bytes, b"x", b"a=b");
            let records: Vec<_> = Records(&bytes).collect();
            assert_eq!(records, [Ok((&b"path"[..], &value[..])), Ok((&b"x"[..], &b"a=b"[..]))], "{length}");
        }
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        let bad = [
            &b"x"[..],
            b"11 path=ab",
            b"10 path=ab\n",
            b"12 path=abc\n\n",
            b"0 a=b\n",
            b"3 \n",
            b"2 ",
            b"8 path\nx",
            b"99999999999999999999 a=b\n",
            b"-6 a=b\n",
            b" 6 a=b\n",
        ];
        for bytes in bad {
            let results: Vec<_> = Records(bytes).collect();
            assert_eq!(results.last(), Some(&Err(BadRecord)), "{}", bytes.escape_ascii());
        }
        assert_eq!(Records(b"\0\0").next(), None);
    }

    #[test]
    fn names_and_values_of_attributes_are_decoded() {
        assert_eq!(encode_attribute(b"user.a=b%c"), b"user.a%3Db%25c");
        assert_eq!(decode_attribute(b"user.a%3Db%25c%2"), b"user.a=b%c%2");
        assert_eq!(decode_url(b"user.a%3db%25c%2"), b"user.a=b%c%2");
        assert_eq!(decode_base64(b"aGVsbG8=").as_deref(), Some(&b"hello"[..]));
        assert_eq!(decode_base64(b"aGVsbG8").as_deref(), Some(&b"hello"[..]));
        assert_eq!(decode_base64(b"").as_deref(), Some(&b""[..]));
        assert_eq!(decode_base64(b"a b"), None);
    }
}
