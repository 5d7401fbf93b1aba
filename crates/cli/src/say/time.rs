//! Times as text.

use std::time::{SystemTime, UNIX_EPOCH};

/// A time as ISO 8601 has it, in UTC and whole seconds: `2026-11-23T14:30:05Z`. Before 1970 it is 1970.
pub fn time(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    moment(i64::try_from(seconds).unwrap_or(i64::MAX))
}

/// Seconds since 1970, or negative ones before it, in the same form; the calendar of today holds for all of them.
pub fn moment(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Years that begin in March, in eras of 400 of them: a leap day is the last of its year.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = 400 * era + year + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The same with nanoseconds, if there are any.
pub fn exact_moment(seconds: i64, nanoseconds: u32) -> String {
    let whole = moment(seconds);
    match nanoseconds {
        0 => whole,
        _ => format!("{}.{nanoseconds:09}Z", whole.trim_end_matches('Z')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_date() {
        // date -u -d @SECONDS +%FT%TZ
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_078_099_200, "2004-03-01T00:00:00Z"),
            (1_795_444_205, "2026-11-23T14:30:05Z"),
            (4_107_542_399, "2100-02-28T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (-304_815_477, "1960-05-05T01:02:03Z"),
            (-2_203_891_201, "1900-02-28T23:59:59Z"),
            (-2_203_891_200, "1900-03-01T00:00:00Z"),
            (-11_644_473_600, "1601-01-01T00:00:00Z"),
            (253_402_300_800, "10000-01-01T00:00:00Z"),
        ] {
            assert_eq!(moment(seconds), text);
            assert_eq!(exact_moment(seconds, 50_000_001), text.replace('Z', ".050000001Z"));
        }
        // Whatever a file system says.
        for seconds in [i64::MIN, i64::MAX] {
            assert!(moment(seconds).ends_with('Z'));
        }
    }
}
