//! What one machine adds to a cache another one reads, by a remote; and nothing that a remote does reaches a guest as wrong bytes.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use crate::support::s3::S3;
use crate::support::web::{Fault, Web};
use crate::support::{
    INARCH, LONG, any_machine, assert_one_line, assert_status, host, programs, scratch, stderr, stdout, within,
};

/// Machines, each a directory of state of its own, and a remote in a directory.
struct Scene {
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let place = scratch();
        fs::create_dir_all(place.path().join("work/.git")).unwrap();
        Scene { place }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    /// The remote's URL.
    fn remote(&self) -> String {
        format!("file://{}", self.at("remote").display())
    }

    fn command(&self, machine: &str, words: &[&str]) -> Command {
        let mut command = Command::new(INARCH);
        command
            .args(words)
            .current_dir(self.at("work"))
            .env("XDG_STATE_HOME", self.at(machine))
            .env("PATH", programs())
            .env_remove("INARCH_CACHE_REMOTE")
            .stdin(Stdio::null());
        command
    }

    fn inarch(&self, machine: &str, words: &[&str]) -> Output {
        self.command(machine, words).output().unwrap()
    }

    /// The same, which must succeed.
    fn good(&self, machine: &str, words: &[&str]) -> Output {
        let output = self.inarch(machine, words);
        assert_status(&output, 0);
        output
    }

    /// Runs a script in a guest of a machine that has the cache.
    fn run(&self, machine: &str, remote: &str, script: &str) -> Output {
        let words = [
            "run",
            "-q",
            any_machine(),
            "--cache",
            "own=/srv/own,scope=team",
            "--cache-remote",
            remote,
            "sh",
            "-c",
            script,
        ];
        self.inarch(machine, &words)
    }

    /// Makes a directory with a file for each number, and for every tenth also a file of several chunks.
    fn files(&self, name: &str, numbers: std::ops::Range<u32>) -> String {
        let directory = self.at(name);
        fs::create_dir_all(directory.join("below")).unwrap();
        for number in numbers {
            let text = format!("{number}\n").repeat(number as usize % 700 + 1);
            fs::write(directory.join(format!("{number:05}")), text).unwrap();
            if number % 10 == 0 {
                let large: Vec<u8> = (0..900_000u32).map(|at| (at * 31 + number + at / 4096) as u8).collect();
                fs::write(directory.join(format!("below/{number:05}")), large).unwrap();
            }
        }
        directory.to_str().unwrap().to_owned()
    }

    /// A machine that has a cache with these files, and has pushed it.
    fn pushed(&self, machine: &str, name: &str, numbers: std::ops::Range<u32>) {
        let from = self.files(name, numbers);
        self.good(machine, &["cache", "warm", "own", &from, "--scope", "team"]);
        self.good(machine, &["cache", "push", "own", &self.remote(), "--scope", "team"]);
    }

    /// Reads all of a machine's cache into a directory, with this remote.
    fn read_all(&self, machine: &str, remote: &str, into: &str) -> Output {
        let _ = fs::remove_dir_all(self.at(into));
        let tar = self.at("all.tar");
        let _ = fs::remove_file(&tar);
        let mut command = self.command(machine, &["image", "cache:team/own", "-o", tar.to_str().unwrap()]);
        let output = command.env("INARCH_CACHE_REMOTE", remote).output().unwrap();
        if output.status.success() {
            host("sh", &["-ec", "mkdir $0; tar -xf all.tar -C $0", into], self.place.path());
        }
        output
    }

    fn assert_same(&self, one: &str, other: &str) {
        host("diff", &["-r", one, other], self.place.path());
    }
}

#[test]
fn what_one_machine_adds_another_reads() {
    let scene = Scene::new();
    let remote = scene.remote();
    let fill = "set -e; cd /srv/own; seq 300000 > numbers; mkdir a; echo text > a/file; ln -s a/file link; head -c 16M /dev/urandom > unread";
    assert_status(&scene.run("one", &remote, fill), 0);
    let look = "set -e; cd /srv/own; seq 300000 | cmp - numbers; cat link; echo new > new";
    let output = scene.run("two", &remote, look);
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), "text\n"));
    // Both ways, and what is removed stays in neither.
    let output = scene.run("one", &remote, "cd /srv/own; cat new; ls -R");
    assert_eq!(
        (assert_status(&output, 0), stdout(&output).as_str()),
        ((), "new\n.:\na\nlink\nnew\nnumbers\nunread\n\n./a:\nfile\n")
    );
    // Without the remote the second machine has what it has read.
    fs::rename(scene.at("remote"), scene.at("away")).unwrap();
    fs::write(scene.at("remote"), "no directory").unwrap();
    let output = scene.run("two", &remote, "cd /srv/own; seq 300000 | cmp - numbers && cat link; test -e unread");
    assert_status(&output, 1);
    assert_eq!(stdout(&output), "text\n");
    let lines = stderr(&output);
    assert_eq!(lines.matches("goes on without its remote").count(), 1, "{lines}");
}

