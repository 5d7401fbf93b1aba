//! A Linux guest in QEMU uses the disk: reads all of it, mounts it, writes, discards, restarts.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::common::disk::{MemoryDisk, Seen};
use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlkServer};
use rustix::io::{FdFlags, fcntl_setfd};

const DISK_BYTES: u64 = 48 << 20;

/// PID 1 of the guest. The first boot finds the disk as the host made it; the second as the first left it.
const INIT: &str = r#"#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
disk=/sys/block/vda
mount -t ext4 -o ro /dev/vda /mnt
if [ ! -e /mnt/written ]; then
  umount /mnt
  echo "report serial $(cat $disk/serial)"
  echo "report sectors $(cat $disk/size)"
  echo "report queues $(ls $disk/mq | wc -l)"
  echo "report cache $(cat $disk/queue/write_cache)"
  echo "report whole $(sha256sum < /dev/vda)"
  (dd if=/dev/vda bs=4k iflag=direct skip=1000 count=2000 2>/dev/null | sha256sum > /first) &
  dd if=/dev/vda bs=4k iflag=direct skip=5000 count=2000 2>/dev/null | sha256sum > /second
  wait
  echo "report first $(cat /first)"
  echo "report second $(cat /second)"
  mount -t ext4 /dev/vda /mnt
  cp /mnt/data /mnt/written
  sync
  umount /mnt
  echo "write through" > $disk/cache_type
  echo "report cache-after $(cat $disk/queue/write_cache)"
  reboot -f
fi
echo "report written $(sha256sum < /mnt/written)"
umount /mnt
blkdiscard -o 33554432 -l 4194304 /dev/vda && echo "report discarded"
dd if=/dev/zero of=/dev/vda bs=512 seek=99999999 count=1 2>/dev/null || echo "report beyond refused"
poweroff -f
"#;

/// The newest kernel in /boot that is readable and has its modules.
fn kernel() -> Option<(PathBuf, String)> {
    let mut versions: Vec<String> = fs::read_dir("/lib/modules")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|version| File::open(format!("/boot/vmlinuz-{version}")).is_ok())
        .collect();
    versions.sort();
    let version = versions.pop()?;
    Some((PathBuf::from(format!("/boot/vmlinuz-{version}")), version))
}

fn run(command: &mut Command) -> Vec<u8> {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?} failed");
    output.stdout
}

/// An initramfs with busybox, the modules that the disk needs, and [`INIT`].
fn initramfs(directory: &Path, version: &str) -> PathBuf {
    let root = directory.join("root");
    for folder in ["bin", "proc", "sys", "dev", "mnt", "modules"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    let mut order = Vec::new();
    for module in ["virtio_pci", "virtio_blk", "ext4"] {
        let plan = run(Command::new("modprobe").args(["-S", version, "--show-depends", module]));
        for line in String::from_utf8(plan).unwrap().lines() {
            let Some(path) = line.strip_prefix("insmod ").map(|path| Path::new(path.trim())) else { continue };
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if !order.contains(&name) {
                fs::copy(path, root.join("modules").join(&name)).unwrap();
                order.push(name);
            }
        }
    }
    fs::write(root.join("modules/order"), order.join("\n") + "\n").unwrap();
    let init = root.join("init");
    fs::write(&init, INIT).unwrap();
    run(Command::new("chmod").arg("755").arg(&init));
    let archive = directory.join("initramfs");
    let pack = format!("cd {} && find . | cpio -o -H newc --quiet > {}", root.display(), archive.display());
    run(Command::new("sh").args(["-c", &pack]));
    archive
}

/// An ext4 image with one file `data`; returns the file's bytes.
fn image(directory: &Path) -> Vec<u8> {
    let tree = directory.join("tree");
    fs::create_dir(&tree).unwrap();
    let data: Vec<u8> = (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(tree.join("data"), data).unwrap();
    let path = directory.join("image");
    File::create(&path).unwrap().set_len(DISK_BYTES).unwrap();
    run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]).arg(&tree).arg(&path));
    fs::read(path).unwrap()
}

/// `sha256sum`'s line for these bytes.
fn sha256(bytes: &[u8]) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap().trim().to_owned()
}

