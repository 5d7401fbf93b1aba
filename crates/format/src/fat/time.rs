//! Times of FAT and exFAT.

use inarch_tree::Timestamp;

use crate::calendar::Date;

/// A packed date and time, and hundredths of a second above it (0 to 199), of a clock that is `minutes` ahead of UTC.
pub(crate) fn unpacked(date: u16, time: u16, hundredths: u8, minutes: i64) -> Timestamp {
    let bits = |value: u16, from: u32, count: u32| (value >> from) & ((1 << count) - 1);
    let hundredths = hundredths.min(199);
    let date = Date {
        year: 1980 + bits(date, 9, 7),
        month: bits(date, 5, 4) as u8,
        day: bits(date, 0, 5) as u8,
        hour: bits(time, 11, 5) as u8,
        minute: bits(time, 5, 6) as u8,
        second: (bits(time, 0, 5) * 2) as u8,
    };
    let at = date.ahead(minutes, u32::from(hundredths % 100) * 10_000_000);
    Timestamp { seconds: at.seconds + i64::from(hundredths / 100), nanoseconds: at.nanoseconds }
}
