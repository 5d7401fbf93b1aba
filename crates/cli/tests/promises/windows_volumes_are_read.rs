//! Promise: a volume of Windows (NTFS) is a source: `image` takes its files, `mount` shows them as ntfs-3g does, and `disk list`
//! names it as blkid does.

use std::fs::{self, File};
use std::path::Path;

use serde_json::Value;

use crate::support::mounted::{Scene, unmount};
use crate::support::{assert_status, host, inarch, stderr, stdout};

/// Fills a volume by ntfs-3g; false, with a line, where that cannot be mounted.
fn made(scene: &Scene) -> bool {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        let test = std::thread::current();
        eprintln!("skipped: {}: a mount of ntfs-3g: it needs root and /dev/fuse", test.name().unwrap_or("a test"));
        return false;
    }
    File::create(scene.path().join("ntfs.img")).unwrap().set_len(64 << 20).unwrap();
    let script = "/sbin/mkntfs --force --quick --quiet --with-uuid --label 'Data disk' ntfs.img
        mkdir theirs; /bin/ntfs-3g -o no_detach,compression,streams_interface=xattr ntfs.img theirs & server=$!
        until mountpoint -q theirs; do kill -0 $server; sleep 0.02; done; cd theirs
        mkdir -p Users/me packed; seq 300000 > Users/me/numbers; echo small > Users/me/small; ln -s small Users/me/link
        for i in $(seq 300); do echo $i > \"Users/a file with a name $i\"; done
        setfattr -h -n system.ntfs_attrib_be -v 0x00000800 packed; seq 200000 > packed/numbers
        setfattr -n user.Zone.Identifier -v '[ZoneTransfer]' Users/me/small; cd ..; umount theirs; wait $server";
    assert_status(&scene.shell(&format!("set -e; {script}")), 0);
    true
}

#[test]
fn by_every_command() {
    let scene = Scene::new();
    if !made(&scene) {
        return;
    }
    let image = scene.path().join("ntfs.img");
    let before = fs::metadata(&image).unwrap().modified().unwrap();
    let listed = inarch(["disk", "list", "--json", image.to_str().unwrap()]);
    assert_status(&listed, 0);
    let told: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let by_blkid = |key: &str| {
        host("/sbin/blkid", &["--probe", "--output", "value", "--match-tag", key, "ntfs.img"], scene.path())
            .trim()
            .to_owned()
    };
    for (field, key) in [("format", "TYPE"), ("label", "LABEL"), ("uuid", "UUID")] {
        assert_eq!(told[field].as_str().unwrap_or_default(), by_blkid(key), "{told}");
    }
    let made = inarch(["image", image.to_str().unwrap(), "-o", scene.path().join("x.tar").to_str().unwrap()]);
    assert_status(&made, 0);
    assert!(!stderr(&made).contains("left out"), "{}", stderr(&made));
    let script = "set -e; mkdir unpacked; tar -C unpacked --xattrs --xattrs-include='user.*' -xf x.tar
        /bin/ntfs-3g -o ro,uid=0,gid=0,fmask=0133,dmask=0022,streams_interface=xattr ntfs.img theirs
        $INARCH mount --background ntfs.img point
        diff -r --no-dereference theirs point; diff -r --no-dereference theirs unpacked
        for d in theirs point unpacked; do
            (cd $d; find . -printf '%P %m %U %G %s %l %T@\\n' | sed 's/^\\(.* 755 0 0\\) [0-9]* /\\1 /' | sort) > list-$d
            getfattr -n user.Zone.Identifier --only-values $d/Users/me/small
        done
        umount theirs
        cmp list-theirs list-point; cmp list-theirs list-unpacked";
    let compared = scene.shell(script);
    assert_status(&compared, 0);
    assert_eq!(stdout(&compared), "[ZoneTransfer]".repeat(3));
    unmount(&scene.path().join("point"));
    assert_eq!(fs::metadata(&image).unwrap().modified().unwrap(), before);
}
