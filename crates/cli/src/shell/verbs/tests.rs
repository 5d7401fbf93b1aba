//! The verbs, and the tables of docs/shell.md.

use std::collections::HashSet;
use std::fmt::Write;

use super::elsewhere::ELSEWHERE;
use super::*;

/// Where the tables stand in docs/shell.md.
const START: &str = "<!-- The tables are made of the program's: cargo test -p inarch the_page -->\n";

/// The page's tables as the program has them.
fn tables() -> String {
    let mut text = String::new();
    let own = GROUPS.iter().map(|group| group.title);
    let mut titles: Vec<&str> = own.collect();
    titles.extend(ELSEWHERE.iter().map(|one| one.group));
    let mut seen = HashSet::new();
    titles.retain(|title| seen.insert(*title));
    for title in titles {
        let _ = write!(text, "\n### {title}\n\n| verb | here |\n|---|---|\n");
        for verb in GROUPS.iter().filter(|group| group.title == title).flat_map(|group| group.verbs) {
            let usage = |name: &str| format!("`{}`", format!("{name} {}", verb.usage).trim_end().replace('|', "\\|"));
            let aliases: String = verb.aliases.iter().map(|alias| format!(", `{alias}`")).collect();
            let _ = writeln!(text, "| {}{aliases} | ours: {} |", usage(verb.name), verb.about);
        }
        for one in ELSEWHERE.iter().filter(|one| one.group == title) {
            let names: Vec<String> = one.names.split(' ').map(|name| format!("`{name}`")).collect();
            let why = match one.why {
                Why::Changes => "no: none of the changes that this shell makes",
                Why::Not(why) => &format!("no: {why}").replace('|', "\\|"),
            };
            let _ = writeln!(text, "| {} | {why} |", names.join(", "));
        }
    }
    text
}

#[test]
fn the_page_has_every_verb() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/shell.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, found) = page.split_once(START).expect("the page has the place of its tables");
    let tables = tables();
    if found != tables && std::env::var_os("INARCH_WRITE_PAGES").is_some() {
        std::fs::write(path, format!("{before}{START}{tables}")).unwrap();
        return;
    }
    assert!(found == tables, "docs/shell.md has other tables; INARCH_WRITE_PAGES=1 has them written");
}

#[test]
fn no_two_verbs_have_one_name() {
    let mut names = HashSet::new();
    let ours = Verb::all().flat_map(Verb::names);
    for name in ours.chain(ELSEWHERE.iter().flat_map(|one| one.names.split(' '))) {
        assert!(names.insert(name), "{name}");
    }
    // libguestfs 1.60 has 600 in all.
    assert!(names.len() > 600, "{}", names.len());
    assert!(Verb::named("list_devices").is_some() && Verb::named("vgcreate").is_none() && Verb::is_known("vgcreate"));
}

#[test]
fn usages_say_how_many_words_there_are() {
    let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
    let mut out = Vec::new();
    let mut fits =
        |name: &str, given: &[&str]| Call::new(Verb::named(name).unwrap(), &words(given), 0, &mut out).is_ok();
    assert!(fits("ls", &["/"]) && !fits("ls", &[]) && !fits("ls", &["/", "/"]));
    assert!(fits("copy-out", &["/a", "."]) && fits("copy-out", &["/a", "/b", "."]) && !fits("copy-out", &["/a"]));
    assert!(fits("help", &[]) && fits("help", &["ls"]) && !fits("help", &["ls", "ll"]));
    assert!(fits("echo", &[]) && fits("echo", &["a", "b", "c"]));
    assert!(fits("mkfs", &["ext4", "/dev/sda1", "label:x"]) && !fits("mkfs", &["ext4", "/dev/sda1", "other:x"]));
    let given = words(&["ext4", "/dev/sda1", "blocksize:1K", "label:a:b"]);
    let call = Call::new(Verb::named("mkfs").unwrap(), &given, 0, &mut out).unwrap();
    assert_eq!((call.option("label"), call.option("blocksize")), (Some("a:b"), Some("1K")));
    assert_eq!(Verb::named("copy-out").unwrap().words_at(3), ["PATH", "LOCALDIR"]);
    assert_eq!(Verb::named("ls").unwrap().words_at(1), [""; 0]);
}
