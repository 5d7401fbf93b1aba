//! A client that alone changes a directory is told the attributes of what it has read with the names there.

mod support;

use std::fs;

use inarch_fuse::ConnectionOptions;
use inarch_fuse::wire::structs::{Dirent, EntryOut, OpenIn, OpenOut, ReadIn, ReleaseIn};
use inarch_fuse::wire::{opcode, open_flag};
use inarch_vfs::{Changes, HostOptions};
use support::{Client, ROOT};
use zerocopy::{FromBytes, IntoBytes};

const ENOSYS: i32 = 38;

fn client(directory: &std::path::Path, opens_directories: bool) -> Client {
    let options =
        HostOptions { changes: Changes::Guest, without_opening: true, opens_directories, ..HostOptions::default() };
    let connection = ConnectionOptions { open: false, exclusive: true, ..ConnectionOptions::default() };
    let mut client = Client::of(directory, options, connection);
    assert_eq!(client.init().errno, 0);
    client
}

/// Opens and closes the root; gives the flags.
fn open_flags(client: &mut Client) -> u32 {
    let opened = client.call(opcode::OPENDIR, ROOT, OpenIn::default().as_bytes());
    assert_eq!(opened.errno, 0);
    let opened = OpenOut::read_from_bytes(&opened.body).unwrap();
    let release = ReleaseIn { fh: opened.fh, ..ReleaseIn::default() };
    assert_eq!(client.call(opcode::RELEASEDIR, ROOT, release.as_bytes()).errno, 0);
    opened.open_flags
}

/// Reads the root with attributes; gives the nodes and sizes that it tells.
fn told(client: &mut Client) -> Vec<(u64, u64)> {
    let (mut told, mut offset) = (Vec::new(), 0);
    loop {
        let read = ReadIn { offset, size: 4096, ..ReadIn::default() };
        let answer = client.call(opcode::READDIRPLUS, ROOT, read.as_bytes());
        assert_eq!(answer.errno, 0);
        let mut rest = &answer.body[..];
        if rest.is_empty() {
            return told;
        }
        while let Ok((entry, behind)) = EntryOut::read_from_prefix(rest) {
            let (dirent, _) = Dirent::read_from_prefix(behind).unwrap();
            offset = dirent.off;
            if entry.nodeid != 0 {
                told.push((entry.nodeid, entry.attr.size));
            }
            let length = size_of::<EntryOut>() + size_of::<Dirent>() + dirent.namelen as usize;
            rest = rest.get(length.next_multiple_of(8)..).unwrap_or_default();
        }
    }
}

#[test]
fn a_client_drops_what_it_has_of_a_directory_when_it_has_read_its_files() {
    let directory = tempfile::tempdir().unwrap();
    for number in 0..9 {
        fs::write(directory.path().join(number.to_string()), "content").unwrap();
    }
    let mut client = client(directory.path(), true);
    let kept = open_flag::CACHE_DIR | open_flag::KEEP_CACHE;
    assert_eq!(open_flags(&mut client), kept);
    let mut nodes = told(&mut client);
    nodes.sort_unstable();
    assert_eq!((nodes.len(), told(&mut client).len(), open_flags(&mut client)), (9, 0, kept));
    for (node, size) in &nodes {
        let read = ReadIn { size: 4096, ..ReadIn::default() };
        assert_eq!(client.call(opcode::READ, *node, read.as_bytes()).body.len() as u64, *size);
    }
    assert_eq!(open_flags(&mut client), open_flag::CACHE_DIR);
    let mut again = told(&mut client);
    again.sort_unstable();
    assert_eq!(again, nodes);
    assert_eq!((open_flags(&mut client), told(&mut client).len()), (kept, 0));
}

#[test]
fn directories_are_not_opened_where_that_saves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut client = client(directory.path(), false);
    assert_eq!(client.call(opcode::OPENDIR, ROOT, OpenIn::default().as_bytes()).errno, ENOSYS);
}
