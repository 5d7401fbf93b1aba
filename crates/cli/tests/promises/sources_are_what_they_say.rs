//! Promise: a known format that is not supported is refused by name; a damaged source is refused with the reason, and
//! with `--salvage` taken as far as it can be read, with every loss named.

use crate::support;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::{any_machine, assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// A file of `size` bytes, with some of them set.
fn disk(path: PathBuf, size: u64, parts: &[(u64, &[u8])]) -> PathBuf {
    let file = File::create(&path).unwrap();
    file.set_len(size).unwrap();
    for (at, bytes) in parts {
        file.write_all_at(bytes, *at).unwrap();
    }
    path
}

fn plan(path: &Path, more: &[&str]) -> std::process::Output {
    inarch([&["plan", path.to_str().unwrap()], more].concat())
}

#[test]
fn what_is_not_read_is_refused_by_its_name() {
    let dir = scratch();
    let dir = dir.path();
    const MIB: u64 = 1 << 20;
    let entry = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0];
    for (parts, said) in [
        (&[(0x8001, &b"BEA01"[..])][..], "a UDF file system"),
        (&[(510, b"\x55\xaa"), (446, &entry)], "no file system that inarch can read; it has /dev/sda1 (nothing known)"),
        (&[(510, b"\x55\xaa"), (512, b"EFI PART")], "partition table is damaged: the first copy: its header"),
        (&[(0, b"QFI\xfb")], "qcow2: version 0"),
        (&[(0, b"LUKS\xba\xbe")], "LUKS"),
        (&[(0, b"PK\x03\x04")], "a ZIP archive"),
    ] {
        let path = disk(dir.join("disk"), 4 * MIB, parts);
        assert_one_line(&plan(&path, &[]), &[path.to_str().unwrap(), said]);
        // Nobody can salvage what is not damaged.
        assert_one_line(&plan(&path, &["--salvage"]), &[said]);
    }
    let zeros = disk(dir.join("zeros"), MIB, &[]);
    assert_one_line(&plan(&zeros, &[]), &["holds nothing but zeros", "--salvage"]);
    let salvaged = plan(&zeros, &["--salvage"]);
    assert_status(&salvaged, 0);
    assert!(stdout(&salvaged).contains("nothing but zeros") || stderr(&salvaged).contains("nothing but zeros"));
    let empty = disk(dir.join("empty"), 0, &[]);
    assert_one_line(&plan(&empty, &[]), &["is empty"]);

    // A file system that does not begin where the file does.
    host("mke2fs", &["-qt", "ext4", "-E", "offset=1048576", "shifted", "8M"], dir);
    assert_one_line(&plan(&dir.join("shifted"), &[]), &["begins with", "zeros"]);
    // What is compressed or comes through a pipe has a name, too.
    host("sh", &["-c", "mke2fs -qt ext4 plain 8M; gzip -k plain"], dir);
    assert_one_line(&plan(&dir.join("plain.gz"), &[]), &["an ext4 file system", "unpack it"]);
    let piped = host(
        "sh",
        &["-c", "head -c 4M /dev/zero | (cat; printf x) | \"$0\" plan - 2>&1 || true", support::INARCH],
        dir,
    );
    assert!(piped.contains("begins with 4194304 zeros"), "{piped}");
}

/// Makes `tree` with a hundred directories of files in `dir`.
fn make_tree(dir: &Path) {
    let script = "mkdir tree; cd tree; for d in $(seq 100); do mkdir d$d
        for f in $(seq 20); do echo $d $f > d$d/file$f; done; head -c 100000 /dev/urandom > d$d/large; done";
    host("sh", &["-euc", script], dir);
}

/// Checks that a damaged image is refused by a line with `said` in it, and gives what `--salvage` says of it.
fn refused_or_salvaged(image: &Path, said: &[&str]) -> String {
    assert_one_line(&plan(image, &[]), said);
    let salvaged = plan(image, &["--salvage"]);
    assert_status(&salvaged, 0);
    let all = stdout(&salvaged) + &stderr(&salvaged);
    assert!(all.contains(said[0]), "{said:?} is not in {all}");
    all
}

