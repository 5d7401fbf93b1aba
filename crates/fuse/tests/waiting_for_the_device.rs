//! A mount is there before its device: a program that looks at it waits, can be interrupted, and then sees the device.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use inarch_fuse::{Session, SessionError, SessionOptions};
use inarch_mount::{FuseAccess, Mount, Unmounted};
use inarch_server::{Allocation, BlockDevice, Pending, StopHandle};
use inarch_vfs::{ImageFile, ImageName};
use vm_memory::{Bytes, VolatileSlice};

const SIZE: usize = 3 << 20;
const LONG: Duration = Duration::from_secs(60);

struct Disk(Mutex<Vec<u8>>);

impl BlockDevice for Disk {
    fn capacity(&self) -> u64 {
        SIZE as u64
    }

    fn read_only(&self) -> bool {
        false
    }

    /// The second MiB is a hole.
    fn allocation(&self, offset: u64, limit: u64) -> (Allocation, u64) {
        let mib = offset >> 20;
        let allocation = if mib == 1 { Allocation::Hole } else { Allocation::Data };
        (allocation, limit.min(((mib + 1) << 20) - offset))
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        let bytes = self.0.lock().unwrap();
        out.iter().fold(offset as usize, |at, slice| {
            slice.write_slice(&bytes[at..at + slice.len()], 0).unwrap();
            at + slice.len()
        });
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut bytes = self.0.lock().unwrap();
        data.iter().fold(offset as usize, |at, slice| {
            slice.read_slice(&mut bytes[at..at + slice.len()], 0).unwrap();
            at + slice.len()
        });
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.write_zeroes(offset, length, true)
    }

    fn write_zeroes(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        self.0.lock().unwrap()[offset as usize..(offset + length) as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The mount goes before the directory that it is in.
struct Rig {
    mount: Mount,
    _dir: tempfile::TempDir,
    image: PathBuf,
    pending: Arc<Pending<Disk>>,
    stop: StopHandle,
    session: JoinHandle<Result<(), SessionError>>,
}

/// Mounts on a file, or in a directory; `None`, said, where that is not possible.
fn rig(on_file: bool) -> Option<Rig> {
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().canonicalize().unwrap().join("point");
    let (name, image) = match on_file {
        true => {
            File::create(&point).unwrap();
            (ImageName::Root, point.clone())
        }
        false => {
            fs::create_dir(&point).unwrap();
            (ImageName::In("image".into()), point.join("image"))
        }
    };
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: {}: there is no /dev/fuse", thread::current().name().unwrap_or("a test"));
        return None;
    }
    let (mount, device) = Mount::fuse(&point, std::path::Path::new("test"), FuseAccess::Change).unwrap();
    let (pending, stop) = (Arc::new(Pending::new()), StopHandle::new().unwrap());
    let stopped = stop.clone();
    let files = ImageFile::new(Arc::clone(&pending), name, false, move || stopped.is_stopped());
    let session = Session::new(device, Arc::new(files), SessionOptions::default());
    let session = thread::spawn(move || session.run());
    Some(Rig { mount, _dir: dir, image, pending, stop, session })
}

fn ended(child: &mut Child) -> Option<std::process::ExitStatus> {
    let deadline = Instant::now() + LONG;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().unwrap() {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(10));
    }
    None
}

fn stat(image: &Path) -> Child {
    Command::new("stat").args(["-c", "%s"]).arg(image).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until `child` is in the call by which it looks at the image, and stays there: of other paths it waits for none.
fn waits(child: &Child) {
    let deadline = Instant::now() + LONG;
    let calls = [libc::SYS_statx, libc::SYS_newfstatat].map(|call| call.to_string());
    // An int in a register: its upper half may be anything.
    let is_here = |word: &str| {
        let number = word.strip_prefix("0x").and_then(|digits| u64::from_str_radix(digits, 16).ok());
        number.is_some_and(|number| number as i32 == libc::AT_FDCWD)
    };
    let mut last = String::new();
    loop {
        let call = fs::read_to_string(format!("/proc/{}/syscall", child.id())).unwrap_or_default();
        let mut words = call.split_whitespace();
        let looks = words.next().is_some_and(|number| calls.iter().any(|call| call == number));
        // The loader of programs looks at what it has opened.
        if looks && words.next().is_some_and(is_here) && call == last {
            return;
        }
        last = call;
        assert!(Instant::now() < deadline, "it does not wait: {last}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn whoever_waits_can_be_interrupted_or_sees_the_device() {
    for on_file in [true, false] {
        let Some(rig) = rig(on_file) else { return };
        // Of two lookups of one name the kernel sends the first, and lets nothing interrupt the second meanwhile.
        let mut impatient = stat(&rig.image);
        waits(&impatient);
        let patient = stat(&rig.image);
        waits(&patient);
        assert!(impatient.try_wait().unwrap().is_none(), "answered without a device");
        // SIGINT is ignored by what a shell starts in the background.
        Command::new("kill").args(["-TERM", &impatient.id().to_string()]).status().unwrap();
        let status = ended(&mut impatient).expect("it can be interrupted");
        assert_eq!(status.signal(), Some(15));
        rig.pending.set(Ok(Arc::new(Disk(Mutex::new(vec![5; SIZE])))));
        assert_eq!(patient.wait_with_output().unwrap().stdout, format!("{SIZE}\n").into_bytes());

        let image = File::options().read(true).write(true).open(&rig.image).unwrap();
        let mut bytes = vec![0; SIZE];
        image.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 5));
        image.write_all_at(&[9; 100_000], 77).unwrap();
        image.read_exact_at(&mut bytes[..200_000], 0).unwrap();
        assert!(bytes[77..100_077].iter().all(|byte| *byte == 9) && bytes[76] == 5 && bytes[100_077] == 5);
        image.sync_all().unwrap();
        drop(image);
        if !on_file {
            let names: Vec<_> =
                fs::read_dir(rig.mount.point()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(names, ["image"]);
        }
        assert_eq!(rig.mount.unmount().unwrap(), Unmounted::Clean);
        rig.session.join().unwrap().unwrap();
        assert!(!rig.image.exists() || fs::metadata(&rig.image).unwrap().len() == 0);
    }
}

#[test]
fn an_end_before_there_is_a_device_is_an_end() {
    let Some(rig) = rig(true) else { return };
    let mut waiting = stat(&rig.image);
    waits(&waiting);
    rig.stop.stop();
    rig.pending.wake();
    assert!(!ended(&mut waiting).expect("nobody waits any more").success());
    assert_eq!(rig.mount.unmount().unwrap(), Unmounted::Clean);
    rig.session.join().unwrap().unwrap();
}

#[test]
fn a_device_that_cannot_be_made_is_an_error() {
    let Some(rig) = rig(false) else { return };
    rig.pending.set(Err("it failed".into()));
    assert_eq!(fs::metadata(&rig.image).unwrap_err().raw_os_error(), Some(5));
    assert_eq!(fs::metadata(rig.image.with_file_name("another")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(rig.mount.unmount().unwrap(), Unmounted::Clean);
    rig.session.join().unwrap().unwrap();
}
