//! Times that images store as a date on the calendar.

use inarch_tree::Timestamp;

/// A date and a time of day, in UTC. Out of range, month, day and hour count as the nearest that exist.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Date {
    pub(crate) year: u16,
    /// 1 to 12.
    pub(crate) month: u8,
    /// 1 to 31.
    pub(crate) day: u8,
    pub(crate) hour: u8,
    pub(crate) minute: u8,
    pub(crate) second: u8,
}

impl Date {
    /// The time for a clock that is `minutes` ahead of UTC.
    pub(crate) fn ahead(self, minutes: i64, nanoseconds: u32) -> Timestamp {
        // Days by years that start in March, so that a leap day is the last of a year.
        let month = i64::from(self.month.clamp(1, 12));
        let year = i64::from(self.year) - i64::from(month <= 2);
        let days_before_month = (153 * ((month + 9) % 12) + 2) / 5;
        let day = days_before_month + i64::from(self.day.clamp(1, 31)) - 1;
        // 719,468 days lie between 1 March of year 0 and 1970.
        let days = year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day - 719_468;
        let time = (i64::from(self.hour.min(23)) * 60 + i64::from(self.minute.min(59)) - minutes) * 60;
        let seconds = days * 86_400 + time + i64::from(self.second.min(59));
        Timestamp { seconds, nanoseconds: nanoseconds.min(999_999_999) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_date() {
        let date = |year, month, day| Date { year, month, day, ..Date::default() }.ahead(0, 0).seconds;
        assert_eq!(date(1970, 1, 1), 0);
        assert_eq!(date(1980, 1, 1), 315_532_800);
        // date -u -d 2000-02-29 +%s
        assert_eq!(date(2000, 2, 29), 951_782_400);
        assert_eq!(date(2107, 12, 31), 4_354_732_800);
        assert_eq!(date(1900, 1, 1), -2_208_988_800);
        let date = Date { year: 2024, month: 7, day: 4, hour: 12, minute: 34, second: 56 };
        // date -u -d '2024-07-04 12:34:56 +0530' +%s
        assert_eq!(date.ahead(330, 5), Timestamp { seconds: 1_720_076_696, nanoseconds: 5 });
    }
}
