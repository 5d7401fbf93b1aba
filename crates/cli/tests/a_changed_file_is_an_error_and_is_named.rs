//! Promise: a host file that changes under a run reads as an I/O error in the guest and is named at the end; never a
//! mixture.

mod support;

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use support::{INARCH, scratch, stderr};

#[test]
fn changed_and_removed_files() {
    let dir = scratch();
    let file = |name: &str| dir.path().join(name);
    std::fs::write(file("rewritten"), "old content\n".repeat(1000)).unwrap();
    std::fs::write(file("removed"), "old content\n").unwrap();
    std::fs::write(file("untouched"), "old content\n").unwrap();
    let script =
        "echo ready; read go; cat untouched; cat rewritten >/dev/null; echo $?; cat removed >/dev/null; echo $?";
    let mut child = Command::new(INARCH)
        .args(["run", "--accel=tcg", "--", "sh", "-c", script])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    std::fs::write(file("rewritten"), "new content\n".repeat(1000)).unwrap();
    std::fs::remove_file(file("removed")).unwrap();
    child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
    let output = child.wait_with_output().unwrap();
    support::assert_status(&output, 0);
    assert_eq!(support::stdout(&output), "old content\n1\n1\n");
    let text = stderr(&output);
    assert!(text.contains("Input/output error"), "{text}");
    for name in ["rewritten", "removed"] {
        let named =
            text.lines().any(|line| line.starts_with("inarch: ") && line.contains(file(name).to_str().unwrap()));
        assert!(named, "{name} is not named: {text}");
    }
    assert!(!text.lines().any(|line| line.starts_with("inarch: ") && line.contains("untouched")), "{text}");
}
