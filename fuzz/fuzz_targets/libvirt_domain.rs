//! Any text as libvirt's description of a domain: disks are read of it or it is refused, within bounded time and memory.

#![no_main]

use arbitrary::Arbitrary;
use inarch_jobs::source::read_description;
use libfuzzer_sys::fuzz_target;

/// Parts of which descriptions are made.
const PARTS: [&str; 24] = [
    "<domain type='kvm' id='1'>",
    "</domain>",
    "<devices>",
    "</devices>",
    "<disk type='file' device='disk'>",
    "<disk type='block'>",
    "<disk type='network'>",
    "</disk>",
    "<driver name='qemu' type='qcow2'/>",
    "<driver type='vpc'/>",
    "<source file='/i/a'/>",
    "<source dev='/dev/sdb'/>",
    "<source protocol='rbd' name='a'/>",
    "<target dev='vda'/>",
    "<backingStore type='file'>",
    "<format type='raw'/>",
    "</backingStore>",
    "<backingStore/>",
    "<a xmlns:a='b'>",
    "<!DOCTYPE a [<!ENTITY b 'c'>]>",
    "&b;",
    "<!--",
    "-->",
    "<![CDATA[",
];

#[derive(Arbitrary, Debug)]
enum Piece<'a> {
    Part(u8),
    Text(&'a str),
    /// A part, many times.
    Many(u8, u16),
    /// So many attributes of one element.
    Attributes(u16),
}

fuzz_target!(|pieces: Vec<Piece<'_>>| {
    let part = |number: u8| PARTS[usize::from(number) % PARTS.len()];
    let mut xml = String::from("<domain><devices>");
    for piece in &pieces {
        match piece {
            Piece::Part(number) => xml += part(*number),
            Piece::Text(text) => xml += text,
            Piece::Many(number, count) => xml += &part(*number).repeat(usize::from(*count)),
            Piece::Attributes(count) => {
                xml += "<a";
                (0..*count).for_each(|number| xml += &format!(" a{number}=''"));
                xml += "/>";
            }
        }
        if xml.len() > 4 << 20 {
            return;
        }
    }
    let closed = xml.clone() + "</devices></domain>";
    for xml in [xml, closed] {
        if let Ok(disks) = read_description(&xml) {
            assert!(disks <= 256);
        }
    }
});