#[test]
fn a_push_sends_what_is_new_and_keeps_what_others_pushed() {
    let scene = Scene::new();
    scene.pushed("one", "first", 0..40);
    // Two that know nothing of each other, and each has something new.
    scene.pushed("two", "second", 30..70);
    scene.pushed("three", "third", 100..110);
    let again = scene.good("three", &["cache", "push", "own", &scene.remote(), "--scope", "team"]);
    assert!(stderr(&again).contains("the remote has all"), "{}", stderr(&again));
    scene.good("four", &["cache", "pull", "own", &scene.remote(), "--scope", "team"]);
    scene.files("expected", 0..70);
    scene.files("expected", 100..110);
    assert_status(&scene.read_all("four", &scene.remote(), "got"), 0);
    scene.assert_same("expected", "got");
    // So do those that pushed over what they did not have: before a push that changes nothing, and after one.
    for machine in ["two", "three"] {
        scene.good(machine, &["cache", "pull", "own", &scene.remote(), "--scope", "team"]);
        assert_status(&scene.read_all(machine, &scene.remote(), "other"), 0);
        scene.assert_same("expected", "other");
    }
    // What it has read is here: the remote is not needed any more.
    fs::remove_dir_all(scene.at("remote/named-team/own/packs")).unwrap();
    assert_status(&scene.read_all("four", "", "again"), 0);
    scene.assert_same("expected", "again");
    scene.good("four", &["cache", "verify", "own", "--scope", "team"]);
}

/// A store's expiry rule, or a user, may delete packs.
#[test]
fn what_the_remote_has_lost_is_sent_again() {
    let scene = Scene::new();
    let packs = scene.at("remote/named-team/own/packs");
    scene.pushed("one", "first", 0..20);
    fs::remove_dir_all(&packs).unwrap();
    // A machine that has nothing of it pushes over it, and the one that has it takes that.
    scene.pushed("two", "second", 20..30);
    scene.good("one", &["cache", "pull", "own", &scene.remote(), "--scope", "team"]);
    scene.files("here", 0..30);
    assert_status(&scene.read_all("one", &scene.remote(), "got"), 0);
    scene.assert_same("here", "got");
    fs::remove_dir_all(&packs).unwrap();
    scene.pushed("one", "third", 30..40);
    scene.good("three", &["cache", "pull", "own", &scene.remote(), "--scope", "team"]);
    scene.files("expected", 0..40);
    assert_status(&scene.read_all("three", &scene.remote(), "got"), 0);
    scene.assert_same("expected", "got");
}

