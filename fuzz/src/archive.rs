//! Archives from arbitrary parts, with headers that get past the checksum.

use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_block::read_content;
use inarch_format::TreeAndContent;
use inarch_tree::{FileType, InodeId};

/// A tar archive.
#[derive(Arbitrary, Debug)]
pub enum Archive<'a> {
    Bytes(&'a [u8]),
    Members(Vec<Member<'a>>),
}

/// One header and what follows it.
#[derive(Arbitrary, Debug)]
pub struct Member<'a> {
    kind: u8,
    gnu: bool,
    names: [u8; 3],
    link: [u8; 2],
    mode: u16,
    /// Bytes that take the place of some of the header's.
    patch: Option<(u16, &'a [u8])>,
    records: Vec<(u8, &'a [u8])>,
    data: &'a [u8],
    /// Bytes that the header claims, instead of those of the data.
    claim: Option<u32>,
}

const KINDS: &[u8] = b"0123456755512xgLKSDMVN\0Z";
const NAMES: [&str; 16] = [
    "a",
    "b",
    "c",
    ".",
    "..",
    "",
    "d",
    ".wh.a",
    ".wh.b",
    ".wh..wh..opq",
    ".wh.",
    "e",
    "index.json",
    "blobs",
    "\u{ff}",
    "f",
];
const KEYWORDS: [&str; 20] = [
    "path",
    "linkpath",
    "size",
    "uid",
    "gid",
    "mtime",
    "SCHILY.xattr.user.a",
    "LIBARCHIVE.xattr.user.b",
    "SCHILY.acl.access",
    "SCHILY.acl.default",
    "GNU.sparse.major",
    "GNU.sparse.minor",
    "GNU.sparse.name",
    "GNU.sparse.realsize",
    "GNU.sparse.size",
    "GNU.sparse.map",
    "GNU.sparse.offset",
    "GNU.sparse.numbytes",
    "GNU.sparse.numblocks",
    "hdrcharset",
];

fn path(parts: &[u8]) -> String {
    let parts: Vec<&str> = parts.iter().map(|part| NAMES[usize::from(part % 16)]).collect();
    parts.join("/")
}

fn put(header: &mut [u8; 512], at: usize, bytes: &[u8]) {
    let at = at % 512;
    let count = bytes.len().min(512 - at);
    header[at..at + count].copy_from_slice(&bytes[..count]);
}

impl Archive<'_> {
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Archive::Bytes(bytes) => bytes.to_vec(),
            Archive::Members(members) => {
                let mut out = Vec::new();
                members.iter().take(64).for_each(|member| member.write(&mut out));
                out.resize(out.len() + 1024, 0);
                out
            }
        }
    }
}

impl Member<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let kind = KINDS[usize::from(self.kind) % KINDS.len()];
        let mut data = Vec::new();
        for (keyword, value) in self.records.iter().take(8) {
            let body = format!(" {}=", KEYWORDS[usize::from(keyword % 20)]);
            let length = body.len() + value.len() + 1;
            let digits = if length + 2 > 99 { 3 } else { 2 };
            data.extend_from_slice((length + digits).to_string().as_bytes());
            data.extend_from_slice(body.as_bytes());
            data.extend_from_slice(value);
            data.push(b'\n');
        }
        data.extend_from_slice(self.data);
        let mut header = [0; 512];
        put(&mut header, 0, path(&self.names).as_bytes());
        put(&mut header, 100, format!("{:07o}", self.mode).as_bytes());
        put(&mut header, 124, format!("{:011o}", self.claim.unwrap_or(data.len() as u32)).as_bytes());
        header[156] = kind;
        put(&mut header, 157, path(&self.link).as_bytes());
        put(&mut header, 257, if self.gnu { b"ustar  \0" } else { b"ustar\x0000" });
        if let Some((at, bytes)) = self.patch {
            put(&mut header, at.into(), bytes);
        }
        seal(&mut header);
        out.extend_from_slice(&header);
        out.extend_from_slice(&data);
        out.resize(out.len().next_multiple_of(512), 0);
    }
}

fn seal(header: &mut [u8; 512]) {
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    put(header, 148, format!("{sum:06o}\0").as_bytes());
}

/// Adds a plain regular file to an archive.
#[allow(dead_code, reason = "one of two targets uses it")]
pub fn add_file(out: &mut Vec<u8>, name: &str, data: &[u8]) {
    let mut header = [0; 512];
    put(&mut header, 0, name.as_bytes());
    put(&mut header, 100, b"0000644");
    put(&mut header, 124, format!("{:011o}", data.len()).as_bytes());
    header[156] = b'0';
    put(&mut header, 257, b"ustar\x0000");
    seal(&mut header);
    out.extend_from_slice(&header);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(512), 0);
}

/// Looks at everything that was opened.
pub fn look(opened: TreeAndContent) {
    let tree = Arc::clone(&opened.tree);
    assert!(opened.notes.len() < 1000);
    for (id, inode) in tree.inodes() {
        assert!(!tree.path(id).split(|byte| *byte == b'/').any(|part| part == b".."));
        if id != InodeId::ROOT {
            assert_eq!(tree.lookup(&tree.path(id)), Some(id));
        }
        if inode.file_type() == FileType::Regular {
            let mut bytes = vec![0; inode.size().min(1 << 16) as usize];
            read_content(&*opened.content, id, 0, &mut bytes).expect("every extent lies within the archive");
            let end = inode.size().saturating_sub(1000);
            read_content(&*opened.content, id, end, &mut [0; 2000]).expect("every extent lies within the archive");
        }
    }
}
