//! Promise: `inarch compare` measures the same command by each way, names those that fail, and goes on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::support::drawings::drawn;
use crate::support::{
    INARCH, any_machine, assert_one_line, assert_status, copy_command, inarch, scratch, stderr, stdout,
};

fn compare(dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(INARCH);
    command.args(["compare", any_machine(), "--root", "tree"]).args(words);
    command.current_dir(dir).stdin(Stdio::null()).output().unwrap()
}

/// A root of busybox alone.
fn root(dir: &Path) {
    fs::create_dir_all(dir.join("tree/bin")).unwrap();
    fs::copy("/bin/busybox", dir.join("tree/bin/busybox")).unwrap();
    for name in ["sh", "true"] {
        std::os::unix::fs::symlink("busybox", dir.join("tree/bin").join(name)).unwrap();
    }
}

/// What `--json` prints of each way in each state.
fn results(output: &Output) -> Vec<Value> {
    assert_status(output, 0);
    let report: Value = serde_json::from_str(&stdout(output)).unwrap();
    report["results"].as_array().unwrap().clone()
}

#[test]
fn by_every_way() {
    let dir = scratch();
    root(dir.path());
    let results = results(&compare(dir.path(), &["--runs", "1", "--json", "--", "true"]));
    let ways: Vec<&str> = results.iter().map(|one| one["way"].as_str().unwrap()).collect();
    assert_eq!(ways, ["ext4", "erofs", "squashfs", "virtiofs", "9p", "tar"]);
    for one in &results {
        let (way, runs) = (one["way"].as_str().unwrap(), one["runs"].as_array().unwrap());
        assert!(one["failure"].is_null() && runs.len() == 1 && runs[0]["status"] == 0, "{one}");
        let requests = runs[0]["requests"].as_u64().unwrap();
        match way {
            "ext4" | "erofs" | "squashfs" => assert!(runs[0]["disk_bytes"].as_u64().unwrap() > 0, "{one}"),
            "virtiofs" | "9p" => assert!(runs[0]["disk_bytes"].is_null() && requests > 0, "{one}"),
            _ => {}
        }
    }
}

#[test]
fn with_the_page_cache_empty_and_warm() {
    let dir = scratch();
    root(dir.path());
    if fs::OpenOptions::new().write(true).open("/proc/sys/vm/drop_caches").is_ok() {
        let words = ["--via", "ext4,9p", "--runs", "1", "--page-cache", "both", "--json", "--", "true"];
        let output = compare(dir.path(), &words);
        let results = results(&output);
        let states: Vec<_> = results.iter().map(|one| (one["page_cache"].clone(), one["way"].clone())).collect();
        let expected = [("empty", "ext4"), ("empty", "9p"), ("warm", "ext4"), ("warm", "9p")];
        assert_eq!(states, expected.map(|(state, way)| (Value::from(state), Value::from(way))));
        for one in &results {
            assert!(one["failure"].is_null() && one["runs"].as_array().unwrap().len() == 1, "{one}");
        }
        // Only what begins with it warm is filled first.
        assert_eq!(stderr(&output).matches("a run that is not measured").count(), 2, "{}", stderr(&output));
    } else {
        println!("skipped: with_the_page_cache_empty_and_warm: only root can empty the page cache");
    }
    copy_command(&dir.path().join("inarch"));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "./inarch"],
        false => &["./inarch"],
    };
    let mut command = Command::new(user[0]);
    command.args(&user[1..]).args(["compare", "--host", "--page-cache", "both", "--runs", "1", "true"]);
    let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert_one_line(&output, &["drop_caches", "the page cache cannot be emptied", "Permission denied"]);
}

#[test]
fn a_run_that_takes_much_longer_is_named() {
    let dir = scratch();
    // The first four runs are not measured; the second one of the next round is in the mount.
    let script = "echo >> count; test $(wc -l < count) != 6 || sleep 1";
    let mut command = Command::new(INARCH);
    command.args(["compare", "--host", "--runs", "3", "--", "sh", "-c", script]);
    let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
    assert_status(&output, 0);
    let text = stdout(&output);
    let is_told = |line: &str| {
        line.starts_with("run 1 by mount (page cache warm) took ")
            && line.ends_with(" times the median: something else may have been at work")
    };
    assert!(text.lines().any(is_told), "{text}");
}

