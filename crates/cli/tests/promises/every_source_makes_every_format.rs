//! Promise: any source can become any format, and nothing is lost except what a format, or the tool that made the
//! source, cannot hold. Sources are made by each format's own tools; each image is read by the kernel, by other
//! programs, and by inarch itself.

use std::collections::HashSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::listing::{Facts, Limit, Listing, Mount, assert_same, listing, within};
use crate::support::{INARCH, assert_status, host, scratch, stderr};

/// A tree with one of everything, but for what stops the tools that make sources: mkfs.erofs 1.5 cannot have names of
/// 255 bytes, and bsdtar reads negative times with fractions as other ones.
const TREE: &str = r#"
    repeat() { printf "$1%.0s" $(seq $2); }
    mkdir -p tree/dir/empty tree/odd tree/big tree/$(repeat d 60)/$(repeat e 60); cd tree; deep=$(echo ddd*/eee*)
    printf x > one; : > empty; head -c 4096 /dev/urandom > block; { head -c 4096 /dev/urandom; printf e; } > more
    head -c 131072 /dev/urandom > chunk; head -c 1500000 /dev/urandom > noise; seq 60000 > lines
    truncate -s 3M hole sparse; printf middle | dd of=sparse bs=1 seek=1500000 conv=notrunc status=none
    printf start > ends; truncate -s 1M ends; printf end | dd of=ends bs=1 seek=1048573 conv=notrunc status=none
    echo same > copy-1; echo same > copy-2; for i in $(seq 300); do echo $i > big/file-$i; done
    echo deep > $deep/$(repeat f 250); echo h > odd/.hidden; echo d > odd/-dash
    echo n > "odd/$(printf 'new\nline')"; echo r > "odd/$(printf 'not \377\376 utf-8')"; echo u > odd/ü
    echo q > 'odd/back\slash "quoted" $x'; echo s > 'odd/ spaces '
    ln more dir/hard; ln more $deep/hard; ln empty dir/hard-empty
    ln -s ../more dir/link; ln -s nowhere dangling; ln -P dangling dir/hard-symlink; ln -s /etc/passwd absolute; ln -s . self
    ln -s $(repeat t 59) t59; ln -s $(repeat t 60) t60; ln -s $(repeat t/ 1500) t3000; ln -s "$(printf 'bad \377')" bad
    mkfifo -m 640 fifo; mknod char c 1 3; mknod disk b 259 70000; ln fifo dir/hard-fifo; ln char dir/hard-char
    python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("socket")'
    chown 1000:70000 lines; chown 4294967294:65536 noise; chown -h 7:8 dangling; chown 33:33 dir; chown 5:6 .
    chmod 6755 block; chmod 0 chunk; chmod 1777 dir/empty; chmod 2750 dir; chmod 750 .
    setfattr -n user.color -v red one; setfattr -n user.empty one; setfattr -n user.binary -v 0x00ff0a3d0d00 one
    setfattr -n trusted.long -v $(repeat v 1500) lines; setfattr -h -n trusted.link -v yes dangling
    setfattr -n security.capability -v 0x0100000200040000000000000000000000000000 block; setfattr -n user.dir -v yes dir
    setfacl -m u:1000:r,g:2000:rwx,m::rx more; setfacl -d -m u:1001:rw,u::rwx,g::-,o::- dir
    find . -depth -exec touch -h -d '2021-03-04 05:06:07.123456789' {} +
    touch -h -d '1969-12-31 23:59:58' one; touch -d '2040-01-01 00:00:00.5' lines; touch -d @981173106 dir empty ."#;

