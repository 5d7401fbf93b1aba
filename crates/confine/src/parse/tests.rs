//! What a thread that parses can still do, and what fails.
#![allow(unsafe_code, reason = "system calls are made that nothing wraps, because they must fail")]

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use super::*;
use crate::Confined;

/// The system call `number` with zeros for arguments fails as if the kernel did not know it.
fn assert_unknown(name: &str, number: i64) {
    // SAFETY: the filter refuses the call before the kernel looks at its arguments. If it did not, the arguments are zeros,
    // with which each of these calls fails or does no harm to memory.
    let result = unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) };
    let error = io::Error::last_os_error();
    assert_eq!((result, error.raw_os_error()), (-1, Some(libc::ENOSYS)), "{name}: {error}");
}

/// Every way to a new descriptor, to a name, to another process or to an account of rights.
const REFUSED: &[(&str, i64)] = &[
    ("openat", libc::SYS_openat),
    ("openat2", libc::SYS_openat2),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("name_to_handle_at", libc::SYS_name_to_handle_at),
    ("open_tree", libc::SYS_open_tree),
    ("memfd_create", libc::SYS_memfd_create),
    ("memfd_secret", libc::SYS_memfd_secret),
    ("pipe2", libc::SYS_pipe2),
    ("eventfd2", libc::SYS_eventfd2),
    ("epoll_create1", libc::SYS_epoll_create1),
    ("inotify_init1", libc::SYS_inotify_init1),
    ("timerfd_create", libc::SYS_timerfd_create),
    ("signalfd4", libc::SYS_signalfd4),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("fanotify_init", libc::SYS_fanotify_init),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("bpf", libc::SYS_bpf),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("dup", libc::SYS_dup),
    ("dup3", libc::SYS_dup3),
    ("socket", libc::SYS_socket),
    ("socketpair", libc::SYS_socketpair),
    ("connect", libc::SYS_connect),
    ("bind", libc::SYS_bind),
    ("listen", libc::SYS_listen),
    ("accept4", libc::SYS_accept4),
    ("sendto", libc::SYS_sendto),
    ("sendmsg", libc::SYS_sendmsg),
    ("recvfrom", libc::SYS_recvfrom),
    ("recvmsg", libc::SYS_recvmsg),
    ("execve", libc::SYS_execve),
    ("execveat", libc::SYS_execveat),
    ("clone3", libc::SYS_clone3),
    ("unshare", libc::SYS_unshare),
    ("setns", libc::SYS_setns),
    ("kill", libc::SYS_kill),
    ("tkill", libc::SYS_tkill),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("mount", libc::SYS_mount),
    ("fsopen", libc::SYS_fsopen),
    ("chroot", libc::SYS_chroot),
    ("chdir", libc::SYS_chdir),
    ("fchdir", libc::SYS_fchdir),
    ("getdents64", libc::SYS_getdents64),
    ("readlinkat", libc::SYS_readlinkat),
    ("faccessat", libc::SYS_faccessat),
    ("mkdirat", libc::SYS_mkdirat),
    ("mknodat", libc::SYS_mknodat),
    ("linkat", libc::SYS_linkat),
    ("symlinkat", libc::SYS_symlinkat),
    ("unlinkat", libc::SYS_unlinkat),
    ("renameat2", libc::SYS_renameat2),
    ("truncate", libc::SYS_truncate),
    ("ftruncate", libc::SYS_ftruncate),
    ("fchmod", libc::SYS_fchmod),
    ("fchmodat", libc::SYS_fchmodat),
    ("fchown", libc::SYS_fchown),
    ("fchownat", libc::SYS_fchownat),
    ("utimensat", libc::SYS_utimensat),
    ("setxattr", libc::SYS_setxattr),
    ("fsetxattr", libc::SYS_fsetxattr),
    ("ioctl", libc::SYS_ioctl),
    ("flock", libc::SYS_flock),
    ("splice", libc::SYS_splice),
    ("sendfile", libc::SYS_sendfile),
    ("close_range", libc::SYS_close_range),
    ("setrlimit", libc::SYS_setrlimit),
    ("setuid", libc::SYS_setuid),
    ("capset", libc::SYS_capset),
    ("seccomp", libc::SYS_seccomp),
    ("landlock_create_ruleset", libc::SYS_landlock_create_ruleset),
    ("keyctl", libc::SYS_keyctl),
    ("shmget", libc::SYS_shmget),
];