#[test]
fn with_package_caches_empty_and_filled() {
    let dir = scratch();
    root(dir.path());
    // The status says whether the cache had anything: the ways of one state agree only if it is as it should be each time.
    let script = "if [ -e /caches/added ]; then exit 0; else echo x > /caches/added; fi; echo emptied >> /counted/runs";
    for name in ["counted", "temporary"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let compare = |package_cache: &str| {
        let mut command = Command::new(INARCH);
        command.args([
            "compare",
            any_machine(),
            "--root",
            "tree",
            "--cache",
            "things=/caches",
            "-v",
            "counted:/counted",
        ]);
        command.args([
            "--via",
            "ext4",
            "--runs",
            "1",
            "--json",
            "--package-cache",
            package_cache,
            "--",
            "/bin/sh",
            "-c",
            script,
        ]);
        command.env("XDG_STATE_HOME", dir.path().join("state")).env("XDG_CACHE_HOME", dir.path().join("state"));
        command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap()
    };
    let emptied = || fs::read_to_string(dir.path().join("counted/runs")).map_or(0, |text| text.lines().count());
    let output = compare("both");
    assert_status(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let results = report["results"].as_array().unwrap();
    let ways: Vec<_> = results.iter().map(|one| (one["way"].clone(), one["package_cache"].clone())).collect();
    assert_eq!(ways, [("ext4".into(), "filled".into()), ("ext4".into(), "empty".into())]);
    // One to fill the page cache, one that is measured, and the first one with caches to fill.
    assert_eq!(emptied(), 3, "{}", stderr(&output));
    // Nothing is left of the empty ones.
    let caches = fs::read_dir(dir.path().join("state/inarch/caches")).unwrap();
    assert_eq!(caches.count(), 1, "the project's own");
    let temporary = fs::read_dir(dir.path().join("temporary")).unwrap();
    assert_eq!(temporary.count(), 0);
    assert_one_line(&compare("cold"), &["--package-cache", "cold", "filled"]);
    let words = ["compare", "--package-cache", "both", "--", "true"];
    let output = inarch(words);
    assert_status(&output, 125);
    assert_one_line(&output, &["--package-cache", "--cache NAME"]);
}

#[test]
fn each_is_measured_and_a_failure_is_named() {
    let dir = scratch();
    root(dir.path());
    let words = [
        "--via",
        "ext4,tar",
        "--runs",
        "2",
        "--json",
        "--svg",
        "chart.svg",
        "--",
        "/bin/sh",
        "-c",
        "echo said; exit 0",
    ];
    let output = compare(dir.path(), &words);
    assert_status(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.iter().map(|one| one["way"].as_str().unwrap()).collect::<Vec<_>>(), ["ext4", "tar"]);
    for result in results {
        assert_eq!((&result["page_cache"], &result["failure"]), (&"warm".into(), &Value::Null), "{result}");
        let runs = result["runs"].as_array().unwrap();
        assert_eq!(runs.len(), 2);
        for run in runs {
            let seconds = |name: &str| run[name].as_f64().unwrap();
            let parts = ["prepare", "boot", "command"].map(seconds);
            assert!(parts.iter().all(|part| *part > 0.0) && seconds("total") >= parts.iter().sum(), "{run}");
            assert_eq!(run["status"], 0);
        }
    }
    let run = &results[0]["runs"][0];
    assert!(run["requests"].as_u64().unwrap() > 0 && run["disk_bytes"].as_u64().unwrap() > 0, "{report}");
    let best = &report["best"][0];
    assert!(best["seconds"].as_f64().unwrap() > 0.0 && best["way"].is_string(), "{best}");
    let picture = drawn(&dir.path().join("chart.svg"));
    assert!(["ext4", "tar"].iter().all(|way| picture.contains(&format!(">{way}<"))), "{picture}");

    // The project's way, by which nothing can be left out, is not the comparison's.
    fs::write(dir.path().join("inarch.toml"), "[run]\nvia = \"virtiofs\"\nexclude = [\"none\"]\n").unwrap();
    // A command that fails is measured; one that fails by one way alone is not.
    let output = compare(
        dir.path(),
        &["--via", "ext4,tar", "--runs", "1", "--csv", "--", "/bin/sh", "-c", "echo why >&2; exit 3"],
    );
    assert_status(&output, 0);
    let lines: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].starts_with("warm,,ext4,1,") && lines[1].contains(",3,"), "{lines:?}");
    assert!(lines.iter().all(|line| line.split(',').count() == 14), "{lines:?}");
    assert!(stderr(&output).contains("status is 3; the end of its output: why"), "{}", stderr(&output));
    let script = "/bin/busybox grep -q ' / ext4 ' /proc/mounts";
    let output =
        compare(dir.path(), &["--via", "ext4,tar", "--runs", "1", "--markdown", "--", "/bin/sh", "-c", script]);
    assert_status(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("| warm | tar | - | - | - |") && !text.contains("| warm | ext4 | - "), "{text}");
    assert!(text.contains("- tar (page cache warm): the command's status is 1, and was 0 by ext4\n"), "{text}");
}

