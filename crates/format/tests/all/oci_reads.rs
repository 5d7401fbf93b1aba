//! Images made by umoci and skopeo read as umoci unpacks them.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::common::compare::assert_same;
use inarch_confine::Parsing;
use inarch_format::oci::Wanted;
use inarch_format::{Damage, ThisHost, TreeAndContent, oci};

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn open(path: &Path, reference: Option<&str>) -> TreeAndContent {
    let scratch = tempfile::tempdir().unwrap();
    let file = File::open(path).unwrap();
    let host = ThisHost::new(scratch.path()).with_layout(file.try_clone().unwrap().into(), path.to_owned());
    let opened = oci::open_file(
        Parsing::unconfined(),
        (file, path),
        Wanted { reference, ..Wanted::default() },
        &host,
        Damage::Refused,
    )
    .unwrap_or_else(|error| panic!("{path:?}: {error}"));
    assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "nothing is left behind");
    opened
}

/// A shell script that changes the root file system of an image's next layer.
fn layer(layout: &str, bundle: &Path, script: &str) {
    let _ = fs::remove_dir_all(bundle);
    let bundle = bundle.to_str().unwrap();
    let image = format!("{layout}:t");
    run("umoci", &["unpack", "--image", &image, bundle]);
    run("sh", &["-euc", &format!("cd {bundle}/rootfs; {script}")]);
    run("umoci", &["repack", "--image", &image, bundle]);
}

/// An image of four layers, with everything that a layer can do to those below.
fn image(scratch: &Path) -> String {
    let layout = scratch.join("layout").to_str().unwrap().to_owned();
    run("umoci", &["init", "--layout", &layout]);
    run("umoci", &["new", "--image", &format!("{layout}:t")]);
    let bundle = scratch.join("bundle");
    layer(
        &layout,
        &bundle,
        "mkdir -p a/b c/d opaque/x usr/lib; echo one > a/b/one; echo two > a/b/two; ln a/b/one c/hard; ln -s usr/lib lib
         echo gone > gone; echo old > file-to-dir; mkdir dir-to-file; echo x > dir-to-file/x; mkfifo fifo
         echo hidden > opaque/x/hidden; seq 100000 > c/large; chown 12:34 c/large; chmod 4755 c/large
         setfattr -n user.color -v red a/b/two; ln -s gone dangling; mknod null c 1 3",
    );
    layer(
        &layout,
        &bundle,
        "rm gone; rm file-to-dir; mkdir file-to-dir; echo y > file-to-dir/y; rm -r dir-to-file; echo file > dir-to-file
         rm -r opaque; mkdir opaque; echo new > opaque/new; echo changed > a/b/two; ln c/large usr/lib/large",
    );
    layer(
        &layout,
        &bundle,
        "rm dangling; rm -r a/b; mkdir a/b; echo three > a/b/three; chmod 700 c; touch -d @1 usr/lib",
    );
    layer(&layout, &bundle, "echo last > lib/through-link; rm c/hard");
    let _ = fs::remove_dir_all(&bundle);
    run("umoci", &["unpack", "--image", &format!("{layout}:t"), bundle.to_str().unwrap()]);
    layout
}

#[test]
fn every_kind_of_image_is_what_umoci_unpacks() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "skipped: every_kind_of_image_is_what_umoci_unpacks: unpacking an image with its owners: it needs root"
        );
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let layout = image(scratch.path());
    let expected = scratch.path().join("bundle/rootfs");
    let layout_path = Path::new(&layout);
    assert_same(&open(layout_path, None), &expected);
    assert_same(&open(layout_path, Some("t")), &expected);

    let archive = scratch.path().join("layout.tar");
    run("tar", &["-cf", archive.to_str().unwrap(), "-C", &layout, "."]);
    assert_same(&open(&archive, Some("t")), &expected);
    run("gzip", &["-k", archive.to_str().unwrap()]);
    assert_same(&open(&scratch.path().join("layout.tar.gz"), None), &expected);

    let docker = scratch.path().join("docker.tar");
    let from = format!("oci:{layout}:t");
    let to = format!("docker-archive:{}:name:tag", docker.display());
    run("skopeo", &["--insecure-policy", "copy", "-q", &from, &to]);
    for reference in [None, Some("name:tag")] {
        assert_same(&open(&docker, reference), &expected);
    }

    let zstd = scratch.path().join("zstd");
    let to = format!("oci:{}:t", zstd.display());
    run("skopeo", &["--insecure-policy", "copy", "-q", "--dest-compress-format", "zstd", &from, &to]);
    assert_same(&open(&zstd, None), &expected);
}
