//! ACLs, and the permission bits that are part of them (Linux's fs/posix_acl.c; the format is that of
//! include/uapi/linux/posix_acl_xattr.h).

use rustix::io::Errno;

const VERSION: [u8; 4] = 2u32.to_le_bytes();
const USER_OBJ: u16 = 0x01;
const GROUP_OBJ: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Tag, permissions and ID of each entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<(u16, u16, u32)>);

impl Acl {
    /// `EINVAL` if it is malformed or lacks a mandatory entry.
    pub fn parse(value: &[u8]) -> Result<Acl, Errno> {
        let (version, entries) = value.split_first_chunk().ok_or(Errno::INVAL)?;
        let (entries, rest) = entries.as_chunks::<8>();
        if *version != VERSION || !rest.is_empty() {
            return Err(Errno::INVAL);
        }
        let entry = |[t0, t1, p0, p1, id @ ..]: &[u8; 8]| {
            (u16::from_le_bytes([*t0, *t1]), u16::from_le_bytes([*p0, *p1]), u32::from_le_bytes(*id))
        };
        let list = Acl(entries.iter().map(entry).collect());
        let has_once = |tag| list.0.iter().filter(|entry| entry.0 == tag).count() == 1;
        let sane =
            list.0.iter().all(|(tag, permissions, _)| tag.count_ones() == 1 && *tag <= OTHER && *permissions < 8);
        let named = list.0.len() > 3;
        if !sane || ![USER_OBJ, GROUP_OBJ, OTHER].into_iter().all(has_once) || named && !has_once(MASK) {
            return Err(Errno::INVAL);
        }
        Ok(list)
    }

    /// As an extended attribute's value.
    pub fn value(&self) -> Vec<u8> {
        let entries = self.0.iter().flat_map(|(tag, permissions, id)| {
            let [t0, t1] = tag.to_le_bytes();
            let [p0, p1] = permissions.to_le_bytes();
            let [i0, i1, i2, i3] = id.to_le_bytes();
            [t0, t1, p0, p1, i0, i1, i2, i3]
        });
        VERSION.into_iter().chain(entries).collect()
    }

    /// Whether it says no more than nine permission bits.
    pub fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    fn class(&mut self, shift: u32) -> Option<&mut u16> {
        let group = if self.is_minimal() { GROUP_OBJ } else { MASK };
        let tag = match shift {
            6 => USER_OBJ,
            3 => group,
            _ => OTHER,
        };
        self.0.iter_mut().find(|entry| entry.0 == tag).map(|entry| &mut entry.1)
    }

    /// The permission bits that correspond to it.
    pub fn mode(&mut self) -> u32 {
        [6, 3, 0].iter().fold(0, |mode, shift| mode | u32::from(self.class(*shift).copied().unwrap_or(0)) << shift)
    }

    /// Gives it these permission bits.
    pub fn set_mode(&mut self, mode: u32) {
        for shift in [6, 3, 0] {
            if let Some(permissions) = self.class(shift) {
                *permissions = (mode >> shift & 7) as u16;
            }
        }
    }

    /// Removes permissions that `mode` lacks.
    pub fn restrict(&mut self, mode: u32) {
        let now = self.mode();
        self.set_mode(now & mode);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_and_its_permissions_agree() {
        let named = Acl(vec![(1, 7, 0), (2, 5, 9), (4, 6, 0), (0x10, 7, 0), (0x20, 1, 0)]);
        let mut list = Acl::parse(&named.value()).unwrap();
        assert_eq!(list, named);
        assert_eq!(list.mode(), 0o771);
        list.restrict(0o640);
        assert_eq!(list.0, [(1, 6, 0), (2, 5, 9), (4, 6, 0), (0x10, 4, 0), (0x20, 0, 0)]);
        let mut minimal = Acl(vec![(1, 6, 0), (4, 4, 0), (0x20, 4, 0)]);
        assert!(minimal.is_minimal() && !list.is_minimal());
        minimal.set_mode(0o751);
        assert_eq!(minimal.mode(), 0o751);
        let value = named.value();
        for length in 0..value.len() {
            assert!(Acl::parse(&value[..length]).is_err(), "{length}");
        }
        for (at, byte) in [(0, 3), (4, 3), (6, 8), (28, 2)] {
            let mut wrong = value.clone();
            wrong[at] = byte;
            assert_eq!(Acl::parse(&wrong), Err(Errno::INVAL), "{at}");
        }
    }
}
