//! Tests of what a confined thread can still do and what fails. Each test confines a thread of its own.
#![allow(unsafe_code, reason = "system calls are made that nothing wraps, because they must fail")]

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::io::Errno;
use rustix::process::geteuid;
use tempfile::TempDir;

use super::*;

/// A tree to confine a server to, and something beside it.
struct Ground {
    _directory: TempDir,
    tree: PathBuf,
    beside: PathBuf,
}

impl Ground {
    fn new() -> Ground {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        let (tree, beside) = (path.join("tree"), path.join("beside"));
        fs::create_dir_all(tree.join("directory")).unwrap();
        fs::write(tree.join("file"), "within").unwrap();
        fs::write(&beside, "beside").unwrap();
        symlink(&beside, tree.join("way out")).unwrap();
        Ground { _directory: directory, tree, beside }
    }

    /// Does `act` in a thread that is confined to the tree.
    fn confined(&self, work: Work, act: impl FnOnce(&Confined) + Send) {
        let access = if work.writes() { Access::Change } else { Access::Read };
        let confinement = Confinement::new(work).grant(&self.tree, access).unwrap().only([self.tree.clone()]);
        self.within(&confinement, act);
    }

    fn within(&self, confinement: &Confinement, act: impl FnOnce(&Confined) + Send) {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| act(&confinement.enter()));
            thread.join().unwrap();
        });
    }
}

/// Whether the error is that of a refused system call, or of a path that leads nowhere.
fn is_out_of_reach(error: &io::Error) -> bool {
    let refused = [libc::EACCES, libc::EPERM, libc::ENOENT, libc::ENOSYS, libc::EROFS, libc::EXDEV];
    error.raw_os_error().is_some_and(|errno| refused.contains(&errno))
}

fn assert_refused<T>(result: io::Result<T>, what: &str) {
    match result {
        Ok(_) => panic!("{what} succeeded"),
        Err(error) => assert!(is_out_of_reach(&error), "{what}: {error}"),
    }
}

const ALL: [Work; 7] =
    [Work::ReadOnlyShare, Work::Share, Work::CoveredShare, Work::ReadOnlyMount, Work::Mount, Work::Plan, Work::Disk];

#[test]
fn the_line_says_what_holds() {
    Ground::new().confined(Work::Share, |confined| {
        let line = confined.to_string();
        assert!(line.contains("Landlock") && line.contains("a system call filter"), "{line}");
        assert!(line.contains("capabilities"), "{line}");
        assert_eq!(line.contains("a mount namespace of its own"), geteuid().is_root(), "{line}");
        assert_eq!(confined.missing(), [""; 0]);
    });
    assert_eq!(Confined::not_at_all().to_string(), "nothing but its own checks");
}

#[test]
fn no_server_reaches_beyond_its_tree() {
    for work in ALL {
        let ground = Ground::new();
        ground.confined(work, |_| {
            for path in [Path::new("/etc/passwd"), &ground.beside, &ground.tree.join("way out")] {
                assert_refused(File::open(path), &format!("{work:?}: reading {}", path.display()));
                let write = OpenOptions::new().append(true).open(path);
                assert_refused(write, &format!("{work:?}: writing {}", path.display()));
            }
            let new = ground.beside.with_file_name("new");
            assert_refused(File::create(&new), "making a file");
            assert_refused(fs::create_dir(&new), "making a directory");
            assert_refused(fs::rename(ground.tree.join("file"), &new), "moving a file away");
            assert_refused(fs::hard_link(ground.tree.join("file"), &new), "linking a file");
            assert_refused(fs::remove_file(&ground.beside), "removing a file");
            assert_refused(fs::read_dir("/etc"), "listing a directory");
            assert_eq!(fs::read(ground.tree.join("file")).unwrap(), b"within", "{work:?}");
            assert_eq!(fs::read_dir(&ground.tree).unwrap().count(), 3, "{work:?}");
        });
        assert_eq!(fs::read(&ground.beside).unwrap(), b"beside");
    }
}

