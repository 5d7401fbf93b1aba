//! Promise: `inarch run --trace` writes down what a guest used of its trees and changed in them: all of it where the guest asks for
//! files, and the files that it read where it has a disk. With `--by-process` it tells which of the guest's processes did it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::Value;

use crate::support::{any_machine, assert_one_line, assert_status, inarch, scratch, stderr, stdout, trace_lines};

/// The words for what a path was used for.
fn uses(inputs: &[Value], path: &str) -> Vec<String> {
    let input = inputs.iter().find(|line| line["input"] == path);
    let uses = input.and_then(|input| input["uses"].as_array()).map(|uses| uses.to_vec()).unwrap_or_default();
    uses.iter().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
}

/// The paths that were changed, and how.
fn changed(outputs: &[Value]) -> Vec<(&str, &str)> {
    outputs.iter().filter_map(|line| Some((line["output"].as_str()?, line["change"].as_str()?))).collect()
}

#[test]
fn over_every_way() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    for tree in ["live", "nine", "over", "disk"] {
        for directory in ["listed", "old/sub"] {
            fs::create_dir_all(at(tree).join(directory)).unwrap();
        }
        for name in ["read", "unread", "moved", "listed/name", "old/sub/file"] {
            fs::write(at(tree).join(name), format!("{tree}/{name}\n")).unwrap();
        }
        symlink("read", at(tree).join("link")).unwrap();
    }
    let tree = |name: &str, options: &str| format!("--tree={}:/{name},{options}", at(name).display());
    let trees = [
        tree("live", "rw,via=virtiofs"),
        tree("nine", "rw,via=9p"),
        tree("over", "via=virtiofs"),
        tree("disk", "via=ext4"),
    ];
    let trace = format!("--trace={}", at("t.json").display());
    let script = "for tree in live nine over disk; do
            cd /$tree && cat link > /dev/null && ls listed > /dev/null && ! test -e none && echo made > made &&
            mv moved named && mv old new && echo passing > passing && rm passing || exit 1
        done; exit 3";
    let words = ["run", "-q", any_machine(), &trace].into_iter().chain(trees.iter().map(String::as_str));
    let output = inarch(words.chain(["--", "sh", "-c", script]));
    assert_eq!(stderr(&output), "");
    assert_status(&output, 3);

    let (inputs, outputs) = (trace_lines(&at("t.json"), "input"), trace_lines(&at("t.json"), "output"));
    for tree in ["live", "nine", "over"] {
        let uses = |name: &str| uses(&inputs, &format!("/{tree}/{name}"));
        let has = |name: &str, word: &str| assert!(uses(name).iter().any(|used| used == word), "{tree}/{name}: {word}");
        has("read", "read");
        has("link", "followed");
        has("listed", "listed");
        has("none", "absent");
        assert_eq!(uses("unread"), [""; 0], "{tree}");
        let names = inputs.iter().find(|line| line["input"] == format!("/{tree}/listed")).map(|line| &line["names"]);
        assert_eq!(names, Some(&serde_json::json!(["name"])), "{tree}");
    }
    // Blocks tell which files were read, and nothing else.
    let of_disk: Vec<&str> =
        inputs.iter().filter_map(|line| line["input"].as_str()).filter(|path| path.starts_with("/disk")).collect();
    assert_eq!(of_disk, ["/disk/read"]);
    assert_eq!(uses(&inputs, "/usr/bin/cat"), ["read"]);
    // What stays in the guest changes no tree.
    let expected = ["live", "nine"].map(|tree| {
        [
            ("made", "made"),
            ("moved", "removed"),
            ("named", "made"),
            ("new", "made"),
            ("new/sub", "made"),
            ("new/sub/file", "made"),
            ("old", "removed"),
            ("old/sub", "removed"),
            ("old/sub/file", "removed"),
            ("passing", "temporary"),
        ]
        .map(|(name, change)| (format!("/{tree}/{name}"), change))
    });
    let expected: Vec<(&str, &str)> = expected.iter().flatten().map(|(path, change)| (&**path, *change)).collect();
    assert_eq!(changed(&outputs), expected);
    let trees = trace_lines(&at("t.json"), "tree");
    let known = |tree: &str| {
        let line = trees.iter().find(|line| line["tree"] == tree).unwrap_or_else(|| panic!("{tree}: {trees:?}"));
        (line["way"].as_str().unwrap(), line["recorded"].as_str().unwrap())
    };
    assert_eq!(known("/"), ("ext4", "files read"));
    assert_eq!(known("/live"), ("virtiofs", "all"));
    assert_eq!(known("/nine"), ("9p", "all"));
    assert_eq!(known("/disk"), ("ext4", "files read"));
    let start = trace_lines(&at("t.json"), "trace");
    assert_eq!(start[0]["status"], 3);
    // The commands that read traces read this one.
    let why = inarch(["trace", "why", "/live/link", at("t.json").to_str().unwrap()]);
    assert_status(&why, 0);
}

