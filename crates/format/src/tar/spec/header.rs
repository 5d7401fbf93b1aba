//! [`Header`]: a member's header block.

use super::BLOCK;
use super::number;

/// One header: v7's fields, then those of ustar or GNU.
#[derive(Clone, Copy)]
pub(crate) struct Header<'a>(pub(crate) &'a [u8; BLOCK]);

/// The extension of v7 that a header uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// None.
    V7,
    /// POSIX: a name prefix, device numbers.
    Ustar,
    /// GNU tar's: device numbers, sparse files.
    Gnu,
}

impl<'a> Header<'a> {
    /// Whether the block is all zeros, as the two at the end of an archive are.
    pub(crate) fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// Whether the checksum is correct, with unsigned bytes or, as some writers do, with signed ones.
    pub(crate) fn is_valid(&self) -> bool {
        let Some(stated) = number::field(self.range(148, 8)) else { return false };
        // The checksum field itself counts as blanks.
        let blanks = 8 * i64::from(b' ');
        let unsigned = |bytes: &[u8]| i64::from(bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>());
        if stated == unsigned(self.0) - unsigned(self.range(148, 8)) + blanks {
            return true;
        }
        let signed = |bytes: &[u8]| bytes.iter().map(|byte| i64::from(*byte as i8)).sum::<i64>();
        stated == signed(self.0) - signed(self.range(148, 8)) + blanks
    }

    pub(crate) fn dialect(&self) -> Dialect {
        match self.range(257, 8) {
            b"ustar  \0" => Dialect::Gnu,
            [b'u', b's', b't', b'a', b'r', 0, _, _] => Dialect::Ustar,
            _ => Dialect::V7,
        }
    }

    /// The member's name, including its prefix.
    pub(crate) fn name(&self) -> Vec<u8> {
        let name = text(self.range(0, 100));
        let prefix = match self.dialect() {
            // star's archives have two times in place of the prefix's last bytes.
            Dialect::Ustar if self.range(508, 4) == b"tar\0" => text(self.range(345, 131)),
            Dialect::Ustar => text(self.range(345, 155)),
            _ => &[],
        };
        if prefix.is_empty() { name.to_owned() } else { [prefix, b"/", name].concat() }
    }

    pub(crate) fn link_name(&self) -> &'a [u8] {
        text(self.range(157, 100))
    }

    pub(crate) fn type_flag(&self) -> u8 {
        self.range(156, 1).first().copied().unwrap_or(0)
    }

    pub(crate) fn mode(&self) -> Option<i64> {
        number::field(self.range(100, 8))
    }

    pub(crate) fn uid(&self) -> Option<i64> {
        number::field(self.range(108, 8))
    }

    pub(crate) fn gid(&self) -> Option<i64> {
        number::field(self.range(116, 8))
    }

    pub(crate) fn size(&self) -> Option<i64> {
        number::field(self.range(124, 12))
    }

    pub(crate) fn mtime(&self) -> Option<i64> {
        number::field(self.range(136, 12))
    }

    pub(crate) fn device_major(&self) -> Option<i64> {
        number::field(self.range(329, 8))
    }

    pub(crate) fn device_minor(&self) -> Option<i64> {
        number::field(self.range(337, 8))
    }

    /// The first parts of a GNU sparse file (`offset` and `numbytes` fields), and whether blocks with more follow.
    pub(crate) fn sparse_parts(&self) -> (&'a [u8], bool) {
        (self.range(386, 4 * 24), self.range(482, 1) != [0])
    }

    /// The size of a GNU sparse file, including its holes.
    pub(crate) fn real_size(&self) -> Option<i64> {
        number::field(self.range(483, 12))
    }

    fn range(&self, start: usize, length: usize) -> &'a [u8] {
        self.0.get(start..start + length).unwrap_or_default()
    }
}

/// A text field up to its NUL.
fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    field.get(..end).unwrap_or_default()
}
