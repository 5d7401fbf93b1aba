//! Promise: `inarch trace` names all that a command needed and changed, and nothing else. Each test is a way to use files that some
//! tracer gets wrong. The command runs under strace as well, and both must have seen the same (support/trace_oracle.py has the
//! rules); of the paths in the test's own directory the whole of what is told is written down here.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{INARCH, host, programs, scratch, stderr, stdout};

/// Compares traces of commands in scenes, written one after the other.
const ORACLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/support/trace_oracle.py");

/// Runs `command` in the scene that the script `setup` makes. What the trace says of the scene must be `expected`: a line for each
/// path, its uses, its names or its target, and what became of it.
#[track_caller]
fn trap(setup: &str, command: &[&str], expected: &str) {
    let dir = scratch();
    trap_in(dir.path(), setup, command, expected);
}

#[track_caller]
fn trap_in(dir: &Path, setup: &str, command: &[&str], expected: &str) {
    let output = Command::new("python3")
        .args([ORACLE, INARCH, dir.to_str().unwrap(), setup])
        .args(command)
        .env("PATH", programs())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = stdout(&output);
    assert!(output.status.success(), "{}\n{told}", stderr(&output));
    let lines =
        |text: &str| text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let told: Vec<String> = lines(&told).into_iter().filter(|line| line != ".: found").collect();
    assert_eq!(told, lines(expected), "\n{}", told.join("\n"));
}

#[track_caller]
fn shell(setup: &str, script: &str, expected: &str) {
    trap(setup, &["/usr/bin/sh", "-c", script], expected);
}

#[track_caller]
fn python(setup: &str, program: &str, expected: &str) {
    // Isolated: without its working directory among those of its modules.
    trap(setup, &["/usr/bin/python3", "-I", "-S", "-c", program], expected);
}

/// Compiles a C program beside the scene.
fn compiled(dir: &Path, program: &str, options: &[&str]) -> String {
    std::fs::write(dir.join("program.c"), program).unwrap();
    host("cc", &[&["-o", "program", "program.c"], options].concat(), dir);
    dir.join("program").to_str().unwrap().to_owned()
}

#[test]
fn looking_is_told_from_reading() {
    python(
        "for name in stat statx open read access rights path xattr; do echo $name > $name; done; ln -s stat link; mkdir d",
        r#"
import os, ctypes
os.stat("stat"), os.lstat("link"), os.access("access", os.R_OK), os.statvfs("d")
# statx(2), faccessat2(2), and newfstatat(2) with AT_EMPTY_PATH.
assert ctypes.CDLL(None).statx(-100, b"statx", 0, 0x7ff, bytes(256)) == 0
os.access("rights", os.W_OK, effective_ids=True)
os.close(os.open("open", os.O_RDONLY)); open("read").read()
path = os.open("path", os.O_PATH)
os.stat(path)
try: os.getxattr("xattr", "user.none")
except OSError: pass
os.listxattr("xattr")
"#,
        "
        access: found
        d: found
        link: found
        open: found read
        path: found
        read: found read
        rights: found
        stat: found
        statx: found
        xattr: found
        ",
    );
}