/// The same on this architecture alone.
#[cfg(target_arch = "x86_64")]
const OLDER: &[(&str, i64)] = &[
    ("open", libc::SYS_open),
    ("creat", libc::SYS_creat),
    ("pipe", libc::SYS_pipe),
    ("dup2", libc::SYS_dup2),
    ("fork", libc::SYS_fork),
    ("vfork", libc::SYS_vfork),
    ("stat", libc::SYS_stat),
    ("lstat", libc::SYS_lstat),
    ("unlink", libc::SYS_unlink),
    ("rename", libc::SYS_rename),
    ("mkdir", libc::SYS_mkdir),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[(&str, i64)] = &[];

fn assert_confined(file: &File) {
    for (name, number) in REFUSED.iter().chain(OLDER) {
        assert_unknown(name, *number);
    }
    assert!(File::open("/dev/null").is_err(), "a file");
    assert!(fs::read_dir("/").is_err(), "a directory");
    assert!(fs::metadata("/etc/passwd").is_err(), "a look at a name");
    assert!(file.try_clone().is_err(), "a second descriptor");
    assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err(), "the network");
    assert!(UnixStream::pair().is_err(), "sockets");
    assert!(Command::new("/bin/true").status().is_err(), "a program");
    // SAFETY: the calls only fail; nothing else refers to the mapping if it is made.
    unsafe {
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_DUPFD, 100), -1);
        assert_eq!(libc::fcntl(file.as_raw_fd(), libc::F_SETFL, libc::O_APPEND), -1);
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let memory = libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        assert_eq!(memory, libc::MAP_FAILED, "memory to run programs in");
    }
}

#[test]
fn a_parser_opens_makes_sends_and_starts_nothing() {
    let file = tempfile::tempfile().unwrap();
    let parsed = Parse::new().run(
        |_| {
            assert_confined(&file);
            // What it starts is confined as it is.
            thread::scope(|scope| scope.spawn(|| assert_confined(&file)).join().unwrap());
            7
        },
        || {},
    );
    assert_eq!(parsed.unwrap(), 7);
    // The thread that waited is as free as before.
    assert!(File::open("/etc/passwd").is_ok());
    assert!(Command::new("/bin/true").status().unwrap().success());
}

/// What reading takes: files that are open, memory, threads, clocks.
#[test]
fn a_parser_has_what_it_is_given() {
    let mut given = tempfile::tempfile().unwrap();
    given.write_all(b"an image").unwrap();
    let (sender, receiver) = channel();
    let (asks, answers) = channel::<File>();
    let read = move |_| {
        let mut text = String::new();
        given.rewind().unwrap();
        given.read_to_string(&mut text).unwrap();
        assert_eq!(given.metadata().unwrap().len(), 8);
        assert_eq!(rustix::fs::fstat(&given).unwrap().st_size, 8);
        // A descriptor that somebody else makes meanwhile is usable, and can be closed.
        sender.send(()).unwrap();
        let spool = answers.recv().unwrap();
        spool.write_all_at(b"unpacked", 0).unwrap();
        drop(given);
        thread::sleep(Duration::from_millis(1));
        let threads: Vec<_> = (0..4).map(|_| thread::spawn(|| vec![1u8; 8 << 20].len())).collect();
        let bytes: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        (text, spool, bytes)
    };
    let meanwhile = || receiver.iter().for_each(|()| asks.send(tempfile::tempfile().unwrap()).unwrap());
    let (text, spool, bytes) = Parse::new().run(read, meanwhile).unwrap();
    assert_eq!((&*text, bytes), ("an image", 32 << 20));
    assert_eq!(io::read_to_string(spool).unwrap(), "unpacked");
}

#[test]
fn the_kernel_says_that_the_thread_is_confined() {
    let (sender, receiver) = channel();
    let (done, wait) = channel::<()>();
    let read = move |_| {
        sender.send(rustix::thread::gettid()).unwrap();
        drop(sender);
        wait.recv().unwrap();
    };
    let meanwhile = move || {
        for thread in receiver {
            let status = fs::read_to_string(format!("/proc/self/task/{}/status", thread.as_raw_nonzero())).unwrap();
            let lines: BTreeSet<&str> = status.lines().collect();
            assert!(lines.contains("Seccomp:\t2") && lines.contains("NoNewPrivs:\t1"), "{status}");
            assert!(
                lines.contains("CapEff:\t0000000000000000") && lines.contains("CapPrm:\t0000000000000000"),
                "{status}"
            );
            done.send(()).unwrap();
        }
    };
    Parse::new().run(read, meanwhile).unwrap();
}