/// Boots the guest with its disk at the other end of `stream`; returns its report.
fn boot(kernel: &Path, initramfs: &Path, stream: UnixStream) -> Vec<String> {
    fcntl_setfd(&stream, FdFlags::empty()).unwrap();
    let mut child = Command::new("qemu-system-x86_64")
        .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "256"])
        .args(["-M", "q35,memory-backend=memory", "-object", "memory-backend-memfd,id=memory,size=256M,share=on"])
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"])
        .arg("-kernel")
        .arg(kernel)
        .arg("-initrd")
        .arg(initramfs)
        .args(["-append", "console=ttyS0 quiet panic=-1"])
        .args(["-chardev", &format!("socket,id=disk,fd={}", stream.as_raw_fd())])
        .args(["-device", "vhost-user-blk-pci,chardev=disk,num-queues=2,queue-size=256"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(stream);
    let mut console = String::new();
    let mut output = child.stdout.take().unwrap();
    let id = rustix::process::Pid::from_child(&child);
    let (done, deadline) = std::sync::mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        if deadline.recv_timeout(std::time::Duration::from_secs(240)).is_err() {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::KILL);
        }
    });
    output.read_to_string(&mut console).unwrap();
    let _ = done.send(());
    watchdog.join().unwrap();
    child.wait().unwrap();
    let reports =
        console.lines().filter_map(|line| line.trim_end().strip_prefix("report ")).map(str::to_owned).collect();
    println!("{console}");
    reports
}

#[test]
fn a_linux_guest_reads_mounts_writes_discards_and_restarts() {
    let Some((kernel, version)) = kernel() else {
        println!(
            "skipped: a_linux_guest_reads_mounts_writes_discards_and_restarts: no readable kernel with modules in /boot (install linux-image-amd64)"
        );
        return;
    };
    for program in ["qemu-system-x86_64", "mke2fs", "cpio", "modprobe", "busybox", "e2fsck", "debugfs"] {
        if !Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success() {
            println!("skipped: a_linux_guest_reads_mounts_writes_discards_and_restarts: {program} is not installed");
            return;
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let original = image(directory.path());
    let disk = Arc::new(MemoryDisk { bytes: Mutex::new(original.clone()), ..MemoryDisk::numbered(0) });
    let options = BlkOptions { queues: 2, serial: "inarch-test".into(), ..disk.options() };
    let pending = Arc::new(Pending::new());
    let server = BlkServer::new(Arc::clone(&pending), options).on_event(|event| println!("{event}"));
    let (theirs, ours) = UnixStream::pair().unwrap();
    let served = thread::spawn(move || server.serve_stream(ours));
    let initramfs = initramfs(directory.path(), &version);
    let device = Arc::clone(&disk);
    // The device appears while the firmware runs.
    let planning = thread::spawn(move || {
        thread::sleep(std::time::Duration::from_millis(500));
        pending.set(Ok(device));
    });
    let reports = boot(&kernel, &initramfs, theirs);
    planning.join().unwrap();
    served.join().unwrap().unwrap();

    let part = |first: usize| sha256(&original[first * 4096..(first + 2000) * 4096]);
    let data = sha256(&fs::read(directory.path().join("tree/data")).unwrap());
    let expected = [
        "serial inarch-test".to_owned(),
        format!("sectors {}", DISK_BYTES / 512),
        "queues 2".to_owned(),
        "cache write back".to_owned(),
        format!("whole {}", sha256(&original)),
        format!("first {}", part(1000)),
        format!("second {}", part(5000)),
        "cache-after write through".to_owned(),
        format!("written {data}"),
        "discarded".to_owned(),
        "beyond refused".to_owned(),
    ];
    assert_eq!(reports, expected);

    let seen = disk.seen();
    assert!(seen.contains(&Seen::Flush), "sync did not reach the disk");
    let discarded: u64 = seen.iter().map(|seen| if let Seen::Discard(_, length) = seen { *length } else { 0 }).sum();
    assert_eq!(discarded, 4 << 20);

    let after = directory.path().join("after");
    fs::write(&after, &*disk.bytes()).unwrap();
    run(Command::new("e2fsck").arg("-fn").arg(&after));
    let written = run(Command::new("debugfs").args(["-R", "cat /written"]).arg(&after));
    assert_eq!(sha256(&written), data);
}
