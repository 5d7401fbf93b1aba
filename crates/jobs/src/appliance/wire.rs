//! The protocol between the host and the appliance's program, over its standard streams.
//!
//! A frame is a kind (1 byte), a length (32 bits, little-endian) and that many bytes. The program says hello. Then the
//! host asks, one [`Ask`] at a time, and the program answers with one [`Answer`]. Bytes of files go in frames of data
//! between the two. The program's bytes are hostile: the file system that it works on may have taken the guest over.

use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// The version of the protocol. Both ends are one program, but the guest may have another build of it.
pub(super) const VERSION: u32 = 3;

/// The longest message, in bytes: a path takes up to four bytes for each of its own.
pub(super) const MESSAGE_MOST: usize = 64 << 10;

/// The longest piece of data. A message of the FUSE protocol is one piece.
pub(super) const DATA_MOST: usize = (1 << 20) + (64 << 10);

/// How many bytes of a file go in one frame.
pub(super) const PIECE: usize = 128 << 10;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An [`Ask`], a [`Hello`] or an [`Answer`].
    Message,
    /// Bytes of a file, a part of a list, or a message of the FUSE protocol.
    Data,
    /// The data are complete.
    End,
    /// The data will not be complete.
    GiveUp,
    /// A line for the user.
    Note,
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Message => 1,
            Kind::Data => 2,
            Kind::End => 3,
            Kind::GiveUp => 4,
            Kind::Note => 5,
        }
    }

    fn of(byte: u8) -> Option<Kind> {
        [Kind::Message, Kind::Data, Kind::End, Kind::GiveUp, Kind::Note].into_iter().find(|kind| kind.byte() == byte)
    }

    fn most(self) -> usize {
        match self {
            Kind::Message => MESSAGE_MOST,
            Kind::Data => DATA_MOST,
            Kind::End | Kind::GiveUp => 0,
            Kind::Note => 4096,
        }
    }
}

/// Sends a frame.
pub(super) fn send(to: &mut impl Write, kind: Kind, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() > kind.most() {
        return Err(io::Error::other("a message is too long"));
    }
    let [a, b, c, d] = (bytes.len() as u32).to_le_bytes();
    // One write: the other end wakes up once.
    let mut frame = Vec::with_capacity(5 + bytes.len());
    frame.extend_from_slice(&[kind.byte(), a, b, c, d]);
    frame.extend_from_slice(bytes);
    to.write_all(&frame)?;
    to.flush()
}

/// Sends a message.
pub(super) fn tell(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    send(to, Kind::Message, &serde_json::to_vec(message)?)
}

/// Receives a frame; `None` at the end of the stream.
pub(super) fn receive(from: &mut impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut head = [0; 5];
    let mut got = 0;
    while let Some(rest) = head.get_mut(got..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let [kind, length @ ..] = head;
    let kind = Kind::of(kind).ok_or_else(|| invalid("a frame of an unknown kind"))?;
    let length = u32::from_le_bytes(length) as usize;
    if length > kind.most() {
        return Err(invalid("a frame that is too long"));
    }
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes)?;
    Ok(Some((kind, bytes)))
}

/// Decodes a message.
pub(super) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    serde_json::from_slice(bytes).map_err(|_| invalid("a message that makes no sense"))
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A name or a path: any bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Bytes(pub Vec<u8>);

/// The program's first word.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub version: u32,
    /// The kernel's release.
    pub kernel: String,
    /// Microseconds since the guest's kernel began.
    pub since_boot: u64,
}

/// What the host asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// Make the volumes available: load drivers, assemble arrays and volume groups; and mount them.
    Attach(Attach),
    /// A copy begins: what is `copied` from now on does not replace what was copied since. Its names are on the disk after [`Ask::Sync`].
    BeginCopy,
    /// Make a file of the data that follow, in place of one that is there.
    Write { path: Bytes, attributes: NewAttributes, only_new: bool },
    /// Send `count` of a file's bytes from `offset`.
    Read { path: Bytes, offset: u64, count: u64 },
    /// Send the attributes of a directory's files, or of the file itself: an [`Entry`] in each frame of data. With `followed`, a
    /// symbolic link stands for what it leads to.
    List { path: Bytes, itself: bool, followed: bool },
    /// Remove a file, or a directory with everything in it.
    Remove { path: Bytes, recursive: bool },
    /// Make a directory, and with `parents` those that it is in. One that is `copied` is closed until its attributes are changed.
    MakeDirectory { path: Bytes, parents: bool, mode: Option<u32>, copied: bool },
    /// Give a file another name.
    Rename { from: Bytes, to: Bytes },
    /// Give a regular file another name, in place of a regular file that has it.
    Link { from: Bytes, to: Bytes, copied: bool },
    /// Make a symbolic link; with `replaces` in place of a file that is there.
    Symlink { target: Bytes, path: Bytes, attributes: NewAttributes, replaces: bool },
    /// Make a FIFO, a socket or a device, in place of a file that is there; `kind` is its `st_mode`, `device` a device's major and minor number.
    Node { path: Bytes, kind: u32, device: (u32, u32), attributes: NewAttributes },
    /// Change attributes.
    Change { path: Bytes, attributes: NewAttributes },
    /// Write everything to the disks.
    Sync,
    /// Check the file system of each volume, which is not mounted.
    Check { repair: bool },
    /// Make the first volume longer or shorter, which is not mounted.
    Resize(Grown),
    /// Answer requests of the FUSE protocol from now on: each frame of data is a message, in both directions.
    Serve { read_only: bool, owner: Option<(u32, u32)> },
    /// Unmount everything, and let go of the disks.
    Detach,
}

