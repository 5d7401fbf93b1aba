//! Promise: a live directory is as it is on the host; the guest's writes reach it only with `rw`; and changes of the
//! host or another guest are seen when the documentation says so.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::support::{
    INARCH, any_machine, assert_one_line, assert_status, host, manifest_program, run_script_in, scratch, stdout,
};

/// Files of many kinds.
fn fill(tree: &Path) {
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    let bytes: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    fs::write(tree.join("large"), bytes).unwrap();
    for i in 0..100 {
        fs::write(tree.join(format!("a/b/c/small{i}")), i.to_string().repeat(i)).unwrap();
    }
    fs::write(tree.join(std::ffi::OsStr::from_bytes(b"not \xff utf-8\n")), "x").unwrap();
    fs::write(tree.join("set-user-id"), "x").unwrap();
    fs::set_permissions(tree.join("set-user-id"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::hard_link(tree.join("large"), tree.join("a/same")).unwrap();
    symlink("../large", tree.join("a/link")).unwrap();
    host("mkfifo", &["fifo"], tree);
    host("setfattr", &["-n", "user.colour", "-v", "green", "large"], tree);
    host("setfattr", &["-n", "user.long", "-v", &"x".repeat(2000), "a"], tree);
    host("truncate", &["-s", "1G", "sparse"], tree);
    fs::remove_file(tree.join("sparse")).unwrap();
}

#[test]
fn a_guest_sees_the_directory_as_it_is() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fill(&tree);
    manifest_program(dir.path());
    let expected = host("python3", &["manifest.py", "tree"], dir.path());
    let script = "for t in /ro /rw /guest /none /over; do python3 manifest.py $t; echo END; done";
    let at = |options: &str| format!("--tree={}:{options}", tree.display());
    let options = [
        at("/ro,ro,via=virtiofs"),
        at("/rw,rw"),
        at("/guest,rw,changes=guest"),
        at("/none,ro,via=virtiofs,changes=none"),
        at("/over,via=virtiofs"),
    ];
    let output = run_script_in(any_machine(), dir.path(), &options.each_ref().map(String::as_str), script, b"");
    assert_status(&output, 0);
    let text = stdout(&output);
    let seen: Vec<&str> = text.split_terminator("END\n").collect();
    assert_eq!(seen.len(), 5);
    for (way, seen) in ["ro", "rw", "guest", "none", "over"].iter().zip(seen) {
        // An overlay's root is a directory of its own, with a time of change of its own.
        let own = usize::from(*way == "over");
        for (seen, expected) in seen.lines().zip(expected.lines()).skip(own) {
            assert_eq!(seen, expected, "{way}");
        }
        assert_eq!(seen.lines().count(), expected.lines().count(), "{way}");
    }
    assert_eq!(host("python3", &["manifest.py", "tree"], dir.path()), expected, "a guest changed the directory");
}

/// A tmpfs that is mounted for a test.
struct Tmpfs<'a>(&'a Path);

impl Drop for Tmpfs<'_> {
    fn drop(&mut self) {
        host("umount", &["-l", self.0.to_str().unwrap()], Path::new("/"));
    }
}

#[test]
fn what_is_mounted_beneath_a_share_is_shown_on_request_as_another_file_system() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("mounted")).unwrap();
    host("mount", &["-t", "tmpfs", "tmpfs", "mounted"], &tree);
    let mounted = tree.join("mounted");
    let _mounted = Tmpfs(&mounted);
    fs::create_dir(mounted.join("d")).unwrap();
    fs::write(mounted.join("d/inside"), "inside\n").unwrap();
    let at = |options: &str| format!("--tree={}:{options}", tree.display());
    let options = [at("/fs,rw,via=virtiofs"), at("/9p,rw,via=9p"), at("/over,via=virtiofs"), "--cross".to_owned()];
    // A directory that is mounted by itself is so from when it was first entered.
    let script = "
        for t in /fs /9p /over; do cat $t/mounted/d/inside; echo new > $t/mounted/new$(basename $t); done
        cd /fs; find . -xdev; stat -c %d . mounted mounted/d | uniq -c | wc -l; rmdir mounted; mv mounted/newfs . && echo moved";
    let output = run_script_in(any_machine(), dir.path(), &options.each_ref().map(String::as_str), script, b"");
    assert_eq!(stdout(&output), "inside\ninside\ninside\n.\n./mounted\n2\nmoved\n");
    assert_status(&output, 0);
    assert!(mounted.join("new9p").exists() && !mounted.join("newover").exists() && tree.join("newfs").exists());
}

