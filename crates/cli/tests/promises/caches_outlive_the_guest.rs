//! The next guest of the same scope reads what a guest added to a cache; guests of other scopes do not. A publication is atomic.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::support::{INARCH, any_machine, assert_one_line, assert_status, host, programs, scratch, stderr, stdout};

/// Two projects, and a directory of state of their own.
pub struct Scene {
    /// The directory of all.
    pub place: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        let place = scratch();
        for project in ["one/.git", "one/below", "two/.git"] {
            fs::create_dir_all(place.path().join(project)).unwrap();
        }
        Scene { place }
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    pub fn command(&self, project: &str, words: &[&str]) -> Command {
        let mut command = Command::new(INARCH);
        command
            .args(words)
            .current_dir(self.at(project))
            .env("XDG_STATE_HOME", self.at("state"))
            .env("PATH", programs())
            .stdin(Stdio::null());
        command
    }

    pub fn inarch(&self, project: &str, words: &[&str]) -> Output {
        self.command(project, words).output().unwrap()
    }

    /// Runs a script in a guest that has these caches.
    pub fn run(&self, project: &str, caches: &str, script: &str) -> Output {
        self.inarch(project, &["run", "-q", any_machine(), "--cache", caches, "sh", "-c", script])
    }

    fn reports(&self) -> Vec<Value> {
        let output = self.inarch("one", &["cache", "list", "--json"]);
        assert_status(&output, 0);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The number of a cache's files, and of its generation; `None` where there is no such cache.
    pub fn state(&self, name: &str) -> Option<(u64, u64)> {
        let all = self.reports();
        let report = all.iter().find(|report| report["name"] == name)?;
        Some((report["files"].as_u64()?, report["generation"].as_u64()?))
    }

    /// Asserts that every file of a cache is what was published.
    pub fn assert_sound(&self, name: &str) {
        assert_status(&self.inarch("one", &["cache", "verify", name]), 0);
    }

    /// Makes a directory with files of these numbers.
    pub fn files(&self, name: &str, numbers: std::ops::Range<u32>) {
        let directory = self.at(name);
        fs::create_dir_all(&directory).unwrap();
        for number in numbers {
            fs::write(directory.join(format!("{number:05}")), format!("{number}\n").repeat(number as usize % 700 + 1))
                .unwrap();
        }
    }
}

#[test]
fn what_a_command_that_succeeds_adds_is_there_for_the_next() {
    let scene = Scene::new();
    let fill = "set -e; cd /srv/own; test -z \"$(ls)\"; echo text > file; mkdir -p a/b; seq 100000 > a/b/numbers; ln file hard; ln -s file link
        chmod 640 file; mkfifo fifo; : > empty";
    assert_status(&scene.run("one", "own=/srv/own", fill), 0);
    assert_eq!(scene.state("own"), Some((4 - 1, 1)));
    // From any directory of the project; a command that fails adds nothing.
    let look =
        "cd /srv/own; ls -A; stat -c '%a %h %U' file; cat link; seq 100000 | cmp - a/b/numbers; echo new > new; exit 3";
    let output = scene.run("one/below", "own=/srv/own", look);
    assert_status(&output, 3);
    assert_eq!(stdout(&output), "a\nempty\nfile\nhard\nlink\n640 2 root\ntext\n");
    // Nor one that may only read.
    assert_status(&scene.run("one", "own=/srv/own,ro", "echo new > /srv/own/new"), 0);
    assert_eq!(scene.state("own"), Some((3, 1)));
    // Changed, removed, moved and added files.
    let change =
        "set -e; cd /srv/own; echo more >> a/b/numbers; rm hard; mv file a/file; echo new > new; chown 1:1 new";
    assert_status(&scene.run("one", "own=/srv/own", change), 0);
    let after = scene.run(
        "one",
        "own=/srv/own,always",
        "cd /srv/own; ls -AR; tail -n 2 a/b/numbers; stat -c %U new; echo x > failed; false",
    );
    assert_status(&after, 1);
    assert_eq!(stdout(&after), ".:\na\nempty\nlink\nnew\n\n./a:\nb\nfile\n\n./a/b:\nnumbers\n100000\nmore\nroot\n");
    assert_eq!(scene.state("own"), Some((5, 3)));
    scene.assert_sound("own");
}

#[test]
fn another_project_has_a_cache_of_its_own() {
    let scene = Scene::new();
    assert_status(&scene.run("one", "own=/srv/own", "echo secret > /srv/own/file"), 0);
    // Neither in its place nor in the tree that the guest's root is.
    let state = scene.at("state");
    let look = format!("ls -A /srv/own; find {} -name '0000*'; echo theirs > /srv/own/file", state.display());
    let output = scene.run("two", "own=/srv/own", &look);
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), ""));
    let names: Vec<String> =
        scene.reports().iter().map(|report| report["scope"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        names,
        [scene.at("one").canonicalize().unwrap(), scene.at("two").canonicalize().unwrap()]
            .map(|path| path.to_str().unwrap().to_owned())
    );
    let archive = scene.inarch("one", &["image", "cache:own", "-o", "-", "--format", "tar"]);
    assert!(stdout(&archive).contains("secret"));
    // What is the user's is every project's.
    assert_status(&scene.run("one", "own=/srv/own,scope=user", "echo shared > /srv/own/file"), 0);
    let output = scene.run("two", "own=/srv/own,scope=user", "cat /srv/own/file");
    assert_eq!(stdout(&output), "shared\n");
}