#[test]
fn a_panic_of_a_parser_goes_on_where_it_was_started() {
    let caught = std::panic::catch_unwind(|| Parse::new().run(|_| panic!("on purpose"), || {}));
    assert_eq!(caught.unwrap_err().downcast_ref(), Some(&"on purpose"));
}

/// A tree, and something beside it.
fn ground() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().canonicalize().unwrap();
    let (tree, beside) = (path.join("tree"), path.join("beside"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "within").unwrap();
    fs::write(&beside, "beside").unwrap();
    std::os::unix::fs::symlink(&beside, tree.join("way out")).unwrap();
    (directory, tree, beside)
}

#[test]
fn a_parser_with_a_tree_reads_that_and_nothing_else() {
    let (_directory, tree, beside) = ground();
    let look = |_| {
        assert_eq!(fs::read(tree.join("file")).unwrap(), b"within");
        for path in [&beside, &tree.join("way out"), Path::new("/etc/passwd")] {
            assert!(File::open(path).is_err(), "{}", path.display());
        }
        assert!(OpenOptions::new().write(true).open(tree.join("file")).is_err());
        assert!(File::create(tree.join("new")).is_err());
        assert!(fs::remove_file(tree.join("file")).is_err());
        for (name, number) in REFUSED.iter().filter(|(name, _)| !OPENS.contains(name)) {
            assert_unknown(name, *number);
        }
    };
    Parse::new().reading(&tree).unwrap().run(look, || {}).unwrap();
    assert!(Parse::new().reading(&tree.join("none")).is_err());
}

/// What it takes to open and to find what is granted.
const OPENS: &[&str] = &["openat", "openat2", "getdents64", "readlinkat", "faccessat"];

/// A server's thread that makes a disk has a source parsed, with less than it has itself.
#[test]
fn a_thread_that_makes_a_disk_has_a_parser_that_can_do_less() {
    let (_directory, tree, _) = ground();
    let plan = Confinement::new(Work::Plan).grant(&tree, Access::Read).unwrap();
    let file = tempfile::tempfile().unwrap();
    let work = || {
        assert!(File::open(tree.join("file")).is_ok());
        Parse::new().run(|_| assert_confined(&file), || {}).unwrap();
        assert!(File::open(tree.join("file")).is_ok());
        let confined: Confined = Confinement::new(Work::Parse).enter();
        assert_eq!(confined.missing(), [""; 0], "the filter lets a thread give up more");
    };
    plan.run(work, || {}).unwrap();
}

#[test]
fn who_writes_an_image_has_its_file_and_no_other() {
    let (_directory, tree, _) = ground();
    let file = tempfile::tempfile().unwrap();
    let write = || {
        file.set_len(1 << 20).unwrap();
        file.write_all_at(b"an image", 4096).unwrap();
        file.sync_all().unwrap();
        let zeros = rustix::fs::FallocateFlags::KEEP_SIZE;
        let allocated = rustix::fs::fallocate(&file, zeros, 0, 4096);
        assert!(matches!(allocated, Ok(()) | Err(rustix::io::Errno::OPNOTSUPP)), "{allocated:?}");
        let range = libc::file_clone_range { src_fd: -1, src_offset: 0, src_length: 0, dest_offset: 0 };
        // SAFETY: the argument is the structure that this request reads; there is no file to share with.
        let shared = unsafe { libc::ioctl(file.as_raw_fd(), libc::FICLONERANGE, &raw const range) };
        assert_eq!(
            (shared, io::Error::last_os_error().raw_os_error()),
            (-1, Some(libc::EBADF)),
            "sharing is not refused"
        );
        assert!(File::open(tree.join("file")).is_err());
        assert!(file.try_clone().is_err());
        assert!(Command::new("/bin/true").status().is_err());
        for (name, number) in REFUSED.iter().filter(|(name, _)| !["ftruncate", "ioctl"].contains(name)) {
            assert_unknown(name, *number);
        }
    };
    Confinement::new(Work::Image).run(write, || {}).unwrap();
}
