//! Completion: verbs, and then what the verb's usage names: devices, paths in the guest, files of this machine.

use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use inarch_jobs::shell::Kind;
use inarch_jobs::shown;
use inarch_tree::FileType;

use super::Shell;
use super::lex::{escape, quoted, typed};
use super::verbs::Verb;

/// The most names of a directory that are looked at.
const MOST: usize = 20_000;

/// What could be typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As it is shown.
    pub shown: String,
    /// As it is typed.
    pub typed: String,
}

/// A word that fits, and whether more of it follows, as after a directory.
struct Fitting {
    word: Vec<u8>,
    goes_on: bool,
}

impl Fitting {
    fn word(word: impl AsRef<str>) -> Fitting {
        Fitting { word: word.as_ref().as_bytes().to_vec(), goes_on: false }
    }
}

/// What may follow a line: the place where the word begins, and the words that it can become.
pub fn complete(shell: &mut Shell, line: &str) -> (usize, Vec<Candidate>) {
    let Some(typed) = typed(line) else { return (line.len(), Vec::new()) };
    let mut fitting = words(shell, &typed.before, &typed.text);
    fitting.retain(|fitting| fitting.word.starts_with(&typed.text));
    fitting.sort_by(|one, other| one.word.cmp(&other.word));
    fitting.dedup_by(|one, other| one.word == other.word);
    // All of them are quoted if one is, so that they have a beginning in common.
    let text = |fitting: &Fitting| !fitting.word.is_empty() && quoted(&fitting.word).starts_with('"');
    let are_quoted = typed.is_quoted || fitting.iter().any(text);
    let candidate = |fitting: Fitting| {
        let name = fitting.word.strip_suffix(b"/").unwrap_or(&fitting.word);
        let name = name.rsplit(|byte| *byte == b'/').next().filter(|_| fitting.word.starts_with(b"/"));
        let shown_word = shown(Path::new(std::ffi::OsStr::from_bytes(name.unwrap_or(&fitting.word))));
        let end = if fitting.goes_on { "/" } else { "" };
        let word = escape(&fitting.word);
        let typed = match (are_quoted, fitting.goes_on) {
            (true, true) => format!("\"{word}/"),
            (true, false) => format!("\"{word}\" "),
            (false, true) => format!("{word}/"),
            (false, false) => format!("{word} "),
        };
        Candidate { shown: shown_word + end, typed }
    };
    (typed.start, fitting.into_iter().map(candidate).collect())
}

fn words(shell: &mut Shell, before: &[std::ffi::OsString], text: &[u8]) -> Vec<Fitting> {
    // Verbs that run verbs have the inner one's words.
    let runs_others = |word: &std::ffi::OsString| ["time", "glob", "not"].iter().any(|name| word == name);
    let outer = before.iter().take_while(|word| runs_others(word)).count();
    let Some((name, words)) = before.get(outer..).unwrap_or_default().split_first() else {
        return Verb::all().flat_map(Verb::names).map(Fitting::word).collect();
    };
    let Some(verb) = name.to_str().and_then(Verb::named) else { return Vec::new() };
    let wanted = verb.words_at(words.len());
    let mut found = Vec::new();
    for kind in wanted.into_iter().flat_map(|wanted| wanted.split("-OR-")) {
        match kind {
            "DEVICE" | "PARTITION" | "ROOT" => found.extend(devices(shell, kind)),
            "PATH" | "DIR" | "PATTERN" => found.extend(of_guest(shell, text, kind == "DIR")),
            "IMAGE" | "LOCAL" | "LOCALDIR" => found.extend(of_host(text, kind == "LOCALDIR")),
            "VERB" => found.extend(Verb::all().flat_map(Verb::names).map(Fitting::word)),
            "TYPE" => {
                found.extend(inarch_jobs::make_disk::tools::MAKERS.iter().map(|maker| Fitting::word(maker.format)))
            }
            "GROUP" => found.extend(shell.session.groups().unwrap_or_default().iter().map(Fitting::word)),
            kind if kind.contains('|') => found.extend(kind.split('|').map(Fitting::word)),
            _ => {}
        }
    }
    found
}

/// Devices. What cannot be read has none.
fn devices(shell: &mut Shell, kind: &str) -> Vec<Fitting> {
    let session = &mut shell.session;
    let mut names = Vec::new();
    if kind == "ROOT" {
        names.extend(session.systems().unwrap_or_default().iter().map(|system| system.root.clone()));
    } else {
        names.extend(session.partitions().unwrap_or_default());
        if kind == "DEVICE" {
            names.extend(session.devices());
            for kind in [Kind::Array, Kind::Luks, Kind::Logical] {
                names.extend(session.above(kind).unwrap_or_default().into_iter().map(|(name, _)| name));
            }
        }
    }
    names.iter().map(Fitting::word).collect()
}

/// The directory of a path that is typed: what comes up to its last slash.
fn directory(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    text.get(..end).unwrap_or_default()
}

