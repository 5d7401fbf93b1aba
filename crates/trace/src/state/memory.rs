//! [`Memory`]: what is remembered of a run, stored as lines of JSON. The last line has the digest of all lines before it, so a file that
//! is incomplete or damaged is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use inarch_kept::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::fact::Fact;
use super::hashed::Digest;
use super::key::Key;
use crate::capture::{MOST, Stream};

/// The version of this format.
const VERSION: u32 = 1;
/// The longest line, in bytes: one with the names in a directory.
const LONGEST_LINE: u64 = 64 << 20;
/// The longest file, in bytes.
const LONGEST: u64 = 1 << 30;

/// What is remembered of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// When it ended, in seconds since 1970.
    pub at: u64,
    /// Standard output and standard error came through one pipe.
    pub is_joint: bool,
    pub key: Key,
    pub inputs: BTreeMap<PathBuf, Fact>,
    pub outputs: BTreeMap<PathBuf, Left>,
    /// What it printed.
    pub said: Option<Said>,
    /// Files that this program wrote about it, by what they are.
    pub files: BTreeMap<String, Digest>,
}

/// An output as the run left it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    pub fact: Fact,
    /// It can be made again.
    pub is_kept: bool,
}

/// What a run printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    pub sha256: Digest,
    pub pieces: Vec<(Stream, u64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Line {
    State {
        version: u32,
        at: u64,
        joint: bool,
    },
    Key {
        part: Bytes,
        sha256: Digest,
    },
    Input {
        path: Bytes,
        fact: Fact,
    },
    Output {
        path: Bytes,
        fact: Fact,
        kept: bool,
    },
    Said {
        sha256: Digest,
        pieces: Vec<(Stream, u64)>,
    },
    File {
        name: String,
        sha256: Digest,
    },
    /// The digest of all lines before.
    End {
        sha256: Digest,
    },
}

impl Memory {
    /// Writes it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write(&self, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::new(out);
        let mut hash = Sha256::new();
        let mut write = |line: Line, hash: Option<&mut Sha256>| {
            let mut text = serde_json::to_vec(&line)?;
            text.push(b'\n');
            if let Some(hash) = hash {
                hash.update(&text);
            }
            out.write_all(&text)
        };
        write(Line::State { version: VERSION, at: self.at, joint: self.is_joint }, Some(&mut hash))?;
        for (part, sha256) in &self.key {
            write(Line::Key { part: Bytes::new(part), sha256: sha256.clone() }, Some(&mut hash))?;
        }
        for (path, fact) in &self.inputs {
            write(Line::Input { path: Bytes::path(path), fact: fact.clone() }, Some(&mut hash))?;
        }
        for (path, Left { fact, is_kept }) in &self.outputs {
            write(Line::Output { path: Bytes::path(path), fact: fact.clone(), kept: *is_kept }, Some(&mut hash))?;
        }
        if let Some(Said { sha256, pieces }) = &self.said {
            write(Line::Said { sha256: sha256.clone(), pieces: pieces.clone() }, Some(&mut hash))?;
        }
        for (name, sha256) in &self.files {
            write(Line::File { name: name.clone(), sha256: sha256.clone() }, Some(&mut hash))?;
        }
        write(Line::End { sha256: hash.into() }, None)?;
        out.flush()
    }

    /// Reads it.
    ///
    /// # Errors
    /// The file cannot be read, is not complete, or is damaged; and what is wrong.
    pub fn read(text: impl BufRead) -> Result<Memory, String> {
        let mut text = text.take(LONGEST);
        let (mut memory, mut hash, mut line) = (Memory::default(), Sha256::new(), Vec::new());
        for number in 1_u64.. {
            let fail = |reason: String| format!("line {number}: {reason}");
            line.clear();
            let read = (&mut text).take(LONGEST_LINE).read_until(b'\n', &mut line);
            read.map_err(|error| fail(error.to_string()))?;
            if !line.ends_with(b"\n") {
                return Err(fail("it is not complete".to_owned()));
            }
            let parsed: Line = serde_json::from_slice(&line).map_err(|_| fail("it is damaged".to_owned()))?;
            match (number, parsed) {
                (1, Line::State { version: VERSION, at, joint }) => (memory.at, memory.is_joint) = (at, joint),
                (1, _) => return Err(fail("another version of this program wrote it".to_owned())),
                (_, Line::End { sha256 }) if sha256 == hash.clone().into() => return Ok(memory),
                (_, Line::End { .. } | Line::State { .. }) => return Err(fail("it is damaged".to_owned())),
                (_, other) => memory.add(other).map_err(|reason| fail(reason.to_owned()))?,
            }
            hash.update(&line);
        }
        unreachable!("a file has no more lines than there are numbers")
    }

    fn add(&mut self, line: Line) -> Result<(), &'static str> {
        const TWICE: &str = "it is there twice";
        let is_new = match line {
            Line::Key { part, sha256 } => self.key.insert(part.to_os_string().as_bytes().to_vec(), sha256).is_none(),
            Line::Input { path, fact } => self.inputs.insert(absolute(&path)?, fact).is_none(),
            Line::Output { path, fact, kept: is_kept } => {
                self.outputs.insert(absolute(&path)?, Left { fact, is_kept }).is_none()
            }
            Line::Said { sha256, pieces } => {
                let sum = pieces.iter().try_fold(0_u64, |sum, (_, length)| sum.checked_add(*length));
                if sum.is_none_or(|sum| sum > MOST) {
                    return Err("more than a command may print");
                }
                self.said.replace(Said { sha256, pieces }).is_none()
            }
            Line::File { name, sha256 } => self.files.insert(name, sha256).is_none(),
            Line::State { .. } | Line::End { .. } => false,
        };
        if is_new { Ok(()) } else { Err(TWICE) }
    }

    /// All objects that it refers to.
    pub fn objects(&self) -> BTreeSet<&Digest> {
        let outputs = self.outputs.values().filter(|left| left.is_kept).filter_map(Left::sha256);
        outputs.chain(self.said.iter().map(|said| &said.sha256)).chain(self.files.values()).collect()
    }
}

