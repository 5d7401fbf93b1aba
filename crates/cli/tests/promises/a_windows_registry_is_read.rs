//! Promise: `disk reg` reads the registry of a Windows machine from its disk, its directory or one bare hive, with the changes
//! that are only in logs, and exports it as others do. It writes to none of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::a_guests_disk_is_looked_into::said;
use super::a_windows_disk_is_inspected::EMPTY_HIVE;
use crate::support::listing::listing;
use crate::support::{assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// Changes hives, and makes logs of how two of them differ. The words after it are the name of a function and its arguments.
///
/// The layouts are the "Base block", "Key node" and "Format of transaction log files" of the regf specification; note 3 to its
/// "Log entries" has the checksum, Marvin32.
const HIVES: &str = r#"
import struct, sys
def load(name): return bytearray(open(name, "rb").read())
def put(hive, at, number): struct.pack_into("<I", hive, at, number & 0xffffffff)
def get(hive, at): return struct.unpack_from("<I", hive, at)[0]
def save(name, hive):
    sum = 0
    for number, in struct.iter_unpack("<I", hive[:508]): sum ^= number
    put(hive, 508, sum)
    open(name, "wb").write(hive)
def date(name):
    hive = load(name)
    struct.pack_into("<Q", hive, 4100 + get(hive, 36) + 4, 132223104000000000)
    save(name, hive)
def dirty(name):
    hive = load(name)
    put(hive, 4, get(hive, 8) + 1)
    save(name, hive)
def marvin(data):
    low, high = 0x7a4e55c5, 0x82ef4d88
    turn = lambda number, by: (number << by | number >> 32 - by) & 0xffffffff
    for word, in struct.iter_unpack("<I", data + b"\x80" + bytes(7 - len(data) % 4)):
        low = low + word & 0xffffffff
        high ^= low
        low = turn(low, 20) + high & 0xffffffff
        high = turn(high, 9) ^ low
        low = turn(low, 27) + high & 0xffffffff
        high = turn(high, 19)
    return struct.pack("<II", low, high)
def changed(old, new): return [at for at in range(4096, len(new), 512) if old[at:at + 512] != new[at:at + 512]]
def head(old, new, kind):
    log = old[:512]
    for at, number in [(4, get(old, 8)), (28, kind), (40, len(new) - 4096)]: put(log, at, number)
    return log
def entries(old, new, name):
    old, new = load(old), load(new)
    sectors = changed(old, new)
    pages = b"".join(struct.pack("<II", at - 4096, 512) for at in sectors) + b"".join(new[at:at + 512] for at in sectors)
    pages += bytes(-(40 + len(pages)) % 512)
    start = b"HvLE" + struct.pack("<5I", 40 + len(pages), 0, get(old, 8), len(new) - 4096, len(sectors)) + marvin(pages)
    save(name, head(old, new, 6) + start + marvin(start) + pages)
def bitmap(old, new, name, written):
    old, new = load(old), load(new)
    sectors, bits = changed(old, new), bytearray((len(new) - 4096) // 4096)
    for at in sectors: bits[(at - 4096) // 4096] |= 1 << (at - 4096) // 512 % 8
    bits = b"DIRT" + bits
    log = head(old, new, 1)
    put(log, 12, get(old, 12) + int(written))
    save(name, log + bits + bytes(-len(bits) % 512) + b"".join(new[at:at + 512] for at in sectors))
def break_names(name): save(name, load(name).replace(b"Break here", b"Break\nhere"))
globals()[sys.argv[1]](*sys.argv[2:])
"#;

/// Values of a hive: a key, a name, and data as a registry file has it.
type Values<'a> = &'a [(&'a str, &'a str, &'a str)];

const SYSTEM: Values<'static> = &[
    ("Select", "Current", "dword:00000002"),
    (r"ControlSet001\Control", "Which", "\"first\""),
    (r"ControlSet002\Control", "Which", "\"second\""),
    (r"ControlSet002\Control\Übung", "n", "dword:00000001"),
];
const SOFTWARE: Values<'static> = &[
    (r"Microsoft\Windows NT\CurrentVersion", "ProductName", "\"Windows 10 Pro\""),
    (
        r"Microsoft\Windows NT\CurrentVersion\ProfileList\S-1-5-21-1-2-3-1001",
        "ProfileImagePath",
        r#"str(2):"C:\\Users\\alice""#,
    ),
];
const ALICE: Values<'static> =
    &[("Environment", "TEMP", r#"str(2):"%USERPROFILE%\\Temp""#), ("Environment", "Editor", "\"ed\"")];

/// Values of each kind in [`SYSTEM`]'s hive: name, data as a registry file has it, type, and what is printed of it alone.
const KINDS: [(&str, &str, &str, &str); 15] = [
    ("", "\"the default\"", "REG_SZ", "the default"),
    ("Text", r#""a \"quoted\" C:\\path\\""#, "REG_SZ", r#"a "quoted" C:\path\"#),
    (r#"\DosDevices\"C":"#, "\"\"", "REG_SZ", ""),
    ("Höhe 日本𝄞", "\"ü 日本𝄞\"", "REG_SZ", "ü 日本𝄞"),
    ("No end", "hex(1):61,00,62,00", "REG_SZ", "ab"),
    ("Expanded", "hex(2):25,00,48,00,25,00,00,00", "REG_EXPAND_SZ", "%H%"),
    ("Bytes", "hex:00,01,fe,ff", "REG_BINARY", "0001feff"),
    ("Number", "dword:fffffffe", "REG_DWORD", "4294967294"),
    ("Swapped", "hex(5):00,00,01,02", "REG_DWORD_BIG_ENDIAN", "258"),
    ("Long", "hex(b):ff,ff,ff,ff,ff,ff,ff,ff", "REG_QWORD", "18446744073709551615"),
    ("Several", "hex(7):6f,00,6e,00,65,00,00,00,74,00,77,00,6f,00,00,00,00,00", "REG_MULTI_SZ", "one\ntwo"),
    ("No type", "hex(0):aa", "REG_NONE", "aa"),
    ("No number", "hex(4):0a,0b", "REG_DWORD", "0a0b"),
    ("Of no known type", "hex(ffff0012):0c", "0xffff0012", "0c"),
    ("Nothing", "hex:", "REG_BINARY", ""),
];

/// The number that a value is.
fn number(kind: &str, shown: &str) -> Option<u64> {
    shown.parse().ok().filter(|_| kind.contains("WORD"))
}

/// Puts values into a hive; makes it if there is none. hivexregedit makes no key without the one that it is in.
fn merge(dir: &Path, hive: &str, values: Values<'_>) {
    if !dir.join(hive).exists() {
        host("python3", &["-c", EMPTY_HIVE, hive], dir);
    }
    let mut text = "Windows Registry Editor Version 5.00\n".to_owned();
    let mut last = "";
    for &(key, name, data) in values {
        let above = key.match_indices('\\').map(|(end, _)| &key[..end]);
        if key != last {
            text.extend(above.chain([key]).map(|key| format!("\n[HKEY\\{key}]\n")));
        }
        let name = format!("\"{}\"", name.replace('\\', r"\\").replace('"', "\\\""));
        text += &format!("{}={data}\n", if name == "\"\"" { "@" } else { &name });
        last = key;
    }
    fs::write(dir.join("merged.reg"), text).unwrap();
    host("sh", &["-ec", "PERL_UNICODE=IO hivexregedit --merge --prefix HKEY \"$0\" < merged.reg", hive], dir);
}

/// Makes the hive SYSTEM, with [`KINDS`].
fn merge_system(dir: &Path, hive: &str) {
    let many = format!("hex:{}00", "7f,".repeat(99));
    let kinds = KINDS.iter().map(|(name, data, ..)| ("Kinds", *name, *data));
    let below = [(r"Kinds\Below", "Many", &*many), (r"Kinds\[x] y", "n", "dword:00000001")];
    merge(dir, hive, &SYSTEM.iter().copied().chain(kinds).chain(below).collect::<Vec<_>>());
}

/// Makes a Windows: the directory `root`, an older one with other names in `old`, and the disk `disk.img`. What alice's TEMP
/// became last is only in a log.
fn machine(dir: &Path) {
    host("mkdir", &["-p", "root/Windows/System32/config", "root/Users/alice", "root/Users/Public"], dir);
    let config = |name: &str| format!("root/Windows/System32/config/{name}");
    merge_system(dir, &config("SYSTEM"));
    merge(dir, &config("SOFTWARE"), SOFTWARE);
    merge(dir, &config("SAM"), &[("SAM", "C", "hex:01,02")]);
    merge(dir, &config("DEFAULT"), &[("Environment", "TEMP", "\"nobody's\"")]);
    let alice = "root/Users/alice/NTUSER.DAT";
    merge(dir, alice, ALICE);
    fs::copy(dir.join(alice), dir.join("later")).unwrap();
    merge(dir, "later", &[("Environment", "TEMP", r#"str(2):"%TMP%""#)]);
    host("python3", &["-c", HIVES, "entries", alice, "later", "root/Users/alice/ntuser.dat.LOG1"], dir);
    host("python3", &["-c", HIVES, "dirty", alice], dir);
    let script = "
        mkdir -p old/WINNT/SYSTEM32 'old/Documents and Settings'
        cp -r root/Users/alice 'old/Documents and Settings/Alice'
        cp -r root/Windows/System32/config old/WINNT/SYSTEM32/Config
        (cd old/WINNT/SYSTEM32/Config; for f in SYSTEM SOFTWARE SAM; do mv $f $(echo $f | tr A-Z a-z); done)
        truncate -s 8M part.img; /sbin/mkntfs -F -Q -q part.img
        wimcapture --quiet --compress=none root root.wim; wimapply --quiet root.wim 1 part.img
        truncate -s 9M disk.img
        printf 'label: dos\\nstart=2048,type=7\\n' | /sbin/sfdisk -q disk.img
        dd if=part.img of=disk.img bs=1M seek=1 conv=notrunc status=none";
    host("sh", &["-ec", script], dir);
}

/// Lines with single spaces between their columns.
fn rows(text: &str) -> Vec<String> {
    text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn assert_refused(arguments: &[&str], parts: &[&str]) {
    let output = inarch([&["disk", "reg"], arguments].concat());
    assert_one_line(&output, parts);
    assert!(output.stdout.is_empty(), "{}", stdout(&output));
}

#[test]
fn from_a_disk_or_a_directory() {
    let dir = scratch();
    machine(dir.path());
    let before = listing(dir.path());
    for source in ["root", "old", "disk.img", "disk.img:1"] {
        let source = &*format!("{}/{source}", dir.path().display());
        let value = |key: &str, name: &str| said(&["reg", source, key, name]);
        for (name, _, _, shown) in KINDS {
            assert_eq!(value(r"hklm\system\KINDS", &name.to_uppercase()), format!("{shown}\n"), "{source}: {name}");
        }
        for (key, name, expected) in [
            (r"HKLM\SYSTEM\CurrentControlSet\Control", "Which", "second"),
            (r"HKLM\SYSTEM\currentcontrolset\control\übung", "N", "1"),
            (r"HKLM\SYSTEM\ControlSet001\Control", "Which", "first"),
            (
                r"Computer\HKEY_LOCAL_MACHINE\Software\microsoft\windows nt\currentversion\",
                "productname",
                "Windows 10 Pro",
            ),
            (r"HKLM\SAM\SAM", "C", "0102"),
            (r"HKU\.DEFAULT\Environment", "TEMP", "nobody's"),
            (r"HKU\.default\Environment", "TEMP", "nobody's"),
            (r"HKU\ALICE\Environment", "editor", "ed"),
            (r"HKEY_USERS\alice\environment", "temp", "%TMP%"),
            (r"HKU\S-1-5-21-1-2-3-1001\Environment", "TEMP", "%TMP%"),
            (r"hku\s-1-5-21-1-2-3-1001\Environment", "TEMP", "%TMP%"),
        ] {
            assert_eq!(value(key, name), format!("{expected}\n"), "{source}: {key}");
        }
        let keys = ["ControlSet001 key", "ControlSet002 key", "Kinds key", "Select key"];
        let listed = rows(&said(&["reg", source, r"HKLM\SYSTEM"]));
        assert_eq!(listed, [&[r"HKEY_LOCAL_MACHINE\SYSTEM", "NAME TYPE DATA"][..], &keys].concat(), "{source}");
        let environment = inarch(["disk", "reg", source, r"HKU\alice\Environment"]);
        assert_status(&environment, 0);
        let expected =
            [r"HKEY_USERS\alice\Environment", "NAME TYPE DATA", "Editor REG_SZ ed", "TEMP REG_EXPAND_SZ %TMP%"];
        let mut listed = rows(&stdout(&environment));
        listed[2..].sort();
        assert_eq!(listed, expected, "{source}");
        let note = stderr(&environment);
        assert!(note.lines().count() == 1 && note.contains("1 change that was not written back"), "{source}: {note}");
    }
    assert_eq!(listing(dir.path()), before);
}

#[test]
fn from_one_hive_as_text_and_json() {
    let dir = scratch();
    merge_system(dir.path(), "SYSTEM");
    host("python3", &["-c", HIVES, "date", "SYSTEM"], dir.path());
    fs::copy(dir.path().join("SYSTEM"), dir.path().join("hive")).unwrap();
    let before = listing(dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let (system, hive) = (&at("SYSTEM"), &at("hive"));

    let cell = |kind: &str, shown: &str| match number(kind, shown) {
        Some(number) => format!("{number} ({number:#x})"),
        None => shown.replace('\n', ", "),
    };
    let row = |(name, _, kind, shown): (&str, &str, &str, &str)| {
        let name = if name.is_empty() { "(Default)" } else { name };
        format!("{name} {kind} {}", cell(kind, shown)).trim_end().to_owned()
    };
    let head = [r"HKEY_LOCAL_MACHINE\SYSTEM\Kinds", "NAME TYPE DATA", "Below key", "[x] y key"].map(str::to_owned);
    let expected = head.into_iter().chain(KINDS.map(row)).collect::<Vec<_>>();
    // The name of the file tells where the hive belongs; the key may tell it too.
    for (file, key) in [(system, "kinds"), (system, r"\Kinds\"), (hive, r"HKLM\SYSTEM\Kinds")] {
        let mut listed = rows(&said(&["reg", file, key]));
        listed[2..4].sort();
        assert_eq!(listed, expected, "{file}: {key}");
    }
    assert_eq!(rows(&said(&["reg", hive, "kinds"]))[0], "Kinds");
    assert_eq!(said(&["reg", hive, "Kinds", "LONG"]), "18446744073709551615\n");
    assert_eq!(said(&["reg", hive, r"CURRENTCONTROLSET\Control", "Which"]), "second\n");
    let many = rows(&said(&["reg", hive, r"Kinds\Below"]));
    assert_eq!(many[2], format!("Many REG_BINARY {}... (100 bytes)", "7f".repeat(32)));
    assert_eq!(said(&["reg", hive, r"Kinds\Below", "Many"]), format!("{}00\n", "7f".repeat(99)));

    let json = |file: &str, key: &str| serde_json::from_str::<Value>(&said(&["reg", "--json", file, key])).unwrap();
    let values = KINDS.map(|(name, data, kind, shown)| {
        let size = match data.split_once(':') {
            Some(("dword", _)) => 4,
            Some((hex, bytes)) if hex.starts_with("hex") => bytes.split_terminator(',').count(),
            _ => 2 * (shown.encode_utf16().count() + 1),
        };
        let data = match (kind, number(kind, shown)) {
            ("REG_MULTI_SZ", _) => json!(shown.lines().collect::<Vec<_>>()),
            (_, Some(number)) => json!(number),
            _ => json!(shown),
        };
        json!({ "name": name, "type": kind, "size": size, "data": data })
    });
    let mut told = json(hive, "KINDS");
    told["subkeys"].as_array_mut().unwrap().sort_by_key(|name| name.as_str().unwrap().to_owned());
    assert_eq!(told, json!({ "path": "Kinds", "written": 0, "subkeys": ["Below", "[x] y"], "values": values }));
    let subkeys = ["ControlSet001", "ControlSet002", "Kinds", "Select"];
    // 2020-01-01, which `date` gives to the root.
    let written = 132_223_104_000_000_000_u64;
    let expected =
        json!({ "path": r"HKEY_LOCAL_MACHINE\SYSTEM", "written": written, "subkeys": subkeys, "values": [] });
    assert_eq!(json(system, ""), expected);
    assert_eq!(listing(dir.path()), before);
}

#[test]
fn with_the_changes_that_are_only_in_its_logs() {
    let dir = scratch();
    let dir = dir.path();
    let python = |words: &[&str]| host("python3", &[&["-c", HIVES], words].concat(), dir);
    // The second change makes the hive longer.
    let many = format!("hex:{}00", "7f,".repeat(5999));
    merge(dir, "old", &[("a", "n", "\"old\"")]);
    for (last, next, values) in [
        ("old", "new", &[("a", "n", "\"new\"")][..]),
        ("new", "newer", &[("a", "n", "\"newer\""), ("a", "many", &*many)]),
        ("newer", "newest", &[("a", "n", "\"newest\"")]),
    ] {
        fs::copy(dir.join(last), dir.join(next)).unwrap();
        merge(dir, next, values);
    }
    for (old, new, log) in [("old", "new", "first"), ("new", "newer", "second"), ("newer", "newest", "other")] {
        python(&["entries", old, new, log]);
    }
    for (log, written) in [("bitmap", "0"), ("bitmap of other", "1")] {
        python(&["bitmap", "old", "newer", log, written]);
    }
    fs::copy(dir.join("old"), dir.join("dirty")).unwrap();
    python(&["dirty", "dirty"]);
    let damage = |from: &str, to: &str, at: usize| {
        let mut bytes = fs::read(dir.join(from)).unwrap();
        bytes[at] ^= 0xFF;
        fs::write(dir.join(to), bytes).unwrap();
    };
    damage("first", "damaged first", 1000);
    damage("second", "damaged second", 1000);
    damage("old", "headless", 12);

    let (none, one, two) = (
        "it was not written back completely, and no log was found that has the rest",
        "1 change that was not written back yet was read from its log",
        "2 changes that were not written back yet were read from its logs",
    );
    fs::create_dir(dir.join("place")).unwrap();
    let hive = dir.join("place/hive");
    let hive = hive.to_str().unwrap();
    let log = |name: &str| format!("--log={}/{name}", dir.display());
    // The hive, its logs with what follows its name in theirs, and what is read.
    for (file, logs, expected, note) in [
        ("dirty", &[("first", ".LOG1")][..], "new", Some(one)),
        ("dirty", &[], "old", Some(none)),
        ("dirty", &[("first", ".log1"), ("second", ".Log2")], "newer", Some(two)),
        ("dirty", &[("second", ".LOG1"), ("first", ".LOG2")], "newer", Some(two)),
        ("dirty", &[("second", ".LOG1")], "old", Some(none)),
        ("dirty", &[("other", ".LOG1")], "old", Some(none)),
        ("dirty", &[("first", ".LOG1"), ("other", ".LOG2")], "new", Some(one)),
        ("dirty", &[("first", ".LOG1"), ("damaged second", ".LOG2")], "new", Some(one)),
        ("dirty", &[("damaged first", ".LOG1"), ("second", ".LOG2")], "old", Some(none)),
        ("dirty", &[("bitmap", ".LOG")], "newer", Some(one)),
        ("dirty", &[("bitmap of other", ".LOG")], "old", Some(none)),
        ("dirty", &[("first", ".LOG3")], "old", Some(none)),
        ("headless", &[("first", ".LOG1"), ("second", ".LOG2")], "newer", Some(two)),
        ("old", &[("first", ".LOG1"), ("bitmap", ".LOG")], "old", None),
    ] {
        fs::remove_dir_all(dir.join("place")).unwrap();
        fs::create_dir(dir.join("place")).unwrap();
        fs::copy(dir.join(file), hive).unwrap();
        for (log, end) in logs {
            fs::copy(dir.join(log), dir.join(format!("place/hive{end}"))).unwrap();
        }
        let before = listing(dir);
        let output = inarch(["disk", "reg", hive, "a", "n"]);
        assert_status(&output, 0);
        assert_eq!(stdout(&output), format!("{expected}\n"), "{file} with {logs:?}");
        let notes = stderr(&output);
        assert_eq!(notes.lines().count(), usize::from(note.is_some()), "{file} with {logs:?}: {notes}");
        assert!(note.is_none_or(|note| notes.contains(note)), "{file} with {logs:?}: {notes}");
        let named = said(&["reg", hive, "a", "n", &log("first")]);
        assert_eq!(named, if file == "old" { "old\n" } else { "new\n" }, "{file} with {logs:?}");
        assert_eq!(listing(dir), before);
    }

    // Logs that are named are read in place of those beside the hive.
    fs::copy(dir.join("dirty"), hive).unwrap();
    assert_eq!(host("hivexget", &["place/hive", "a", "n"], dir), "old\n");
    assert_eq!(said(&["reg", hive, "a", "n"]), "new\n");
    assert_eq!(said(&["reg", hive, "a", "n", &log("other")]), "old\n");
    let many = said(&["reg", hive, "a", "many", &log("second"), &log("first")]);
    assert_eq!(many, format!("{}00\n", "7f".repeat(5999)));
    assert_refused(&[hive, "a", "n", "--log=/missing"], &["/missing", "no such file"]);
}

/// The values of each key of a registry file by name, with all data as bytes but that of a dword.
fn told(file: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let (mut keys, mut key) = (BTreeMap::<String, BTreeMap<_, _>>::new(), String::new());
    let file = file.replace("\r\n", "\n").replace(",\\\n  ", ",");
    assert!(file.starts_with("Windows Registry Editor Version 5.00\n\n["), "{file}");
    for line in file.lines().skip(1) {
        if let Some(name) = line.strip_prefix('[') {
            // hivexregedit writes a backslash after the root's.
            key = name.strip_suffix(']').unwrap().trim_end_matches('\\').to_owned();
            assert!(keys.insert(key.clone(), BTreeMap::new()).is_none(), "{key} is there twice");
        } else if let Some((name, data)) = line.split_once('=') {
            let data = match data.strip_prefix('"') {
                Some(text) => {
                    let text = text.strip_suffix('"').unwrap().replace("\\\"", "\"").replace(r"\\", "\\");
                    let units = text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes);
                    let bytes: Vec<_> = units.map(|byte| format!("{byte:02x}")).collect();
                    format!("hex(1):{}", bytes.join(","))
                }
                None => data.replace("hex:", "hex(3):"),
            };
            keys.get_mut(&key).unwrap().insert(name.to_owned(), data);
        }
    }
    keys
}

#[test]
fn as_a_registry_file_like_that_of_hivexregedit() {
    let dir = scratch();
    let dir = dir.path();
    machine(dir);
    let before = listing(dir);
    let hive = "root/Windows/System32/config/SYSTEM";
    let regedit = |hive: &str, key: &str| {
        let script = r#"PERL_UNICODE=IO hivexregedit --export --prefix 'HKEY_LOCAL_MACHINE\SYSTEM' "$0" "$1""#;
        host("sh", &["-ec", script, hive, key], dir)
    };
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let exported = |source: &str, key: &str| said(&["reg", "--export", "--utf8", &at(source), key]);
    let all = exported(hive, "");
    assert_eq!(told(&all), told(&regedit(hive, r"\")));
    assert_eq!((told(&all).len(), told(&all)[r"HKEY_LOCAL_MACHINE\SYSTEM\Kinds"].len()), (10, KINDS.len()));
    for source in ["root", "disk.img"] {
        assert_eq!(exported(source, r"HKLM\SYSTEM"), all);
        let kinds = exported(source, r"HKLM\SYSTEM\kinds");
        assert_eq!(told(&kinds), told(&regedit(hive, r"\Kinds")));
        let current = exported(source, r"HKLM\SYSTEM\CurrentControlSet\Control");
        assert_eq!(told(&current), told(&regedit(hive, r"\ControlSet002\Control")));
    }
    // As Windows has it: CR and LF, lines that do not become long, and UTF-16 after a byte order mark.
    assert_eq!(all.matches("\r\n").count(), all.matches('\n').count());
    assert!(all.lines().all(|line| line.chars().count() <= 80) && all.contains(",\\\r\n  7f,"), "{all}");
    let wide = inarch(["disk", "reg", "--export", &at("disk.img"), r"HKLM\SYSTEM"]);
    assert_status(&wide, 0);
    assert!(wide.stdout.starts_with(b"\xff\xfeW\0") && wide.stdout.len().is_multiple_of(2));
    let units: Vec<u16> = wide.stdout.as_chunks().0.iter().copied().map(u16::from_le_bytes).collect();
    assert_eq!(String::from_utf16(&units).unwrap(), format!("\u{feff}{all}"));
    // What is only in a log is exported too.
    let environment = told(&exported("disk.img", r"HKU\alice\Environment"));
    let temp = &environment[r"HKEY_USERS\alice\Environment"]["\"TEMP\""];
    assert_eq!(temp, "hex(2):25,00,54,00,4d,00,50,00,25,00,00,00");
    assert_eq!(listing(dir), before);

    // A hive that is made of it is the same.
    fs::write(dir.join("again.reg"), all.replace('\r', "")).unwrap();
    host("python3", &["-c", EMPTY_HIVE, "again"], dir);
    let script = r"PERL_UNICODE=IO hivexregedit --merge --prefix 'HKEY_LOCAL_MACHINE\SYSTEM' again < again.reg";
    host("sh", &["-ec", script], dir);
    assert_eq!(regedit("again", r"\"), regedit(hive, r"\"));

    // Where `again` belongs, only the key can tell.
    assert_refused(&["--export", &at("again")], &["again", "full paths", r"HKLM\NAME"]);
    assert_eq!(exported("again", r"HKLM\SYSTEM\Select"), exported(hive, "Select"));
    // After a line break, a name would be lines of the file.
    merge(dir, "NTUSER.DAT", &[("Break here", "n", "\"1\""), ("a", "Break here", "\"2\""), ("a", "n", "\"3\"")]);
    host("python3", &["-c", HIVES, "break_names", "NTUSER.DAT"], dir);
    let output = inarch(["disk", "reg", "--export", "--utf8", &at("NTUSER.DAT")]);
    assert_status(&output, 0);
    let keys = ["HKEY_CURRENT_USER", r"HKEY_CURRENT_USER\a"];
    let values = BTreeMap::from([("\"n\"".to_owned(), "hex(1):33,00,00,00".to_owned())]);
    let expected = BTreeMap::from([(keys[0].to_owned(), BTreeMap::new()), (keys[1].to_owned(), values)]);
    assert_eq!(told(&stdout(&output)), expected);
    let notes = stderr(&output);
    assert_eq!(
        notes.lines().filter(|line| line.contains(r"Break\nhere") && line.contains("left out")).count(),
        2,
        "{notes}"
    );
    let json: Value = serde_json::from_str(&said(&["reg", "--json", &at("NTUSER.DAT"), "a"])).unwrap();
    let names = json["values"].as_array().unwrap().iter().map(|value| value["name"].as_str().unwrap());
    assert!(names.eq(["Break\nhere", "n"]), "{json}");
}

#[test]
fn what_is_not_there_or_damaged_gets_one_line() {
    let dir = scratch();
    let dir = dir.path();
    machine(dir);
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    host("sh", &["-ec", "echo text > text; : > none; mkdir dir; truncate -s 1M blank; mkfifo fifo"], dir);
    fs::copy(dir.join("root/Windows/System32/config/SYSTEM"), dir.join("hive")).unwrap();
    let before = listing(dir);
    for (source, system) in [("root", r"HKLM\SYSTEM"), ("disk.img", r"HKLM\SYSTEM"), ("hive", "")] {
        let key = |below: &str| format!("{system}{below}");
        let source = &at(source);
        assert_refused(&[source, &key(r"\Missing\Key")], &[source, "no key \"Missing\" at its top"]);
        assert_refused(&[source, &key(r"\Kinds\Missing"), ""], &[source, "no key \"Missing\" in \"Kinds\""]);
        assert_refused(&[source, &key(r"\Kinds\Missing"), "--export"], &[source, "no key \"Missing\" in \"Kinds\""]);
        assert_refused(&[source, &key(r"\Kinds"), "Missing"], &[source, "Kinds", "no value \"Missing\""]);
        assert_refused(&[source, &key(r"\Select"), ""], &[source, "Select", "no value \"\""]);
        for options in [
            &["--json", "--export"][..],
            &["--json", "--utf8"],
            &["--json", "Kinds"],
            &["--export", "Kinds"],
            &["--utf8"],
        ] {
            assert_refused(&[&[&**source, &key("")], options].concat(), &["--"]);
        }
    }
    for source in ["root", "disk.img"] {
        for key in ["", "HKLM", "HKU", r"HKCU\Environment", "Kinds"] {
            assert_refused(&[&at(source), key], &[source, r"must begin with HKLM\SYSTEM", "its users: alice"]);
        }
        for name in [r"HKLM\SECURITY", r"HKLM\HARDWARE", r"HKU\Public", r"HKU\S-1-5-21-1-2-3-1002"] {
            let missing = format!("no hive for {:?}", name.split_once('\\').unwrap().1);
            assert_refused(&[&at(source), name], &[source, &missing, "users are: alice"]);
        }
        // What is missing may be among the changes that a line tells of.
        assert_refused(&[&at(source), r"HKU\alice\New"], &["no key \"New\"", "1 change that was not written back"]);
        assert_refused(&[&at(source), r"HKLM\SYSTEM", "--log", &at("hive")], &[source, "for a single hive"]);
    }
    for (source, reason) in [
        ("text", "no hive, and no disk image"),
        ("none", "no hive, and no disk image"),
        ("blank", "no hive, and no disk image"),
        ("fifo", "no hive, and no disk image"),
        ("dir", "no Windows/System32/config"),
        ("missing", "no such file"),
        ("disk.img:2", "no volume '2'"),
        ("disk.img:/Windows", "leave the path out"),
    ] {
        let named = source.split(':').next().unwrap();
        assert_refused(&[&at(source), r"HKLM\SYSTEM"], &[named, reason]);
    }
    assert_eq!(listing(dir), before);

    let clean = fs::read(dir.join("hive")).unwrap();
    let hive = &*at("hive");
    for length in [3, 100, 4095, 4096, 4200] {
        fs::write(hive, &clean[..length]).unwrap();
        assert_refused(&[hive, r"HKLM\SYSTEM"], &[hive]);
    }
    // The root is no key. Another hive is read none the less.
    let mut damaged = clean.clone();
    damaged[4132] ^= 0xFF;
    fs::write(dir.join("root/Windows/System32/config/SYSTEM"), damaged).unwrap();
    assert_refused(&[&at("root"), r"HKLM\SYSTEM"], &["config/SYSTEM", "it is damaged at byte 4128"]);
    let product = said(&["reg", &at("root"), r"HKLM\SOFTWARE\Microsoft\Windows NT\CurrentVersion", "ProductName"]);
    assert_eq!(product, "Windows 10 Pro\n");

    // Numbers of a plain generator (Knuth's MMIX), so that a failure comes again.
    let mut seed = 1_u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below
    };
    let mut refused = 0;
    for round in 0..60 {
        let mut bytes = clean.clone();
        for _ in 0..=next(40) {
            let at = next(bytes.len());
            bytes[at] ^= 0xFF;
        }
        fs::write(hive, &bytes).unwrap();
        let option = if round % 2 == 0 { "--export" } else { "--json" };
        let output = inarch(["disk", "reg", option, hive, r"HKLM\SYSTEM\Kinds"]);
        if output.status.success() {
            let notes = stderr(&output);
            assert!(notes.lines().all(|line| line.starts_with("inarch: ")), "{notes}");
        } else {
            assert_one_line(&output, &[hive]);
            refused += 1;
        }
        assert_eq!(fs::read(hive).unwrap(), bytes);
    }
    assert!((5..60).contains(&refused), "{refused}");
}