#[test]
fn a_compiler_finds_what_it_compiled_before() {
    let scene = Scene::new();
    fs::write(scene.at("one/x.c"), "int main(void) { return 0; }\n").unwrap();
    let script = "ccache -z >/dev/null && ccache gcc -c x.c -o /tmp/x.o && ccache -s -v";
    let hits = |output: &Output| {
        let text = stdout(output);
        let line = text.lines().map(str::trim).find(|line| line.starts_with("Hits:")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{text}{}", stderr(output)))
    };
    let cold = scene.run("one", "ccache", script);
    assert!(hits(&cold).contains("0 /"), "{}", hits(&cold));
    let warm = scene.run("one", "ccache", script);
    assert!(hits(&warm).contains("1 /"), "{}", hits(&warm));
}

#[test]
fn directories_and_archives_fill_a_cache() {
    let scene = Scene::new();
    scene.files("filled", 0..50);
    let filled = scene.at("filled");
    assert_status(&scene.inarch("one", &["cache", "warm", "maven", filled.to_str().unwrap()]), 0);
    assert_eq!(scene.state("maven"), Some((50, 1)));
    // Again: nothing is new.
    let again = scene.inarch("one", &["cache", "warm", "maven", filled.to_str().unwrap()]);
    assert_one_line(&again_as_error(again), &["has all of"]);
    assert_eq!(scene.state("maven"), Some((50, 1)));
    // A cache is a source of any command, and an archive of it fills another one.
    assert_status(&scene.inarch("one", &["image", "cache:maven", "-o", scene.at("all.tar").to_str().unwrap()]), 0);
    host("zstd", &["-q", "all.tar"], scene.place.path());
    let tar = scene.at("all.tar.zst");
    assert_status(&scene.inarch("one", &["cache", "import", "npm", tar.to_str().unwrap(), "--scope", "user"]), 0);
    assert_status(&scene.inarch("one", &["image", "cache:user/npm", "-o", scene.at("npm.tar").to_str().unwrap()]), 0);
    host("sh", &["-ec", "mkdir x; tar -xf npm.tar -C x; diff -r filled x"], scene.place.path());
    // Removed.
    assert_status(&scene.inarch("one", &["cache", "rm", "maven"]), 0);
    assert_eq!(scene.state("maven"), None);
    assert_one_line(&scene.inarch("one", &["cache", "show", "maven"]), &["no cache 'maven'", "inarch cache list"]);
}

/// The outcome with the status of an error, for checks of its one line.
fn again_as_error(output: Output) -> Output {
    assert_status(&output, 0);
    use std::os::unix::process::ExitStatusExt;
    Output { status: std::process::ExitStatus::from_raw(125 << 8), ..output }
}

#[test]
fn a_killed_publication_leaves_the_cache_as_it_was() {
    let scene = Scene::new();
    scene.files("base", 0..300);
    assert_status(&scene.inarch("one", &["cache", "warm", "own", scene.at("base").to_str().unwrap()]), 0);
    let mut files = 300;
    for round in 0..12u32 {
        let name = format!("more{round}");
        scene.files(&name, 1000 * (round + 1)..1000 * (round + 1) + 300);
        let mut child = scene.command("one", &["cache", "warm", "own", scene.at(&name).to_str().unwrap()]);
        let mut child = child.stderr(Stdio::null()).spawn().unwrap();
        // At any moment of it, or after it.
        thread::sleep(Duration::from_millis(u64::from(round) * 9));
        child.kill().unwrap();
        child.wait().unwrap();
        let (now, _) = scene.state("own").unwrap();
        assert!(now == files || now == files + 300, "{now}");
        files = now;
        scene.assert_sound("own");
    }
    // What the killed ones left goes with the next publication.
    scene.files("last", 90_000..90_001);
    assert_status(&scene.inarch("one", &["cache", "warm", "own", scene.at("last").to_str().unwrap()]), 0);
    scene.assert_sound("own");
    let directory = scene.reports()[0]["directory"].as_str().map(PathBuf::from).unwrap();
    let count = |below: &str| fs::read_dir(directory.join(below)).unwrap().count();
    assert_eq!(count("generations"), 1);
    assert!(
        fs::read_dir(directory.join("packs")).unwrap().all(|entry| !entry
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.'))
    );
}

#[test]
fn those_that_publish_at_once_all_succeed() {
    let scene = Scene::new();
    let count = 8;
    for number in 0..count {
        scene.files(&format!("from{number}"), number * 1000..number * 1000 + 100);
    }
    let children: Vec<_> = (0..count)
        .map(|number| {
            let from = scene.at(&format!("from{number}"));
            scene
                .command("one", &["cache", "warm", "maven", from.to_str().unwrap()])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    for child in children {
        assert_status(&child.wait_with_output().unwrap(), 0);
    }
    assert_eq!(scene.state("maven"), Some((u64::from(count) * 100, u64::from(count))));
    scene.assert_sound("maven");
}

#[test]
fn a_full_disk_leaves_the_cache_as_it_was() {
    let scene = Scene::new();
    scene.files("base", 0..100);
    host(
        "sh",
        &[
            "-ec",
            "truncate -s 16M small.img; mkfs.ext4 -q small.img; mkdir state; mount -o loop small.img state; chmod 700 state",
        ],
        scene.place.path(),
    );
    let _unmounted = Unmounted(scene.at("state"));
    assert_status(&scene.inarch("one", &["cache", "warm", "own", scene.at("base").to_str().unwrap()]), 0);
    let large = scene.at("large");
    fs::create_dir(&large).unwrap();
    for number in 0..40 {
        fs::write(large.join(format!("{number}")), vec![number as u8 + 1; 1 << 20]).unwrap();
    }
    let output = scene.inarch("one", &["cache", "warm", "own", large.to_str().unwrap()]);
    assert_one_line(&output, &["No space left"]);
    assert_eq!(scene.state("own"), Some((100, 1)));
    scene.assert_sound("own");
    // A run goes on without: what its command did is done.
    let output = scene.run("one", "own=/srv/own", "head -c 20M /dev/urandom > /srv/own/large && echo done");
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), "done\n"));
    assert!(stderr(&output).contains("nothing is published"), "{}", stderr(&output));
    assert_eq!(scene.state("own"), Some((100, 1)));
}

struct Unmounted(PathBuf);

impl Drop for Unmounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn damage_is_found_and_named() {
    let scene = Scene::new();
    scene.files("base", 0..20);
    assert_status(&scene.inarch("one", &["cache", "warm", "own", scene.at("base").to_str().unwrap()]), 0);
    let directory = scene.reports()[0]["directory"].as_str().map(PathBuf::from).unwrap();
    let flip = |path: &Path, at: u64| {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let pack = directory.join("packs/00000001");
    flip(&pack, 3 * 4096);
    let output = scene.inarch("one", &["cache", "verify", "own"]);
    assert_status(&output, 1);
    assert!(stderr(&output).contains("00002: its bytes are not those that were published"), "{}", stderr(&output));
    let generation = directory.join("generations/00000001");
    flip(&generation, 100);
    assert_one_line(
        &scene.inarch("one", &["cache", "show", "own"]),
        &["00000001", "damaged", "inarch cache remove own"],
    );
    // It hides no other cache.
    assert_status(&scene.inarch("one", &["cache", "warm", "whole", scene.at("base").to_str().unwrap()]), 0);
    for words in [&["cache", "list"][..], &["cache", "prune", "--older-than", "1d"]] {
        let output = scene.inarch("one", words);
        assert_status(&output, 0);
        assert!(stderr(&output).contains("inarch cache remove own"), "{}", stderr(&output));
    }
    let listed = stdout(&scene.inarch("one", &["cache", "list"]));
    assert!(listed.contains("\nown    damaged") && listed.contains("\nwhole       20"), "{listed}");
    assert_status(&scene.inarch("one", &["cache", "remove", "own"]), 0);
    // What another user could change is not used.
    assert_status(&scene.inarch("one", &["cache", "warm", "own", scene.at("base").to_str().unwrap()]), 0);
    fs::set_permissions(scene.at("state/inarch/caches"), fs::Permissions::from_mode(0o777)).unwrap();
    assert_one_line(&scene.inarch("one", &["cache", "show", "own"]), &["state/inarch/caches"]);
}

#[test]
fn old_and_large_caches_go() {
    let scene = Scene::new();
    scene.files("base", 0..50);
    for name in ["first", "second", "third"] {
        assert_status(&scene.inarch("one", &["cache", "warm", name, scene.at("base").to_str().unwrap()]), 0);
    }
    let directory = |name: &str| {
        let all = scene.reports();
        all.iter()
            .find(|report| report["name"] == name)
            .and_then(|report| report["directory"].as_str().map(PathBuf::from))
            .unwrap()
    };
    // As if guests had had them long ago.
    for (name, days) in [("first", 30), ("second", 10)] {
        host(
            "touch",
            &["-d", &format!("{days} days ago"), directory(name).join("used").to_str().unwrap()],
            scene.place.path(),
        );
    }
    let output = scene.inarch("one", &["cache", "prune", "--older-than", "20d"]);
    assert_status(&output, 0);
    assert!(stdout(&output).contains("removed first of"), "{}", stdout(&output));
    assert_eq!((scene.state("first"), scene.state("second")), (None, Some((50, 1))));
    // The one used longest ago goes first.
    let one = scene.reports()[0]["stored"].as_u64().unwrap();
    assert_status(&scene.inarch("one", &["cache", "prune", "--max-size", &(one + 1).to_string()]), 0);
    assert_eq!((scene.state("second"), scene.state("third")), (None, Some((50, 1))));
}
