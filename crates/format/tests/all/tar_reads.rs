//! Archives made by other programs read as what they were made of.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::common::archive::{ALL, Capacity, is_root, run, sample};
use crate::common::compare::{assert_facts, assert_same, facts_of_directory, facts_of_tree, open};
use inarch_confine::Parsing;
use inarch_format::{Damage, ThisHost, TreeAndContent, oci};

const PLAIN: Capacity = Capacity { xattrs: false, times: false, long_names: false, large_owners: false, devices: true };

/// A directory with a sample, and room for archives.
struct Sample {
    scratch: tempfile::TempDir,
    source: PathBuf,
}

impl Sample {
    fn new(capacity: Capacity) -> Sample {
        let scratch = tempfile::tempdir().unwrap();
        let source = scratch.path().join("source");
        sample(&source, capacity);
        Sample { scratch, source }
    }

    /// What an archive of the sample is, by a program that is given the options.
    fn archived(&self, program: &str, options: &[&str]) -> TreeAndContent {
        let archive = self.scratch.path().join("archive");
        let _ = fs::remove_file(&archive);
        let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        arguments.extend(["-cf".as_ref(), archive.as_os_str(), "-C".as_ref(), self.source.as_os_str(), ".".as_ref()]);
        run(program, &arguments);
        self.read(&archive)
    }

    fn read(&self, archive: &Path) -> TreeAndContent {
        let opened = oci::open_tar_file(
            Parsing::unconfined(),
            open(archive),
            archive,
            &ThisHost::new(self.scratch.path()),
            Damage::Refused,
        );
        opened.unwrap_or_else(|error| panic!("{archive:?}: {error}"))
    }
}

#[test]
fn gnu_tar_of_every_format() {
    if !is_root() {
        return;
    }
    let sample = Sample::new(Capacity { devices: false, ..PLAIN });
    assert_same(&sample.archived("tar", &["--format=v7"]), &sample.source);
    let sample = Sample::new(PLAIN);
    assert_same(&sample.archived("tar", &["--format=ustar"]), &sample.source);
    let sample = Sample::new(Capacity { long_names: true, large_owners: true, ..PLAIN });
    for format in ["--format=gnu", "--format=oldgnu"] {
        assert_same(&sample.archived("tar", &[format]), &sample.source);
        let opened = sample.archived("tar", &[format, "--sparse", "--label=volume"]);
        assert_same(&opened, &sample.source);
        assert_holes(&opened);
        assert_same(&sample.archived("tar", &[format, "--incremental"]), &sample.source);
    }
    let sample = Sample::new(ALL);
    let attributes = ["--format=pax", "--xattrs", "--acls", "--selinux", "--numeric-owner"];
    assert_same(&sample.archived("tar", &attributes), &sample.source);
    for version in ["--sparse-version=0.0", "--sparse-version=0.1", "--sparse-version=1.0"] {
        let opened = sample.archived("tar", &[&attributes[..], &["--sparse", version, "--label=x"]].concat());
        assert_same(&opened, &sample.source);
        assert_holes(&opened);
    }
    assert_same(&sample.archived("tar", &[&attributes[..], &["--incremental"]].concat()), &sample.source);
    // Access lists with the names of users.
    run("setfacl", &["-m".as_ref(), "u:daemon:rwx,g:adm:r".as_ref(), sample.source.join("a").as_os_str()]);
    assert_same(&sample.archived("tar", &["--format=pax", "--xattrs", "--acls"]), &sample.source);
}

fn assert_holes(opened: &TreeAndContent) {
    for name in ["sparse", "sparse-end", "hole"] {
        let inode = opened.tree.lookup(name.as_bytes()).unwrap();
        let ranges = opened.tree.sparse_ranges(inode).unwrap_or_else(|| panic!("{name} has no holes"));
        let data: u64 = ranges.iter().map(|range| range.length).sum();
        assert!(data < opened.tree.inode(inode).size() / 4, "{name}");
    }
}

#[test]
fn bsdtar_of_every_format() {
    if !is_root() {
        return;
    }
    let sample = Sample::new(PLAIN);
    for format in ["ustar", "gnutar"] {
        assert_same(&sample.archived("bsdtar", &["--format", format]), &sample.source);
    }
    let sample = Sample::new(ALL);
    let opened = sample.archived("bsdtar", &["--format=pax", "--xattrs", "--acls"]);
    let mut found = facts_of_tree(&opened);
    // It writes the name both ways, and one of them cannot be told from GNU tar's way to write another name.
    for facts in found.values_mut() {
        facts.retain(|fact| fact != "user.a=1");
    }
    assert_facts(&found, &facts_of_directory(&sample.source));
    assert_holes(&opened);
}

#[test]
fn python_of_every_format() {
    if !is_root() {
        return;
    }
    let sample = Sample::new(Capacity { long_names: true, large_owners: true, ..PLAIN });
    let archive = sample.scratch.path().join("archive");
    for format in ["GNU_FORMAT", "PAX_FORMAT"] {
        let script = format!(
            "import sys, tarfile\nwith tarfile.open(sys.argv[1], 'w', format=tarfile.{format}) as t: t.add(sys.argv[2], '.')"
        );
        run("python3", &["-c".as_ref(), script.as_ref(), archive.as_os_str(), sample.source.as_os_str()]);
        assert_same(&sample.read(&archive), &sample.source);
    }
}

#[test]
fn compressed_archives_and_pipes() {
    if !is_root() {
        return;
    }
    let sample = Sample::new(PLAIN);
    for option in ["--gzip", "--zstd", "--xz"] {
        assert_same(&sample.archived("tar", &[option]), &sample.source);
        let archive = sample.scratch.path().join("archive");
        let opened = oci::open_tar_stream(
            Parsing::unconfined(),
            open(&archive),
            &ThisHost::new(sample.scratch.path()),
            Damage::Refused,
        )
        .unwrap();
        assert_same(&opened, &sample.source);
    }
    assert_eq!(fs::read_dir(sample.scratch.path()).unwrap().count(), 2, "nothing is left behind");
}
