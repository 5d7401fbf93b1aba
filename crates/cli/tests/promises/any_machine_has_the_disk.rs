//! Promise: a machine gets the disk by the arguments that `serve nbd`, `serve file` and `serve blk` print for QEMU, and a Linux
//! host by its own NBD client.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::bare_guest::BareGuest;
use crate::support::drawings::assert_profile;
use crate::support::{INARCH, LONG, assert_status, host, run_script, scratch, stdout, within};

/// What a guest does with each disk: reads all files, writes one, and lets go.
const SCRIPT: &str = r#"
for disk in vda vdb vdc; do
  echo "report $disk $(cat /sys/block/$disk/serial)"
  mount -t ext4 /dev/$disk /mnt && cd /mnt
  echo "report $disk $(find . -type f | sort | xargs sha256sum | sha256sum)"
  echo from $disk > written
  cd / && umount /mnt && echo "report $disk done"
done"#;

fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("tree/sub")).unwrap();
    for number in 0..100usize {
        fs::write(dir.join(format!("tree/sub/{number}")), vec![number as u8 + 1; number * 997]).unwrap();
    }
}

const SUM: &str = "cd tree && find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum";

fn serve(dir: &Path, arguments: &[&str]) -> Child {
    let mut command = Command::new(INARCH);
    command.args(["serve", arguments[0], "tree"]).args(&arguments[1..]).current_dir(dir);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn end(mut server: Child) {
    host("kill", &["-TERM", &server.id().to_string()], Path::new("/"));
    assert_eq!(server.wait().unwrap().code(), Some(0));
}

#[test]
fn by_the_arguments_that_are_printed_for_qemu() {
    let Some(guest) = BareGuest::or_skip("by_the_arguments_that_are_printed_for_qemu") else { return };
    let dir = scratch();
    tree(dir.path());
    let (nbd, file) = (["nbd", "--socket", "socket"], ["file", "disk.raw"]);
    let blk = ["blk", "--socket", "blk", "--serial", "mine"];
    let printed = |arguments: &[&str]| {
        let command = [&["serve", arguments[0], "tree"], &arguments[1..], &["--print-qemu-args"]].concat();
        host(INARCH, &command, dir.path()).trim().to_owned()
    };
    let (nbd_arguments, file_arguments) = (printed(&nbd), printed(&file));
    let blk_arguments = printed(&[&blk[..], &["--qemu-memory", "none"]].concat());
    let profiled = [&blk[..], &["--profile", "blk.svg"]].concat();
    let servers = [serve(dir.path(), &nbd), serve(dir.path(), &file), serve(dir.path(), &profiled)];
    let at = |name: &str| dir.path().join(name);
    let is_file_there = || fs::metadata(at("disk.raw")).is_ok_and(|m| m.len() > 0);
    assert!(within(LONG, || at("socket").exists() && at("blk").exists() && is_file_there()));
    let modules = "virtio_pci virtio_blk ext4";
    let arguments = format!("{nbd_arguments} {file_arguments} {blk_arguments}");
    let reports = guest.run(dir.path(), modules, SCRIPT, &arguments);
    let sum = host("sh", &["-c", SUM], dir.path());
    let serial = |arguments: &str| arguments.rsplit("serial=").next().unwrap().to_owned();
    let serials = [serial(&nbd_arguments), serial(&file_arguments), "mine".to_owned()];
    assert_ne!(serials[0], serials[1], "two disks have one serial number");
    let expected: Vec<String> = ["vda", "vdb", "vdc"]
        .iter()
        .zip(serials)
        .flat_map(|(disk, serial)| {
            [format!("{disk} {serial}"), format!("{disk} {}", sum.trim_end()), format!("{disk} done")]
        })
        .chain(["the end".to_owned()])
        .collect();
    assert_eq!(reports, expected);
    // What the machine wrote is on the disk, by the same door and in good order.
    let copy = "nbdcopy 'nbd+unix:///?socket=socket' copy && e2fsck -fn copy && e2fsck -fn disk.raw && \
                debugfs -R 'cat /written' copy && debugfs -R 'cat /written' disk.raw";
    let written = host("sh", &["-c", copy], dir.path());
    assert!(written.ends_with("from vda\nfrom vdb\n"), "{written}");
    servers.into_iter().for_each(end);
    assert!(!dir.path().join("tree/written").exists());
    assert_profile(&at("blk.svg"), &[" reads in ", " of files, "]);
}

#[test]
fn the_arguments_of_all_servers_go_into_one_machine() {
    let dir = scratch();
    tree(dir.path());
    // The first is pasted as it is printed, the others' memory is left out.
    let servers: [&[&str]; 7] = [
        &["blk", "--socket", "blk-1", "--queues", "1"],
        &["blk", "--socket", "blk-2", "--queues", "1"],
        &["blk", "--socket", "blk-3", "--queues", "1", "--serial", "mine"],
        &["virtiofs", "--socket", "fs"],
        &["nbd", "--socket", "nbd"],
        &["file", "disk.raw"],
        &["9p", "--socket", "9p"],
    ];
    let running: Vec<Child> = servers.iter().map(|arguments| serve(dir.path(), arguments)).collect();
    let is_there = |arguments: &&[&str]| {
        let place = dir.path().join(if arguments[0] == "file" { arguments[1] } else { arguments[2] });
        fs::metadata(place).is_ok_and(|metadata| arguments[0] != "file" || metadata.len() > 0)
    };
    assert!(within(LONG, || servers.iter().all(is_there)));
    let mut line = "qemu-system-x86_64 -S -M q35 -nodefaults -display none -monitor stdio".to_owned();
    for (number, arguments) in servers.iter().enumerate() {
        let shares_memory = matches!(arguments[0], "blk" | "virtiofs");
        let memory = if shares_memory && number > 0 { &["--qemu-memory", "none"][..] } else { &[] };
        let command = [&["serve", arguments[0], "tree"], &arguments[1..], &["--print-qemu-args"], memory].concat();
        line += &format!(" {}", host(INARCH, &command, dir.path()).trim());
    }
    assert!(line.contains("size=4294967296B,share=on") && line.contains("id=mine"), "{line}");
    // A machine that does not start ends with a reason.
    let devices = host("sh", &["-c", &format!("(echo info qtree; echo quit) | {line} 2>&1")], dir.path());
    for (device, count) in [("dev: vhost-user-blk-pci", 3), ("dev: vhost-user-fs-pci", 1), ("dev: virtio-blk-pci", 2)] {
        assert_eq!(devices.matches(device).count(), count, "{device}: {devices}");
    }
    running.into_iter().for_each(end);
}

#[test]
fn by_the_kernels_own_nbd_client() {
    let dir = scratch();
    tree(dir.path());
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let server = serve(dir.path(), &["nbd", "--tcp", &port, "--name", "src"]);
    assert!(within(LONG, || std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_ok()));
    // 10.0.2.2 is the host in a guest's network.
    let script = format!(
        "set -e; modprobe nbd; nbd-client 10.0.2.2 {port} /dev/nbd0 -N src > /dev/null; mkdir /tmp/mnt
         mount -t ext4 /dev/nbd0 /tmp/mnt; cd /tmp/mnt; find . -type f | LC_ALL=C sort | xargs sha256sum | sha256sum
         head -c 3000000 /dev/urandom > new; sync; sha256sum < new; rm -r sub; fstrim .; cd /
         umount /tmp/mnt; e2fsck -fn /dev/nbd0 > /dev/null 2>&1; echo clean; nbd-client -d /dev/nbd0 > /dev/null"
    );
    let output = run_script(dir.path(), &["--net"], &script, b"");
    assert_status(&output, 0);
    let (sum, said) = (host("sh", &["-c", SUM], dir.path()), stdout(&output));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!((lines[0], lines[2]), (sum.trim_end(), "clean"));
    // Another client sees what the guest's kernel has written.
    let copy = format!("nbdcopy nbd://127.0.0.1:{port} copy; debugfs -R 'cat /new' copy 2> /dev/null | sha256sum");
    assert_eq!(host("sh", &["-c", &copy], dir.path()).trim_end(), lines[1]);
    end(server);
}
