//! Tells the program which commit it is built from, where that is known.

use std::path::Path;
use std::process::Command;

fn main() {
    // An unpacked release may lie within an unrelated repository.
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let is_ours = |found: &String| Path::new(found).canonicalize().ok() == top.canonicalize().ok();
    let commit = git(&["rev-parse", "--show-toplevel"])
        .filter(is_ours)
        .and_then(|_| git(&["log", "-1", "--format=%h %cs", "--abbrev=10"]));
    let commit = commit.map(|commit| format!(" ({commit})"));
    println!("cargo::rustc-env=INARCH_VERSION={}{}", env!("CARGO_PKG_VERSION"), commit.as_deref().unwrap_or_default());
    println!("cargo::rerun-if-changed=build.rs");
    if commit.is_some() {
        // Each commit and each checkout adds to this log; where there is none, HEAD is better than nothing.
        for file in ["logs/HEAD", "HEAD"] {
            if let Some(path) = git(&["rev-parse", "--path-format=absolute", "--git-path", file])
                && Path::new(&path).exists()
            {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
}

/// What git says, if there is one and it succeeds.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
