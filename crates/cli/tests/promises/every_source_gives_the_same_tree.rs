//! Promise: SRC has the same syntax everywhere, and a tree is the same from every kind of source.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{INARCH, any_machine, assert_one_line, assert_status, host, scratch, stderr, stdout};

/// A tree that every format can hold: times of whole seconds, names in ASCII.
const TREE: &str = "
    mkdir -p tree/bin tree/etc tree/src/out tree/empty
    cp /bin/busybox tree/bin/; for tool in sh cat find sort xargs stat sha1sum; do ln -s busybox tree/bin/$tool; done
    echo conf > tree/etc/conf; ln tree/etc/conf tree/src/hard; ln -s ../etc/conf tree/src/link
    seq 20000 > tree/src/numbers; echo object > tree/src/a.o; echo b > tree/src/out/b; printf '*.o\\n/out\\n' > tree/src/.gitignore
    chown -R 0:0 tree; chown 1000:1001 tree/src/numbers; chmod 4750 tree/src/numbers; chmod 1777 tree/empty
    setfattr -n user.color -v red tree/etc/conf
    mkfifo tree/fifo
    find tree -exec touch -h -d @1500000000 {} +";

/// The tree as everything that can be a source, made by the tools of each format.
const SOURCES: &str = "
    tar --xattrs --format=pax -C tree -cf t.tar .
    gzip -k t.tar; xz -k -0 t.tar; zstd -q -k t.tar
    mke2fs -q -F -d tree t.ext4 16M 2>&1
    mkfs.erofs -E force-inode-extended t.erofs tree 2>&1
    mksquashfs tree t.squashfs -quiet -noappend -no-progress 2>&1
    truncate -s 120M t.btrfs; /sbin/mkfs.btrfs -q -r tree t.btrfs 2>&1
    umoci init --layout layout && umoci new --image layout:tag && umoci unpack --image layout:tag bundle
    cp -a tree/. bundle/rootfs/ && umoci repack --image layout:tag bundle
    skopeo copy -q oci:layout:tag docker-archive:t.docker:name:tag";

const NAMES: [&str; 13] = [
    "tree",
    "t.tar",
    "t.tar.gz",
    "t.tar.xz",
    "t.tar.zst",
    "t.ext4",
    "t.erofs",
    "t.squashfs",
    "t.btrfs",
    "oci:layout",
    "oci:layout:tag",
    "oci:t.docker",
    "t.docker",
];

/// Lists a tar: a line for each name, the root left out, of which some formats' tools do not keep the time.
const LIST: &str = "
import hashlib, sys, tarfile
archive = tarfile.open(sys.argv[1])
for m in archive:
    name = m.name.removeprefix('./').rstrip('/')
    if name in ('', '.'):
        continue
    content = hashlib.sha1(archive.extractfile(m).read()).hexdigest() if m.isreg() else m.linkname.removeprefix('./')
    xattrs = {key: value for key, value in m.pax_headers.items() if 'xattr' in key}
    print(name, m.type, oct(m.mode), m.uid, m.gid, int(m.mtime), m.size, content, xattrs)
";

fn sources(dir: &Path) {
    host("sh", &["-euc", TREE], dir);
    host("sh", &["-euc", SOURCES], dir);
}

/// What a program that reads a tar says of the tree that `inarch image SRC OPTIONS` makes one of.
#[track_caller]
fn listing(dir: &Path, source: &str, options: &[&str], input: Option<&Path>) -> String {
    let mut image = Command::new(INARCH);
    image.args(["image", "--quiet", source, "-o", "-", "--format", "tar"]).args(options).current_dir(dir);
    image.stdin(input.map_or(Stdio::null(), |path| File::open(path).expect("there is such a file").into()));
    let output = image.output().expect("inarch starts");
    assert_status(&output, 0);
    std::fs::write(dir.join("listed.tar"), &output.stdout).unwrap();
    host("python3", &["-c", LIST, "listed.tar"], dir)
}