impl Left {
    /// The digest of a regular file.
    pub fn sha256(&self) -> Option<&Digest> {
        match &self.fact {
            Fact::There(there) => there.sha256.as_ref(),
            _ => None,
        }
    }
}

/// A path that leads where it says.
fn absolute(path: &Bytes) -> Result<PathBuf, &'static str> {
    let path = path.to_path();
    let is_plain =
        |path: &Path| path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if path.is_absolute() && is_plain(&path) && !path.as_os_str().as_bytes().contains(&0) {
        Ok(path)
    } else {
        Err("the path is not absolute")
    }
}

#[cfg(test)]
mod tests {
    use super::super::fact::There;
    use super::*;

    fn memory() -> Memory {
        let digest = Digest::of(b"content");
        let mode = libc::S_IFREG | 0o644;
        let file = There { mode, sha256: Some(digest.clone()), looked: Some((7, (1, 2))), ..There::default() };
        let names = Some(vec![(Bytes::new(b"\xff"), 'f'), (Bytes::new(b"a"), 'd')]);
        let directory = There { mode: libc::S_IFDIR | 0o755, names, ..There::default() };
        let there = |there| Fact::There(Box::new(there));
        Memory {
            at: 7,
            is_joint: true,
            key: [(b"the command".to_vec(), digest.clone())].into(),
            inputs: [("/a".into(), there(file.clone())), ("/".into(), there(directory)), ("/b".into(), Fact::Absent)]
                .into(),
            outputs: [("/out".into(), Left { fact: there(file), is_kept: true })].into(),
            said: Some(Said { sha256: digest.clone(), pieces: vec![(Stream::Output, 3), (Stream::Errors, 4)] }),
            files: [("depfile".to_owned(), digest)].into(),
        }
    }

    fn written(memory: &Memory) -> Vec<u8> {
        let mut text = Vec::new();
        memory.write(&mut text).unwrap();
        text
    }

    /// Lines with a right end.
    fn ended(lines: &str) -> String {
        let end = Line::End { sha256: Digest::of(lines.as_bytes()) };
        format!("{lines}{}\n", serde_json::to_string(&end).unwrap())
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(Memory::read(&*written(&memory())), Ok(memory()));
        assert_eq!(Memory::read(&*written(&Memory::default())), Ok(Memory::default()));
        assert_eq!(memory().objects().len(), 1);
    }

    #[test]
    fn no_cut_and_no_flipped_byte_is_believed() {
        let whole = written(&memory());
        for at in 0..whole.len() {
            assert!(Memory::read(&whole[..at]).is_err(), "{at}");
            for other in [b'"', b'{', b'9', b'\n', b' ', 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = other;
                assert!(bytes == whole || Memory::read(&*bytes).is_err(), "{at} {other}");
            }
        }
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
        let start = "{\"state\":{\"version\":1,\"at\":0,\"joint\":false}}\n";
        assert_eq!(Memory::read(ended(start).as_bytes()), Ok(Memory::default()));
        let digest = "0".repeat(64);
        for line in [
            "{\"output\":{\"path\":\"a\",\"fact\":\"absent\",\"kept\":false}}".to_owned(),
            "{\"output\":{\"path\":\"/a/../b\",\"fact\":\"absent\",\"kept\":false}}".to_owned(),
            "{\"input\":{\"path\":\"\",\"fact\":\"absent\"}}".to_owned(),
            "{\"input\":{\"path\":\"/a\\u0000\",\"fact\":\"absent\"}}".to_owned(),
            "{\"input\":{\"path\":\"/a\",\"fact\":\"other\"}}".to_owned(),
            "{\"file\":{\"name\":\"depfile\",\"sha256\":\"../../etc/passwd\"}}".to_owned(),
            format!("{{\"said\":{{\"sha256\":\"{digest}\",\"pieces\":[[\"output\",18446744073709551615]]}}}}"),
            format!(
                "{{\"said\":{{\"sha256\":\"{digest}\",\"pieces\":[[\"output\",1],[\"errors\",18446744073709551615]]}}}}"
            ),
            "[".repeat(100_000),
        ] {
            let text = ended(&format!("{start}{line}\n"));
            assert!(Memory::read(text.as_bytes()).is_err(), "{line}");
        }
        let twice = "{\"input\":{\"path\":\"/a\",\"fact\":\"absent\"}}\n".repeat(2);
        assert!(Memory::read(ended(&format!("{start}{twice}")).as_bytes()).is_err());
        assert!(Memory::read(ended(&start.replace(":1,", ":2,")).as_bytes()).is_err());
    }

    #[test]
    fn a_line_without_end_needs_no_memory_without_end() {
        assert!(Memory::read(std::io::BufReader::new(std::io::repeat(b' '))).is_err());
    }
}
