//! Parses durations: `30`, `1.5`, `30s`, `1m`, `2h`, `1h30m`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// About thirty years: a later instant cannot be computed everywhere.
const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// Parses a duration above 0: seconds, or numbers with a unit each (`ms`, `s`, `m`, `h`, `d`).
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time above 0, up to 1e9 seconds; write it as 30, 1.5s, 10m or 1h30m");
    let seconds = match text.parse::<f64>() {
        Ok(seconds) => seconds,
        Err(_) => sum_of_units(text).ok_or_else(wrong)?,
    };
    Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero() && *time <= LONGEST).ok_or_else(wrong)
}

/// Seconds; `None` if a number has no unit, or there is no number.
fn sum_of_units(mut text: &str) -> Option<f64> {
    let mut sum = 0.0;
    loop {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, rest) = text.split_at(digits);
        let (unit, rest) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let seconds = match unit {
            "ms" => 0.001,
            "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return None,
        };
        sum += number.parse::<f64>().ok()? * seconds;
        if rest.is_empty() {
            return Some(sum);
        }
        text = rest;
    }
}

/// A span of time as options take it: `1h30m`, `90s` being `1m30s`, `1.5s`.
pub fn lasting(time: Duration) -> String {
    if time.subsec_nanos() > 0 {
        return format!("{}s", time.as_secs_f64());
    }
    let seconds = time.as_secs();
    let parts = [(seconds / 3600, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let text: String =
        parts.iter().filter(|(count, _)| *count > 0).map(|(count, unit)| format!("{count}{unit}")).collect();
    if text.is_empty() { "0s".to_owned() } else { text }
}

/// How long ago a time in seconds since 1970 was, in its largest unit; 0 is a time that is not known.
pub fn ago(seconds: u64) -> String {
    if seconds == 0 {
        return "not known".to_owned();
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let passed = now.saturating_sub(seconds);
    let units = [(86_400, "d"), (3600, "h"), (60, "min"), (1, "s")];
    let found = units.into_iter().find(|(unit, _)| passed >= *unit);
    found.map_or("now".to_owned(), |(unit, name)| format!("{} {name} ago", passed / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_as_options_take_them() {
        for (milliseconds, text) in
            [(60_000, "1m"), (90_000, "1m30s"), (1500, "1.5s"), (7_200_000, "2h"), (250, "0.25s")]
        {
            assert_eq!(lasting(Duration::from_millis(milliseconds)), text);
        }
    }

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, milliseconds) in [
            ("30", 30_000),
            ("1.5", 1500),
            ("30s", 30_000),
            ("1m", 60_000),
            ("2h", 7_200_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "0", "-1", "m", "1x", "1m30", "1e10", "inf", "NaN", "1..5s", "1 m"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