#[test]
fn damaged_file_systems_are_refused_or_salvaged() {
    let dir = scratch();
    let dir = dir.path();
    make_tree(dir);
    host("mke2fs", &["-qt", "ext4", "-d", "tree", "whole.ext4", "64M"], dir);
    let whole = dir.join("whole.ext4");
    assert_status(&plan(&whole, &[]), 0);
    let copy = |name: &str| {
        std::fs::copy(&whole, dir.join(name)).unwrap();
        dir.join(name)
    };
    let cut = copy("cut.ext4");
    OpenOptions::new().write(true).open(&cut).unwrap().set_len(11_000_000).unwrap();
    refused_or_salvaged(&cut, &["cut off", "11000000 bytes", "67108864"]);
    // Noise over the inode tables and directories, behind the superblock and the descriptors.
    let noisy = copy("noisy.ext4");
    let noise: Vec<u8> =
        (0..12_u32 << 18).flat_map(|i| i.wrapping_mul(2_654_435_761).rotate_left(7).to_le_bytes()).collect();
    File::options().write(true).open(&noisy).unwrap().write_all_at(&noise, 100 * 1024).unwrap();
    assert_one_line(&plan(&noisy, &[]), &["noisy.ext4: ext4: its root"]);
    // One directory's block alone.
    let lost = copy("lost.ext4");
    let block = host("debugfs", &["-R", "bmap d7 0", "lost.ext4"], dir);
    let block: u64 = block.trim().parse().unwrap();
    let size: u64 = host("sh", &["-c", "dumpe2fs -h lost.ext4 2>/dev/null | sed -n 's/^Block size: *//p'"], dir)
        .trim()
        .parse()
        .unwrap();
    File::options().write(true).open(&lost).unwrap().write_all_at(&[0x55; 64], block * size + 30).unwrap();
    let said = refused_or_salvaged(&lost, &["\"d7\": has a block with a wrong checksum"]);
    assert!(!said.contains("d8"), "{said}");
    let out = dir.join("out.tar");
    assert_status(&inarch(["image", "--salvage", lost.to_str().unwrap(), "-o", out.to_str().unwrap()]), 0);
    let names = host("tar", &["-tf", "out.tar"], dir);
    assert!(names.contains("d8/file20") && !names.contains("d7/file"), "{names}");
    // Nor does a guest get them as if they were whole.
    let run = |image: &Path, more: &[&str]| {
        let words = ["run", any_machine(), "--root", image.to_str().unwrap()];
        inarch(words.into_iter().chain(more.iter().copied()).chain(["--", "/none"]))
    };
    assert_one_line(&run(&cut, &[]), &["cut off"]);
    assert_one_line(&run(&lost, &[]), &["\"d7\": has a block with a wrong checksum"]);
    // What can be read is booted, and has no such command. A quiet run says what is missing, too, since it failed.
    let salvaged = run(&lost, &["--salvage", "-q"]);
    assert_status(&salvaged, 127);
    assert!(stderr(&salvaged).contains("\"d7\""), "{}", stderr(&salvaged));

    // Images of ours, cut and changed.
    for format in ["erofs", "squashfs"] {
        let image = dir.join(format!("image.{format}"));
        assert_status(
            &inarch(["image", "tree", "-o", image.to_str().unwrap()].map(|word| match word {
                "tree" => dir.join("tree").into_os_string(),
                word => word.into(),
            })),
            0,
        );
        let size = image.metadata().unwrap().len();
        File::options().write(true).open(&image).unwrap().set_len(size / 6).unwrap();
        assert_one_line(&plan(&image, &[]), &["cut off"]);
    }
}

