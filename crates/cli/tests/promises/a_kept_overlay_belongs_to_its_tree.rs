//! Promise: `serve blk --overlay FILE` keeps what was written, over the same tree only.

use crate::support;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{INARCH, LONG, assert_one_line, host, inarch, scratch, within};

fn serve(dir: &Path) -> Child {
    let server = Command::new(INARCH)
        .args(["serve", "blk", "tree", "--socket", "socket", "--overlay", "overlay"])
        .current_dir(dir)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    assert!(
        within(LONG, || dir.join("socket").exists() && dir.join("overlay").exists()),
        "the server does not come up"
    );
    server
}

fn end(mut server: Child) -> Option<i32> {
    host("kill", &["-TERM", &server.id().to_string()], Path::new("/"));
    server.wait().unwrap().code()
}

#[test]
fn the_same_tree_is_taken_and_another_is_refused() {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    std::fs::write(dir.path().join("tree/file"), "content").unwrap();
    for _ in 0..2 {
        assert_eq!(end(serve(dir.path())), Some(0), "the same tree, again");
    }
    let overlay = std::fs::metadata(dir.path().join("overlay")).unwrap();
    std::fs::write(dir.path().join("tree/file"), "changed").unwrap();
    assert_refused(dir.path(), "overlay", &["overlay"]);
    assert_eq!(std::fs::metadata(dir.path().join("overlay")).unwrap().len(), overlay.len(), "the overlay was touched");
}

/// Every server of a disk refuses `overlay` for `tree`, and says so in one line: there is nothing to use.
fn assert_refused(dir: &Path, overlay: &str, parts: &[&str]) {
    let [tree, overlay, place] = ["tree", overlay, "place"].map(|name| dir.join(name).display().to_string());
    for words in
        [["blk", &tree, "--socket", &place].as_slice(), &["nbd", &tree, "--socket", &place], &["file", &tree, &place]]
    {
        if words[0] == "file" && !Path::new("/dev/fuse").exists() {
            continue;
        }
        let output = inarch(["serve"].iter().chain(words).chain(&["--overlay", &overlay]));
        assert_one_line(&output, parts);
        assert_eq!(support::stdout(&output), "");
        assert!(!Path::new(&place).exists(), "{words:?}");
    }
}

#[test]
fn what_is_no_overlay_is_refused_before_anything_else_is_said() {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    std::fs::write(dir.path().join("letter"), "dear ".repeat(10_000)).unwrap();
    assert_refused(dir.path(), "letter", &["letter"]);
    assert_refused(dir.path(), "tree", &["tree"]);
    assert_refused(dir.path(), "none/overlay", &["none"]);
    assert_eq!(std::fs::read_to_string(dir.path().join("letter")).unwrap(), "dear ".repeat(10_000));
}

#[test]
fn a_share_refuses_the_writes_of_another_directory_before_anything_else_is_said() {
    let dir = scratch();
    let [one, other, over, socket] =
        ["one", "other", "over", "socket"].map(|name| dir.path().join(name).display().to_string());
    for name in [&one, &other] {
        std::fs::create_dir(name).unwrap();
    }
    for wire in ["virtiofs", "9p"] {
        let mut first = Command::new(INARCH)
            .args(["serve", wire, &one, "--socket", &socket, "--overlay", &over])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert!(within(LONG, || Path::new(&socket).exists()), "the server does not come up");
        host("kill", &["-TERM", &first.id().to_string()], Path::new("/"));
        assert_eq!(first.wait().unwrap().code(), Some(0));
        let output = inarch(["serve", wire, &other, "--socket", &socket, "--overlay", &over]);
        assert_one_line(&output, &["over", "it has those over"]);
        assert!(!Path::new(&socket).exists());
    }
}

#[test]
fn one_server_at_a_time_has_it() {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("tree")).unwrap();
    let first = serve(dir.path());
    assert_refused(dir.path(), "overlay", &["overlay"]);
    assert_eq!(end(first), Some(0));
}

#[test]
fn an_overlay_within_its_own_tree_is_refused() {
    let dir = scratch();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let output = inarch(["plan", &path("")]);
    assert_eq!(output.status.code(), Some(0));
    let output =
        inarch(["serve", "blk", &path(""), "--socket", "/var/tmp/inarch-test-socket", "--overlay", &path("overlay")]);
    assert_eq!(output.status.code(), Some(125));
    let text = support::stderr(&output);
    assert!(text.contains("lies in the tree"), "{text}");
    assert!(!dir.path().join("overlay").exists() && !Path::new("/var/tmp/inarch-test-socket").exists());
    // Arguments that make no sense together are told as such.
    assert_one_line(&inarch(["serve", "blk", "/usr", "--socket", "s", "--overlay", "o", "--read-only"]), &["--ro"]);
}

#[test]
fn an_archive_with_the_same_names_and_other_bytes_is_another_tree() {
    let dir = scratch();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    let archive = |content: &str| {
        let script = format!("echo {content} > files/file; touch -d @1 files/file files; tar -cf tree -C files .");
        host("sh", &["-euc", &script], dir.path());
    };
    archive("one");
    for _ in 0..2 {
        assert_eq!(end(serve(dir.path())), Some(0), "the same archive, again");
    }
    archive("two");
    let path = |name: &str| dir.path().join(name).display().to_string();
    let output = inarch(["serve", "blk", &path("tree"), "--socket", &path("socket"), "--overlay", &path("overlay")]);
    assert_eq!(output.status.code(), Some(125), "{}", support::stderr(&output));
    // Nothing can be kept of what nothing can be written to.
    let socket = path("socket");
    let output =
        inarch(["serve", "blk", &path("tree"), "--format=erofs", "--socket", &socket, "--overlay", &path("o")]);
    assert_eq!(output.status.code(), Some(125));
    assert!(support::stderr(&output).contains("nothing can be written to erofs"), "{}", support::stderr(&output));
}