/// Landlock does not restrict attributes.
#[test]
fn no_server_of_root_changes_attributes_beyond_its_tree() {
    if !geteuid().is_root() {
        println!("skipped: no_server_of_root_changes_attributes_beyond_its_tree: only root gets a mount namespace");
        return;
    }
    for work in ALL {
        let ground = Ground::new();
        ground.confined(work, |_| {
            for path in [&ground.beside, &ground.tree.join("way out"), &PathBuf::from("/proc/self/cwd/../../beside")] {
                assert_refused(fs::metadata(path), &format!("{work:?}: a look at {}", path.display()));
                assert_refused(fs::set_permissions(path, fs::Permissions::from_mode(0o777)), "chmod");
            }
            assert_refused(std::env::set_current_dir("../../etc"), "going up");
            assert!(fs::metadata("/proc/self/fd").is_ok());
            assert_refused(fs::metadata("/proc/1"), "a look at another process");
        });
    }
}

#[test]
fn a_share_that_is_not_changed_cannot_be() {
    for work in [Work::ReadOnlyShare, Work::ReadOnlyMount, Work::Disk] {
        let ground = Ground::new();
        ground.confined(work, |_| {
            let file = ground.tree.join("file");
            assert_refused(OpenOptions::new().write(true).open(&file), "writing");
            assert_refused(OpenOptions::new().write(true).truncate(true).open(&file), "truncating");
            assert_refused(File::create(ground.tree.join("new")), "making a file");
            assert_refused(fs::create_dir(ground.tree.join("new")), "making a directory");
            assert_refused(fs::remove_file(&file), "removing");
            assert_refused(fs::rename(&file, ground.tree.join("new")), "renaming");
            assert_refused(fs::set_permissions(&file, fs::Permissions::from_mode(0o777)), "chmod");
            assert_refused(std::os::unix::fs::chown(&file, Some(1), None), "chown");
            assert_refused(symlink("x", ground.tree.join("new")), "making a link");
        });
    }
}

#[test]
fn a_share_that_is_changed_can_be() {
    let ground = Ground::new();
    ground.confined(Work::Share, |_| {
        let (file, new) = (ground.tree.join("file"), ground.tree.join("directory/new"));
        fs::rename(&file, &new).unwrap();
        fs::hard_link(&new, &file).unwrap();
        OpenOptions::new().append(true).open(&new).unwrap().write_all(b", still").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"within, still");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        symlink("x", ground.tree.join("link")).unwrap();
        fs::create_dir(ground.tree.join("other")).unwrap();
        fs::remove_dir(ground.tree.join("other")).unwrap();
        fs::remove_file(&file).unwrap();
        let value = rustix::fs::setxattr(&new, "user.of", b"value", rustix::fs::XattrFlags::empty());
        assert!(matches!(value, Ok(()) | Err(Errno::OPNOTSUPP)), "{value:?}");
        if geteuid().is_root() {
            let node = rustix::fs::mknodat(
                CWD,
                ground.tree.join("device"),
                rustix::fs::FileType::CharacterDevice,
                Mode::from_raw_mode(0o600),
                rustix::fs::makedev(1, 3),
            );
            node.unwrap();
            assert_refused(File::open(ground.tree.join("device")), "opening a device");
        }
    });
    assert_eq!(fs::read(ground.tree.join("directory/new")).unwrap(), b"within, still");
}

/// A caller that may open by handle gets a descriptor of any file of a file system, but not its content.
#[test]
fn a_file_handle_opens_nothing_beyond_the_tree() {
    #[derive(Clone, Copy)]
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        handle: [u8; 128],
    }
    let handle_of = |path: &Path| {
        use std::os::unix::ffi::OsStrExt;
        let path = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut handle = Handle { bytes: 128, kind: 0, handle: [0; 128] };
        let mut mount = 0;
        // SAFETY: the path is a C string, the handle says how large it is.
        let got =
            unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), (&raw mut handle).cast(), &mut mount, 0) };
        (got == 0).then_some(handle)
    };
    let ground = Ground::new();
    let (Some(within), Some(beside)) = (handle_of(&ground.tree.join("file")), handle_of(&ground.beside)) else {
        println!(
            "skipped: a_file_handle_opens_nothing_beyond_the_tree: the file system of temporary files has no file handles"
        );
        return;
    };
    if !geteuid().is_root() {
        println!("skipped: a_file_handle_opens_nothing_beyond_the_tree: only root opens by file handles");
        return;
    }
    let read = |mut handle: Handle, tree: &File| {
        use std::os::fd::{AsRawFd, FromRawFd};
        // SAFETY: the handle says how large it is.
        let opened = unsafe { libc::open_by_handle_at(tree.as_raw_fd(), (&raw mut handle).cast(), libc::O_PATH) };
        if opened < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it.
        let opened = unsafe { File::from_raw_fd(opened) };
        fs::read_to_string(format!("/proc/self/fd/{}", opened.as_raw_fd()))
    };
    let confinement = Confinement::new(Work::ReadOnlyShare).grant(&ground.tree, Access::Read).unwrap();
    ground.within(&confinement, |_| {
        let tree = File::open(&ground.tree).unwrap();
        assert_eq!(read(within, &tree).unwrap(), "within");
        assert_refused(read(beside, &tree), "reading what a handle leads to");
    });
    ground.within(&confinement.only([ground.tree.clone()]), |_| {
        let tree = File::open(&ground.tree).unwrap();
        assert_refused(read(within, &tree), "opening by a handle where there is a root of its own");
    });
}

