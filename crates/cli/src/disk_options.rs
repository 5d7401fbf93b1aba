//! `--with`, `--also` and `--key`: what a disk image needs beside itself.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use inarch_jobs::shown;
use inarch_jobs::source::{DiskNeeds, FileKind, ImageFormat, Key, Keys, Source, SourceError};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::arguments::one_of;
use crate::telling::telling;

/// The most bytes of a key: those that cryptsetup reads of a key file.
const MOST_KEY: u64 = 8 << 20;
/// The most bytes of a passphrase that is typed: cryptsetup's limit.
const MOST_TYPED: usize = 512;

/// What a disk image needs beside itself.
#[derive(Args, Debug, Clone, Default, PartialEq)]
pub struct DiskOptions {
    /// Let a disk image use FILE, which it names as its backing file, data file or extent; others are not opened
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,

    /// Another disk of the same guest, on which its volumes lie as well
    #[arg(long, value_name = "IMAGE")]
    pub also: Vec<PathBuf>,

    /// Open the encrypted volumes (LUKS) of a disk image with the passphrase or key in FILE; '-' asks for it on the terminal, or reads standard input.
    /// With VOLUME=, only that volume
    #[arg(long, value_name = "[VOLUME=]FILE")]
    pub key: Vec<OsString>,
}

/// How much a source looks like the disk image that the options are for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Likeness {
    /// A directory, or what is in no file.
    None,
    /// An archive, or a file of no known kind.
    Other,
    /// A file system.
    Volume,
    /// A disk.
    Disk,
}

/// `--format`, of a disk image that is read.
#[derive(Args, Debug, Clone, Copy, Default, PartialEq)]
pub struct FormatOption {
    /// Format of the image: raw, qcow2, vdi, vhd, vhdx or vmdk [default: by its first bytes; where it is written to, qcow2 if its name ends so, or
    /// else raw]
    #[arg(long = "format", id = "image_format", value_name = "FORMAT", hide_possible_values = true,
        value_parser = one_of::<ImageFormat>(ImageFormat::all().map(ImageFormat::name)))]
    pub format: Option<ImageFormat>,
}

impl DiskOptions {
    /// The source that `text` names, with these files and keys.
    pub fn source(&self, text: &OsStr) -> anyhow::Result<Source> {
        self.source_in(text, FormatOption::default())
    }

    /// [`DiskOptions::source`], in a format.
    pub fn source_in(&self, text: &OsStr, format: FormatOption) -> anyhow::Result<Source> {
        Ok(telling(Source::parse_with(text, &self.needs(format)?)?))
    }

    /// All of them, and a format.
    ///
    /// # Errors
    /// As [`DiskOptions::keys`].
    pub fn needs(&self, FormatOption { format }: FormatOption) -> anyhow::Result<DiskNeeds> {
        Ok(DiskNeeds { format, also: self.also.clone(), with: self.with.clone(), keys: self.keys()? })
    }

    /// Two sources. The files, the keys and the format are for the one that is a disk image. If both are, they are for both.
    pub fn sources_in(&self, texts: [&OsStr; 2], format: FormatOption) -> anyhow::Result<[Source; 2]> {
        let is_disk = |text: &OsStr| match Source::parse(text) {
            Ok(Source::Disk { .. }) => Likeness::Disk,
            Ok(Source::File { kind: FileKind::Volume(_), .. }) => Likeness::Volume,
            Ok(Source::File { .. }) | Err(SourceError::Unknown { .. } | SourceError::NotRead { .. }) => Likeness::Other,
            _ => Likeness::None,
        };
        let likeness = texts.map(is_disk);
        let most = likeness.iter().max();
        anyhow::ensure!(
            self.also.is_empty() || likeness != [Likeness::Disk; 2],
            "--also cannot tell which of the two disks the other belongs to"
        );
        let needs = self.needs(format)?;
        let source = |text, likeness: &Likeness| match Some(likeness) == most {
            true => Source::parse_with(text, &needs),
            false => Source::parse(text),
        };
        let ([old, new], [one, other]) = (texts, &likeness);
        Ok([telling(source(old, one)?), telling(source(new, other)?)])
    }

    /// The keys.
    ///
    /// # Errors
    /// A file cannot be read, or has too much for a key.
    pub fn keys(&self) -> anyhow::Result<Keys> {
        if !self.key.is_empty() {
            leave_no_core();
        }
        let mut keys = Vec::new();
        // Standard input has one key, and a terminal is asked once.
        let mut asked: Option<Arc<Zeroizing<Vec<u8>>>> = None;
        for argument in &self.key {
            let (volume, file) = parts(argument);
            let bytes = match &asked {
                Some(bytes) if file == Path::new("-") => Arc::clone(bytes),
                _ => Arc::new(read(file)?),
            };
            if file == Path::new("-") {
                asked = Some(Arc::clone(&bytes));
            }
            keys.push(Key { volume, bytes });
        }
        Ok(Keys::new(keys))
    }
}

/// From now on no memory of this process, or of one that it starts, becomes a file if it crashes.
fn leave_no_core() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Core);
    // Less than there was is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum });
}

