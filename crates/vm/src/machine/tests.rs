//! QEMU's command line.

use std::os::unix::net::UnixStream;
use std::path::Path;

use super::*;
use crate::counter;
use crate::kernel::Entry;

fn machine() -> Machine {
    let kernel = Kernel {
        arch: Arch::X86_64,
        source: "/boot/vmlinuz".into(),
        release: "6.1.0".to_owned(),
        image: "/cache/vmlinux".into(),
        entry: Entry::Pvh,
        modules: None,
    };
    let console = Endpoint::Path("/run/console".into());
    Machine { parameters: vec!["user.word".to_owned()], ..Machine::bare(kernel, Accel::Tcg, 2, 512 << 20, console) }
}

fn line(machine: Machine) -> String {
    machine.command(&Qemu::at(Path::new("/usr/bin/qemu"), Arch::X86_64)).shell_line()
}

#[test]
fn disks_of_other_machines_are_named_as_qemu_wants_it() {
    let socket = NbdAddress::Socket("/tmp/a,b c".into());
    let words = "-blockdev 'driver=nbd,node-name=s,server.type=unix,server.path=/tmp/a,,b c,export=x,\
                 discard=unmap' -device virtio-blk-pci,drive=s,serial=s";
    assert_eq!(nbd_arguments(&socket, "x", false, "s"), words);
    let tcp = NbdAddress::Tcp("[::1]:10809".parse().unwrap());
    let words = "-blockdev driver=nbd,node-name=s,server.type=inet,server.host=::1,server.port=10809,\
                 read-only=on -device virtio-blk-pci,drive=s,serial=s";
    assert_eq!(nbd_arguments(&tcp, "", true, "s"), words);
}

#[test]
fn line_can_be_read_and_run() {
    let line = line(machine());
    assert!(line.starts_with("/usr/bin/qemu -nodefaults "), "{line}");
    for part in [
        "-accel tcg,thread=multi ",
        "-smp 2 -m 536870912B -object memory-backend-memfd,id=mem,size=536870912B,share=on ",
        "-kernel /cache/vmlinux -append 'console=ttyS0 pci=lastbus=0 ",
        " quiet panic=-1 ",
        " init_on_alloc=1 ",
        " user.word' -chardev file,id=console,path=/run/console -serial chardev:console",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert!(line.contains(" noreplace-smp ") && line.contains(" maxcpus=1 "), "{line}");
    assert_eq!(line.contains(" tsc_early_khz="), counter::kilohertz().is_some(), "{line}");
}

#[test]
fn kernel_of_kvm_keeps_its_own_watch_over_time() {
    let line = line(Machine { accel: Accel::Kvm, ..machine() });
    assert!(line.contains("-accel kvm -cpu host "), "{line}");
    assert!(!line.contains("tsc") && line.contains(" init_on_alloc=0 "), "{line}");
}

#[test]
fn other_architectures_have_their_own_machine_and_words() {
    for (arch, words) in [
        (Arch::Riscv64, ["-machine virt,memory-backend=mem ", "-cpu rv64 ", "'console=ttyS0 "]),
        (
            Arch::Aarch64,
            ["-machine virt,gic-version=3,memory-backend=mem ", "-cpu max,pauth=off ", "'console=ttyAMA0 "],
        ),
    ] {
        let kernel = Kernel { arch, entry: Entry::Image, ..machine().kernel };
        let line = line(Machine { kernel, ..machine() });
        for part in words.into_iter().chain([" init_on_alloc=1 ", " maxcpus=1 INARCH_START_PROCESSORS=1 "]) {
            assert!(line.contains(part), "{part} in {line}");
        }
        for other in ["-bios", "tsc", "i8042", "no_ipi_broadcast"] {
            assert!(!line.contains(other), "{other} in {line}");
        }
        let kernel = Kernel { arch, entry: Entry::Image, ..machine().kernel };
        let firmware = Some("/cache/fw.bin".into());
        let line = self::line(Machine { kernel, firmware, ..machine() });
        assert!(line.contains(" -bios /cache/fw.bin -kernel "), "{line}");
    }
}

/// QEMU's code for a network is the guest's to attack only where the user asked for one.
#[test]
fn there_is_no_network_that_nobody_asked_for() {
    let without = line(machine());
    assert!(!without.contains("-netdev") && !without.contains("virtio-net"), "{without}");
    let forward = Forward { socket: Endpoint::Path("/9p".into()), id: "ninep".to_owned(), port: 564 };
    let with = line(Machine { forwards: vec![forward], ..machine() });
    assert!(with.contains("-netdev user,id=net,restrict=on,guestfwd="), "{with}");
}

#[test]
fn what_the_user_adds_comes_last() {
    let udp = PublishedPort { udp: true, host: "0.0.0.0:53".parse().unwrap(), guest: 5353 };
    let tcp = PublishedPort { udp: false, host: "127.0.0.1:8080".parse().unwrap(), guest: 80 };
    let arguments = ["-device", "virtio-rng-pci"].map(OsString::from).to_vec();
    let line = line(Machine { network: true, published: vec![tcp, udp], arguments, verbose: true, ..machine() });
    assert!(line.contains("user,id=net,hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=udp:0.0.0.0:53-:5353 "), "{line}");
    assert!(line.ends_with(" -device virtio-rng-pci") && line.contains(" user.word'"), "{line}");
    assert!(!line.contains(" quiet "), "{line}");
    let line = self::line(Machine { parameters: vec!["maxcpus=2".to_owned()], cpus: 4, ..machine() });
    assert!(line.contains(" maxcpus=2'") && !line.contains("maxcpus=1") && !line.contains("START_"), "{line}");
}

#[test]
fn disks_keep_their_order_and_descriptors_are_inherited() {
    let (first, _far) = UnixStream::pair().unwrap();
    let number = first.as_raw_fd();
    let disk = |socket, id: &str| Disk { socket, id: id.to_owned(), queues: 2 };
    let disks = vec![disk(Endpoint::Descriptor(first.into()), "root"), disk(Endpoint::Path("/a,b".into()), "second")];
    let command = Machine { disks, ..machine() }.command(&Qemu::at(Path::new("qemu"), Arch::X86_64));
    assert_eq!(command.descriptors.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), [number]);
    let expected = format!(
        "-chardev socket,id=root,fd={number} -device vhost-user-blk-pci,id=disk-root,chardev=root,num-queues=2 \
         -chardev socket,id=second,path=/a,,b -device vhost-user-blk-pci,id=disk-second,chardev=second,num-queues=2"
    );
    assert!(command.shell_line().ends_with(&expected), "{}", command.shell_line());
}

#[test]
fn initramfs_is_read_through_its_descriptor() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let expected = format!("-initrd /proc/self/fd/{} ", file.as_raw_fd());
    let line = line(Machine { initramfs: Some(Endpoint::Descriptor(file.into())), ..machine() });
    assert!(line.contains(&expected), "{line}");
}