/// The tree by the tools of each format. The image layout has two layers. The lower one has more than the tree; the upper one
/// removes that by name, a directory too, and replaces everything in `odd`.
const SOURCES: &str = r#"
    pack() { tar --xattrs --xattrs-include='*' --acls --format=pax --sort=name "$@" . 2>/dev/null; }
    pack -C tree -cf t.tar; gzip -k t.tar; xz -k -0 t.tar; zstd -q -k t.tar
    mke2fs -q -F -b 4096 -d tree t.ext4 32M
    mkfs.erofs -E force-inode-extended t.erofs tree
    mksquashfs tree t.squashfs -quiet -noappend -no-progress

    cp -a tree lower; echo gone > lower/gone; mkdir -p lower/dir/gone/sub lower/odd/sub; echo x > lower/dir/gone/sub/x
    echo old > lower/odd/old; mkdir -p upper/dir upper/odd; cp -a tree/odd upper; setfattr -n user.dir -v yes upper/dir
    : > upper/.wh.gone; : > upper/dir/.wh.gone; : > upper/odd/.wh..wh..opq
    setfacl -d -m u:1001:rw,u::rwx,g::-,o::- upper/dir
    for d in . dir odd; do chown --reference=tree/$d upper/$d; chmod --reference=tree/$d upper/$d; done
    for d in odd dir .; do touch -r tree/$d upper/$d; done
    pack -C lower -cf 1.tar; pack -C upper -cf 2.tar
    mkdir -p layout/blobs/sha256; sum() { sha256sum "$1" | cut -d ' ' -f 1; }
    blob() {
        printf '"digest":"sha256:%s","size":%s' $(sum "$1") $(stat -c %s "$1"); cp "$1" layout/blobs/sha256/$(sum "$1")
    }
    gzip -k 1.tar; type=application/vnd.oci.image
    printf '{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:%s","sha256:%s"]}}' \
        $(sum 1.tar) $(sum 2.tar) > config
    printf '{"schemaVersion":2,"config":{"mediaType":"%s.config.v1+json",%s},"layers":[%s,%s]}' $type "$(blob config)" \
        "{\"mediaType\":\"$type.layer.v1.tar+gzip\",$(blob 1.tar.gz)}" \
        "{\"mediaType\":\"$type.layer.v1.tar\",$(blob 2.tar)}" > manifest
    printf '{"schemaVersion":2,"manifests":[{"mediaType":"%s.manifest.v1+json",%s}]}' $type "$(blob manifest)" > layout/index.json
    echo '{"imageLayoutVersion":"1.0.0"}' > layout/oci-layout
    tar -C layout -czf layout.tar.gz .; skopeo --insecure-policy copy -q oci:layout docker-archive:t.docker:name:tag"#;

/// Each source, and what the tool that made it does not keep.
const FROM: [(&str, &[Limit]); 13] = [
    ("tree", &[]),
    ("t.tar", GNU_TAR),
    ("t.tar.gz", GNU_TAR),
    ("t.tar.xz", GNU_TAR),
    ("t.tar.zst", GNU_TAR),
    ("-", GNU_TAR),
    ("<(zstd -dc t.tar.zst)", GNU_TAR),
    ("oci:layout", GNU_TAR),
    ("oci:layout.tar.gz", GNU_TAR),
    ("oci:t.docker:name:tag", GNU_TAR),
    ("t.ext4", &[no_root, whole_seconds, seconds_of_32_bits, no_linked_symlinks]),
    ("t.erofs", &[]),
    ("t.squashfs", &[whole_seconds, unsigned_seconds, no_access_lists]),
];

/// t.tar in other clothes: each makes one of the formats.
const PACKED: [&str; 5] = ["t.tar.gz", "t.tar.xz", "t.tar.zst", "-", "<(zstd -dc t.tar.zst)"];

const GNU_TAR: &[Limit] = &[no_sockets, no_linked_devices];

