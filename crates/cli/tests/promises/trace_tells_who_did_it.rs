//! Promise: with `--by-process` a trace has the processes: who started them, what they executed, how they ended, and what each one
//! used and changed.

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{INARCH, assert_status, programs, scratch, stderr, stdout, trace_lines};

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

#[test]
fn of_many_processes_the_first_ones_are_named() {
    let dir = scratch();
    fs::write(dir.path().join("c"), "text\n").unwrap();
    let inarch = |arguments: &[&str]| {
        let mut command = Command::new(INARCH);
        command.arg("trace").args(arguments).current_dir(dir.path()).env("PATH", programs()).output().unwrap()
    };
    let script = format!("for i in $(seq 25); do cat c {} > /dev/null; done", "./././c ".repeat(20));
    assert_status(&inarch(&["--by-process", "--json", "t.json", "--", "sh", "-c", &script]), 0);
    let named = |why: &Output| stdout(why).lines().filter(|line| line.contains(": cat c ")).count();
    let few = inarch(&["why", "c", "t.json"]);
    assert_status(&few, 0);
    assert_eq!(named(&few), 20, "{}", stdout(&few));
    assert!(stdout(&few).ends_with("  and by 5 more processes; --all names them\n"), "{}", stdout(&few));
    assert!(stdout(&few).lines().all(|line| line.len() < 130), "{}", stdout(&few));
    let all = inarch(&["why", "--all", "c", "t.json"]);
    assert_eq!(named(&all), 25, "{}", stdout(&all));
    assert!(!stdout(&all).contains("more processes") && !stdout(&all).contains("..."), "{}", stdout(&all));
}

#[test]
fn and_what_it_cost() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("file"), vec![b'x'; 300_000]).unwrap();
    let script = "cat file file | wc -c; test -e none";
    let words = ["--stats", "--json", "t.json", "--", "sh", "-c", script];
    let mut command = Command::new(INARCH);
    let output = command.arg("trace").args(words).current_dir(dir.path()).env("PATH", programs()).output().unwrap();
    assert_status(&output, 1);
    assert_eq!(stdout(&output).trim(), "600000");
    let lines = trace_lines(&at("t.json"), "requests");
    let [line] = &lines[..] else { panic!("{lines:?}") };
    let number = |value: &Value| value.as_u64().unwrap();
    let all: u64 = line["requests"].as_object().unwrap().values().map(number).sum();
    // The shell, cat and wc are looked up and opened at least.
    assert!(number(&line["requests"]["lookup"]) >= 4 && number(&line["requests"]["open"]) >= 4, "{line}");
    assert!(line["elapsed"].as_f64().unwrap() > 0.0, "{line}");
    let told = stderr(&output);
    assert!(told.contains(&format!("{all} requests: ")) && told.contains(" of processor time"), "{told}");
    // Some kernels do not count calls.
    if let Some(read) = line.get("bytes_read") {
        // From the file and from the pipe.
        assert!(number(read) >= 1_200_000 && number(&line["bytes_written"]) >= 600_000, "{line}");
        assert!(told.contains("the command read ") && told.contains("the command wrote "), "{told}");
    }
}
