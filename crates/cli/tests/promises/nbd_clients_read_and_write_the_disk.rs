//! Promise: any NBD client can read and write the tree's disk, learn its holes, and find it again.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{INARCH, LONG, assert_one_line, host, scratch, stderr, within};

/// A server of `dir/tree` on `dir/socket`.
struct Server {
    child: Child,
    uri: String,
}

impl Server {
    fn start(dir: &Path, options: &[&str]) -> Server {
        let child = Command::new(INARCH)
            .args(["serve", "nbd", "tree", "--socket", "socket", "--overlay-dir", "."])
            .args(options)
            .current_dir(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        assert!(within(LONG, || dir.join("socket").exists()), "the server does not come up");
        Server { child, uri: format!("nbd+unix:///?socket={}", dir.join("socket").display()) }
    }

    fn end(mut self, signal: &str) -> Option<i32> {
        host("kill", &[signal, &self.child.id().to_string()], Path::new("/"));
        self.child.wait().unwrap().code()
    }
}

/// After a test that failed.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn tree(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    for number in 0..200usize {
        fs::write(tree.join(format!("sub/{number}")), vec![number as u8 + 1; number * 997]).unwrap();
    }
    fs::write(tree.join("large"), (0..9_000_001u32).map(|at| (at >> 9) as u8).collect::<Vec<_>>()).unwrap();
    tree
}

#[test]
fn tools_agree_on_what_it_holds() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), &["--name", "src"]);
    let run = |program: &str, arguments: &[&str]| host(program, arguments, dir.path());
    let listed = run("nbdinfo", &["--list", "--json", &server.uri]);
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["exports"][0]["export-name"], "src");
    let uri = server.uri.replace(":///", ":///src");
    let told: serde_json::Value = serde_json::from_str(&run("nbdinfo", &["--json", &uri])).unwrap();
    let export = &told["exports"][0];
    for can in
        ["can_cache", "can_df", "can_fast_zero", "can_flush", "can_fua", "can_multi_conn", "can_trim", "can_zero"]
    {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["contexts"][0], "base:allocation");
    run("nbdcopy", &[&uri, "copy"]);
    let size = fs::metadata(dir.path().join("copy")).unwrap().len();
    assert_eq!(export["export-size"].as_u64(), Some(size), "the file system's own size");
    run("e2fsck", &["-fn", "copy"]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", "copy", &uri]);
    run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &uri, "converted"]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", "copy", "converted"]);
    // What is told to be data is all of the data, and little more.
    let map = run("nbdinfo", &["--map", "--json", &uri]);
    let map: Vec<serde_json::Value> = serde_json::from_str(&map).unwrap();
    let sum = |hole: u64| -> u64 {
        map.iter().filter(|extent| extent["type"] == hole).map(|extent| extent["length"].as_u64().unwrap()).sum()
    };
    assert_eq!(sum(0) + sum(3), size);
    let content = 9_000_001 + 199 * 200 / 2 * 997;
    assert!((content..content + (8 << 20)).contains(&sum(0)), "{} bytes of data", sum(0));
    let dump = run("debugfs", &["-R", "cat /sub/77", "copy"]);
    assert_eq!(dump.into_bytes(), vec![78; 77 * 997]);
    assert_eq!(server.end("-TERM"), Some(0));
    assert!(!dir.path().join("socket").exists());
}

