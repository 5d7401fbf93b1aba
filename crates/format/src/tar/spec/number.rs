//! Parses and formats numbers and times in tar archives.

use inarch_tree::Timestamp;

/// Parses a field of octal digits between blanks, or a base-256 number (GNU's, with its first bit set); an empty field
/// is 0. `None` if it is neither, or exceeds 64 bits.
pub(crate) fn field(bytes: &[u8]) -> Option<i64> {
    match bytes.first() {
        Some(first) if first & 0x80 != 0 => base256(bytes),
        _ => octal(bytes),
    }
}

fn octal(bytes: &[u8]) -> Option<i64> {
    let blank = |byte: &u8| matches!(byte, b' ' | 0);
    let start = bytes.iter().position(|byte| !blank(byte)).unwrap_or(bytes.len());
    let digits = bytes.get(start..)?;
    let end = digits.iter().position(blank).unwrap_or(digits.len());
    let mut value = 0i64;
    for digit in digits.get(..end)? {
        if !(b'0'..=b'7').contains(digit) {
            return None;
        }
        value = value.checked_mul(8)?.checked_add(i64::from(digit - b'0'))?;
    }
    Some(value)
}

/// Two's complement, big-endian; the first bit is a marker.
fn base256(bytes: &[u8]) -> Option<i64> {
    let (first, rest) = bytes.split_first()?;
    let negative = first & 0x40 != 0;
    // The marker bit is replaced by the sign.
    let mut value = i128::from(*first as i8 & 0x7f | if negative { -0x80 } else { 0 });
    for byte in rest {
        value = value.checked_mul(256)? + i128::from(*byte);
        i64::try_from(value).ok()?;
    }
    i64::try_from(value).ok()
}

/// Parses all of `text` as an unsigned decimal number.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 20 {
        return None;
    }
    text.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })
}

/// Parses a PAX time: decimal seconds since 1970, with an optional minus sign and any number of decimals. Rounds down to
/// nanoseconds.
pub(crate) fn time(text: &[u8]) -> Option<Timestamp> {
    let (negative, digits) = match text.split_first() {
        Some((b'-', rest)) => (true, rest),
        _ => (false, text),
    };
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let whole = i64::try_from(decimal(digits.get(..point)?)?).ok()?;
    let decimals = digits.get(point + 1..).unwrap_or_default();
    if !decimals.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let kept = decimals.iter().chain(std::iter::repeat(&b'0')).take(9);
    let mut nanoseconds = kept.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    let mut seconds = whole;
    if negative {
        let more = decimals.get(9..).is_some_and(|rest| rest.iter().any(|digit| *digit != b'0'));
        nanoseconds += u32::from(more);
        seconds = -whole;
        if nanoseconds > 0 {
            seconds = seconds.checked_sub(1)?;
            nanoseconds = 1_000_000_000 - nanoseconds;
        }
    }
    Some(Timestamp { seconds, nanoseconds })
}

/// Formats a time for [`time`].
pub(crate) fn write_time(time: Timestamp) -> String {
    let nanoseconds = time.nanoseconds.min(999_999_999);
    // Below zero the decimals count away from zero.
    let (sign, whole, decimals) = match (time.seconds < 0, nanoseconds) {
        (true, 1..) => ("-", (time.seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds),
        (true, _) => ("-", time.seconds.unsigned_abs(), 0),
        (false, _) => ("", time.seconds.unsigned_abs(), nanoseconds),
    };
    if decimals == 0 {
        return format!("{sign}{whole}");
    }
    format!("{sign}{whole}.{decimals:09}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    #[test]
    fn fields_are_octal_or_base_256() {
        assert_eq!(field(b"0000644\0"), Some(0o644));
        assert_eq!(field(b"   644 \0"), Some(0o644));
        assert_eq!(field(b"77777777777\0"), Some(0o77777777777));
        assert_eq!(field(b"777777777777"), Some(0o777777777777));
        assert_eq!(field(b"\0\0\0"), Some(0));
        assert_eq!(field(b"      "), Some(0));
        assert_eq!(field(b"00x0644\0"), None);
        assert_eq!(field(b"-1\0"), None);
        assert_eq!(field(b"7777777777777777777777777"), None);
        assert_eq!(field(b"\x80\0\0\0\0\0\0\x02\0\0\0\0"), Some(0x2_0000_0000));
        assert_eq!(field(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(field(b"\xff\xff\xff\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(field(b"\x80\0\0\0\x80\0\0\0\0\0\0\0"), None);
        assert_eq!(field(b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), None);
        assert_eq!(field(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"), Some(i64::MAX));
    }

    #[test]
    fn times_round_down_on_both_sides_of_zero() {
        assert_eq!(time(b"0"), Some(at(0, 0)));
        assert_eq!(time(b"1600000000.123456789"), Some(at(1_600_000_000, 123_456_789)));
        assert_eq!(time(b"1600000000.1234567899"), Some(at(1_600_000_000, 123_456_789)));
        assert_eq!(time(b"5.5"), Some(at(5, 500_000_000)));
        assert_eq!(time(b"5."), Some(at(5, 0)));
        assert_eq!(time(b"-5"), Some(at(-5, 0)));
        assert_eq!(time(b"-5.25"), Some(at(-6, 750_000_000)));
        assert_eq!(time(b"-0.0000000001"), Some(at(-1, 999_999_999)));
        assert_eq!(time(b"-0.9999999999"), Some(at(-1, 0)));
        for bad in [&b""[..], b"-", b".5", b"1e5", b"1.x", b"99999999999999999999", b"+1", b" 1"] {
            assert_eq!(time(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn written_times_read_back() {
        for seconds in [0, 1, -1, 1_600_000_000, i64::MIN + 1, i64::MAX] {
            for nanoseconds in [0, 1, 999_999_999, 500_000_000] {
                let time = at(seconds, nanoseconds);
                assert_eq!(super::time(write_time(time).as_bytes()), Some(time), "{time:?}");
            }
        }
        assert_eq!(write_time(at(-1, 750_000_000)), "-0.25");
        assert_eq!(write_time(at(7, 0)), "7");
        assert_eq!(write_time(at(7, 100)), "7.0000001");
    }
}