#[test]
fn no_server_starts_programs_opens_sockets_or_reaches_into_the_kernel() {
    // Without arguments that make sense, they fail in any case: but not as if there were no such call.
    const REFUSED: &[(&str, i64)] = &[
        ("execve", libc::SYS_execve),
        ("execveat", libc::SYS_execveat),
        ("fork", libc::SYS_fork),
        ("vfork", libc::SYS_vfork),
        ("clone3", libc::SYS_clone3),
        ("socket", libc::SYS_socket),
        ("connect", libc::SYS_connect),
        ("bind", libc::SYS_bind),
        ("listen", libc::SYS_listen),
        ("kill", libc::SYS_kill),
        ("tkill", libc::SYS_tkill),
        ("pidfd_open", libc::SYS_pidfd_open),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("ptrace", libc::SYS_ptrace),
        ("process_vm_readv", libc::SYS_process_vm_readv),
        ("process_vm_writev", libc::SYS_process_vm_writev),
        ("process_madvise", libc::SYS_process_madvise),
        ("kcmp", libc::SYS_kcmp),
        ("mount", libc::SYS_mount),
        ("umount2", libc::SYS_umount2),
        ("move_mount", libc::SYS_move_mount),
        ("open_tree", libc::SYS_open_tree),
        ("fsopen", libc::SYS_fsopen),
        ("fsconfig", libc::SYS_fsconfig),
        ("fsmount", libc::SYS_fsmount),
        ("fspick", libc::SYS_fspick),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("pivot_root", libc::SYS_pivot_root),
        ("chroot", libc::SYS_chroot),
        ("chdir", libc::SYS_chdir),
        ("setns", libc::SYS_setns),
        ("init_module", libc::SYS_init_module),
        ("finit_module", libc::SYS_finit_module),
        ("delete_module", libc::SYS_delete_module),
        ("kexec_load", libc::SYS_kexec_load),
        ("reboot", libc::SYS_reboot),
        ("swapon", libc::SYS_swapon),
        ("swapoff", libc::SYS_swapoff),
        ("acct", libc::SYS_acct),
        ("quotactl", libc::SYS_quotactl),
        ("bpf", libc::SYS_bpf),
        ("perf_event_open", libc::SYS_perf_event_open),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("add_key", libc::SYS_add_key),
        ("keyctl", libc::SYS_keyctl),
        ("request_key", libc::SYS_request_key),
        ("fanotify_init", libc::SYS_fanotify_init),
        ("setuid", libc::SYS_setuid),
        ("setresuid", libc::SYS_setresuid),
        ("setgroups", libc::SYS_setgroups),
        ("seccomp", libc::SYS_seccomp),
        ("personality", libc::SYS_personality),
        ("syslog", libc::SYS_syslog),
        ("sethostname", libc::SYS_sethostname),
        ("settimeofday", libc::SYS_settimeofday),
        ("clock_settime", libc::SYS_clock_settime),
        ("iopl", libc::SYS_iopl),
        ("shmget", libc::SYS_shmget),
        ("msgget", libc::SYS_msgget),
        ("setrlimit", libc::SYS_setrlimit),
    ];
    for work in ALL {
        Ground::new().confined(work, |_| {
            for (name, number) in REFUSED {
                // SAFETY: the filter refuses the call before the kernel looks at its arguments. If it did not, the
                // arguments are zeros: each call fails with them or, like fork and setuid, does no harm to memory.
                let result = unsafe { libc::syscall(*number, 0, 0, 0, 0, 0, 0) };
                let error = io::Error::last_os_error();
                assert_eq!((result, error.raw_os_error()), (-1, Some(libc::ENOSYS)), "{work:?}: {name}: {error}");
            }
            assert_refused(Command::new("/bin/true").status(), "a program");
            assert_refused(std::net::UdpSocket::bind("127.0.0.1:0"), "a socket");
            // SAFETY: as above; a namespace of its own would concern this thread alone.
            let namespace = unsafe { libc::unshare(libc::CLONE_NEWUSER) };
            assert_eq!(namespace, -1, "a user namespace");
            // SAFETY: the mapping is new, so nothing else refers to it.
            let memory = unsafe {
                let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
                libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
            };
            assert_eq!(memory, libc::MAP_FAILED, "memory to run programs in");
            // What it takes to serve.
            assert_eq!(std::thread::spawn(|| 7).join().unwrap(), 7);
            assert!(std::os::unix::net::UnixStream::pair().is_ok());
        });
    }
}

