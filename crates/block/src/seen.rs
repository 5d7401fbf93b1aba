//! [`Seen`]: the attributes of a host file that show whether it changed.
//!
//! The kernel sets a file's times before it changes its pages, so a write that a read may have seen shows in the times
//! taken after the read. But times have a resolution: before Linux 6.13 a tick of 1 to 10 ms
//! (`ktime_get_coarse_real_ts64`), since then less, whole seconds on ext4 with small inodes, and two seconds on FAT. A
//! write within the same step as the previous change leaves the times as they are. [`Seen::outlast_step`] waits until
//! that step is over, so that each later write shows.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use inarch_tree::Timestamp;
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

/// The longest tick of any kernel (`CONFIG_HZ=100`), and the resolution of times on exFAT.
const TICK: Duration = Duration::from_millis(10);

/// The coarsest resolution of any file system: that of FAT.
const WHOLE_SECONDS: Duration = Duration::from_secs(2);

/// The attributes of a file that show whether it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) file_type: FileType,
    pub(crate) ino: u64,
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
}

impl Seen {
    /// The attributes of an open file now. Asks the server of a network or FUSE file system, past the kernel's cache.
    pub(crate) fn of(file: impl AsFd) -> Result<Seen, Errno> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::SIZE | StatxFlags::MTIME | StatxFlags::CTIME;
        let stat = statx(file, c"", flags, wanted)?;
        Ok(Seen {
            file_type: FileType::from_raw_mode(u32::from(stat.stx_mode)),
            ino: stat.stx_ino,
            size: stat.stx_size,
            mtime: Timestamp { seconds: stat.stx_mtime.tv_sec, nanoseconds: stat.stx_mtime.tv_nsec },
            ctime: Timestamp { seconds: stat.stx_ctime.tv_sec, nanoseconds: stat.stx_ctime.tv_nsec },
        })
    }

    /// Waits until a write would change a file's times, given its ctime. Does not wait for most files, which are older.
    pub(crate) fn outlast_step(ctime: Timestamp) {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        let now = Timestamp { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0) };
        if let Some(rest) = rest_of_step(ctime, now) {
            thread::sleep(rest);
        }
    }
}

/// How long, at `now`, until the step that contains `ctime` is certainly over.
fn rest_of_step(ctime: Timestamp, now: Timestamp) -> Option<Duration> {
    let step = if ctime.nanoseconds == 0 { WHOLE_SECONDS } else { TICK };
    let nanoseconds = |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    // A time in the future has its own steps: the clock was set back, or another machine set the time.
    let age = (nanoseconds(now) - nanoseconds(ctime)).max(-(step.as_nanos() as i128));
    let rest = step.as_nanos() as i128 - age;
    (rest > 0).then(|| Duration::from_nanos(rest as u64).min(step))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp { seconds, nanoseconds }
    }

    #[test]
    fn an_old_file_is_read_at_once() {
        assert_eq!(rest_of_step(at(100, 5), at(100, 10_000_005)), None);
        assert_eq!(rest_of_step(at(100, 0), at(102, 0)), None);
        assert_eq!(rest_of_step(at(i64::MIN, 0), at(i64::MAX, 0)), None);
    }

    #[test]
    fn a_young_file_waits_for_the_end_of_its_step_and_no_longer() {
        assert_eq!(rest_of_step(at(100, 5), at(100, 5)), Some(TICK));
        assert_eq!(rest_of_step(at(100, 5), at(100, 4_000_005)), Some(Duration::from_millis(6)));
        // Whole seconds: the file system may have no finer resolution.
        assert_eq!(rest_of_step(at(100, 0), at(100, 500_000_000)), Some(Duration::from_millis(1500)));
    }

    #[test]
    fn a_time_ahead_of_the_clock_does_not_stop_a_reader() {
        assert_eq!(rest_of_step(at(9_999, 1), at(100, 0)), Some(TICK));
        assert_eq!(rest_of_step(at(i64::MAX, 0), at(i64::MIN, 0)), Some(WHOLE_SECONDS));
    }
}
