//! Writes cpio archives of the `newc` kind, which the kernel unpacks as its initramfs
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`).

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";

/// A cpio archive in memory. The same calls give the same bytes: times are 0, and inode numbers count up.
#[derive(Debug, Default)]
pub struct CpioWriter {
    bytes: Vec<u8>,
    inodes: u32,
}

/// The type bits of `st_mode`.
mod kind {
    pub const DIRECTORY: u32 = 0o040_000;
    pub const FILE: u32 = 0o100_000;
    pub const CHARACTER_DEVICE: u32 = 0o020_000;
}

impl CpioWriter {
    /// An archive without entries.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory owned by root; `permissions` are the low 12 bits of its mode.
    pub fn directory(&mut self, path: &str, permissions: u32) {
        self.entry(path, kind::DIRECTORY | permissions, (0, 0), &[]);
    }

    /// Adds a regular file owned by root. `data` must be shorter than 4 GiB, the format's limit.
    pub fn file(&mut self, path: &str, permissions: u32, data: &[u8]) {
        self.entry(path, kind::FILE | permissions, (0, 0), data);
    }

    /// Adds a character device owned by root.
    pub fn character_device(&mut self, path: &str, permissions: u32, major: u32, minor: u32) {
        self.entry(path, kind::CHARACTER_DEVICE | permissions, (major, minor), &[]);
    }

    /// Completes the archive.
    pub fn finish(mut self) -> Vec<u8> {
        self.inodes = 0;
        self.header(TRAILER, 0, (0, 0), 0);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), data: &[u8]) {
        self.inodes += 1;
        self.header(path, mode, device, data.len());
        self.bytes.extend_from_slice(data);
        self.pad();
    }

    fn header(&mut self, path: &str, mode: u32, device: (u32, u32), size: usize) {
        let fields = [
            self.inodes as usize, // inode
            mode as usize,
            0, // uid
            0, // gid
            1, // links
            0, // mtime
            size,
            0, // device that the entry is on, major and minor
            0,
            device.0 as usize,
            device.1 as usize,
            path.len() + 1,
            0, // checksum, unused in this kind
        ];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_lists_what_was_written() {
        let mut writer = CpioWriter::new();
        writer.directory("dev", 0o755);
        writer.character_device("dev/console", 0o600, 5, 1);
        writer.file("a", 0o644, b"hello");
        writer.file("init", 0o755, &[7; 1001]);
        let archive = writer.finish();
        let mut cpio = Command::new("cpio")
            .args(["-itv", "--quiet"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        cpio.stdin.take().unwrap().write_all(&archive).unwrap();
        let listing = String::from_utf8(cpio.wait_with_output().unwrap().stdout).unwrap();
        let lines: Vec<Vec<&str>> = listing.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 4, "{listing}");
        assert_eq!((lines[0][0], *lines[0].last().unwrap()), ("drwxr-xr-x", "dev"));
        assert_eq!((lines[1][0], *lines[1].last().unwrap()), ("crw-------", "dev/console"));
        assert_eq!((lines[2][0], lines[2][4]), ("-rw-r--r--", "5"));
        assert_eq!((lines[3][0], lines[3][4]), ("-rwxr-xr-x", "1001"));
    }
}