#[test]
fn a_plan_counts_each_file_once() {
    let dir = scratch();
    let script = "mkdir -p tree/sub tree/out && head -c 3000 /dev/zero > tree/a && ln tree/a tree/sub/b && ln tree/a tree/c && \
                  ln -s a tree/l && echo x > tree/out/x && tar -C tree -czf tree.tar.gz . && tar -C tree -cf tree.tar .";
    host("sh", &["-c", script], dir.path());
    let output = plan(&dir.path().join("tree"), &["--exclude=out"]);
    assert_status(&output, 0);
    let text = stdout(&output);
    let entries = "entries      5 (1 file, 1 directory, 1 symlink, 0 other, 2 more names of files)\n";
    assert!(text.contains(entries), "{text}");
    assert!(text.contains("content      2.9 KiB, none of it copied\n"), "{text}");
    assert!(text.contains("left out     1 name left out by filters, not counting what is below\n"), "{text}");
    let packed = stdout(&plan(&dir.path().join("tree.tar.gz"), &["--format=erofs"]));
    assert!(
        packed.contains("2.9 KiB, unpacked into a temporary file\n") && packed.contains("device       erofs"),
        "{packed}"
    );
    let plain = stdout(&plan(&dir.path().join("tree.tar"), &["--json"]));
    let plain: serde_json::Value = serde_json::from_str(&plain).unwrap();
    assert_eq!(
        (plain["entries"].as_u64(), plain["files"].as_u64(), plain["more_names"].as_u64()),
        (Some(7), Some(2), Some(2))
    );
    assert_eq!(plain["content"], "none of it copied");
}

#[test]
fn a_name_that_a_format_cannot_hold_is_refused_with_it() {
    let dir = scratch();
    let name = "n".repeat(300);
    let script = format!("echo x > a; tar -cf long.tar --transform 's,^a$,{name},' a");
    host("sh", &["-c", &script], dir.path());
    let source = dir.path().join("long.tar");
    for format in ["ext4", "erofs", "squashfs"] {
        assert_one_line(&plan(&source, &["--format", format]), &[&name, "a name of it has more than the 25"]);
    }
    let again = dir.path().join("again.tar");
    let made = inarch(["image", source.to_str().unwrap(), "-o", again.to_str().unwrap()]);
    assert_status(&made, 0);
    assert_eq!(host("tar", &["-tf", again.to_str().unwrap()], dir.path()), format!("./\n./{name}\n"));
}

#[test]
fn an_empty_archive_is_an_empty_tree() {
    let dir = scratch();
    host("tar", &["-cf", "empty.tar", "-T", "/dev/null"], dir.path());
    let report = stdout(&plan(&dir.path().join("empty.tar"), &["--json"]));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!((report["entries"].as_u64(), &report["notes"]), (Some(0), &serde_json::json!([])));
}

#[test]
fn a_compressed_archive_is_unpacked_where_the_user_says() {
    let dir = scratch();
    host("sh", &["-c", "echo x > a; tar -czf a.tar.gz a"], dir.path());
    let source = dir.path().join("a.tar.gz");
    for words in [&["plan"][..], &["image", "--format=tar", "-o", "/dev/null"]] {
        let call = std::process::Command::new(support::INARCH)
            .args(words)
            .arg(&source)
            .env("TMPDIR", dir.path().join("missing"))
            .output()
            .unwrap();
        assert_one_line(&call, &[dir.path().join("missing").to_str().unwrap()]);
    }
}

#[test]
fn a_container_image_says_what_is_unpacked() {
    let dir = scratch();
    let script = "echo x > a; tar -cf layer.tar a; echo '{\"rootfs\":{\"type\":\"layers\",\"diff_ids\":[\"sha256:'$(sha256sum layer.tar | \
        cut -c -64)'\"]}}' > config.json; echo '[{\"Config\":\"config.json\",\"RepoTags\":[\"a:b\"],\"Layers\":[\"layer.tar\"]}]' > \
        manifest.json; tar -cf image.tar manifest.json config.json layer.tar";
    host("sh", &["-c", script], dir.path());
    let report = stdout(&plan(&dir.path().join("image.tar"), &["--json"]));
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["content"], "none of it copied; compressed layers are unpacked into a temporary file");
}