#[test]
fn command_lines_of_this_machine_have_their_turns() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "").unwrap();
    let compared = |words: &[&str]| {
        let mut command = Command::new(INARCH);
        command.args(["compare", "--runs", "1"]).args(words).current_dir(dir.path()).stdin(Stdio::null());
        command.output().unwrap()
    };
    // Each of them finds the directory's files, and leaves what it writes.
    let script = "echo \"$PWD\" >> places; test -e file";
    let peer = "other, <b>=test -e file";
    assert_one_line(&compared(&["--host", "--peer", peer, "true"]), &["--peer", "NAME=CMD"]);
    let words =
        ["--host", "--peer", "<b>=test -e file", "--json", "--html", "page", "--svg", "svg", "--", "sh", "-c", script];
    let output = compared(&words);
    assert_status(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|one| one["way"].as_str().unwrap()).collect();
    assert_eq!(names, ["native", "mount", "trace", "strace", "<b>"]);
    for result in results {
        assert_eq!(result["failure"], Value::Null, "{result}");
        let run = &result["runs"][0];
        assert_eq!((&run["status"], &run["requests"]), (&0.into(), &Value::Null));
    }
    let places = fs::read_to_string(dir.path().join("places")).unwrap();
    let here = dir.path().canonicalize().unwrap();
    // Each way runs twice: first without a measurement. In a mount the directory has another name.
    assert_eq!(places.lines().filter(|line| Path::new(line) == here).count(), 6, "{places}");
    let points: Vec<&Path> = places.lines().map(Path::new).filter(|place| *place != here).collect();
    assert!(points.len() == 2 && points.iter().all(|point| !point.exists()), "{places}");
    let [page, picture] = ["page", "svg"].map(|name| drawn(&dir.path().join(name)));
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains(&picture), "{page}");
    assert!(page.contains("&lt;b&gt;") && !page.contains("<b>=") && !picture.contains("<b>"), "{page}");
    // Another user cannot reach the files by the mount: its point is in a directory of the command's user alone.
    assert!(points.iter().all(|point| point.ends_with("mount")), "{places}");
    // Nothing is left, and nothing compared, if the command is none.
    let left = || {
        let names = fs::read_dir("/var/tmp").unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().starts_with(".inarch-mount.")).count()
    };
    let before = left();
    assert_one_line(
        &compared(&["-q", "--host", "--", "no-such-program"]),
        &["no-such-program", "there is no such program"],
    );
    assert_eq!(left(), before);
    // For a person.
    let output = compared(&["--host", "--", "sh", "-c", "sleep 0.1; exit 3"]);
    assert_status(&output, 0);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    let heads: Vec<&str> = lines[0].split_whitespace().collect();
    assert!(
        lines.len() == 9 && heads[..7] == ["PAGE", "CACHE", "WAY", "TOTAL", "PREPARE", "BOOT", "COMMAND"],
        "{text}"
    );
    let rows = lines[1..5].iter().map(|line| line.split_whitespace().nth(1).unwrap());
    assert_eq!(rows.collect::<Vec<_>>(), ["native", "mount", "trace", "strace"]);
    // The bar of the slowest is the longest, and has a part for the command.
    let bars = lines[1..5].iter().map(|line| line.chars().filter(|letter| "░█▒".contains(*letter)).count());
    assert!(bars.max() == Some(24) && lines[1..5].iter().any(|line| line.ends_with('█')), "{text}");
    let legend = "Seconds, the medians of 1 run; ░ before the command, █ command, ▒ after it";
    assert!(lines[5] == legend && lines[6].contains("processor"), "{text}");
    assert_eq!(lines[7], "the command failed in every run that counts: its status was 3");
    assert!(lines[8].starts_with("with the page cache warm, "), "{text}");
    // A command line that is not there has no figure, and the others go on.
    let output = compared(&["--host", "--peer", "peer=no-such-program", "--json", "true"]);
    assert_status(&output, 0);
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let results = report["results"].as_array().unwrap();
    let failures: Vec<_> = results.iter().map(|one| one["failure"].as_str()).collect();
    assert_eq!(failures, [None, None, None, None, Some("the command's status is 127, and was 0 by native")]);
    assert!(stderr(&output).contains("peer: the command's status is 127"), "{}", stderr(&output));
}

#[test]
fn what_cannot_be_compared_is_refused_in_one_line() {
    let dir = scratch();
    root(dir.path());
    for (words, parts) in [
        (&["--keep", "x", "true"][..], &["--keep", "single run"][..]),
        (&["--trace", "x", "true"], &["--trace"]),
        (&["--dry-run", "true"], &["--dry-run"]),
        (&[], &["say which command"]),
        (&["--via", "ext4,auto", "true"], &["auto"]),
        (&["--via", "floppy", "true"], &["floppy"]),
        (&["--via", "virtiofs", "--exclude", "x", "true"], &["shared whole"]),
        (&["--runs", "0", "true"], &["--runs"]),
        (&["--svg", "none/x.svg", "true"], &["none/x.svg"]),
        (&["--html", "none/x.html", "true"], &["none/x.html"]),
        (&["--host", "true"], &["--host", "--root"]),
        (&["--peer", "ext4=true", "true"], &["--peer ext4", "taken"]),
    ] {
        let output = compare(dir.path(), words);
        assert_status(&output, 125);
        assert_one_line(&output, parts);
    }
    assert_one_line(&inarch(["run", "--via", "ext4,9p", "true"]), &["--via", "inarch compare"]);
    // If every run fails, there is nothing to compare.
    let output = compare(dir.path(), &["--via", "ext4", "--runs", "1", "-q", "/no/such/program"]);
    assert_status(&output, 125);
    assert!(stdout(&output).contains("failed: "), "{}", stdout(&output));
}