#[test]
fn what_is_missing_is_told() {
    python(
        "echo text > file; mkdir d",
        r#"
import os
def fails(act, *arguments):
    try: act(*arguments)
    except OSError: return
    raise AssertionError(arguments)
for name in ["none", "d/none", "no/deeper", "file/x", "d/../gone", "d/none/"]: fails(os.stat, name)
if not os.path.exists("new"): open("new", "w").close()
fails(os.open, "file", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
fails(os.mkdir, "d"), fails(os.rmdir, "file"), fails(os.unlink, "not here"), fails(os.rename, "not there", "d/x")
fails(os.open, "d", os.O_WRONLY), fails(os.symlink, "x", "file"), fails(os.link, "d", "linked")
os.access("none at all", os.F_OK)
"#,
        "
        d: found
        d/none: absent
        file: found
        gone: absent
        linked: absent
        new: absent | made
        no: absent
        none: absent
        none at all: absent
        not here: absent
        not there: absent
        ",
    );
}

#[test]
fn each_step_of_a_link_is_told() {
    python(
        "mkdir -p a/b c; echo text > c/f; echo text > a/up; ln -s ../a/b c/l; ln -s $PWD/c abs; ln -s f c/g; ln -s nowhere dangling; \
         ln -s two one; ln -s one two; ln -s c/g far; ln -s c only",
        r#"
import os
open("abs/f").read(), open("c/l/../up").read(), open("far").read()
for name in ["dangling", "one"]:
    try: open(name)
    except OSError: pass
os.readlink("only")
open("made", "w").close()
os.symlink("made", "own"); open("own").read()
"#,
        "
        a: found
        a/b: found
        a/up: found read
        abs: found followed -> SCENE/c
        c: found
        c/f: found read
        c/g: found followed -> f
        c/l: found followed -> ../a/b
        dangling: found followed -> nowhere
        far: found followed -> c/g
        made: absent | made
        nowhere: absent
        one: found followed -> two
        only: found followed -> c
        own: absent | made
        two: found followed -> one
        ",
    );
}

#[test]
fn names_that_were_listed_are_told() {
    python(
        "mkdir all empty opened changed moved part; touch all/a all/b changed/old changed/gone moved/m; \
         python3 -c 'for n in range(3000): open(\"part/%04d\" % n, \"w\")'",
        r#"
import os
os.listdir("all"), os.listdir("empty"), os.open("opened", os.O_RDONLY)
open("changed/new", "w").close(); os.unlink("changed/gone"); os.listdir("changed")
os.mkdir("made"); open("made/x", "w").close(); os.listdir("made")
os.rename("moved", "renamed"); os.listdir("renamed")
with os.scandir("part") as entries: next(entries)
"#,
        "
        all: found listed (a,b)
        changed: found listed (gone,old)
        changed/gone: found | removed
        changed/new: absent | made
        empty: found listed ()
        made: absent | made
        made/x: | made
        moved: found listed moved (m) | removed
        moved/m: moved | removed
        opened: found
        part: found listed SOME
        renamed: absent | made
        renamed/m: | made
        ",
    );
}

#[test]
fn what_was_renamed_is_told_by_its_name_before() {
    shell(
        "echo a > a; echo b > b; echo o > over; mkdir -p d/e; echo 1 > d/x; echo 2 > d/e/y; echo 3 > d/z; mkdir old; echo 4 > old/x",
        "cat a; mv a c; cat c; cat b; mv b over; cat over; cat d/x; mv d n; cat n/z n/e/y; echo 4 >> n/x; test -e n/none; \
         mv old older; mkdir old; test -e old/x; echo 5 > old/y; cat old/y",
        "
        a: found read moved | removed
        b: found read moved | removed
        c: absent | made
        d: found moved | removed
        d/e: found moved | removed
        d/e/y: found read moved | removed
        d/none: absent
        d/x: found read | removed
        d/z: found read moved | removed
        n: absent | made
        n/e: | made
        n/e/y: | made
        n/x: | made
        n/z: | made
        old: found moved | written
        old/x: moved | removed
        old/y: | made
        older: absent | made
        older/x: | made
        over: found | written
        ",
    );
    python(
        "mkdir d e; echo 1 > d/x; echo 2 > e/x; echo 3 > f; echo 4 > g",
        r#"
import ctypes
exchange = ctypes.CDLL(None).renameat2
assert exchange(-100, b"d", -100, b"e", 2) == 0 and exchange(-100, b"f", -100, b"g", 2) == 0
open("d/x").read(), open("f").read()
"#,
        "
        d: found moved | written
        d/x: moved | written
        e: found moved | written
        e/x: found read moved | written
        f: found moved | written
        g: found read moved | written
        ",
    );
}

#[test]
fn what_lies_in_a_moved_directory_is_told() {
    let setup = "mkdir d f; echo 1 > d/x; echo 1 > f/x; echo 9 > d/y; echo 9 > f/y";
    shell(
        setup,
        "rm -r d; mv f d",
        "
        d: found listed (x,y) | written
        d/x: found | written
        d/y: found | written
        f: found moved | removed
        f/x: moved | removed
        f/y: moved | removed
        ",
    );
    shell(
        setup,
        "echo 2 > d/x; mv d e; mv f d; rm d/y",
        "
        d: found moved | written
        d/x: found | written
        d/y: moved | removed
        e: absent | made
        e/x: | made
        e/y: | made
        f: found moved | removed
        f/x: moved | removed
        f/y: found | removed
        ",
    );
    shell(
        setup,
        "mv d e; mkdir d; echo 3 > d/x",
        "
        d: found moved | written
        d/x: moved | written
        d/y: moved | removed
        e: absent | made
        e/x: | made
        e/y: | made
        ",
    );
    python(
        "mkdir a b; echo 1 > a/x; echo 1 > b/x",
        r#"
import ctypes
open("a/x", "w").write("2")
assert ctypes.CDLL(None).renameat2(-100, b"a", -100, b"b", 2) == 0
"#,
        "
        a: found moved | written
        a/x: found | written
        b: found moved | written
        b/x: moved | written
        ",
    );
}

#[test]
fn each_name_of_a_file_with_several_is_told() {
    let names = "echo 1 > a; ln a b";
    python(
        names,
        "import os; os.stat('a'); os.stat('b'); open('a').read()",
        "
        a: found read
        b: found read
        ",
    );
    python(
        names,
        "import os; os.stat('b'); os.stat('a'); open('b', 'a').write('x')",
        "
        a: found read | written
        b: found read | written
        ",
    );
    python(
        names,
        "open('b').read()",
        "
        b: found read
        ",
    );
    python(
        "echo 1 > a",
        "import os; os.link('a', 'b'); open('b', 'a').write('x'); os.unlink('a'); open('b').read()",
        "
        a: found read moved | removed
        b: absent | made
        ",
    );
}

#[test]
fn what_was_kept_of_a_written_file_was_read() {
    python(
        "for name in 1 2 3 4 5 6 7 8 9; do echo $name > $name; done",
        r#"
import os
file = open("1", "r+"); file.read(); file.seek(0); file.write("x"); file.close()
open("2", "a").write("x")
open("3", "w").write("x"); open("3").read()
os.close(os.open("4", os.O_RDONLY | os.O_TRUNC)); open("4").read()
open("5").read(); open("5", "w").write("x")
os.truncate("6", 0); open("6").read()
os.truncate("7", 1)
file = os.open("8", os.O_WRONLY); os.posix_fallocate(file, 0, 99); os.close(file)
file = os.open("9", os.O_WRONLY); os.ftruncate(file, 0); os.write(file, b"x")
"#,
        "
        1: found read | written
        2: found read | written
        3: found | written
        4: found | written
        5: found read | written
        6: found | written
        7: found read | written
        8: found read | written
        9: found | written
        ",
    );
}

#[test]
fn what_comes_and_goes_is_told() {
    python(
        "mkdir d gone; echo 1 > f; echo 2 > again; touch d/x",
        r#"
import os, socket
open("t", "w").write("x"); open("t").read(); os.unlink("t")
os.unlink("f"), os.rmdir("gone"), os.unlink("d/x"), os.rmdir("d")
os.unlink("again"); open("again", "w").close()
os.mkdir("own"); open("own/x", "w").close(); os.rename("own", "final"); os.mkfifo("fifo"); os.mknod("node")
unnamed = os.open(".", os.O_TMPFILE | os.O_RDWR); os.write(unnamed, b"x")
os.link(f"/proc/self/fd/{unnamed}", "named", src_dir_fd=unnamed)
os.open(".", os.O_TMPFILE | os.O_RDWR)
held = os.open("held", os.O_CREAT | os.O_RDWR); os.unlink("held"); os.write(held, b"x")
"#,
        "
        again: found | written
        d: found | removed
        d/x: found | removed
        f: found | removed
        fifo: absent | made
        final: absent | made
        final/x: | made
        gone: found | removed
        held: absent | temporary
        named: absent | made
        node: absent | made
        own: absent | temporary
        own/x: | temporary
        t: absent | temporary
        ",
    );
}

#[test]
fn attributes_alone_are_told() {
    python(
        "for name in mode owner times xattr none; do echo $name > $name; done; mkdir d; ln -s mode link",
        r#"
import os
os.chmod("mode", 0o600), os.chown("owner", 1, 2), os.utime("times", (1, 1)), os.setxattr("xattr", "user.x", b"x")
os.chmod("d", 0o700); os.chown("link", 1, 1, follow_symlinks=False)
"#,
        "
        d: found | attributes
        link: found | attributes
        mode: found | attributes
        owner: found | attributes
        times: found | attributes
        xattr: found | attributes
        ",
    );
}

#[test]
fn data_that_no_call_reads_was_read() {
    python(
        "for name in mapped source sent passed inherited; do echo $name > $name; done; echo original > target; head -c 1000000 /dev/zero > large",
        r#"
import mmap, os, socket, sys
with open("mapped", "rb") as file: mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)[0]
with open("large", "r+b") as file: mmap.mmap(file.fileno(), 0)[5000] = 1
source, copied = os.open("source", os.O_RDONLY), os.open("copied", os.O_CREAT | os.O_WRONLY)
os.copy_file_range(source, copied, 99)
os.copy_file_range(source, os.open("target", os.O_WRONLY), 3, offset_src=0)
os.sendfile(copied, os.open("sent", os.O_RDONLY), 0, 99)
one, other = socket.socketpair()
if os.fork() == 0:
    socket.send_fds(one, [b"x"], [os.open("passed", os.O_RDONLY)]); os._exit(0)
os.read(socket.recv_fds(other, 1, 1)[1][0], 99)
os.wait()
inherited = os.open("inherited", os.O_RDONLY)
os.set_inheritable(inherited, True)
os.execv("/usr/bin/cat", ["cat", f"/dev/fd/{inherited}"])
"#,
        "
        copied: absent | made
        inherited: found read
        large: found read | written
        mapped: found read
        passed: found read
        sent: found read
        source: found read
        target: found read | written
        ",
    );
}