/// Attributes that a file is given. What is `None` stays.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct NewAttributes {
    pub mode: Option<u32>,
    pub owner: Option<(u32, u32)>,
    /// Seconds since 1970, and nanoseconds: of the last change of content.
    pub modified: Option<(i64, u32)>,
    /// Names and values of extended attributes; others stay.
    pub xattrs: Vec<(Bytes, Bytes)>,
    /// Whether they are those of a copied file. Then a file system without owners keeps none; and a capability or an ACL of a file that is
    /// replaced does not stay.
    pub copied: bool,
}

/// What is to be made available.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Attach {
    /// In the order of mounting.
    pub volumes: Vec<AttachedVolume>,
    /// Directories at which a volume is missing, and why: nothing is written below them.
    pub missing: Vec<(String, String)>,
    /// The arrays of MD to assemble.
    pub arrays: Vec<Array>,
    /// The volume groups of LVM to activate.
    pub groups: Vec<String>,
    /// Whether nothing is written.
    pub read_only: bool,
    /// Whether the volumes are mounted.
    pub mounted: bool,
}

/// An array of MD.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Array {
    /// The path in /dev that it is to have.
    pub name: String,
    /// Its identifier.
    pub id: String,
}

/// A volume, and where it is mounted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct AttachedVolume {
    pub device: Device,
    /// The format of its signature; found out in the guest if it is not known.
    pub format: Option<String>,
    pub directory: String,
    /// The option by which mount(2) takes a subvolume.
    pub subvolume: Option<String>,
    /// Its name on the host, for messages.
    pub name: String,
}

/// How long a volume is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Grown {
    pub bytes: u64,
    /// Whether that is more than it has.
    pub grows: bool,
    /// Whether the disk has grown for it, so that the second copy of a GPT is to be moved to its end.
    pub moves_table: bool,
}

/// Where a volume is in the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Device {
    /// A disk of this serial number, or a partition of it.
    Disk { serial: String, part: Option<u32> },
    /// A logical volume, by its path in /dev.
    Above(String),
    /// An array, by its path in /dev.
    Array(String),
}

/// What the program answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    /// It is done. `steps` are what took time, in microseconds.
    Done { steps: Vec<(String, u64)>, found: Found },
    /// It failed, and nothing was changed but what `text` says.
    Failed { text: String, errno: Option<i32> },
}

/// What was found out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Found {
    /// Bytes: of a file that was sent, of a file system that was resized.
    pub bytes: u64,
    /// Whether a file was there before, or a file system had errors.
    pub was: bool,
    /// Whether a file system still has errors.
    pub is: bool,
    /// The extended attributes that a file system did not take.
    pub lost: Vec<Bytes>,
}

/// A file's attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub name: Bytes,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub links: u64,
    pub inode: u64,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Seconds since 1970, and nanoseconds: of the last change of content.
    pub modified: (i64, u32),
    /// What a symbolic link leads to.
    pub target: Option<Bytes>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back() {
        let mut bytes = Vec::new();
        tell(&mut bytes, &Ask::Read { path: Bytes(b"/\xff".to_vec()), offset: 0, count: 1 }).unwrap();
        send(&mut bytes, Kind::Data, b"abc").unwrap();
        let mut from = &bytes[..];
        let (kind, message) = receive(&mut from).unwrap().unwrap();
        assert_eq!(kind, Kind::Message);
        assert!(matches!(decode(&message).unwrap(), Ask::Read { path, .. } if path.0 == b"/\xff"));
        assert_eq!(receive(&mut from).unwrap().unwrap(), (Kind::Data, b"abc".to_vec()));
        assert!(receive(&mut from).unwrap().is_none());
    }

    #[test]
    fn hostile_frames_are_refused() {
        let long = (DATA_MOST as u32 + 1).to_le_bytes();
        for bytes in [
            &[9, 0, 0, 0, 0][..],
            &[1, 255, 255, 255, 255],
            &[3, 1, 0, 0, 0, 0],
            &[2, long[0], long[1], long[2], long[3]],
        ] {
            assert!(receive(&mut &*bytes).is_err(), "{bytes:?}");
        }
        // What is cut off is no frame.
        assert!(receive(&mut &[1, 5, 0, 0, 0, b'x'][..]).is_err());
        assert!(receive(&mut &[1, 5][..]).is_err());
        let deep = "[".repeat(MESSAGE_MOST);
        assert!(decode::<Answer>(deep.as_bytes()).is_err());
    }
}