#[test]
fn what_clients_write_and_flush_is_there_again_after_a_kill() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), &["--overlay", "overlay"]);
    let io = |server: &Server, commands: &[&str]| {
        let words = commands.iter().flat_map(|command| ["-c", *command]);
        let arguments: Vec<&str> = ["-f", "raw"].into_iter().chain(words).chain([server.uri.as_str()]).collect();
        let output = host("qemu-io", &arguments, dir.path());
        assert!(!output.contains("failed") && !output.contains("rror"), "{output}");
    };
    io(
        &server,
        &["write -P 0xab 1G 1M", "write -f -P 0xcd 1025M 4095", "write -z 1026M 1M", "discard 1024M 64k", "flush"],
    );
    server.end("-KILL");
    assert!(within(LONG, || !dir.path().join("socket").exists()));
    let server = Server::start(dir.path(), &["--overlay", "overlay"]);
    io(&server, &["read -P 0 1G 64k", "read -P 0xab 1048640k 960k", "read -P 0xcd 1025M 4095", "read -P 0 1026M 1M"]);
    // A whole image from elsewhere, and back.
    host("sh", &["-c", "mke2fs -q -t ext4 other 32M && truncate -s 1G other"], dir.path());
    host("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "other", &server.uri], dir.path());
    let uri = &server.uri;
    host("sh", &["-c", &format!("nbdcopy '{uri}' back && truncate -s 1G back && cmp other back")], dir.path());
    assert_eq!(server.end("-TERM"), Some(0));
}

#[test]
fn fio_verifies_what_it_writes_over_several_connections() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), &[]);
    let uri = format!("--uri={}", server.uri);
    let common = ["--name=v", "--ioengine=nbd", "--offset=4g", "--size=24m", "--verify=crc32c", "--verify_fatal=1"];
    for shape in [["--rw=randwrite", "--bs=4k", "--iodepth=16"], ["--rw=randrw", "--bs=3k", "--iodepth=4"]] {
        let arguments: Vec<&str> = common.iter().chain(&shape).copied().chain([uri.as_str()]).collect();
        host("fio", &arguments, dir.path());
    }
    // The tree beside what was written is untouched.
    host("sh", &["-c", &format!("nbdcopy '{}' copy && e2fsck -fn copy", server.uri)], dir.path());
    assert_eq!(server.end("-TERM"), Some(0));
}

#[test]
fn a_read_only_export_refuses_writes() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), &["--read-only"]);
    let told = host("nbdinfo", &[&server.uri], dir.path());
    assert!(told.contains("is_read_only: true"), "{told}");
    let output = Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 512", &server.uri]).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(server.end("-TERM"), Some(0));
}

#[test]
fn over_tcp_it_is_this_machines_alone_and_ends_with_its_client() {
    let dir = scratch();
    tree(dir.path());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let server = Command::new(INARCH)
        .args(["serve", "nbd", "tree", "--once", "--tcp", &port])
        .current_dir(dir.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let address = format!("127.0.0.1:{port}");
    assert!(within(LONG, || std::net::TcpStream::connect(&address).is_ok()));
    // A client that only asks for the exports does not end it.
    host("nbdinfo", &["--list", &format!("nbd://{address}")], dir.path());
    host("nbdcopy", &[&format!("nbd://{address}"), "copy"], dir.path());
    let output = server.wait_with_output().unwrap();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.contains(&format!("nbdinfo nbd://{address}/")) && text.contains("no TLS"), "{text}");
    host("e2fsck", &["-fn", "copy"], dir.path());
}

#[test]
fn what_cannot_be_served_is_told_in_one_line() {
    let dir = scratch();
    tree(dir.path());
    let try_it = |arguments: &[&str]| {
        let command =
            Command::new(INARCH).args(["serve", "nbd", "tree"]).args(arguments).current_dir(dir.path()).output();
        command.unwrap()
    };
    assert_one_line(&try_it(&[]), &["--socket", "--tcp"]);
    assert_one_line(&try_it(&["--socket", "s", "--tcp", "1"]), &["--tcp"]);
    assert_one_line(&try_it(&["--tcp", "nowhere"]), &["nowhere"]);
    assert_one_line(&try_it(&["--tcp", "192.0.2.1:10809"]), &["192.0.2.1:10809", "cannot listen"]);
    assert_one_line(&try_it(&["--socket", "no/such/dir"]), &["no/such/dir"]);
    assert_one_line(&try_it(&["--socket", "s", "--name", &"x".repeat(5000)]), &["4096"]);
}
