//! Promise: whatever an archive or a container image contains, nothing outside of it is read, written or removed. What
//! cannot be part of a tree is left out and named, what is invalid is refused in one line, and memory stays bounded.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, assert_one_line, assert_status, host, scratch, stderr};

/// Bytes of address space that each run may have: many bombs have more in them.
const MEMORY: u64 = 400 << 20;

/// Makes archives (`in.tar`) and image layouts (`layout`), each in a directory of its own.
const MAKER: &str = r#"
import gzip, hashlib, io, json, os, subprocess, tarfile
def member(name, data=b'', **fields):
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data
def directory(name): return member(name, type=tarfile.DIRTYPE, mode=0o755)
def symlink(name, target): return member(name, type=tarfile.SYMTYPE, linkname=target)
def hardlink(name, target): return member(name, type=tarfile.LNKTYPE, linkname=target)
def pax(name, headers, data=b''): return member(name, data, pax_headers=headers)
def sparse(name, size, map=b'0\n'):
    headers = dict(major='1', minor='0', name=name, realsize=str(size))
    return pax(name, {'GNU.sparse.' + key: value for key, value in headers.items()}, map.ljust(512, b'\0'))
def tar(*members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode='w', format=tarfile.PAX_FORMAT) as archive:
        for info, data in members:
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()
def archive(*members): open('in.tar', 'wb').write(tar(*members))
def bomb(pack=gzip.compress):
    info = tarfile.TarInfo('bomb')
    info.size = 1 << 30
    return pack(info.tobuf()) + pack(bytes(1 << 23)) * (1 << 7)
def zstd(data): return subprocess.run(['zstd', '-qc'], input=data, stdout=subprocess.PIPE, check=True).stdout
class Layout:
    def __init__(self):
        os.makedirs('layout/blobs/sha256')
        open('layout/oci-layout', 'w').write('{"imageLayoutVersion":"1.0.0"}')
    def blob(self, data, kind, **more):
        name = hashlib.sha256(data).hexdigest()
        open(self.path(name), 'wb').write(data)
        return dict(mediaType='application/vnd.oci.image.' + kind, digest='sha256:' + name, size=len(data), **more)
    def path(self, name): return 'layout/blobs/sha256/' + name.removeprefix('sha256:')
    def document(self, what, kind, **more): return self.blob(json.dumps(what).encode(), kind + '.v1+json', **more)
    def layer(self, data, kind='layer.v1.tar'): return self.blob(data, kind)
    def manifest(self, *layers, **more):
        config = self.document(dict(architecture='amd64', os='linux', rootfs=dict(diff_ids=[])), 'config')
        return self.document(dict(config=config, layers=layers, **more), 'manifest')
    def index(self, *manifests): self.write(json.dumps(dict(manifests=manifests)))
    def write(self, index): open('layout/index.json', 'w').write(index)
    def put(self, *layers): self.index(self.manifest(*[self.layer(layer) for layer in layers]))
def layout(*layers): Layout().put(*layers)
def docker(config, *layers, **members):
    image = dict(Config=config, RepoTags=['n:t'], Layers=layers)
    archive(member('manifest.json', json.dumps([image]).encode()), *[member(n, d) for n, d in members.items()])
"#;

/// Makes each case by its lines of Python.
fn make(dir: &Path, cases: &[(&str, &str)]) {
    let mut program = MAKER.to_owned();
    for (number, (_, lines)) in cases.iter().enumerate() {
        let place = dir.join(number.to_string());
        std::fs::create_dir_all(place.join("tmp")).unwrap();
        program += &format!("os.chdir({place:?})\n{lines}\n");
    }
    std::fs::write(dir.join("make.py"), program).unwrap();
    host("python3", &["make.py"], dir);
}

/// Runs `inarch image` in `place`, where a case was made, in little memory.
fn image(place: &Path, source: &str, output: &str, spool: &Path) -> Output {
    let made = Command::new("prlimit")
        .args([&format!("--as={MEMORY}"), INARCH, "image", source, "-o", output])
        .current_dir(place)
        .env("TMPDIR", spool)
        .stdin(Stdio::null())
        .output()
        .expect("prlimit is there");
    assert_eq!(std::fs::read_dir(spool).unwrap().count(), 0, "something is left in TMPDIR");
    made
}