#[test]
fn capabilities_that_were_given_up_do_not_come_back() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    for work in ALL {
        Ground::new().confined(work, |_| {
            let now = capabilities(None).unwrap();
            // The filter allows the call to a mount, which gives a capability up for a moment, and to work that makes a
            // disk, whose parser has no capabilities.
            let refused = if matches!(work, Work::Mount | Work::Plan) { Errno::PERM } else { Errno::NOSYS };
            let all = CapabilitySets { effective: CapabilitySet::all(), permitted: CapabilitySet::all(), ..now };
            assert_eq!(set_capabilities(None, all), Err(refused), "{work:?}");
            assert_eq!(capabilities(None).unwrap(), now, "{work:?}");
        });
    }
}

#[test]
fn only_the_capabilities_of_the_work_are_left() {
    for work in ALL {
        Ground::new().confined(work, |_| {
            let now = rustix::thread::capabilities(None).unwrap();
            let wanted = work.capabilities(true);
            assert!(wanted.contains(now.permitted) && wanted.contains(now.effective), "{work:?}: {now:?}");
            assert_eq!(now.inheritable, rustix::thread::CapabilitySet::empty());
        });
    }
}

#[test]
fn what_was_open_stays_open() {
    let ground = Ground::new();
    let (socket, other) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut beside = OpenOptions::new().append(true).open(&ground.beside).unwrap();
    ground.confined(Work::Disk, |_| {
        beside.write_all(b", open").unwrap();
        (&socket).write_all(b"x").unwrap();
    });
    drop(socket);
    assert_eq!(io::read_to_string(other).unwrap(), "x");
    assert_eq!(fs::read(&ground.beside).unwrap(), b"beside, open");
}

#[test]
fn other_threads_are_as_free_as_before() {
    let ground = Ground::new();
    ground.confined(Work::Disk, |_| {});
    assert!(File::open(&ground.beside).is_ok());
    assert!(Command::new("/bin/true").status().unwrap().success());
}

/// A server within a run does this when it can no longer serve, so that QEMU does not wait for it.
#[test]
fn only_who_ends_processes_can() {
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
    let ground = Ground::new();
    for ends in [false, true] {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let confinement = Confinement::new(Work::Disk).grant(&ground.tree, Access::Read).unwrap();
        let confinement = if ends { confinement.ends_processes() } else { confinement };
        let other = child.id();
        ground.within(&confinement, |_| {
            // SAFETY: signal 0 only asks whether a signal could be sent.
            let may_signal = |process: u32| unsafe { libc::syscall(libc::SYS_tgkill, process, process, 0) } == 0;
            assert!(may_signal(std::process::id()));
            assert!(!may_signal(other), "a process by its number");
            assert_eq!(pidfd_send_signal(&pidfd, Signal::KILL).is_ok(), ends);
        });
        if !ends {
            child.kill().unwrap();
        }
        assert!(!child.wait().unwrap().success());
    }
}