/// A format with its options, what it cannot hold, and those who look at an image of it.
type Target = (&'static str, &'static [&'static str], &'static [Limit], &'static [Judge]);

const TO: [Target; 7] = [
    ("ext4", &[], &[], &[kernel, e2fsck]),
    ("erofs", &[], &[], &[kernel, fsck_erofs]),
    ("erofs", &["--compress=lz4"], &[], &[kernel, fsck_erofs]),
    ("squashfs", &[], SQUASHFS, &[kernel, unsquashfs]),
    ("squashfs", &["--compress=zstd"], SQUASHFS, &[kernel, unsquashfs]),
    ("tar", &[], &[no_sockets], &[gnu_tar, bsdtar]),
    ("cpio", &[], &[whole_seconds, nearest_unsigned_seconds, no_xattrs], &[bsdcpio, gnu_cpio]),
];

const SQUASHFS: &[Limit] = &[whole_seconds, nearest_unsigned_seconds, no_access_lists];

fn change(listing: &mut Listing, mut change: impl FnMut(&mut Facts)) {
    listing.values_mut().for_each(&mut change);
}

fn no_sockets(listing: &mut Listing) {
    // By its name: bsdtar makes a file of it.
    listing.remove(&b"socket"[..]);
}

fn no_root(listing: &mut Listing) {
    listing.remove(&b""[..]);
}

fn whole_seconds(listing: &mut Listing) {
    change(listing, |facts| facts.mtime.1 = 0);
}

fn seconds_of_32_bits(listing: &mut Listing) {
    change(listing, |facts| facts.mtime.0 = i64::from(facts.mtime.0 as i32));
}

fn unsigned_seconds(listing: &mut Listing) {
    change(listing, |facts| facts.mtime.0 = i64::from(facts.mtime.0 as u32));
}

fn nearest_unsigned_seconds(listing: &mut Listing) {
    change(listing, |facts| facts.mtime.0 = facts.mtime.0.clamp(0, u32::MAX.into()));
}

fn no_xattrs(listing: &mut Listing) {
    change(listing, |facts| facts.xattrs.clear());
}

fn no_access_lists(listing: &mut Listing) {
    change(listing, |facts| facts.xattrs.retain(|name, _| !name.starts_with(b"system.")));
}

fn no_holes(listing: &mut Listing) {
    for name in ["ends", "hole", "sparse"] {
        listing.get_mut(name.as_bytes()).unwrap().content = None;
    }
}

fn no_set_ids(listing: &mut Listing) {
    change(listing, |facts| facts.mode &= if facts.is(libc::S_IFREG) { !0o6000 } else { !0 });
}

/// Gives each name that is chosen an inode of its own.
fn unlink(listing: &mut Listing, chosen: impl Fn(&Facts) -> bool) {
    let highest = listing.values().map(|facts| facts.inode).max().unwrap_or_default();
    for (facts, fresh) in listing.values_mut().filter(|facts| chosen(facts)).zip(highest + 1..) {
        facts.inode = fresh;
    }
}

fn no_linked_devices(listing: &mut Listing) {
    unlink(listing, |facts| [libc::S_IFIFO, libc::S_IFCHR, libc::S_IFBLK].iter().any(|kind| facts.is(*kind)));
}

fn no_linked_symlinks(listing: &mut Listing) {
    unlink(listing, |facts| facts.is(libc::S_IFLNK));
}

fn no_links(listing: &mut Listing) {
    unlink(listing, |_| true);
}

fn no_times_of_links_and_directories(listing: &mut Listing) {
    change(listing, |facts| {
        if facts.is(libc::S_IFLNK) || facts.is(libc::S_IFDIR) {
            facts.mtime = (0, 0);
        }
    });
}

/// An image, and an empty directory for what a program makes of it.
struct Case<'a> {
    image: &'a Path,
    place: &'a Path,
}

impl Case<'_> {
    /// Runs a shell script in the directory; `$1` is the image.
    fn unpack(&self, script: &str) -> Listing {
        host("sh", &["-euc", script, "sh", self.image.to_str().unwrap()], self.place);
        listing(self.place)
    }
}