const WRITE: &str = r#"
set -e
cd $1
echo new > new; printf 12345 | dd of=large bs=1 seek=10 conv=notrunc 2>/dev/null
mkdir -p d/e; mv a/b d/moved; ln new d/again; ln -s new l; rm a/same; rmdir d/e
chmod 640 new; chown 12:34 new; touch -d @1000000000.5 d; truncate -s 100 large
setfattr -n user.colour -v red large; [ "$(getfattr --only-values -n user.colour large)" = red ]
setfattr -x user.colour large
head -c 300000 /dev/urandom > random; cp random copy; cmp random copy
exec 3<>open; rm open; echo still >&3; [ "$(cat /proc/self/fd/3)" = still ]; exec 3>&-
( flock -n 9 || exit 5; ! flock -n new -c true ) 9<new
flock new -c true
python3 - <<X
import mmap, os, fcntl
with open('mapped', 'wb+') as f:
    f.truncate(10000)
    m = mmap.mmap(f.fileno(), 10000); m[5000:5003] = b'abc'; m.flush(); os.fsync(f.fileno())
    assert os.pread(f.fileno(), 3, 5000) == b'abc'
    fcntl.lockf(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_UN)
with open('appended', 'a') as f, open('appended', 'a') as g:
    f.write('1'); f.flush(); g.write('2'); g.flush(); f.write('3')
assert open('appended').read() == '123'
os.rename('mapped', 'renamed')
X
su nobody -s /bin/sh -c '! echo x > new' 2>/dev/null
mkdir -m 1777 shared; su nobody -s /bin/sh -c 'umask 027; echo x > shared/own; mkdir shared/dir'
sync; echo done
"#;

#[test]
fn writes_reach_the_directory_only_if_they_are_to() {
    let dir = scratch();
    for name in ["host", "guest", "back", "over", "read"] {
        fill(&dir.path().join(name));
    }
    manifest_program(dir.path());
    let before = ["over", "read"].map(|name| host("python3", &["manifest.py", name], dir.path()));
    let at = |name: &str, options: &str| format!("--tree={}:/{name},{options}", dir.path().join(name).display());
    let options = [
        at("host", "rw"),
        at("guest", "rw,changes=guest"),
        at("back", "rw,changes=guest,writeback"),
        at("over", "via=virtiofs"),
        at("read", "ro,via=virtiofs"),
    ];
    // What the guest's kernel alone changes it may remember, and is told again of what it has read and written.
    let script = format!(
        "work() {{ {WRITE} }}; see() {{ for i in 1 2; do python3 manifest.py /guest > /tmp/seen; done; }}; see
         for t in /host /guest /back /over; do (work $t) || exit; done; ! touch /read/new 2>/dev/null || exit
         see; cat /tmp/seen"
    );
    let output = run_script_in(any_machine(), dir.path(), &options.each_ref().map(String::as_str), &script, b"");
    assert_status(&output, 0);
    let shown = stdout(&output);
    let seen = shown.strip_prefix("done\ndone\ndone\ndone\n").unwrap_or_else(|| panic!("{shown}"));
    assert_eq!(seen, host("python3", &["manifest.py", "guest"], dir.path()));
    for name in ["host", "guest", "back"] {
        let tree = dir.path().join(name);
        let new = fs::metadata(tree.join("new")).unwrap();
        assert_eq!((new.mode() & 0o7777, new.uid(), new.gid(), new.nlink()), (0o640, 12, 34, 2), "{name}");
        assert_eq!(fs::metadata(tree.join("large")).unwrap().len(), 100);
        assert_eq!(&fs::read(tree.join("large")).unwrap()[10..15], b"12345");
        assert_eq!(fs::metadata(tree.join("d")).unwrap().mtime(), 1_000_000_000);
        assert_eq!(fs::read(tree.join("random")).unwrap(), fs::read(tree.join("copy")).unwrap());
        assert_eq!(fs::read(tree.join("appended")).unwrap(), b"123");
        assert_eq!(&fs::read(tree.join("renamed")).unwrap()[5000..5003], b"abc");
        assert!(tree.join("d/moved/c/small7").exists() && !tree.join("a/b").exists() && !tree.join("open").exists());
        let own = fs::metadata(tree.join("shared/own")).unwrap();
        assert_eq!((own.mode() & 0o7777, own.uid(), own.gid()), (0o640, 65534, 65534), "{name}");
        assert_eq!(fs::metadata(tree.join("shared/dir")).unwrap().mode() & 0o7777, 0o750);
    }
    let after = ["over", "read"].map(|name| host("python3", &["manifest.py", name], dir.path()));
    assert_eq!(after, before, "what was to be thrown away reached the host");
}

