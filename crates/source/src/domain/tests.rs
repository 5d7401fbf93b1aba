//! Descriptions as `virsh dumpxml` of libvirt 9.0 and 10.0 gives them, shortened, and hostile ones.

use super::*;

fn domain(devices: &str) -> String {
    format!(
        "<!--\nWARNING: THIS IS AN AUTO-GENERATED FILE.\n-->\n<domain type='kvm'><name>g</name><devices>{devices}</devices></domain>"
    )
}

#[test]
fn disks_have_the_formats_that_are_described() {
    let xml = domain(
        "<emulator>/usr/bin/qemu-system-x86_64</emulator>
        <disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='/dev/vg/data'/><target dev='vdb' bus='virtio'/></disk>
        <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='/i/a &amp; b.qcow2' index='2'/>
          <backingStore type='file' index='3'><format type='qcow2'/><source file='/i/middle'/>
            <backingStore type='file'><format type='raw'/><source file='/i/base'/><backingStore/></backingStore></backingStore>
          <target dev='vda' bus='virtio'/></disk>
        <disk type='file' device='cdrom'><driver name='qemu' type='raw'/><source file='/i/cd.iso'/><target dev='sda'/><readonly/></disk>
        <disk type='file'><source file='/i/plain'/><target dev='vdc'/></disk>
        <disk type='file'><driver type='vpc'/><source file='/i/hd'/><target dev='vdaa'/></disk>",
    );
    let described = describe(&xml).unwrap();
    let disk = |path: &str, format: &str, with: &[&str]| DiskFile {
        path: path.into(),
        format: Some(format.parse().unwrap()),
        with: with.iter().map(PathBuf::from).collect(),
    };
    let expected = [
        disk("/i/a & b.qcow2", "qcow2", &["/i/middle", "/i/base"]),
        disk("/dev/vg/data", "raw", &[]),
        disk("/i/plain", "raw", &[]),
        disk("/i/hd", "vhd", &[]),
    ];
    assert_eq!((described.disks, described.is_running), (expected.to_vec(), false));
    assert!(describe("<domain id='3'/>").unwrap().is_running && !describe("<domain id='-1'/>").unwrap().is_running);
}

#[test]
fn what_is_not_read_is_named() {
    for (disk, part) in [
        (
            "<disk type='network'><source protocol='rbd' name='pool/image'/><target dev='vda'/></disk>",
            "on rbd (\"pool/image\")",
        ),
        ("<disk type='volume'><source pool='p' volume='v'/></disk>", "'virsh vol-path'"),
        ("<disk type='nvme'><source/></disk>", "type \"nvme\""),
        ("<disk type='file'><driver type='qed'/><source file='/x'/></disk>", "qed"),
        ("<disk type='file'><source file='x'/></disk>", "no whole path"),
        ("<disk type='file'/>", "no file"),
        (
            "<disk type='file'><source file='/x'/><backingStore type='network'><source protocol='nbd'/></backingStore></disk>",
            "a difference to",
        ),
    ] {
        let described = describe(&domain(disk)).unwrap();
        assert!(described.disks.is_empty() && described.left_out[0].contains(part), "{part}: {described:?}");
        assert_eq!(described.left_out[0].lines().count(), 1);
    }
}

#[test]
fn hostile_descriptions_are_refused() {
    let laughs = "<!DOCTYPE d [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;&a;&a;&a;&a;'>]><domain>&b;</domain>";
    let outside = "<!DOCTYPE d [<!ENTITY a SYSTEM 'file:///etc/passwd'>]><domain>&a;</domain>";
    let many = format!("<domain>{}</domain>", "<a/>".repeat(300_000));
    let deep = "<a>".repeat(100_000);
    // Each would be compared with all others.
    let attributes: String = (0..25_000).map(|number| format!(" a{number}='>'")).collect();
    let attributes = format!("<domain{attributes}/>");
    let (open, close): (String, String) = (0..100).map(|n| (format!("<a xmlns:a{n}='{n}'>"), "</a>")).unzip();
    let namespaces = format!("<domain>{open}{close}</domain>");
    for xml in
        [laughs, outside, &many, &deep, &attributes, &namespaces, "", "<domain", "<network/>", "<domain>&x;</domain>"]
    {
        assert!(describe(xml).is_err(), "{}", &xml[..xml.len().min(60)]);
    }
    let closed = format!("<domain>{}{}</domain>", "<a>".repeat(90_000), "</a>".repeat(90_000));
    let _ = describe(&closed);
    let sound = domain("<disk type='file'><driver type='raw'/><source file='/x'/><target dev='vda'/></disk>");
    for at in 0..sound.len() {
        let _ = describe(&sound[..at]);
        let mut damaged = sound.clone().into_bytes();
        damaged[at] ^= 0x15;
        let _ = String::from_utf8(damaged).map(|damaged| describe(&damaged).is_ok());
    }
    for name in [&b""[..], b"../x", b".x", b"a/b"] {
        assert!(matches!(source(name), Err(SourceError::Domain { .. })), "{name:?}");
    }
}