fn source_of(place: &Path) -> &'static str {
    if place.join("layout").exists() { "oci:layout" } else { "in.tar" }
}

/// Each: what it is, the lines that make it, and parts of the one line that refuses it.
const REFUSED: [(&str, &str, &[&str]); 33] = [
    (
        "a layer's bytes are others",
        "l = Layout(); b = l.layer(tar(member('a', b'1'))); l.index(l.manifest(b)); p = l.path(b['digest'])
d = bytearray(open(p, 'rb').read()); d[512] ^= 1; open(p, 'wb').write(d)",
        &["layout", "blobs/sha256/", "is damaged: its digest is"],
    ),
    (
        "a manifest's bytes are others",
        "l = Layout(); m = l.manifest(); l.index(m); p = l.path(m['digest'])
d = open(p).read(); open(p, 'w').write(d.replace('[]', '{}'))",
        &["is damaged"],
    ),
    (
        "a layer's size is another",
        "l = Layout(); b = l.layer(tar(member('a'))); b['size'] += 1; l.index(l.manifest(b))",
        &["has 10240 bytes, expected were 10241"],
    ),
    (
        "a layer is missing",
        "l = Layout(); b = l.layer(tar(member('a'))); l.index(l.manifest(b)); os.remove(l.path(b['digest']))",
        &["blobs/sha256/", "is missing"],
    ),
    (
        "a layer is of no known type",
        "l = Layout(); l.index(l.manifest(l.layer(b'x', 'layer.v1.tar+bzip2')))",
        &["unknown type: application/vnd.oci.image.layer.v1.tar+bzip2"],
    ),
    (
        "an artifact",
        "l = Layout(); l.index(l.document(dict(config=l.blob(b'{}', 'wasm'), layers=[]), 'manifest'))",
        &["is not a container image", "wasm"],
    ),
    (
        "a manifest is of no known type",
        "l = Layout(); l.index(l.document({}, 'other'))",
        &["no image in the index, only application/vnd.oci.image.other"],
    ),
    (
        "a manifest that is an index as well",
        "l = Layout(); m = l.manifest(); l.index(l.manifest(manifests=[m]))",
        &["sha256:", "is both an index and a manifest"],
    ),
    (
        "a manifest that says it is an index",
        "l = Layout(); l.index(l.manifest(mediaType='application/vnd.oci.image.index.v1+json'))",
        &["sha256:", "is both an index and a manifest"],
    ),
    (
        "a digest is a path",
        "l = Layout(); m = l.manifest(); m['digest'] = 'sha256:../../../../etc/passwd'; l.index(m)",
        &["'sha256:../../../../etc/passwd' is not"],
    ),
    (
        "a blob is a symlink",
        "l = Layout(); m = l.manifest(); l.index(m); p = l.path(m['digest']); os.rename(p, 'm'); os.symlink(os.path.abspath('m'), p)",
        &["symlinks in an image layout are not followed"],
    ),
    (
        "the directory of blobs is a symlink",
        "l = Layout(); l.index(l.manifest()); os.rename('layout/blobs', 'b'); os.symlink('../b', 'layout/blobs')",
        &["symlinks in an image layout are not followed"],
    ),
    (
        "a blob is a fifo",
        "l = Layout(); m = l.manifest(); l.index(m); p = l.path(m['digest']); os.remove(p); os.mkfifo(p)",
        &["not a regular file"],
    ),
    (
        "indexes within indexes",
        "l = Layout(); m = l.manifest()\nfor i in range(6): m = l.document(dict(manifests=[m]), 'index')\nl.index(m)",
        &["more than 4 indexes lie within each other"],
    ),
    (
        "a huge manifest",
        "l = Layout(); l.index(l.manifest(annotations={'x': 'y' * 9000000}))",
        &["has 9000", "at most 8388608"],
    ),
    ("a huge index", "Layout().write('[' * 9000000)", &["index.json has 9000000 bytes"]),
    ("a deep index", r#"Layout().write('{"x":' * 1000000)"#, &["index.json makes no sense"]),
    ("no JSON", "Layout().write('<html>')", &["index.json makes no sense", "line 1"]),
    ("another type in JSON", r#"Layout().write('{"manifests":[{"digest":5}]}')"#, &["index.json makes no sense"]),
    (
        "a flood of layers",
        "l = Layout(); b = l.layer(tar(member('a'))); l.index(l.manifest(*[b] * 2000))",
        &["2000 layers; at most 1024"],
    ),
    ("a layer is no archive", "layout(os.urandom(100000))", &["layer blobs/sha256/", "does not start as a tar"]),
    (
        "a layer is cut off",
        "layout(gzip.compress(tar(member('a', os.urandom(100000))))[:-5000])",
        &["layer blobs/sha256/", "gzip data is damaged or cut off"],
    ),
    ("Docker: a layer outside", "docker('c', '../../etc/passwd', c=b'{\"rootfs\":{\"diff_ids\":[\"x\"]}}')", &["'x'"]),
    ("Docker: no configuration", "docker('../c')", &["../c is missing"]),
    (
        "Docker: symlinks in a circle",
        "image = [dict(Config='c', Layers=[])]
archive(member('manifest.json', json.dumps(image).encode()), symlink('c', 'd'), symlink('d', 'c'))",
        &["c is missing"],
    ),
    (
        "Docker: a layer is another",
        "docker('c', 'l', c=json.dumps(dict(rootfs=dict(diff_ids=[ 'sha256:' + '0' * 64 ]))).encode(), l=tar(member('a')))",
        &["l is damaged"],
    ),
    ("tar: beyond the end", "archive(pax('a', {'size': '99999999999'}))", &["cut off", "99999999999 bytes"]),
    ("tar: beyond 64 bits", "archive(pax('a', {'size': str(2 ** 64 - 1)}))", &["cut off", "18446744073709551615"]),
    ("tar: a negative size", "archive(pax('a', {'size': '-1'}))", &["byte 1024", "size makes no sense"]),
    ("tar: a time that is none", "archive(pax('a', {'mtime': '9e99'}))", &["byte 1024", "mtime makes no sense"]),
    ("tar: a time beyond all", "archive(pax('a', {'mtime': '9' * 40}))", &["mtime makes no sense"]),
    ("tar: parts that overlap", "archive(sparse('a', 99, b'2\\n0\\n9\\n5\\n9\\n'))", &["map of a sparse file"]),
    ("tar: parts without end", "archive(sparse('a', 99, b'999999999\\n'))", &["map of a sparse file"]),
];

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let dir = scratch();
    let dir = dir.path();
    make(dir, &REFUSED.map(|(what, lines, _)| (what, lines)));
    for (number, (what, _, parts)) in REFUSED.iter().enumerate() {
        let place = dir.join(number.to_string());
        let docker = what.starts_with("Docker");
        let source = if docker { "oci:in.tar" } else { source_of(&place) };
        println!("{what}");
        assert_one_line(&image(&place, source, "out.erofs", &place.join("tmp")), parts);
        assert!(!place.join("out.erofs").exists(), "{what}: an image was made");
    }
}

/// Each: what it is, the lines that make it, parts of what is said, and the names there are then, in a tar of the tree.
const KEPT: [(&str, &str, &[&str], &[&str]); 10] = [
    (
        "paths that lead out",
        "layout(tar(member('../up', b'1'), member('/abs', b'2'), member('a/../../b', b'3'), symlink('s', '/'),
member('s/etc/x', b'4'), symlink('t', '../../..'), member('t/y', b'5')))",
        &["../up: it is left out", "a/../../b: it is left out", "/abs: its path is taken from the archive's root"],
        &["abs", "etc", "etc/x", "s", "t", "y"],
    ),
    (
        "hard links that lead out",
        "archive(hardlink('a', '/etc/passwd'), hardlink('b', '../../../etc/passwd'), symlink('s', '/etc'), hardlink('c', 's/passwd'),
hardlink('d', 's'), hardlink('e', 'e'), symlink('loop', 'loop'), hardlink('f', 'loop/x'), member('loop/y'))",
        &["a: it is left out", "b: it is left out", "c: it is", "e: it is", "f: it is", "loop/y: it is left out"],
        &["d", "loop", "s"],
    ),
    (
        "whiteouts of what is outside",
        "layout(tar(member('keep'), member('d/x'), symlink('s', '/')), tar(member('../.wh.keep'), member('.wh..'), member('.wh...'),
member('.wh.'), member('d/.wh.none'), member('none/.wh..wh..opq'), member('d/../../.wh..wh..opq'), member('keep/.wh.x')))",
        &["../.wh.keep: it is left out", "d/../../.wh..wh..opq: it is left out"],
        &["d", "d/x", "keep", "s"],
    ),
    (
        "whiteouts through symlinks, which stay in the tree",
        "layout(tar(member('etc/passwd'), member('etc/group'), symlink('s', '/')), tar(member('s/etc/.wh.passwd')))",
        &[],
        &["etc", "etc/group", "s"],
    ),
    (
        "opaque directories, whatever the order",
        "layout(tar(member('d/x'), member('e/y'), member('keep')), tar(member('d/new'), member('d/.wh..wh..opq'),
member('e/.wh..wh..opq'), member('e/new'), member('keep/.wh..wh..opq')))",
        &[],
        &["d", "d/new", "e", "e/new", "keep"],
    ),
    (
        "a whiteout of what another goes through",
        "layout(tar(member('d/x'), member('d/y')), tar(member('d/.wh.x'), member('.wh.d')))",
        &[],
        &[],
    ),
    (
        "one name many times",
        "archive(member('a', b'1'), directory('a'), member('a/b'), member('a', b'333'), member('a/c'))",
        &["a/c: it is left out"],
        &["a"],
    ),
    ("times before 1970 and far away", "archive(pax('a', {'mtime': '-5.5'}), pax('b', {'mtime': '9' * 14}))", &[], &["a", "b"]),
    ("a huge hole", "archive(sparse('a', 2 ** 62))", &[], &["a"]),
    ("no names for these", "archive(member('', b'1'), member('/', b'2'), member('./.'), member('x' * 1025), pax('p', {'path': 'q\\0r'}), member('ok'))", &["left out"], &["ok"]),
];