/// Gives what it finds in an image, where it unpacks one, and what it does not keep of it.
type Judge = fn(&Case<'_>) -> Verdict;

type Verdict = Option<(Listing, &'static [Limit])>;

fn kernel(case: &Case<'_>) -> Verdict {
    let mount = Mount::new(case.image, case.place.to_owned());
    Some((listing(&mount.0), &[]))
}

fn e2fsck(case: &Case<'_>) -> Verdict {
    host("e2fsck", &["-fn", case.image.to_str().unwrap()], case.place);
    None
}

fn fsck_erofs(case: &Case<'_>) -> Verdict {
    let found = case.unpack("fsck.erofs --extract=. --overwrite --preserve \"$1\"");
    // Version 1.5 cuts holes out of files, instead of leaving them.
    Some((found, &[no_links, no_set_ids, no_xattrs, no_holes]))
}

fn unsquashfs(case: &Case<'_>) -> Verdict {
    Some((case.unpack("unsquashfs -q -n -f -d . \"$1\""), &[]))
}

fn gnu_tar(case: &Case<'_>) -> Verdict {
    Some((case.unpack("tar --xattrs --xattrs-include='*' --acls --numeric-owner -xpf \"$1\""), &[]))
}

fn bsdtar(case: &Case<'_>) -> Verdict {
    Some((case.unpack("bsdtar --numeric-owner --acls --xattrs -xpf \"$1\""), &[no_root]))
}

fn bsdcpio(case: &Case<'_>) -> Verdict {
    Some((case.unpack("bsdtar --numeric-owner -xpf \"$1\""), &[no_root, no_sockets]))
}

fn gnu_cpio(case: &Case<'_>) -> Verdict {
    Some((case.unpack("cpio -idm --quiet < \"$1\""), &[no_root, no_linked_symlinks, no_times_of_links_and_directories]))
}

/// Runs `inarch image SRC -o OUT OPTIONS`; the source may be a shell's pipe, or `-` for t.tar.
fn image(dir: &Path, source: &str, output: &Path, options: &[&str]) {
    let mut command = match source.strip_prefix("<(") {
        Some(_) => Command::new("bash"),
        None => Command::new(INARCH),
    };
    match source.strip_prefix("<(") {
        Some(_) => command.args(["-c", &format!("exec {INARCH} image {source} \"$@\""), "bash"]),
        None => command.args(["image", source]),
    };
    let input = if source == "-" { File::open(dir.join("t.tar")).unwrap().into() } else { Stdio::null() };
    let made = command.arg("-o").arg(output).args(options).current_dir(dir).stdin(input).output().expect("it starts");
    assert_status(&made, 0);
    assert!(stderr(&made).starts_with(&format!("{}: ", output.display())), "{}", stderr(&made));
}

/// The images that were judged: the format, the kind of source, and a hash of the image's bytes. Several sources of one kind give the same
/// bytes, and a judge finds the same in them.
type Judged = Mutex<HashSet<(usize, usize, u64)>>;

/// A hash of a file's bytes.
fn hash(file: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(file).unwrap());
    hasher.finish()
}

/// One source as one format, in the directory `work`.
fn one_to_one(dir: &Path, work: &Path, expected: &Listing, judged: &Judged, from: usize, to: usize) {
    let ((source, source_limits), (format, options, format_limits, judges)) = (FROM[from], TO[to]);
    let what = format!("{source} as {format} {options:?}");
    if PACKED.contains(&source) && to != from % TO.len() {
        return;
    }
    // Where the source's tool does not keep the root's attributes, the image has others.
    let root: &[Limit] = if source_limits.contains(&(no_root as Limit)) { &[no_root] } else { &[] };
    // In memory: an unmount waits until the image is on its disk.
    let images = tempfile::tempdir_in("/dev/shm").unwrap();
    let output = images.path().join(format!("image.{format}"));
    image(dir, source, &output, &[options, &["--verify"]].concat());
    let kind = FROM.iter().position(|(_, limits)| *limits == source_limits).unwrap();
    if !judged.lock().unwrap().insert((to, kind, hash(&output))) {
        return;
    }
    let mut number = 0;
    let mut place = || {
        number += 1;
        let place: PathBuf = work.join(format!("place-{number}"));
        std::fs::create_dir(&place).unwrap();
        place
    };
    for judge in judges {
        if let Some((found, limits)) = judge(&Case { image: &output, place: &place() }) {
            let expected = within(expected, &[source_limits, format_limits, limits]);
            assert_same(&within(&found, &[limits, root]), &expected, &what);
        }
    }
    // A cpio is no source.
    if format != "cpio" {
        let back = work.join("back.tar");
        image(dir, output.to_str().unwrap(), &back, &[]);
        let (found, _) = gnu_tar(&Case { image: &back, place: &place() }).unwrap();
        let expected = within(expected, &[source_limits, format_limits, &[no_sockets]]);
        assert_same(&within(&found, &[root]), &expected, &format!("{what}, read back"));
    }
}

#[test]
fn each_to_each() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: each_to_each: device nodes, owners and mounts: they need root");
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    host("sh", &["-euc", TREE], dir);
    host("sh", &["-euc", SOURCES], dir);
    let expected = listing(&dir.join("tree"));
    assert_eq!(expected.len(), 345);
    let (next, judged) = (AtomicUsize::new(0), Judged::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let (from, to) = (number / TO.len(), number % TO.len());
                    if from >= FROM.len() {
                        break;
                    }
                    let work = scratch();
                    one_to_one(dir, work.path(), &expected, &judged, from, to);
                }
            });
        }
    });
    // At least one for each of the four kinds of sources.
    assert!(judged.lock().unwrap().len() >= 4 * TO.len());
}
