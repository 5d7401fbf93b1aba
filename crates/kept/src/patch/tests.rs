//! Patches of real directories, applied by git and patch(1).

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use inarch_block::read_content;
use inarch_source::{Opened, Source, open};
use inarch_tree::compare::differences;
use inarch_tree::select::Selection;

use super::*;

/// A directory `old`, and `new`, which was it before it was changed; where both are the guest sees them at `/work`.
struct Scene {
    dir: tempfile::TempDir,
    /// What each inode of `new` was in `old`, by number.
    origins: HashMap<u64, Vec<u8>>,
    /// Keep numbers from being used again.
    _held: Vec<fs::File>,
}

/// Which file of `new` is which of `old`, and what both hold.
struct Double<'a> {
    origins: Vec<Option<InodeId>>,
    old: &'a Opened,
    new: &'a Opened,
}

impl Lineage for Double<'_> {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.origins[new.index()]
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        let read = |opened: &Opened, id| {
            let mut bytes = vec![0; opened.tree.inode(id).size() as usize];
            read_content(&*opened.content, id, 0, &mut bytes).unwrap();
            bytes
        };
        read(self.old, old) == read(self.new, new)
    }
}

impl Scene {
    fn new(make: &str, change: &str) -> Scene {
        let mut scene = Scene { dir: tempfile::tempdir().unwrap(), origins: HashMap::new(), _held: Vec::new() };
        scene.shell(&format!("mkdir old && cd old && {make}"));
        scene.shell("cp -a old new");
        let tree = scene.open("new").tree;
        for (id, _) in tree.inodes() {
            let path = scene.host("new").join(OsStr::from_bytes(&tree.path(id)));
            scene.origins.insert(path.symlink_metadata().unwrap().ino(), tree.path(id));
            let held = rustix::fs::open(
                &path,
                rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW,
                rustix::fs::Mode::empty(),
            );
            scene._held.push(held.unwrap().into());
        }
        scene.shell(&format!("cd new && {change}"));
        scene
    }

    fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn call(&self, program: &str, words: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        // No repository above is the one that a patch is for.
        command.env("GIT_CEILING_DIRECTORIES", self.dir.path().parent().unwrap()).output().unwrap()
    }