#[test]
fn a_chain_of_programs_is_told() {
    let dir = scratch();
    let interpreter = compiled(
        dir.path(),
        "#include <unistd.h>\nint main(int c, char **v) { return execl(\"/bin/busybox\", \"sh\", \"-c\", \"cat read > /dev/null\", (char *)0); }",
        &[],
    );
    let setup = format!(
        "cp {interpreter} interpreter; printf '#!interpreter x\\n' > script; printf '#!script\\n' > outer; \
                         chmod 755 script outer; echo text > read; echo text > not; chmod 644 not; ln -s outer link"
    );
    trap_in(
        dir.path(),
        &setup,
        &[
            "/usr/bin/python3",
            "-I",
            "-S",
            "-c",
            "import os\ntry: os.execv('not', ['not'])\nexcept OSError: os.execv('link', ['link'])",
        ],
        "
        interpreter: found read executed
        link: found followed -> outer
        not: found
        outer: found read executed
        read: found read
        script: found read executed
        ",
    );
}

#[test]
fn calls_relative_to_descriptors_are_told() {
    python(
        "mkdir -p d/e; echo 1 > d/x; echo 2 > d/e/y; cp /bin/busybox d/program",
        r#"
import os
d = os.open("d", os.O_RDONLY | os.O_DIRECTORY)
os.close(os.open("x", os.O_RDONLY, dir_fd=d)), os.stat("e/y", dir_fd=d), os.mkdir("new", dir_fd=d)
os.fchdir(d); open("e/y").read(); os.chdir("e"); os.rename("y", "../z"); os.open("../x", os.O_RDONLY)
program = os.open("../program", os.O_RDONLY)
os.execve(program, ["true"], {})
"#,
        "
        d: found
        d/e: found
        d/e/y: found read moved | removed
        d/new: absent | made
        d/program: found read executed
        d/x: found read
        d/z: absent | made
        ",
    );
}