/// Paths in what is mounted.
fn of_guest(shell: &Shell, text: &[u8], only_directories: bool) -> Vec<Fitting> {
    let above = directory(text);
    let Ok(guest) = shell.session.guest() else { return Vec::new() };
    if above.is_empty() {
        return vec![Fitting { word: Vec::new(), goes_on: true }];
    }
    let names = guest.names(Path::new(std::ffi::OsStr::from_bytes(above)), MOST).unwrap_or_default();
    let fits = |(name, _): &(Vec<u8>, _)| [above, &**name].concat().starts_with(text);
    let mut found = Vec::new();
    for (name, kind) in names.into_iter().filter(fits) {
        let word = [above, &*name].concat();
        // A link may lead to a directory.
        let leads_to = || {
            let path = Path::new(std::ffi::OsStr::from_bytes(&word));
            guest.look(path, inarch_volume::Last::Followed).ok().flatten()?.attributes.file_type()
        };
        let kind = if kind == Some(FileType::Symlink) { leads_to() } else { kind };
        let goes_on = kind == Some(FileType::Directory);
        if goes_on || !only_directories {
            found.push(Fitting { word, goes_on });
        }
    }
    found
}

/// Files of this machine.
fn of_host(text: &[u8], only_directories: bool) -> Vec<Fitting> {
    let above = directory(text);
    let path = Path::new(std::ffi::OsStr::from_bytes(above));
    let path = if above.is_empty() { Path::new(".") } else { path };
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MOST);
    let fitting = |entry: fs::DirEntry| {
        let goes_on = entry.path().is_dir();
        let word = [above, &*entry.file_name().into_vec()].concat();
        (goes_on || !only_directories).then_some(Fitting { word, goes_on })
    };
    entries.filter_map(fitting).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use inarch_jobs::shell::DriveOptions;

    use super::*;

    fn typed(shell: &mut Shell, line: &str) -> Vec<String> {
        complete(shell, line).1.into_iter().map(|one| one.typed).collect()
    }

    #[test]
    fn verbs_come_first() {
        let mut shell = Shell::new(DriveOptions::default(), true);
        assert_eq!(typed(&mut shell, "list-f"), ["list-filesystems "]);
        assert_eq!(typed(&mut shell, "-list-f"), ["list-filesystems "]);
        assert_eq!(
            complete(&mut shell, "time  list-f"),
            (6, vec![Candidate { shown: "list-filesystems".to_owned(), typed: "list-filesystems ".to_owned() }])
        );
        assert_eq!(typed(&mut shell, "help part-d"), ["part-disk "]);
        assert_eq!(typed(&mut shell, "mkfs ext"), ["ext2 ", "ext3 ", "ext4 "]);
        assert_eq!(typed(&mut shell, "part-disk /dev/sda m"), ["mbr "]);
        for line in ["nothing ", "ls /", "cat /x | h", "!l", "ls 'x", "lvs "] {
            assert_eq!(typed(&mut shell, line), [""; 0], "{line}");
        }
    }

    #[test]
    fn then_what_the_verb_takes() {
        let dir = tempfile::tempdir().unwrap();
        let made = "mkdir -p r/etc/ssh 'r/etc/a b'; touch r/etc/passwd r/etc/profile \"r/etc/$(printf 'x\\033')\"; ln -s etc r/link
            ln -s nowhere r/lost; /sbin/mke2fs -q -t ext4 -d r image.img 8M 2> /dev/null; mkdir directory";
        let status = Command::new("sh").args(["-ec", made]).current_dir(dir.path()).status().unwrap();
        assert!(status.success());
        let mut shell = Shell::new(DriveOptions::default(), true);
        shell.session.add(&dir.path().join("image.img"), DriveOptions::default()).unwrap();
        assert_eq!(typed(&mut shell, "mount /dev/s"), ["/dev/sda "]);
        shell.session.mount("/dev/sda", Path::new("/"), "").unwrap();
        assert_eq!(typed(&mut shell, "cat "), ["/"]);
        assert_eq!(typed(&mut shell, "cat /"), ["/etc/", "/link/", "/lost "]);
        assert_eq!(typed(&mut shell, "ls /"), ["/etc/", "/link/"]);
        assert_eq!(typed(&mut shell, "cat /etc/p"), ["/etc/passwd ", "/etc/profile "]);
        assert_eq!(typed(&mut shell, "glob cat /link/s"), ["/link/ssh/"]);
        assert_eq!(typed(&mut shell, "cat /etc/a"), ["\"/etc/a b/"]);
        assert_eq!(typed(&mut shell, "cat \"/etc/a "), ["\"/etc/a b/"]);
        assert_eq!(typed(&mut shell, "cat \"/etc/pa"), ["\"/etc/passwd\" "]);
        assert_eq!(typed(&mut shell, "cat /etc/x"), ["\"/etc/x\\x1b\" "]);
        let (start, shown) = complete(&mut shell, "cat /etc/");
        assert_eq!(start, 4);
        let shown: Vec<_> = shown.into_iter().map(|one| one.shown).collect();
        assert_eq!(shown, ["a b/", "passwd", "profile", "ssh/", "x\\u{1b}"]);
        assert_eq!(typed(&mut shell, "cat /none/"), [""; 0]);
        // Files of this machine.
        let top = dir.path().to_str().unwrap();
        assert_eq!(typed(&mut shell, &format!("add {top}/im")), [format!("{top}/image.img ")]);
        assert_eq!(typed(&mut shell, &format!("lcd {top}/")), [format!("{top}/directory/"), format!("{top}/r/")]);
        assert_eq!(typed(&mut shell, &format!("copy-out /etc {top}/d")), [format!("{top}/directory/")]);
    }
}
