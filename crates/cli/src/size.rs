//! Parses and prints sizes: `512M`, `4G`, `1.5g`, `65536`.

/// Parses a size in bytes; `K`, `M`, `G`, `T`, `P` and `E` are powers of 1024, an `i` and a `B` may follow.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("'{text}' is not a size; write it as 512M, 4G or a number of bytes");
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix('b').unwrap_or(&unit).trim_end_matches('i') {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        "p" => 50,
        "e" => 60,
        _ => return Err(wrong()),
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large a size"));
    }
    let fraction: f64 = number.parse().map_err(|_| wrong())?;
    let bytes = fraction * (1u64 << shift) as f64;
    if bytes.is_finite() && bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Formats a size: three significant digits and a binary unit.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse("5"), Ok(5));
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("4GiB"), Ok(4 << 30));
        assert_eq!(parse("1.5k"), Ok(1536));
        assert_eq!(parse("7E"), Ok(7 << 60));
        for wrong in ["", "G", "4X", "1..5M", "-1", "99999999T", "16E"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_shown_short() {
        assert_eq!(show(0), "0 B");
        assert_eq!(show(1023), "1.0 KiB");
        assert_eq!(show(44 << 20), "44.0 MiB");
        assert_eq!(show(252 << 30), "252 GiB");
    }
}