#[test]
fn what_would_lead_outside_stays_inside_or_is_left_out() {
    let dir = scratch();
    let dir = dir.path();
    make(dir, &KEPT.map(|(what, lines, ..)| (what, lines)));
    for (number, (what, _, parts, expected)) in KEPT.iter().enumerate() {
        let place = dir.join(number.to_string());
        let made = image(&place, source_of(&place), "out.tar", &place.join("tmp"));
        println!("{what}: {}", stderr(&made));
        assert_status(&made, 0);
        for part in *parts {
            assert!(stderr(&made).contains(part), "{what}: '{part}' is not in {}", stderr(&made));
        }
        let names = host("tar", &["-tf", "out.tar"], &place);
        let names: Vec<&str> = names.lines().map(|name| name.trim_start_matches("./").trim_end_matches('/')).collect();
        assert_eq!(names[1..], expected[..], "{what}");
        let mut left: Vec<_> = std::fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left.len(), 3, "{what}: {left:?}");
    }
}

/// A small tmpfs, unmounted when dropped.
struct SmallDisk<'a>(&'a Path);

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn bombs_take_little_memory_and_end_with_a_full_disk() {
    let dir = scratch();
    let dir = dir.path();
    make(
        dir,
        &[
            ("a file", "open('in.tar', 'wb').write(bomb())"),
            ("a layer", "layout(bomb())"),
            ("a layer in another compression", "layout(bomb(zstd))"),
            ("a hole", "archive(sparse('hole', 2 ** 62))"),
        ],
    );
    let small = dir.join("small");
    std::fs::create_dir(&small).unwrap();
    host("mount", &["-t", "tmpfs", "-o", "size=32m", "tmpfs", small.to_str().unwrap()], Path::new("/"));
    let disk = SmallDisk(&small);
    for number in 0..3 {
        let place = dir.join(number.to_string());
        let made = image(&place, source_of(&place), "out.erofs", disk.0);
        assert_one_line(&made, &["cannot keep what it unpacks to", "No space left on device"]);
        assert!(!place.join("out.erofs").exists());
    }
    for (format, part) in
        [("ext4", "ext4's greatest"), ("erofs", "greatest"), ("squashfs", "16 TiB"), ("cpio", "4 GiB")]
    {
        let place = dir.join("3");
        let made = image(&place, "in.tar", &format!("out.{format}"), disk.0);
        assert_one_line(&made, &[format, "4611686018427387904 bytes", part]);
    }
}