/// The volume and the file of `[VOLUME=]FILE`. If the whole argument names a file, it is the file.
fn parts(argument: &OsStr) -> (Option<String>, &Path) {
    let bytes = argument.as_bytes();
    let whole = Path::new(argument);
    let Some(at) = bytes.iter().rposition(|byte| *byte == b'=').filter(|_| !whole.exists()) else {
        return (None, whole);
    };
    let (volume, file) = (bytes.get(..at).unwrap_or_default(), bytes.get(at + 1..).unwrap_or_default());
    (Some(String::from_utf8_lossy(volume).into_owned()), Path::new(OsStr::from_bytes(file)))
}

fn read(file: &Path) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    if file != Path::new("-") {
        let fail = |error| anyhow::anyhow!("{}: cannot read the key: {error}", shown(file));
        return content(File::open(file).map_err(fail)?).map_err(fail);
    }
    if io::stdin().is_terminal() {
        return ask().map_err(|error| anyhow::anyhow!("cannot ask for the passphrase: {error}"));
    }
    content(io::stdin().lock()).map_err(|error| anyhow::anyhow!("standard input: cannot read the key: {error}"))
}

/// Everything that there is to read, in memory that is zeroed.
fn content(input: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut input = input.take(MOST_KEY + 1);
    let mut bytes = Zeroizing::new(Vec::new());
    let mut piece = Zeroizing::new([0; 4096]);
    loop {
        let count = input.read(&mut *piece)?;
        let Some(read) = piece.get(..count).filter(|read| !read.is_empty()) else { break };
        if bytes.capacity() - bytes.len() < count {
            // A vector that grows by itself leaves what it held in freed memory.
            let mut larger = Zeroizing::new(Vec::with_capacity((2 * bytes.capacity()).max(2 * 4096)));
            larger.extend_from_slice(&bytes);
            bytes = larger;
        }
        bytes.extend_from_slice(read);
    }
    let what = if bytes.len() as u64 > MOST_KEY {
        "it has more than 8 MiB, so it is no key"
    } else if bytes.is_empty() {
        "it is empty"
    } else {
        return Ok(bytes);
    };
    Err(io::Error::other(what))
}

/// A terminal that shows nothing of what is typed, until this is dropped.
struct Silent {
    before: Termios,
}

impl Silent {
    fn new() -> io::Result<Silent> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        // Without signals of its own, so that an interrupt does not leave it silent.
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        Ok(Silent { before })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        // Nothing is left to be done about a terminal that is gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Has the user type a passphrase.
fn ask() -> io::Result<Zeroizing<Vec<u8>>> {
    let silent = Silent::new()?;
    eprint!("passphrase of the disk: ");
    let typed = typed(&mut |byte| {
        rustix::io::read(rustix::stdio::stdin(), std::slice::from_mut(byte)).map_err(io::Error::from)
    });
    eprintln!();
    drop(silent);
    typed
}

/// Reads keys up to the end of the line, as a terminal does: backspace and Ctrl-U take back, Ctrl-C and Ctrl-D end it.
fn typed(next: &mut dyn FnMut(&mut u8) -> io::Result<usize>) -> io::Result<Zeroizing<Vec<u8>>> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const KILL: u8 = 21;
    let mut bytes = Zeroizing::new(Vec::with_capacity(MOST_TYPED));
    let mut byte = 0;
    loop {
        let is_end = next(&mut byte)? == 0;
        match byte {
            _ if is_end => break,
            b'\n' | b'\r' | END => break,
            INTERRUPT => return Err(io::Error::other("it was interrupted")),
            KILL => bytes.clear(),
            8 | 127 => drop(bytes.pop()),
            _ if bytes.len() == MOST_TYPED => {
                return Err(io::Error::other("it has more than 512 bytes; give it in a file"));
            }
            byte => bytes.push(byte),
        }
    }
    if bytes.is_empty() { Err(io::Error::other("nothing was typed")) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(keys: &[u8]) -> Result<Vec<u8>, String> {
        let mut left = keys.iter();
        let mut next = |byte: &mut u8| {
            Ok(left.next().map_or(0, |next| {
                *byte = *next;
                1
            }))
        };
        typed(&mut next).map(|bytes| bytes.to_vec()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_passphrase_is_typed_as_on_any_terminal() {
        assert_eq!(of(b"secret\nmore"), Ok(b"secret".to_vec()));
        assert_eq!(of(b"wrong\x15secrex\x7ft\r"), Ok(b"secret".to_vec()));
        assert_eq!(of("grün".as_bytes()), Ok("grün".as_bytes().to_vec()));
        assert!(of(b"sec\x03ret\n").unwrap_err().contains("interrupted"));
        assert!(of(b"\n").unwrap_err().contains("nothing") && of(&[b'a'; 600]).unwrap_err().contains("512"));
    }

    #[test]
    fn a_key_may_be_for_one_volume() {
        let of = |text: &str| {
            let (volume, file) = parts(OsStr::new(text));
            (volume, file.to_str().unwrap().to_owned())
        };
        assert_eq!(of("key"), (None, "key".to_owned()));
        assert_eq!(of("2=key"), (Some("2".to_owned()), "key".to_owned()));
        assert_eq!(of("UUID=0f=-"), (Some("UUID=0f".to_owned()), "-".to_owned()));
        assert_eq!(content(&[1; 9000][..]).unwrap().len(), 9000);
        assert!(content(&b""[..]).unwrap_err().to_string().contains("empty"));
        assert!(content(io::repeat(1)).unwrap_err().to_string().contains("no key"));
    }
}