#[test]
fn whatever_it_comes_from() {
    let dir = scratch();
    let dir = dir.path();
    sources(dir);
    let expected = listing(dir, "tree", &[], None);
    for part in ["src/numbers b'0' 0o4750 1000 1001 1500000000", "etc/conf", "'SCHILY.xattr.user.color'", "src/link"] {
        assert!(expected.contains(part), "{part} is not in\n{expected}");
    }
    assert_eq!(expected.lines().count(), 21, "{expected}");
    for source in NAMES {
        assert_eq!(listing(dir, source, &[], None), expected, "{source}");
    }
    for piped in ["t.tar", "t.tar.zst", "t.docker"] {
        assert_eq!(listing(dir, "-", &[], Some(&dir.join(piped))), expected, "{piped} on standard input");
    }
    let script = format!("exec {INARCH} image -q <(cat t.tar.gz) -o piped.tar");
    host("bash", &["-c", &script], dir);
    assert_eq!(listing(dir, "piped.tar", &[], None), expected, "a shell's pipe, and a tar of our own");

    // A directory of an archive or an image.
    let expected = listing(dir, "tree/src", &[], None);
    for source in ["t.tar:/src", "t.tar.gz:/src/", "t.docker:/src", "t.ext4:/src", "t.erofs:/src", "t.btrfs:/src"] {
        assert_eq!(listing(dir, source, &[], None), expected, "{source}");
    }
    // By links in it and by dots, which lead nowhere outside.
    let links = "mkdir l; ln -s src l/one; ln -s /l/one l/two; cp t.tar l.tar; tar -rf l.tar l/two -C l ./one";
    host("sh", &["-ec", links], dir);
    for source in ["l.tar:/one", "l.tar:/./bin/../src", "l.tar:/../src/."] {
        assert_eq!(listing(dir, source, &[], None), expected, "{source}");
    }
    let dangling = Command::new(INARCH).args(["plan", "l.tar:/l/two"]).current_dir(dir).output().unwrap();
    assert_one_line(&dangling, &["l.tar: /l/two: there is no such directory"]);

    // What is taken of it is the same as well.
    std::fs::write(dir.join("list"), "/src/link\nsrc/out/\n").unwrap();
    std::fs::write(dir.join("patterns"), "/bin/*\n!/bin/sh\n").unwrap();
    std::fs::write(dir.join("contexts"), "/.* u:r:any:s0\n/src(/.*)? -d u:r:dir:s0\n").unwrap();
    for options in [
        &["--exclude=*.o", "--exclude-regex=^src/o", "--include=busybox", "--exclude-from=patterns"][..],
        &["--ignore-file=.gitignore", "--only=list"],
        &["--owner=7:8", "--map-uid=1000:2000:1", "--map-gid=0:500:2", "--epoch=1400000000"],
        &["--selinux-contexts=contexts", "--exclude=bin"],
    ] {
        let expected = listing(dir, "tree", options, None);
        assert_ne!(expected, listing(dir, "tree", &[], None), "{options:?}");
        for source in ["t.tar", "t.ext4", "t.erofs", "t.squashfs", "t.btrfs", "oci:layout"] {
            assert_eq!(listing(dir, source, options, None), expected, "{source} {options:?}");
        }
    }
    guests_see_it(dir);
}

