//! What the tests of archives share: a directory with one of everything, and archives written as files.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use inarch_block::{Content, HostFiles, read_content};
use inarch_format::{Format, ImageOptions, Layout, Piece};
use inarch_tree::Tree;
use inarch_tree::scan::{ScanOptions, scan};
use rustix::fs::XattrFlags;

/// Runs a program that must succeed, and gives what it prints.
pub fn run(program: &str, arguments: &[&OsStr]) -> String {
    run_in("C.UTF-8", program, arguments)
}

/// As [`run`], in a locale.
pub fn run_in(locale: &str, program: &str, arguments: &[&OsStr]) -> String {
    let output = Command::new(program).args(arguments).env("LC_ALL", locale).env("TZ", "UTC").output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a program with a file as its standard input; it must succeed and say nothing of errors.
pub fn run_with(input: &Path, directory: &Path, program: &str, arguments: &[&str]) {
    let input = Stdio::from(File::open(input).unwrap());
    let output = Command::new(program).args(arguments).current_dir(directory).stdin(input).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{program} {arguments:?}: {errors}");
}

/// Whether this user may make devices and set any attribute; prints that a test is skipped if not.
pub fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!(
            "skipped: {}: device nodes and owners of every kind: it needs root",
            std::thread::current().name().unwrap_or("a test")
        );
    }
    is_root
}

/// The parts of a sample that an archive can hold.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Extended attributes and access lists.
    pub xattrs: bool,
    /// Nanoseconds, and times before 1970.
    pub times: bool,
    /// Names of more than 100 bytes.
    pub long_names: bool,
    /// Owners beyond 2^21, the highest of old headers.
    pub large_owners: bool,
    /// Device nodes and fifos.
    pub devices: bool,
}