    #[track_caller]
    fn shell(&self, script: &str) -> String {
        let output = self.call("sh", &["-ec", script]);
        assert!(output.status.success(), "{script}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn open(&self, path: &str) -> Opened {
        open(&Source::Directory(self.host(path)), &Selection::default()).unwrap()
    }

    /// The patch, which is also in a file `patch`.
    fn patch(&self) -> String {
        let (old, new) = (self.open("old"), self.open("new"));
        let origin = |id| {
            let path = self.host("new").join(OsStr::from_bytes(&new.tree.path(id)));
            old.tree.lookup(self.origins.get(&path.symlink_metadata().unwrap().ino())?)
        };
        let origins = new.tree.inodes().map(|(id, _)| origin(id)).collect();
        let lineage = Double { origins, old: &old, new: &new };
        let found = differences(&old.tree, &new.tree, &lineage).unwrap();
        let patch = Patch {
            old: (&old.tree, &*old.content),
            new: (&new.tree, &*new.content),
            lineage: &lineage,
            destination: Path::new("/src"),
        };
        let mut text = Vec::new();
        patch.write(patch.files(&found).iter(), &mut text).unwrap();
        fs::write(self.host("patch"), &text).unwrap();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Files and symlinks of a directory, their contents and whether they can be run.
    fn listing(&self, path: &str) -> String {
        let script = "find . -type l -printf '%p -> %l\\n' -o -type f -printf '%p %m ' -exec sha256sum {} \\; | \
                      sed -E 's/ (6..|4..) / file /; s/ (7..|5..) / program /' | sort";
        self.shell(&format!("cd {path} && {script}"))
    }

    /// Applies the patch to `old` by git, forwards and back.
    #[track_caller]
    fn assert_round_trip(&self) {
        let patch = self.patch();
        self.shell("mkdir -p applied && cp -a old applied/src");
        for (words, wanted) in [(&["apply"][..], "new"), (&["apply", "-R"], "old")] {
            let output = self.shell(&format!("cd applied && {{ git {} ../patch 2>&1 || :; }}", words.join(" ")));
            assert_eq!(output, "", "{patch}");
            assert_eq!(self.listing("applied/src"), self.listing(wanted), "{patch}");
        }
    }
}

/// Whether these programs are installed; otherwise the test reports that it skips them.
fn have(programs: &[&str]) -> bool {
    let has = |program: &&&str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let missing = programs.iter().find(|program| !has(program));
    let test = std::thread::current();
    let say = |program: &&&str| println!("skipped: {}: {program} is not installed", test.name().unwrap_or("a test"));
    missing.inspect(say).is_none()
}

#[test]
fn what_is_no_text_goes_as_gits_binary_patch() {
    if !have(&["git"]) {
        return;
    }
    let scene = Scene::new(
        "head -c 5000 /dev/zero > zeros; printf 'a\\0b' > short; printf 'x\\0y' > gone; printf 'same\\0' > moved; \
         printf 'text' > text; head -c 9000000 /dev/zero | tr '\\0' '\\n' > long",
        "head -c 70001 /dev/urandom > noise; printf '\\0' >> zeros; printf 'c' >> short; rm gone; mv moved to; \
         printf 'no\\0text' > text; printf 'text' > empty; echo >> long; printf '\\0' > one",
    );
    scene.assert_round_trip();
    assert!(!scene.patch().contains("Binary files"));
}

/// Progress bars and old Macs' texts, beside Windows' and others.
#[test]
fn carriage_returns() {
    if !have(&["git"]) {
        return;
    }
    let scene = Scene::new(
        "printf 'one\\ntwo\\rthree\\nfour\\n' > within; printf 'x\\ry\\rz' > mac; printf 'a\\r\\nb\\r\\n' > windows; printf 'a\\n' > plain",
        "printf 'one\\ntwo\\rTHREE\\nfour\\n' > within; printf 'x\\rY\\rz' > mac; printf 'a\\r\\nB\\r\\n' > windows; printf 'b\\n' > plain; \
         printf 'new\\rfile\\rlast\\r' > new",
    );
    scene.assert_round_trip();
}

#[test]
fn symlinks_modes_and_odd_names() {
    if !have(&["git"]) {
        return;
    }
    let scene = Scene::new(
        "ln -s a link; ln -s b gone; ln -s c moved; echo text > 'with space'; echo one > run; echo text > b\\\"q; \
         printf 'no end' > end; : > nothing; : > nil",
        "ln -sfn elsewhere link; rm gone; mv moved to; ln -s new made; echo more >> 'with space'; chmod +x run; \
         mv 'with space' 'another one'; echo x >> b\\\"q; printf 'still no end' > end; rm nothing; : > void; \
         echo x > 'new one'; mv nil 'nil two'; printf 'ä' > ü",
    );
    scene.assert_round_trip();
}

#[test]
fn directories_that_were_renamed_bring_their_files() {
    if !have(&["git"]) {
        return;
    }
    let scene = Scene::new(
        "mkdir -p sub/deep sub/void; echo one > sub/one; echo two > sub/deep/two; printf 'a\\0' > sub/deep/three; ln -s one sub/l; \
         echo four > sub/four; ln sub/one sub/again; echo stays > stays",
        "mv sub moved; echo more >> moved/deep/two; rm moved/four; mkdir sub; echo new > sub/one; chmod +x moved/one",
    );
    scene.assert_round_trip();
    assert!(scene.patch().contains("rename from src/sub/deep/three\nrename to src/moved/deep/three\n"));
}

#[test]
fn one_kind_of_thing_becomes_another() {
    if !have(&["git"]) {
        return;
    }
    let scene = Scene::new(
        "mkdir dir dirlink; echo a > dir/a; echo b > dir/b; echo l > dirlink/l; echo file > file; echo f > filelink; \
         ln -s x link; ln -s y linkdir; echo m > aside; echo n > inner; mkdir up; echo u > up/u",
        "rm -r dir dirlink; echo now > dir; ln -s file dirlink; rm file; mkdir -p file/sub; echo a > file/sub/a; \
         ln -sf z filelink; rm link; echo l > link; rm linkdir; mkdir linkdir; echo l > linkdir/l; \
         mv aside else; ln -s else aside; mv inner t; mkdir inner; mv t inner/inner; mv up/u t; rmdir up; mv t up",
    );
    scene.assert_round_trip();
}

#[test]
fn names_that_were_exchanged() {
    if !have(&["git"]) {
        return;
    }
    let scene = Scene::new(
        "echo a > a; echo b > b; echo c > c; echo d > d; echo e > e; echo same > f; echo same > g; echo h > h; ln h i",
        "mv a t; mv b a; mv t b; mv d e; mv c d; mv f g; rm h; echo more >> i; ln a j",
    );
    scene.assert_round_trip();
}

#[test]
fn patch_1_takes_texts_and_leaves_the_rest_alone() {
    if !have(&["patch"]) {
        return;
    }
    let text = Scene::new(
        "mkdir sub; echo one > sub/one; echo two > 'tw o'; echo x > file; echo run > run; ln -s a link; echo gone > gone",
        "mv sub moved; echo more >> moved/one; echo more >> 'tw o'; rm file; chmod +x run; \
         ln -sfn b link; rm gone; echo new > 'ne w'",
    );
    text.patch();
    text.shell("mkdir applied; cp -a old applied/src; cd applied; patch -s -p1 < ../patch");
    assert_eq!(text.listing("applied/src"), text.listing("new"));

    let binary = Scene::new("printf 'a\\0' > a; echo t > t", "printf 'b\\0' > a; printf 'n\\0' > new; echo u > t");
    binary.patch();
    binary.shell("mkdir applied; cp -a old applied/src; cd applied; ! patch -p1 < ../patch");
    assert!(!binary.host("applied/src/new").exists());
    assert_eq!(fs::read(binary.host("applied/src/a")).unwrap(), b"a\0");
    assert_eq!(fs::read(binary.host("applied/src/t")).unwrap(), b"u\n");
}

#[test]
fn what_is_too_large_is_refused_by_git_and_left_alone_by_patch() {
    if !have(&["git", "patch"]) {
        return;
    }
    let scene = Scene::new("echo a > a", "truncate -s 65M large; echo b > a");
    assert!(scene.patch().contains("GIT binary patch\n# b/src/large: it is too large"));
    scene.shell("mkdir applied; cp -a old applied/src");
    let refused = scene.shell("cd applied; ! git apply ../patch 2>&1");
    assert!(refused.contains("unrecognized binary patch at line"), "{refused}");
    assert_eq!(fs::read(scene.host("applied/src/a")).unwrap(), b"a\n");
    scene.shell("cd applied; patch -p1 < ../patch || :");
    assert!(!scene.host("applied/src/large").exists());
    assert_eq!(fs::read(scene.host("applied/src/a")).unwrap(), b"b\n");
}

#[test]
fn names_are_quoted_as_git_does() {
    assert_eq!(quoted(b"a/plain name"), "a/plain name");
    assert_eq!(quoted(b"a/\xc3\xa4\n\"\\"), r#""a/\303\244\n\"\\""#);
}