/// The number of the only process that used a path.
fn user_of(inputs: &[Value], path: &str) -> u64 {
    let input = inputs.iter().find(|line| line["input"] == path).unwrap_or_else(|| panic!("{path} was not used"));
    let pids = input["pids"].as_array().unwrap_or_else(|| panic!("{input}"));
    assert_eq!(pids.len(), 1, "{input}");
    pids[0].as_u64().unwrap()
}

#[test]
fn by_its_processes() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("live")).unwrap();
    for name in ["first", "second", "third"] {
        fs::write(at("live").join(name), format!("{name}\n")).unwrap();
    }
    let thread = "import threading\nthread = threading.Thread(target=lambda: open('/live/third').read())\nthread.start()\nthread.join()";
    let script = r#"cat /live/first; sh -c 'read line < /live/second; echo > /live/made; exit 3'; /usr/bin/python3 -c "$1"; kill -9 $$"#;
    let tree = format!("--tree={}:/live,rw,via=virtiofs", at("live").display());
    let trace = format!("--trace={}", at("t.json").display());
    let output =
        inarch(["run", "-q", "--accel=tcg", &tree, &trace, "--by-process", "--", "sh", "-c", script, "sh", thread]);
    assert_eq!(stderr(&output), "");
    assert_status(&output, 137);
    assert_eq!(trace_lines(&at("t.json"), "trace")[0]["signal"], 9);

    let (inputs, processes) = (trace_lines(&at("t.json"), "input"), trace_lines(&at("t.json"), "process"));
    let process = |number: u64| {
        let mut found = processes.iter().filter(|line| line["process"] == number);
        let line = found.next().unwrap_or_else(|| panic!("{number}: {processes:?}"));
        assert!(found.next().is_none());
        line
    };
    let last = |line: &Value| line["commands"].as_array().and_then(|commands| commands.last().cloned());
    let [first, second, third] =
        ["first", "second", "third"].map(|name| process(user_of(&inputs, &format!("/live/{name}"))));
    assert_eq!((last(first), &first["status"]), (Some(serde_json::json!(["cat", "/live/first"])), &0.into()));
    let words = serde_json::json!(["sh", "-c", "read line < /live/second; echo > /live/made; exit 3"]);
    assert_eq!((last(second), &second["status"]), (Some(words), &3.into()));
    // A thread reads for its process.
    assert_eq!(
        (last(third), &third["status"]),
        (Some(serde_json::json!(["/usr/bin/python3", "-c", thread])), &0.into())
    );
    let shell = process(first["parent"].as_u64().unwrap());
    assert_eq!(
        (last(shell), &shell["signal"]),
        (Some(serde_json::json!(["sh", "-c", script, "sh", thread])), &9.into())
    );
    assert!([second, third].iter().all(|line| line["parent"] == first["parent"]));
    let made = trace_lines(&at("t.json"), "output").into_iter().find(|line| line["output"] == "/live/made").unwrap();
    assert_eq!(made["pids"], serde_json::json!([second["process"]]));
    let why = inarch(["trace", "why", "/live/made", at("t.json").to_str().unwrap()]);
    assert!(stdout(&why).contains("; exit 3\n    from "), "{}", stdout(&why));
    // Other ways tell no processes.
    let refused = inarch(["run", "-q", &trace, "--by-process", "--via=ext4", "true"]);
    assert_status(&refused, 125);
    assert_one_line(&refused, &["--by-process", "no tree goes by virtiofs"]);
}

#[test]
fn and_is_whole_or_not_there() {
    let dir = scratch();
    let trace = dir.path().join("none/t.json");
    let output = inarch(["run", "--trace", trace.to_str().unwrap(), "true"]);
    assert_status(&output, 125);
    assert_one_line(&output, &["none/t.json", "No such file"]);
    // A run that fails leaves the old one.
    let trace = dir.path().join("t.json");
    fs::write(&trace, "old").unwrap();
    let output = inarch(["run", "-q", "--trace", trace.to_str().unwrap(), "--kernel", "/etc/passwd", "true"]);
    assert_status(&output, 125);
    assert_eq!(fs::read_to_string(&trace).unwrap(), "old");
    let names = |dir: &Path| fs::read_dir(dir).unwrap().count();
    assert_eq!(names(dir.path()), 1);
}