/// Everything.
pub const ALL: Capacity = Capacity { xattrs: true, times: true, long_names: true, large_owners: true, devices: true };

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Fills the directory `at` with one of everything that an archive of that capacity can hold.
pub fn sample(at: &Path, capacity: Capacity) {
    let Capacity { xattrs, times, long_names, large_owners, devices } = capacity;
    let path = |name: &str| at.join(name);
    fs::create_dir_all(path("directory/empty")).unwrap();
    fs::write(path("a"), "content of a\n").unwrap();
    fs::write(path("empty"), "").unwrap();
    fs::write(path("large"), (0..100_000u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    fs::hard_link(path("a"), path("directory/hard")).unwrap();
    fs::hard_link(path("a"), path("z-hard")).unwrap();
    fs::hard_link(path("empty"), path("z-empty")).unwrap();
    symlink("../a", path("directory/symlink")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    fs::write(at.join(OsStr::from_bytes(b"\xc3\xa4 utf-8 and spaces ")), "1").unwrap();
    fs::write(at.join(OsStr::from_bytes(b"not utf-8 \xff\xfe\n")), "2").unwrap();
    fs::write(path(&"h".repeat(90)), "3").unwrap();
    fs::write(path("-dash"), "4").unwrap();
    for (name, mode) in [("setuid", 0o6755), ("closed", 0o000), ("sticky", 0o1777)] {
        fs::write(path(name), name).unwrap();
        fs::set_permissions(path(name), std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    }
    sparse(&path("sparse"), 3_000_000, &[(0, 5000), (1 << 20, 4096), (2_999_000, 1000)]);
    sparse(&path("sparse-end"), 1 << 21, &[(65_536, 10)]);
    sparse(&path("hole"), 1 << 20, &[]);
    if long_names {
        let deep = format!("{}/{}", "d".repeat(120), "e".repeat(120));
        fs::create_dir_all(path(&deep)).unwrap();
        fs::write(path(&format!("{deep}/{}", "f".repeat(255))), "5").unwrap();
        fs::hard_link(path("large"), path(&format!("{deep}/hard"))).unwrap();
        symlink("t".repeat(300), path("long-target")).unwrap();
        symlink(OsStr::from_bytes(b"bad \xff target"), path("bad-target")).unwrap();
        fs::write(at.join(OsStr::from_bytes(&[b"bad \xff ", &[b'g'; 200][..]].concat())), "6").unwrap();
        sparse(&path(&format!("{deep}/sparse")), 1 << 20, &[(1 << 19, 512)]);
    }
    if devices {
        let kinds = [("fifo", "p", ""), ("char", "c", "1 3"), ("block", "b", "259 70000")];
        for (name, kind, numbers) in kinds {
            let file = path(name);
            let mut arguments = vec![file.as_os_str(), OsStr::new(kind)];
            arguments.extend(numbers.split_whitespace().map(OsStr::new));
            run("mknod", &arguments);
        }
    }
    std::os::unix::fs::chown(path("large"), Some(1000), Some(70_000)).unwrap();
    if large_owners {
        std::os::unix::fs::lchown(path("dangling"), Some(u32::MAX - 2), Some(3_000_000)).unwrap();
    }
    if xattrs {
        set(&path("a"), "user.color", b"red\0\n\xff");
        set(&path("a"), "user.a=b%3D", b"1");
        set(&path("a"), "user.empty", b"");
        set(&path("large"), "security.capability", &[1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        set(&path("directory"), "trusted.x", &[7; 1000]);
        run("setfacl", &["-m".as_ref(), "u:1000:r,g:2000:rwx,m::rx".as_ref(), path("sparse").as_os_str()]);
        let default = ["-d", "-m", "u:1001:rw,u::rwx,g::-,o::-"].map(OsStr::new);
        run("setfacl", &[&default[..], &[path("directory").as_os_str()]].concat());
    }
    let touch = |time: &str, name: &str| run("touch", &["-hd".as_ref(), time.as_ref(), path(name).as_os_str()]);
    touch("2020-02-03 04:05:06", ".");
    for name in ["large", "directory/symlink", "directory", "sparse"] {
        touch("2001-02-03 04:05:06", name);
    }
    if times {
        touch("2020-02-03 04:05:06.123456789", "a");
        touch("1969-12-31 23:59:58", "empty");
        touch("2300-01-01", "hole");
    } else {
        run(
            "find",
            &[
                at.as_os_str(),
                "-exec".as_ref(),
                "touch".as_ref(),
                "-hd@1234567890".as_ref(),
                "{}".as_ref(),
                "+".as_ref(),
            ],
        );
    }
}

/// A file of `size` bytes with holes between its parts.
fn sparse(path: &Path, size: u64, parts: &[(u64, usize)]) {
    let file = File::create(path).unwrap();
    file.set_len(size).unwrap();
    for (offset, length) in parts {
        file.write_all_at(&vec![b'x'; *length], *offset).unwrap();
    }
}

/// A scanned directory.
pub fn scanned(root: &Path) -> (Arc<Tree>, Arc<dyn Content>) {
    let scan = scan(root, &ScanOptions::default()).unwrap();
    let tree = Arc::new(scan.tree);
    let content = HostFiles::new(scan.root, Arc::clone(&tree), 16);
    (tree, Arc::new(content))
}

/// Writes an archive of a tree; gives the notes of its plan.
pub fn write(format: &dyn Format, tree: &Arc<Tree>, content: &dyn Content, path: &Path) -> Vec<String> {
    let planned = format.plan(tree, &ImageOptions::default()).unwrap();
    let Layout::Stream(stream) = planned.layout else { panic!("an archive is a stream") };
    let mut out = std::io::BufWriter::new(File::create(path).unwrap());
    let mut written = 0;
    for piece in stream.pieces() {
        assert!(piece.length() > 0, "an empty piece");
        written += piece.length();
        match piece {
            Piece::Bytes(bytes) => out.write_all(&bytes).unwrap(),
            Piece::Zeros(length) => out.write_all(&vec![0; length as usize]).unwrap(),
            Piece::File { inode, offset, length } => {
                let mut bytes = vec![0; length as usize];
                read_content(content, inode, offset, &mut bytes).unwrap();
                out.write_all(&bytes).unwrap();
            }
        }
    }
    out.flush().unwrap();
    assert_eq!(written, stream.length());
    planned.notes
}
