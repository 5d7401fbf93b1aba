//! Checks names that come from a guest.

use rustix::io::Errno;

/// The longest name in a directory, in bytes (`NAME_MAX` of Linux's include/uapi/linux/limits.h).
pub const NAME_MAX: usize = 255;

/// Like [`check_name`], but allows 1,024 bytes: for names that are only looked up in a tree or volume.
pub(crate) fn check_long_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() <= NAME_MAX {
        return check_name(name);
    }
    match inarch_volume::is_name(name) {
        true => Ok(()),
        false if name.len() > inarch_volume::NAME_MAX => Err(Errno::NAMETOOLONG),
        false => Err(Errno::INVAL),
    }
}

/// Refuses what is not a name of one directory entry. Every file system that passes names to the host calls it, so
/// that no wire can forget to.
///
/// # Errors
/// `EINVAL` for an empty name, `.`, `..`, and one with a `/` or a NUL; `ENAMETOOLONG` above 255 bytes.
pub fn check_name(name: &[u8]) -> Result<(), Errno> {
    if name.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    if matches!(name, b"" | b"." | b"..") || name.iter().any(|&byte| byte == b'/' || byte == 0) {
        return Err(Errno::INVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_component_is_a_name() {
        for name in [&b"a"[..], b"...", b"..a", b"a\xff\n", &[b'x'; 255]] {
            assert_eq!(check_name(name), Ok(()));
        }
        for name in [&b""[..], b".", b"..", b"/", b"/etc", b"a/b", b"a/", b"a\0", b"\0"] {
            assert_eq!(check_name(name), Err(Errno::INVAL), "{name:?}");
        }
        assert_eq!(check_name(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
        assert_eq!(check_long_name(&[b'x'; 1024]), Ok(()));
        assert_eq!(check_long_name(&[b'x'; 1025]), Err(Errno::NAMETOOLONG));
        assert_eq!(check_long_name(&[b'/'; 300]), Err(Errno::INVAL));
    }
}
