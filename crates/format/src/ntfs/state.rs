//! Tells whether the volume was unmounted cleanly. If not, what Windows had not written yet is missing.

use inarch_volume::{Node, VolumeError};

use super::damaged;
use super::index::Index;
use super::inode::Inode;
use super::spec::{array, kind, record, u16_at, u32_at, u64_at};
use super::volume::NtfsVolume;

/// The flag of `$Volume` that a check of the volume is due.
const DIRTY: u16 = 1;
/// The flag of the log's restart area that nothing is to be replayed, and the number of no client.
const LOG_IS_CLEAN: u16 = 2;
const NO_CLIENT: u16 = 0xFFFF;

impl NtfsVolume {
    /// Lines about the volume's state; an error if its version is unknown.
    pub(super) fn state(&self) -> Result<Vec<String>, VolumeError> {
        let mut notes = Vec::new();
        let volume = self.inode(Node(record::VOLUME))?;
        let information = volume.bytes(&self.mft, kind::VOLUME_INFORMATION, &[], 64)?;
        let information = information.ok_or_else(|| damaged("$Volume has no information about the volume"))?;
        let [major, minor] = array(&information, 8).ok_or_else(|| damaged("$Volume's information is too short"))?;
        if !matches!(major, 1 | 3) {
            return Err(VolumeError::Unsupported(format!(
                "version {major}.{minor} of NTFS is not supported; 1.2 to 3.1 are"
            )));
        }
        if u16_at(&information, 10).unwrap_or(0) & DIRTY != 0 {
            notes.push("the volume is marked as dirty: Windows would check it (chkdsk) before using it".to_owned());
        }
        match self.has_clean_log() {
            Ok(true) => {}
            Ok(false) => notes.push(
                "the volume was not unmounted cleanly: its log is not replayed, so the latest changes may be missing or \
                 incomplete"
                    .to_owned(),
            ),
            Err(VolumeError::Damaged(reason)) => notes.push(format!("the volume's log cannot be read: {reason}")),
            Err(error) => return Err(error),
        }
        match self.is_hibernated() {
            Ok(true) => notes.push(
                "Windows is hibernated in this volume, or was shut down by 'fast startup': the latest changes may be \
                 missing"
                    .to_owned(),
            ),
            Ok(false) | Err(VolumeError::Damaged(_) | VolumeError::WrongType | VolumeError::Unsupported(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(notes)
    }

    /// Whether the log has nothing to replay, by the newer of its two restart areas.
    fn has_clean_log(&self) -> Result<bool, VolumeError> {
        let log = self.inode(Node(record::LOG_FILE))?;
        let Some(stream) = log.stream(&self.mft, kind::DATA, &[])? else { return Ok(true) };
        let mut newest: Option<(u64, bool)> = None;
        let mut page_size = 4096;
        for number in 0..2 {
            let mut page = [0; 512];
            if stream.size() < number * page_size + 512 {
                break;
            }
            log.read(&self.mft, &stream, number * page_size, &mut page)?;
            // All bytes of a log that was never used are 0xFF.
            if array(&page, 0) != Some(*b"RSTR") {
                continue;
            }
            page_size = u32_at(&page, 16).filter(|size| (512..=65_536).contains(size)).map_or(page_size, u64::from);
            let area = u16_at(&page, 24).map_or(0, usize::from);
            let Some(sequence) = u64_at(&page, area) else { continue };
            let client = u16_at(&page, area + 12).unwrap_or(NO_CLIENT);
            let is_clean = client == NO_CLIENT || u16_at(&page, area + 14).unwrap_or(0) & LOG_IS_CLEAN != 0;
            if newest.is_none_or(|(known, _)| sequence > known) {
                newest = Some((sequence, is_clean));
            }
        }
        Ok(newest.is_none_or(|(_, is_clean)| is_clean))
    }

    /// Whether the root has an image of a system that is to be resumed.
    fn is_hibernated(&self) -> Result<bool, VolumeError> {
        let root = self.inode(self.root_node())?;
        let name: Vec<u16> = "hiberfil.sys".encode_utf16().collect();
        let Some(found) = Index::open(&self.mft, &root)?.find(self.upcase()?, &name, false)? else { return Ok(false) };
        let file: Inode = self.inode(Node(found.reference))?;
        let Some(stream) = file.stream(&self.mft, kind::DATA, &[])? else { return Ok(false) };
        let mut magic = [0; 4];
        if stream.size() < magic.len() as u64 {
            return Ok(false);
        }
        file.read(&self.mft, &stream, 0, &mut magic)?;
        Ok(magic.eq_ignore_ascii_case(b"hibr"))
    }
}