/// One guest whose root and trees come from five sources, by three file systems.
fn guests_see_it(dir: &Path) {
    let script = "for i in / /a /b /c /d; do cd $i && find bin etc src -type f | sort | xargs sha1sum | sha1sum; done; \
                  for i in / /a /b /d; do echo w > $i/etc/conf && cat $i/src/hard && mv $i/src $i/moved && cat $i/moved/out/b; done; \
                  echo w > /c/etc/conf || cat /c/etc/conf; stat -c '%n %a %Y' /a/empty; cat /proc/mounts";
    let output = Command::new(INARCH)
        .args(["run", "--quiet", any_machine(), "--root=t.tar.zst", "--via=erofs"])
        .args(["--tree=t.ext4:/a,via=squashfs", "--tree=t.squashfs:/b,via=ext4", "--tree=oci:layout:tag:/c,ro"])
        .args(["--tree=t.erofs:/d", "--", "/bin/busybox", "sh", "-c", script])
        .current_dir(dir)
        .stdin(Stdio::null())
        .output()
        .expect("inarch starts");
    assert_status(&output, 0);
    let seen = stdout(&output);
    let lines: Vec<&str> = seen.lines().collect();
    assert!(lines[..5].iter().all(|line| *line == lines[0] && line.len() == 43), "{seen}");
    assert_eq!(lines[5..13], ["w", "b"].repeat(4), "{seen}");
    assert_eq!(lines[13..15], ["conf", "/a/empty 1777 1500000000"], "{seen}");
    for mount in
        ["overlay / overlay rw", "overlay /a overlay rw", " /b ext4 rw", " /c erofs ro", "overlay /d overlay rw"]
    {
        assert!(seen.contains(mount), "{mount} is not in {seen}");
    }
    assert!(stderr(&output).contains("Read-only file system"), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_a_source_is_told_in_one_line() {
    let dir = scratch();
    let inarch = |arguments: &[&str]| Command::new(INARCH).args(arguments).current_dir(dir.path()).output().unwrap();
    std::fs::write(dir.path().join("zip.tar"), b"PK\x03\x04 and so on").unwrap();
    std::fs::write(dir.path().join("cut.tar.gz"), b"\x1f\x8b\x08\0").unwrap();
    std::fs::write(dir.path().join("disk.img"), [1; 4096]).unwrap();
    host("tar", &["-cf", "small.tar", "disk.img"], dir.path());
    let run = |tree: &str| inarch(&["run", "-q", any_machine(), tree, "--", "true"]);
    assert_one_line(&inarch(&["plan", "zip.tar"]), &["zip.tar: is a ZIP archive", "unpack it"]);
    assert_one_line(&inarch(&["plan", "cut.tar.gz"]), &["cut.tar.gz"]);
    assert_one_line(
        &inarch(&["plan", "disk.img:root"]),
        &["disk.img: it has no volume 'root'", "/dev/sda (nothing known)"],
    );
    for (path, what) in [("none", "there is no such directory"), ("disk.img", "it is no directory")] {
        let output = inarch(&["plan", &format!("small.tar:/{path}")]);
        assert_one_line(&output, &[&format!("small.tar: /{path}: {what}")]);
    }
    assert_one_line(&inarch(&["plan", "small.tar:none"]), &["small.tar: is an archive", "ARCHIVE:/PATH"]);
    assert_one_line(&inarch(&["plan", "oci:none:tag"]), &["none:tag: cannot be used as a source"]);
    assert_one_line(&run("--tree=cut.tar.gz"), &["say where the guest sees it", "--tree cut.tar.gz:/DIRECTORY"]);
    assert_one_line(&run("--tree=-:/mnt"), &["standard input cannot be a tree"]);
    assert_one_line(&run("--tree=.:/mnt,via=nfs"), &["'nfs'", "auto, ext4, erofs, squashfs"]);
    assert_one_line(&inarch(&["plan", ".", "--format=xfs"]), &["'xfs'", "ext4, erofs, squashfs"]);
    assert_one_line(&inarch(&["plan", ".", "--map-uid=1:2"]), &["FROM:TO:COUNT"]);
    assert_one_line(&inarch(&["plan", ".", "--exclude-regex=a("]), &["\"a(\"", "regular expression"]);
    assert_one_line(&inarch(&["plan", ".", "--only=none"]), &["none: cannot read it"]);
    std::fs::write(dir.path().join("contexts"), "/a -x u:r:x:s0\n").unwrap();
    assert_one_line(&inarch(&["plan", ".", "--selinux-contexts=contexts"]), &["contexts: line 1", "not a file type"]);
}