/// A program that opens, stats and removes files through io_uring, which strace does not see.
const RING: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
static int ring;
static unsigned char *rings;
static struct io_uring_sqe *entries;
static struct io_uring_params setup;
static int done(struct io_uring_sqe entry) {
    unsigned *tail = (unsigned *)(rings + setup.sq_off.tail), mask = *(unsigned *)(rings + setup.sq_off.ring_mask);
    unsigned *head = (unsigned *)(rings + setup.cq_off.head), at = *tail & mask;
    entries[at] = entry;
    ((unsigned *)(rings + setup.sq_off.array))[at] = at;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    if (syscall(__NR_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, 0, 0) != 1) return -1;
    unsigned mask2 = *(unsigned *)(rings + setup.cq_off.ring_mask);
    int result = ((struct io_uring_cqe *)(rings + setup.cq_off.cqes))[*head & mask2].res;
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
    return result;
}
int main(void) {
    static char buffer[99];
    struct statx found;
    ring = syscall(__NR_io_uring_setup, 4, &setup);
    if (ring < 0 || !(setup.features & IORING_FEAT_SINGLE_MMAP)) return 77;
    rings = mmap(0, setup.cq_off.cqes + setup.cq_entries * sizeof(struct io_uring_cqe) + setup.sq_off.array, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQ_RING);
    entries = mmap(0, setup.sq_entries * sizeof(*entries), PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    int file = done((struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (unsigned long)"opened", .open_flags = O_RDONLY});
    done((struct io_uring_sqe){.opcode = IORING_OP_READ, .fd = file, .addr = (unsigned long)buffer, .len = 99});
    done((struct io_uring_sqe){.opcode = IORING_OP_STATX, .fd = AT_FDCWD, .addr = (unsigned long)"looked", .len = STATX_BASIC_STATS, .off = (unsigned long)&found});
    done((struct io_uring_sqe){.opcode = IORING_OP_OPENAT, .fd = AT_FDCWD, .addr = (unsigned long)"absent", .open_flags = O_RDONLY});
    done((struct io_uring_sqe){.opcode = IORING_OP_UNLINKAT, .fd = AT_FDCWD, .addr = (unsigned long)"removed"});
    done((struct io_uring_sqe){.opcode = IORING_OP_MKDIRAT, .fd = AT_FDCWD, .addr = (unsigned long)"made", .len = 0755});
    return strcmp(buffer, "text\n") != 0;
}
"#;

#[test]
fn what_a_ring_does_is_told() {
    let dir = scratch();
    let program = compiled(dir.path(), RING, &["-static"]);
    let scene = dir.path().join("scene");
    std::fs::create_dir(&scene).unwrap();
    for name in ["opened", "looked", "removed"] {
        std::fs::write(scene.join(name), "text\n").unwrap();
    }
    let output = Command::new(INARCH)
        .args(["trace", "--quiet", "--json", "../trace.json", "--", &program])
        .current_dir(&scene)
        .output()
        .unwrap();
    assert!(output.status.success(), "{} {}", output.status, stderr(&output));
    let text = std::fs::read_to_string(dir.path().join("trace.json")).unwrap();
    let start = format!("{}/", scene.display());
    let told = text.lines().filter_map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let is_input = line.get("input").is_some();
        let path = line.get(if is_input { "input" } else { "output" })?.as_str()?.strip_prefix(&start)?.to_owned();
        let uses = line["uses"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|one| one.as_str().unwrap())
            .filter(|one| *one != "xattrs");
        let words: Vec<&str> = uses.chain(line["change"].as_str()).collect();
        Some(format!("{path}: {}", words.join(" ")))
    });
    let mut told: Vec<String> = told.collect();
    told.sort();
    let expected = [
        "absent: absent",
        "looked: found",
        "made: absent",
        "made: made",
        "opened: found read",
        "removed: found",
        "removed: removed",
    ];
    assert_eq!(told, expected);
}

#[test]
fn processes_that_work_together_are_told() {
    // The trace waits for what the command left behind.
    shell(
        "echo text > late; echo 1 > x",
        "(sleep 0.3; cat late > /dev/null; echo done > out) > /dev/null 2>&1 & cat x > /dev/null; mkfifo p; (cat p > got) & echo word > p; wait %2",
        "
        got: absent | made
        late: found read
        out: absent | made
        p: absent | made
        x: found read
        ",
    );
    python(
        "echo text > a",
        r#"
import os, socket
server = socket.socket(socket.AF_UNIX); server.bind("socket"); server.listen()
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX); client.connect("socket"); client.sendall(open("a", "rb").read()); os._exit(0)
assert server.accept()[0].recv(99) == b"text\n"
os.wait(); os.unlink("socket")
"#,
        "
        a: found read
        socket: absent | temporary
        ",
    );
}