/// A guest whose script answers each line that it is given.
struct Talk {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Talk {
    /// Evaluates each line in a shell in /t, and says END behind what it printed.
    fn start(dir: &Path, tree: &str) -> Talk {
        let script = "cd /t; while read -r line; do eval \"$line\"; echo END; done";
        let mut child = Command::new(INARCH)
            .args(["run", "--quiet", any_machine(), "--tree", tree, "--", "sh", "-c", script])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("inarch starts");
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Talk { child, input, output }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        while !answer.ends_with("END\n") {
            assert_ne!(self.output.read_line(&mut answer).unwrap(), 0, "the guest ended: {answer}");
        }
        answer.trim_end_matches("END\n").to_owned()
    }

    fn end(mut self) {
        drop(self.input);
        assert!(self.child.wait().unwrap().success());
    }
}

/// Prints what can go stale in a tree: content, size, a name that was there, one that was not, a target, permissions.
const LOOK: &str = "cat file; ls; stat -c %s,%a file; readlink link; ls -d later 2>/dev/null; true";

#[test]
fn changes_are_seen_by_virtiofs_as_soon_as_is_promised() {
    changes_are_seen("virtiofs");
}

#[test]
fn changes_are_seen_by_9p_as_soon_as_is_promised() {
    changes_are_seen("9p");
}

fn changes_are_seen(via: &str) {
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "old\n").unwrap();
    fs::write(tree.join("goes"), "").unwrap();
    symlink("old-target", tree.join("link")).unwrap();
    let tree_option = format!("{}:/t,rw,via={via},changes=host", tree.display());
    let mut first = Talk::start(dir.path(), &tree_option);
    let mut second = Talk::start(dir.path(), &tree_option);
    let mut frozen = Talk::start(dir.path(), &format!("{}:/t,ro,via={via},changes=none", tree.display()));
    let before = first.ask(LOOK);
    assert_eq!(before, "old\nfile\ngoes\nlink\n4,644\nold-target\n");
    assert_eq!((second.ask(LOOK), frozen.ask(LOOK)), (before.clone(), before));

    // The host changes it: at most a second later the guests see all of it.
    fs::write(tree.join("file"), "newer\n").unwrap();
    fs::set_permissions(tree.join("file"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::remove_file(tree.join("goes")).unwrap();
    fs::write(tree.join("later"), "").unwrap();
    fs::remove_file(tree.join("link")).unwrap();
    symlink("new-target", tree.join("link")).unwrap();
    let after = "newer\nfile\nlater\nlink\n6,600\nnew-target\nlater\n";
    assert_eq!(first.ask(&format!("sleep 1.1; {LOOK}")), after);
    assert_eq!(second.ask(LOOK), after);

    // A guest changes it: the host sees it at once, the other guest a second later.
    first.ask("echo guest > file; echo x > made; rm later; mv link moved");
    assert_eq!(fs::read(tree.join("file")).unwrap(), b"guest\n");
    assert!(tree.join("made").exists() && !tree.join("later").exists());
    assert_eq!(second.ask("sleep 1.1; cat file; ls"), "guest\nfile\nmade\nmoved\n");
    // What another has replaced is another file, not an error.
    second.ask("echo other > new; mv new file");
    assert_eq!(first.ask("sleep 1.1; cat file"), "other\n");

    // With changes=guest the host sees what the guest has synchronised, and the guest keeps what it knows.
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    let mut alone = Talk::start(dir.path(), &format!("{}:/t,rw,via={via},changes=guest", own.display()));
    alone.ask("echo mine > made; mkdir d; mv made d/moved; echo more >> d/moved; sync");
    assert_eq!(fs::read(own.join("d/moved")).unwrap(), b"mine\nmore\n");
    assert_eq!(alone.ask("cat d/moved; ls"), "mine\nmore\nd\n");
    alone.end();

    // With changes=none the guest sees it as it was.
    assert_eq!(frozen.ask("stat -c %s file; cat file | head -c 4"), "4\nold\n");
    // A listing by 9P tells no more than names, so that a name is looked up when it is used.
    if via == "virtiofs" {
        assert_eq!(frozen.ask("ls goes"), "goes\n");
    }
    for talk in [first, second, frozen] {
        talk.end();
    }
}

#[test]
fn ways_that_contradict_each_other_get_one_line() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "x").unwrap();
    host("tar", &["-cf", "a.tar", "file"], dir.path());
    for (tree, reason) in [
        (".:/t,rw,via=ext4", "via=virtiofs"),
        (".:/t,ro,changes=guest", "via=virtiofs"),
        (".:/t,rw,exclude=*.o", "shared whole"),
        (".:/t,rw,changes=none", "nobody"),
        (".:/t,rw,writeback", "changes=guest"),
        (".:/t,rw,via=9p,changes=guest,writeback", "via=virtiofs"),
        (".:/t,via=virtiofs,changes=guest,writeback", "say rw"),
        ("a.tar:/t,rw", "only a directory"),
    ] {
        let output = run_script_in(any_machine(), dir.path(), &["--tree", tree], "true", b"");
        assert_one_line(&output, &[reason]);
    }
}
