//! Promise: `disk inspect` tells which Windows is on a disk, by its registry, and what it knows goes out as text, JSON, XML and words for guestfish.

use serde_json::{Value, json};

use super::a_guests_disk_is_looked_into::said;
use crate::support::{host, scratch};

/// Makes an empty hive (the "Base block", "Hive bin" and "Key node" of the regf specification), for hivexregedit to fill.
pub const EMPTY_HIVE: &str = r#"
import struct, sys
hive = bytearray(8192)
def put(at, data): hive[at:at + len(data)] = data
put(0, b"regf")
for at, n in [(4, 1), (8, 1), (20, 1), (24, 5), (32, 1), (36, 32), (40, 4096), (44, 1)]: put(at, struct.pack("<I", n))
put(4096, b"hbin"); put(4104, struct.pack("<I", 4096))
put(4128, struct.pack("<i", -88)); put(4132, b"nk\x2c\0")
for at in [16, 28, 32, 40, 48]: put(4132 + at, b"\xff" * 4)
put(4132 + 72, b"\4\0"); put(4132 + 76, b"ROOT"); put(4132 + 44, struct.pack("<I", 120))
put(4216, struct.pack("<i", -48)); put(4220, b"sk")
for at, n in [(4224, 120), (4228, 120), (4232, 1), (4236, 20), (4240, 0x80000001)]: put(at, struct.pack("<I", n))
put(4264, struct.pack("<i", 4096 - 168))
sum = 0
for at in range(0, 508, 4): sum ^= struct.unpack_from("<I", hive, at)[0]
put(508, struct.pack("<I", sum))
open(sys.argv[1], "wb").write(hive)
"#;

pub const SOFTWARE: &str = r#"Windows Registry Editor Version 5.00

[HKEY\Microsoft]

[HKEY\Microsoft\Windows NT]

[HKEY\Microsoft\Windows NT\CurrentVersion]
"ProductName"="Windows 10 Pro"
"CurrentMajorVersionNumber"=dword:0000000a
"CurrentMinorVersionNumber"=dword:00000000
"CurrentBuildNumber"="22631"
"InstallationType"="Client"

[HKEY\Microsoft\Windows]

[HKEY\Microsoft\Windows\CurrentVersion]

[HKEY\Microsoft\Windows\CurrentVersion\Uninstall]

[HKEY\Microsoft\Windows\CurrentVersion\Uninstall\{1}]
"DisplayName"="A <program>"
"DisplayVersion"="1.2"

[HKEY\Microsoft\Windows\CurrentVersion\Uninstall\none]
"DisplayVersion"="3"
"#;

/// `D:` is a partition of a GPT that is elsewhere.
const SYSTEM: &str = r#"Windows Registry Editor Version 5.00

[HKEY\Select]
"Current"=dword:00000001

[HKEY\ControlSet001]

[HKEY\ControlSet001\Services]

[HKEY\ControlSet001\Services\Tcpip]

[HKEY\ControlSet001\Services\Tcpip\Parameters]
"Hostname"="PC-1"

[HKEY\MountedDevices]
"\\DosDevices\\C:"=hex:78,56,34,12,00,00,10,00,00,00,00,00
"\\DosDevices\\D:"=hex:44,4d,49,4f,3a,49,44,3a,01,02,03,04,05,06,07,08,09,0a,0b,0c,0d,0e,0f,10
"\\??\\Volume{1}"=hex:00
"#;

const DISK: &str = r"
    mkdir -p Windows/System32/config
    for hive in SOFTWARE SYSTEM; do
        python3 empty.py Windows/System32/config/$hive
        hivexregedit --merge --prefix HKEY Windows/System32/config/$hive < $hive.reg
    done
    { printf MZ; head -c 58 /dev/zero; printf '\200\0\0\0'; head -c 64 /dev/zero; printf 'PE\0\0\144\206'; head -c 100 /dev/zero; } > Windows/System32/cmd.exe
    truncate -s 63M part.img; /sbin/mkfs.fat -F 32 -n SYSTEM part.img > /dev/null 2>&1
    mcopy -s -i part.img Windows ::/
    truncate -s 64M disk.img
    printf 'label: dos\nlabel-id: 0x12345678\nstart=2048,type=7\n' | /sbin/sfdisk -q disk.img
    dd if=part.img of=disk.img bs=1M seek=1 conv=notrunc status=none";

#[test]
fn as_its_registry_has_it() {
    let dir = scratch();
    for (name, text) in [("empty.py", EMPTY_HIVE), ("SOFTWARE.reg", SOFTWARE), ("SYSTEM.reg", SYSTEM)] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    host("sh", &["-ec", DISK], dir.path());
    let image = dir.path().join("disk.img");
    let image = image.to_str().unwrap();
    let told: Value = serde_json::from_str(&said(&["inspect", "--json", image])).unwrap();
    let expected = json!([{
        "root": "/dev/sda1", "root_subvolume": null, "kind": "windows", "distribution": "windows", "name": "Windows 11 Pro", "version": "10.0",
        "variant": "Client", "build": "22631", "arch": "x86_64", "hostname": "PC-1", "mounts": [],
        "drives": { "C": "/dev/sda1", "D": null }, "packaging": "windows",
        "packages": [{ "name": "A <program>", "version": "1.2", "arch": null }],
    }]);
    assert_eq!(told, expected);
    let text = said(&["inspect", image]);
    let rows: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    for row in ["system Windows 11 Pro", "host name PC-1", "C: /dev/sda1", "D: not on this disk"] {
        assert!(rows.contains(&row.to_owned()), "{text}");
    }
    std::fs::write(dir.path().join("told.xml"), said(&["inspect", "--xml", image])).unwrap();
    let read = "import xml.etree.ElementTree as e
t = e.parse('told.xml').getroot().find('operatingsystem')
print(t.findtext('root'), t.findtext('name'), t.findtext('major_version'), t.findtext('build_id'), t.findtext('hostname'))
print(t.find('mountpoints/mountpoint').attrib, t.findtext('filesystems/filesystem/type'), t.findtext('filesystems/filesystem/label'))
print(t.findtext('drive_mappings/drive_mapping'), t.findtext('applications/application/name'))";
    let read = host("python3", &["-c", read], dir.path());
    let expected = "/dev/sda1 windows 10 22631 PC-1\n{'dev': '/dev/sda1'} vfat SYSTEM\n/dev/sda1 A <program>\n";
    assert_eq!(read, expected);
    assert_eq!(said(&["inspect", "--options", &format!("{image}:1")]), format!("-a {image} -m /dev/sda1:/\n"));
}