#[test]
fn those_that_push_at_once_lose_nothing() {
    let scene = Scene::new();
    let remote = scene.remote();
    let children: Vec<_> = (0..6u32)
        .map(|number| {
            let machine = format!("m{number}");
            let from = scene.files(&format!("from{number}"), number * 100..number * 100 + 7);
            scene.good(&machine, &["cache", "warm", "own", &from, "--scope", "team"]);
            let mut command = scene.command(&machine, &["cache", "push", "own", &remote, "--scope", "team"]);
            command.stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        assert_status(&child.wait_with_output().unwrap(), 0);
    }
    for number in 0..6u32 {
        scene.files("expected", number * 100..number * 100 + 7);
    }
    scene.good("last", &["cache", "pull", "own", &remote, "--scope", "team"]);
    assert_status(&scene.read_all("last", &remote, "got"), 0);
    scene.assert_same("expected", "got");
}

#[test]
fn a_killed_push_leaves_the_remote_as_it_was() {
    let scene = Scene::new();
    let remote = scene.remote();
    scene.pushed("one", "first", 0..20);
    let from = scene.files("more", 1000..1020);
    scene.good("one", &["cache", "warm", "own", &from, "--scope", "team"]);
    for round in 0..8u64 {
        let mut child = scene.command("one", &["cache", "push", "own", &remote, "--scope", "team"]);
        let mut child = child.stderr(Stdio::null()).spawn().unwrap();
        thread::sleep(Duration::from_millis(round * 7));
        child.kill().unwrap();
        child.wait().unwrap();
        let machine = format!("reader{round}");
        scene.good(&machine, &["cache", "pull", "own", &remote, "--scope", "team"]);
        assert_status(&scene.read_all(&machine, &remote, "got"), 0);
        let count = fs::read_dir(scene.at("got")).unwrap().count();
        assert!([21, 41].contains(&count), "{count}");
    }
    scene.good("one", &["cache", "push", "own", &remote, "--scope", "team"]);
    scene.files("first", 1000..1020);
    scene.good("last", &["cache", "pull", "own", &remote, "--scope", "team"]);
    assert_status(&scene.read_all("last", &remote, "got"), 0);
    scene.assert_same("first", "got");
}

#[test]
fn a_server_that_fails_gives_no_wrong_bytes() {
    let scene = Scene::new();
    scene.pushed("one", "files", 0..30);
    let web = Web::of(&scene.at("remote"));
    // A pull fails as a whole, in one line.
    for (at, fault) in [Fault::Error, Fault::Truncated, Fault::Short, Fault::Wrong, Fault::Gone, Fault::Endless]
        .into_iter()
        .enumerate()
    {
        for object in ["head", "generations"] {
            web.fail(fault, object);
            let output = scene.inarch(&format!("pull{at}"), &["cache", "pull", "own", &web.url, "--scope", "team"]);
            assert_one_line(&output, &["127.0.0.1"]);
        }
    }
    // Bytes of files: an error that names the file, or the right ones.
    for (at, fault) in [
        Fault::Error,
        Fault::Truncated,
        Fault::Short,
        Fault::Wrong,
        Fault::Gone,
        Fault::Endless,
        Fault::Whole,
        Fault::Slow(Duration::from_millis(5)),
    ]
    .into_iter()
    .enumerate()
    {
        let machine = format!("read{at}");
        web.fail(Fault::None, "");
        scene.good(&machine, &["cache", "pull", "own", &web.url, "--scope", "team"]);
        web.fail(fault, "packs");
        let output = scene.read_all(&machine, &web.url, "got");
        if output.status.success() {
            scene.assert_same("files", "got");
        } else {
            assert_status(&output, 125);
            assert!(
                !stderr(&output).contains('\u{1b}') && !stderr(&output).contains("panicked"),
                "{}",
                stderr(&output)
            );
        }
        let fails = !matches!(fault, Fault::Slow(_));
        assert_eq!(!output.status.success(), fails, "{fault:?}: {}", stderr(&output));
        // When the server is well again, all is there.
        web.fail(Fault::None, "");
        let output = scene.read_all(&machine, &web.url, "got");
        assert_eq!((assert_status(&output, 0), scene.assert_same("files", "got")), ((), ()));
    }
    // The second time nothing is sent.
    web.take_sent();
    assert_status(&scene.read_all("read0", &web.url, "got"), 0);
    assert_eq!(web.take_sent(), 0);
    // A web server is only read.
    assert_one_line(&scene.inarch("one", &["cache", "push", "own", &web.url, "--scope", "team"]), &["only read"]);
}

#[test]
fn damaged_bytes_here_are_fetched_again() {
    let scene = Scene::new();
    scene.pushed("one", "files", 0..30);
    scene.good("two", &["cache", "pull", "own", &scene.remote(), "--scope", "team"]);
    assert_status(&scene.read_all("two", &scene.remote(), "got"), 0);
    // As a crash or a bad disk leaves it.
    let packs = scene.at("two/inarch/caches/named-team/own/packs");
    let pack = fs::read_dir(packs).unwrap().map(|entry| entry.unwrap().path()).find(|path| path.as_os_str().len() > 64);
    let file = fs::OpenOptions::new().write(true).open(pack.unwrap()).unwrap();
    for at in (0..file.metadata().unwrap().len()).step_by(40_000) {
        std::os::unix::fs::FileExt::write_all_at(&file, b"wrong", at).unwrap();
    }
    assert_status(&scene.read_all("two", &scene.remote(), "got"), 0);
    scene.assert_same("files", "got");
}

#[test]
fn a_pushed_tree_is_a_source() {
    let scene = Scene::new();
    let from = scene.files("tree", 0..30);
    host(
        "sh",
        &[
            "-ec",
            "ln -s below tree/link; ln tree/00001 tree/hard; chown 7:8 tree/00002; chmod 4750 tree/00002; : > tree/empty",
        ],
        scene.place.path(),
    );
    let url = format!("file://{}", scene.at("trees/one").display());
    scene.good("one", &["push", &from, &url]);
    let again = scene.good("one", &["push", &from, &url]);
    assert!(stderr(&again).contains("the remote has all of it"), "{}", stderr(&again));
    // A change of an attribute alone is one.
    fs::set_permissions(scene.at("tree/00004"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let again = scene.good("one", &["push", &from, &url]);
    assert!(stderr(&again).contains("0 files sent") && stderr(&again).contains("generation 2"), "{}", stderr(&again));
    let tar = scene.at("tree.tar");
    scene.good("two", &["image", &url, "-o", tar.to_str().unwrap()]);
    host(
        "sh",
        &[
            "-ec",
            "mkdir x; tar -xpf tree.tar -C x; diff -r tree x; for at in tree x; do (cd $at; find . -printf '%p %y %m %U %G %n %T@\\n' | sort) > $at.list; done; cmp tree.list x.list",
        ],
        scene.place.path(),
    );
    // A guest reads it.
    let tree = format!("{url}=/mnt");
    let script = "cd /mnt; cmp /mnt/below/00010 /mnt/link/00010 && sha256sum < below/00020; ls | wc -l";
    let output = scene.inarch("three", &["run", "-q", any_machine(), "--tree", &tree, "sh", "-c", script]);
    assert_status(&output, 0);
    let expected = host("sh", &["-c", "cd tree; sha256sum < below/00020; ls | wc -l"], scene.place.path());
    assert_eq!(stdout(&output), expected);
    // A new one replaces it.
    fs::remove_file(scene.at("tree/00003")).unwrap();
    scene.good("one", &["push", &from, &url]);
    scene.good("two", &["image", &url, "-o", scene.at("second.tar").to_str().unwrap()]);
    let list = host("tar", &["-tf", "second.tar"], scene.place.path());
    assert!(!list.contains("00003") && list.contains("00004"), "{list}");
    // What is kept of it is listed by its URL, and goes by it.
    let kept = scene.at("kept.tar");
    assert!(stdout(&scene.inarch("two", &["cache", "list"])).contains(&url));
    assert_one_line(&scene.inarch("two", &["cache", "remove", "tree", "--scope", "file:///other"]), &["file:///other"]);
    scene.good("two", &["cache", "remove", "tree", "--scope", &url]);
    assert!(!stdout(&scene.inarch("two", &["cache", "list"])).contains(&url));
    scene.good("two", &["image", &url, "-o", kept.to_str().unwrap()]);
    let nowhere = format!("file://{}", scene.at("nowhere").display());
    assert_one_line(&scene.inarch("two", &["plan", &nowhere]), &["nothing was pushed there"]);
    assert!(!stdout(&scene.inarch("two", &["cache", "list"])).contains(&nowhere), "nothing is left of it");
}

/// Unmounts it at the end of a test.
struct Mounted(PathBuf, std::process::Child);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
        let _ = self.1.kill();
    }
}

#[test]
fn a_mount_fetches_what_is_read() {
    let scene = Scene::new();
    let from = scene.files("tree", 0..200);
    scene.good("one", &["push", &from, &format!("file://{}", scene.at("trees").display())]);
    let web = Web::of(&scene.at("trees"));
    let point = scene.at("mnt");
    fs::create_dir(&point).unwrap();
    let lines = fs::File::create(scene.at("lines")).unwrap();
    let mut mount = scene.command("two", &["mount", &web.url, point.to_str().unwrap(), "--ro"]);
    let mount = mount.stdout(Stdio::null()).stderr(lines).spawn().unwrap();
    let mounted = Mounted(point.clone(), mount);
    assert!(within(LONG, || point.join("00007").exists()));
    assert_eq!(fs::read(point.join("00007")).unwrap(), fs::read(scene.at("tree/00007")).unwrap());
    let sent = web.take_sent();
    assert!(sent < 5_000_000, "{sent}");
    // Wrong bytes are an error of the file, and a line names it.
    web.fail(Fault::Wrong, "packs");
    let error = fs::read(point.join("below/00150")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let named = || fs::read_to_string(scene.at("lines")).unwrap().contains("below/00150");
    assert!(within(LONG, named), "{}", fs::read_to_string(scene.at("lines")).unwrap());
    web.fail(Fault::None, "");
    assert_eq!(fs::read(point.join("below/00150")).unwrap(), fs::read(scene.at("tree/below/00150")).unwrap());
    host("diff", &["-r", "tree", "mnt"], scene.place.path());
    drop(mounted);
}

/// Any machine reads a published tree: its disk begins before its bytes have arrived.
#[test]
fn a_served_disk_fetches_what_is_read() {
    let scene = Scene::new();
    let from = scene.files("tree", 0..200);
    scene.good("one", &["push", &from, &format!("file://{}", scene.at("trees").display())]);
    let web = Web::of(&scene.at("trees"));
    let (socket, lines) = (scene.at("socket"), scene.at("lines"));
    let mut serve = scene.command("two", &["serve", "nbd", &web.url, "--socket", socket.to_str().unwrap()]);
    let serve = serve.stdout(Stdio::null()).stderr(fs::File::create(&lines).unwrap()).spawn().unwrap();
    // Nothing is mounted there: the value ends the server.
    let served = Mounted(scene.at("none"), serve);
    assert!(within(LONG, || socket.exists()), "{}", fs::read_to_string(&lines).unwrap());
    let disk = format!("nbd+unix:///?socket={}", socket.display());
    let told = host("nbdinfo", &["--size", &disk], scene.place.path());
    assert!(told.trim().parse::<u64>().is_ok_and(|size| size > 0), "{told}");
    let sent = web.take_sent();
    assert!(sent < 1_000_000, "{sent}");
    // What was fetched wrong is an error for the reader, and a line names the file.
    web.fail(Fault::Wrong, "packs");
    let copy = || Command::new("nbdcopy").args([&disk, "copy"]).current_dir(scene.place.path()).output().unwrap();
    assert!(!copy().status.success());
    assert!(within(LONG, || fs::read_to_string(&lines).unwrap().contains("below/")));
    web.fail(Fault::None, "");
    assert_status(&copy(), 0);
    drop(served);
    scene.good("two", &["disk", "cp", scene.at("copy").to_str().unwrap(), "/", scene.at("out").to_str().unwrap()]);
    host("sh", &["-ec", "/sbin/e2fsck -fn copy >&2; diff -r -x lost+found tree out"], scene.place.path());
}

/// The kernel takes the bytes, and later learns that the disk does not.
#[test]
fn what_the_disk_loses_is_fetched_again() {
    let scene = Scene::new();
    let from = scene.files("tree", 0..200);
    let url = format!("file://{}", scene.at("trees").display());
    scene.good("one", &["push", &from, &url]);
    // A disk of 200 MiB for which there are 12. Without a journal it goes on after an error.
    let script = "mkdir memory two mnt && mount -t tmpfs -o size=12m none memory && truncate -s 200M memory/disk
        mkfs.ext4 -q -O ^has_journal -E nodiscard memory/disk && mount -o loop memory/disk two";
    host("sh", &["-ec", script], scene.place.path());
    let (lines, point) = (fs::File::create(scene.at("lines")).unwrap(), scene.at("mnt"));
    let mut mount = scene.command("two", &["mount", &url, point.to_str().unwrap(), "--ro"]);
    let mount = mount.stdout(Stdio::null()).stderr(lines).spawn().unwrap();
    let mounted = Mounted(point.clone(), mount);
    let is_mounted = within(LONG, || point.join("00007").exists());
    // Twice: what was fetched once more is lost once more.
    let script = "
        for round in 1 2; do
            diff -r tree mnt
            sync -f two || true
            # Pages of both file systems are dropped.
            find mnt two -xdev -type f -exec dd status=none count=0 iflag=nocache if={} ';'
        done
        diff -r tree mnt";
    let mut compared = Command::new("sh");
    let compared = compared.args(["-ec", script]).current_dir(scene.place.path()).output().unwrap();
    drop(mounted);
    host("sh", &["-c", "umount -l two; umount -l memory"], scene.place.path());
    let told = fs::read_to_string(scene.at("lines")).unwrap();
    assert!(is_mounted, "{told}");
    assert_status(&compared, 0);
    assert!(told.contains("what is fetched cannot be kept"), "the disk was large enough: {told}");
}

#[test]
fn buckets_of_s3_are_remotes() {
    let scene = Scene::new();
    fs::create_dir_all(scene.at("s3/bucket")).unwrap();
    let server = S3::of(&scene.at("s3"));
    let inarch =
        |machine: &str, words: &[&str]| scene.command(machine, words).envs(server.variables()).output().unwrap();
    let good = |machine: &str, words: &[&str]| assert_status(&inarch(machine, words), 0);
    let url = "s3://bucket/caches";
    // A pack of several parts.
    let from = scene.files("files", 0..200);
    good("one", &["cache", "warm", "own", &from, "--scope", "team"]);
    good("one", &["cache", "push", "own", url, "--scope", "team"]);
    // Further machines push. This server compares and replaces a head in two steps, so one after the other.
    for number in 0..4u32 {
        let machine = format!("m{number}");
        let from = scene.files(&format!("from{number}"), 1000 + number * 10..1005 + number * 10);
        good(&machine, &["cache", "warm", "own", &from, "--scope", "team"]);
        good(&machine, &["cache", "push", "own", url, "--scope", "team"]);
    }
    for number in 0..4u32 {
        scene.files("files", 1000 + number * 10..1005 + number * 10);
    }
    let read = "set -e; cd /srv/own; find . -type f | sort | xargs sha256sum; echo new > new";
    let words =
        ["run", "-q", any_machine(), "--cache", "own=/srv/own,scope=team", "--cache-remote", url, "sh", "-c", read];
    let output = inarch("guest", &words);
    assert_status(&output, 0);
    let expected = host("sh", &["-ec", "cd files; find . -type f | sort | xargs sha256sum"], scene.place.path());
    assert_eq!(stdout(&output), expected);
    let output = inarch("five", &["cache", "pull", "own", url, "--scope", "team"]);
    assert_status(&output, 0);
    let output = inarch("five", &["cache", "show", "own", "--scope", "team", "--json"]);
    let files = host("sh", &["-c", "find files -type f | wc -l"], scene.place.path()).trim().parse::<u64>().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["files"], files + 1);
    // A tree.
    good("one", &["push", &from, "s3://bucket/tree"]);
    let tar = scene.at("tree.tar");
    good("two", &["image", "s3://bucket/tree", "-o", tar.to_str().unwrap()]);
    host("sh", &["-ec", "mkdir x; tar -xf tree.tar -C x; diff -r files x"], scene.place.path());
    // A wrong secret.
    let wrong = [("AWS_SECRET_ACCESS_KEY", "another")];
    let words = ["cache", "pull", "own", url, "--scope", "team"];
    let output = scene.command("six", &words).envs(server.variables()).envs(wrong).output().unwrap();
    assert_one_line(&output, &["s3://bucket/caches"]);
}

#[test]
fn a_bucket_that_redirects_gives_no_credentials_away() {
    let scene = Scene::new();
    scene.pushed("one", "files", 0..3);
    let (web, other) = (Web::of(&scene.at("remote")), Web::of(&scene.at("remote")));
    let port = other.url.rsplit(':').next().unwrap().parse().unwrap();
    web.fail(Fault::Elsewhere(port), "/");
    let variables = [
        ("AWS_ENDPOINT", &web.url[..]),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_SESSION_TOKEN", "token"),
    ];
    let words = ["cache", "pull", "own", "s3://bucket/caches", "--scope", "team"];
    let output = scene.command("two", &words).envs(variables).output().unwrap();
    assert_one_line(&output, &["s3://bucket/caches", "307"]);
    assert_eq!(other.requests(), 0);
    // A web server gets no credentials, and may send its clients elsewhere.
    scene.good("two", &["cache", "pull", "own", &web.url, "--scope", "team"]);
    assert_ne!(other.requests(), 0);
}

#[test]
fn a_url_that_is_none_gets_one_line() {
    let scene = Scene::new();
    for url in ["ftp://x/y", "s3://b/../x", "http://example.com/x", "nothing", "file://relative"] {
        assert_one_line(&scene.inarch("one", &["cache", "pull", "own", url]), &[url]);
        assert_one_line(&scene.inarch("one", &["run", "--cache", "maven", "--cache-remote", url, "true"]), &[url]);
    }
    assert_one_line(&scene.inarch("one", &["cache", "push", "own"]), &["INARCH_CACHE_REMOTE"]);
}
