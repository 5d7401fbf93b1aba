//! [`MachineCommand`]: the command line that runs a machine. Also quotes words of command lines.

use std::ffi::{OsStr, OsString};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use inarch_confine::Enclosure;

/// The command line of a machine's program, and the descriptors that it inherits with the same numbers.
#[derive(Debug)]
pub struct MachineCommand {
    /// The binary.
    pub program: PathBuf,
    /// Arguments, without the program's name.
    pub arguments: Vec<OsString>,
    /// The descriptors that the arguments refer to.
    pub descriptors: Vec<OwnedFd>,
    /// What encloses the program, if it runs the guest's code in processes of this machine.
    pub enclosed: Option<Enclosed>,
}

/// What encloses a machine's program.
#[derive(Debug)]
pub struct Enclosed {
    /// What it can reach.
    pub enclosure: Enclosure,
    /// The sockets that it gets when it connects to [`ADDRESS`](inarch_confine::ADDRESS) and their number in this list.
    pub sockets: Vec<OwnedFd>,
    /// All of its environment.
    pub environment: Vec<(&'static str, OsString)>,
}

impl MachineCommand {
    /// The command line as one line for a shell.
    pub fn shell_line(&self) -> String {
        let words = std::iter::once(self.program.as_os_str()).chain(self.arguments.iter().map(OsString::as_os_str));
        words.map(shell_word).collect::<Vec<_>>().join(" ")
    }
}

/// `word` quoted for a shell, if it needs quotes. Bytes that are not UTF-8 are shown as U+FFFD.
pub fn shell_word(word: &OsStr) -> String {
    let text = String::from_utf8_lossy(word.as_bytes());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"@%+=:,./_-".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// `value` as part of a QEMU option list, with commas doubled.
pub(crate) fn option_value(value: &OsStr) -> OsString {
    let mut escaped = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        escaped.extend(std::iter::repeat_n(byte, if byte == b',' { 2 } else { 1 }));
    }
    OsStr::from_bytes(&escaped).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shell_words() {
        assert_eq!(shell_word(OsStr::new("-m")), "-m");
        assert_eq!(shell_word(OsStr::new("a b's")), r"'a b'\''s'");
        assert_eq!(shell_word(OsStr::new("")), "''");
        assert_eq!(shell_word(OsStr::new("~/x")), "'~/x'");
    }

    #[test]
    fn commas_in_option_values_are_doubled() {
        assert_eq!(option_value(OsStr::new("/a,b")), "/a,,b");
    }
}
