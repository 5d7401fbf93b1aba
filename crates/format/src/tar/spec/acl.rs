//! Converts POSIX access control lists between their text in PAX headers (`SCHILY.acl.access`, `SCHILY.acl.default`)
//! and the value of `system.posix_acl_access` (the kernel's include/uapi/linux/posix_acl_xattr.h).
//!
//! The text is that of acl_to_text(3), with entries separated by commas or line ends, and named users and groups by
//! name or number; star and libarchive add the number after a name's permissions.

/// `POSIX_ACL_XATTR_VERSION`
const VERSION: u32 = 2;

/// The id of entries without a name: `ACL_UNDEFINED_ID`.
const NOBODY: u32 = u32::MAX;

/// Tags of entries, `ACL_USER_OBJ` and so on, in their order.
mod tag {
    pub(super) const USER_OBJ: u16 = 0x01;
    pub(super) const USER: u16 = 0x02;
    pub(super) const GROUP_OBJ: u16 = 0x04;
    pub(super) const GROUP: u16 = 0x08;
    pub(super) const MASK: u16 = 0x10;
    pub(super) const OTHER: u16 = 0x20;
}

/// Whether a name is a user's or a group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    User,
    Group,
}

/// Why a text is not an access control list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AclError {
    #[error("its access control list is invalid and is left out")]
    Malformed,
    #[error("its access control list names a user or group that this host does not know, and is left out")]
    Unknown,
}

/// Converts a text to the attribute's value. `id` finds the number of a name.
pub(crate) fn from_text(text: &[u8], mut id: impl FnMut(Who, &str) -> Option<u32>) -> Result<Vec<u8>, AclError> {
    let text = std::str::from_utf8(text).map_err(|_| AclError::Malformed)?;
    let mut entries = Vec::new();
    for entry in text.split([',', '\n']) {
        let entry = entry.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            entries.push(parse_entry(entry, &mut id)?);
        }
    }
    entries.sort_unstable();
    let distinct = entries.windows(2).all(|pair| match pair {
        [(tag, id, _), (next_tag, next_id, _)] => (tag, id) != (next_tag, next_id),
        _ => true,
    });
    let has = |wanted| entries.iter().any(|(tag, ..)| *tag == wanted);
    let named = has(tag::USER) || has(tag::GROUP);
    let whole = has(tag::USER_OBJ) && has(tag::GROUP_OBJ) && has(tag::OTHER) && (has(tag::MASK) || !named);
    if !distinct || !whole {
        return Err(AclError::Malformed);
    }
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, permissions) in &entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    Ok(value)
}

/// The permission bits of a mode with an ACL, as the kernel sets them (`posix_acl_update_mode` in fs/posix_acl.c): the
/// group's bits are the mask's, if there is one. `None` if the value is invalid.
pub(crate) fn permissions(value: &[u8]) -> Option<u32> {
    let (mut owner, mut group, mut mask, mut other) = (None, None, None, None);
    for entry in value.get(4..)?.chunks_exact(8) {
        let &[tag, 0, bits @ 0..=7, 0, ..] = entry else { return None };
        let place = match tag.into() {
            tag::USER_OBJ => &mut owner,
            tag::GROUP_OBJ => &mut group,
            tag::MASK => &mut mask,
            tag::OTHER => &mut other,
            _ => continue,
        };
        *place = Some(u32::from(bits));
    }
    Some(owner? << 6 | mask.or(group)? << 3 | other?)
}

/// Whether an ACL says no more than a mode: only the permissions of owner, group and others.
pub(crate) fn is_mode(value: &[u8]) -> bool {
    value.len() == 4 + 3 * 8
}

/// Tag, id and permissions of `user:NAME:rwx` or `user:NAME:rwx:ID`.
fn parse_entry(entry: &str, id: &mut impl FnMut(Who, &str) -> Option<u32>) -> Result<(u16, u32, u16), AclError> {
    let mut fields = entry.split(':').map(str::trim).peekable();
    fields.next_if(|field| matches!(*field, "default" | "d"));
    let kind = fields.next().unwrap_or_default();
    let rest: Vec<&str> = fields.collect();
    let (who, own, named) = match kind {
        "user" | "u" => (Some(Who::User), tag::USER_OBJ, tag::USER),
        "group" | "g" => (Some(Who::Group), tag::GROUP_OBJ, tag::GROUP),
        "mask" | "m" => (None, tag::MASK, tag::MASK),
        "other" | "o" => (None, tag::OTHER, tag::OTHER),
        _ => return Err(AclError::Malformed),
    };
    let (name, permissions, number) = match (who, &rest[..]) {
        // `mask:rwx`, as Solaris writes it.
        (None, [permissions]) => ("", *permissions, None),
        (_, [name, permissions]) => (*name, *permissions, None),
        (_, [name, permissions, number]) => (*name, *permissions, Some(*number)),
        _ => return Err(AclError::Malformed),
    };
    let permissions = parse_permissions(permissions).ok_or(AclError::Malformed)?;
    match who {
        Some(who) if !name.is_empty() => {
            let number = number.and_then(|number| number.parse().ok()).or_else(|| name.parse().ok());
            let number = number.or_else(|| id(who, name)).ok_or(AclError::Unknown)?;
            Ok((named, number, permissions))
        }
        _ if !name.is_empty() => Err(AclError::Malformed),
        _ => Ok((own, NOBODY, permissions)),
    }
}

