//! Promise: with `--by-process` a trace has the processes: who started them, what they executed, how they ended, and what each one
//! used and changed.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::{INARCH, assert_status, programs, scratch, stdout, trace_lines};

#[test]
fn with_parents_commands_and_ends() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    for name in ["a", "b", "c"] {
        fs::write(at(name), name).unwrap();
    }
    let inarch = |arguments: &[&str]| {
        let mut command = Command::new(INARCH);
        command.arg("trace").args(arguments).current_dir(dir.path()).env("PATH", programs()).stdin(Stdio::null());
        command.output().unwrap()
    };
    let script = "cat a; (exec cat b > out); sh -c 'cat c; kill -9 $$'; exit 3";
    let output = inarch(&["--by-process", "--json", "t.json", "--", "sh", "-c", script]);
    assert_status(&output, 3);
    assert_eq!(stdout(&output), "ac");

    let processes = trace_lines(&at("t.json"), "process");
    let last = |process: &Value| process["commands"].as_array().and_then(|commands| commands.last()).cloned();
    let that = |command: Value| {
        let found: Vec<&Value> = processes.iter().filter(|process| last(process) == Some(command.clone())).collect();
        let [process] = found[..] else { panic!("{command}: {processes:#?}") };
        process.clone()
    };
    let first = that(json!(["sh", "-c", script]));
    let [a, b, c] = ["a", "b", "c"].map(|name| that(json!(["cat", name])));
    let inner = that(json!(["sh", "-c", "cat c; kill -9 $$"]));
    for (child, parent) in [(&a, &first), (&b, &first), (&inner, &first), (&c, &inner)] {
        assert_eq!(child["parent"], parent["process"], "{child} {parent}");
    }
    // Before Linux 6.15 the kernel does not tell it.
    let is_known = first.get("status").is_some();
    if is_known {
        assert_eq!(
            [&first, &a, &b, &c].map(|process| process["status"].as_i64()),
            [Some(3), Some(0), Some(0), Some(0)]
        );
        assert_eq!((inner.get("status"), inner["signal"].as_i64()), (None, Some(9)));
    }
    // No word of ours is there.
    assert!(!fs::read_to_string(at("t.json")).unwrap().contains("become-the"));

    let used = |key: &str, path: &str| {
        let path = fs::canonicalize(at(path)).unwrap();
        let line = trace_lines(&at("t.json"), key).into_iter().find(|line| line[key] == path.to_str().unwrap());
        line.unwrap_or_else(|| panic!("{path:?}"))["pids"].clone()
    };
    assert_eq!(used("input", "b"), json!([b["process"]]));
    assert_eq!(used("output", "out"), json!([b["process"]]));
    let why = inarch(&["why", "c", "t.json"]);
    assert_status(&why, 0);
    let chain = [(&c, "cat c"), (&inner, "sh -c cat c; kill -9 $$")]
        .map(|(process, command)| format!("{}: {command}\n", process["process"]));
    let expected = format!("  by {}    from {}    from {}: sh -c {script}\n", chain[0], chain[1], first["process"]);
    assert!(stdout(&why).ends_with(&expected), "{}\n{expected}", stdout(&why));
}