fn parse_permissions(text: &str) -> Option<u16> {
    text.chars().try_fold(0, |bits, letter| match letter {
        'r' => Some(bits | 4),
        'w' => Some(bits | 2),
        'x' => Some(bits | 1),
        '-' => Some(bits),
        _ => None,
    })
}

/// The text of an attribute's value, with numbers, as GNU tar and libarchive read it; `None` if the value is invalid.
pub(crate) fn to_text(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk()?;
    if u32::from_le_bytes(*version) != VERSION || entries.is_empty() || entries.len() % 8 != 0 {
        return None;
    }
    let mut lines = Vec::new();
    for entry in entries.chunks_exact(8) {
        let &[tag, tag_high, bits, bits_high, a, b, c, d] = entry else { return None };
        let (tag, bits) = (u16::from_le_bytes([tag, tag_high]), u16::from_le_bytes([bits, bits_high]));
        let id = u32::from_le_bytes([a, b, c, d]);
        let letter = |bit: u16, letter: char| if bits & bit != 0 { letter } else { '-' };
        if bits > 7 {
            return None;
        }
        let name = match tag {
            tag::USER_OBJ => "user:".to_owned(),
            tag::USER => format!("user:{id}"),
            tag::GROUP_OBJ => "group:".to_owned(),
            tag::GROUP => format!("group:{id}"),
            tag::MASK => "mask:".to_owned(),
            tag::OTHER => "other:".to_owned(),
            _ => return None,
        };
        lines.push(format!("{name}:{}{}{}", letter(4, 'r'), letter(2, 'w'), letter(1, 'x')));
    }
    Some(lines.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody(_: Who, _: &str) -> Option<u32> {
        None
    }

    #[test]
    fn text_and_value_are_two_forms_of_one_list() {
        let text = "user::rwx,user:7:r--,user:1000:rw-,group::r-x,group:5:--x,mask::rwx,other::---";
        let value = from_text(text.as_bytes(), nobody).unwrap();
        assert_eq!(value.len(), 4 + 7 * 8);
        assert_eq!(value[4..12], [1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(value[12..20], [2, 0, 4, 0, 7, 0, 0, 0]);
        assert_eq!(to_text(&value).as_deref(), Some(text));
        assert_eq!(permissions(&value), Some(0o770));
        let without_mask = from_text(b"user::rw-,group::r-x,other::--x", nobody).unwrap();
        assert_eq!(permissions(&without_mask), Some(0o651));
        assert_eq!(permissions(&value[..20]), None);
    }

    #[test]
    fn every_dialect_of_the_text_is_read() {
        let plain = b"user::rwx,user:1000:r--,group::r-x,mask::r-x,other::---";
        let expected = from_text(plain, nobody).unwrap();
        let same = [
            &b"user::rwx\nuser:1000:r--\ngroup::r-x\nmask::r-x\nother::---\n"[..],
            b"other::---,mask:r-x,group::r-x,user:1000:r--,user::rwx",
            b"u::rwx,u:joe:r--:1000,g::r-x,m::r-x,o::---",
            b"default:user::rwx,default:user:1000:r--,default:group::r-x,default:mask::r-x,default:other::---",
            b"user::rwx,user:joe:r--\t#effective:r--\ngroup::r-x,mask::r-x,other::---",
        ];
        for text in same {
            let value = from_text(text, |who, name| (who == Who::User && name == "joe").then_some(1000));
            assert_eq!(value.as_ref(), Ok(&expected), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_list_of_three_is_a_mode() {
        assert!(is_mode(&from_text(b"user::rw-,group::r--,other::r--", nobody).unwrap()));
        assert!(!is_mode(&from_text(b"user::rw-,group::r--,mask::r--,other::r--", nobody).unwrap()));
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let bad = [
            &b""[..],
            b"user::rwx",
            b"user::rwx,user::rwx,group::r--,other::r--",
            b"user::rwz,group::r--,other::r--",
            b"user::rwx,user:1:rwx,group::r--,other::r--",
            b"\xff",
            b"user:,group::r--,other::r--",
            b"user::rwx,group::r--,other:x:r--",
            b"who::rwx,group::r--,other::r--",
        ];
        for text in bad {
            assert_eq!(from_text(text, nobody), Err(AclError::Malformed), "{}", text.escape_ascii());
        }
        let unknown = b"user::rwx,user:joe:r--,group::r-x,mask::r-x,other::---";
        assert_eq!(from_text(unknown, nobody), Err(AclError::Unknown));
        for value in [&b""[..], b"\x02\0\0\0", b"\x01\0\0\0\x01\0\x07\0\xff\xff\xff\xff", b"\x02\0\0\0\x01\0\x08\0aaaa"]
        {
            assert_eq!(to_text(value), None);
        }
    }
}
