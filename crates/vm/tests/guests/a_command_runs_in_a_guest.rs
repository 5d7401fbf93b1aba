//! Runs commands in a real guest: QEMU under TCG, with a Linux kernel of this machine and disks made by mke2fs.

use std::fs;
use std::io::{self, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use inarch_vm::initramfs::{self, Features};
use inarch_vm::kernel::Kernel;
use inarch_vm::kernel::cache::Cache;
use inarch_vm::modules::ModuleTree;
use inarch_vm::process::{Process, Symptom};
use inarch_vm::protocol::{Mount, MountSource, Network, SessionRequest, User, WindowSize};
use inarch_vm::qemu::Qemu;
use inarch_vm::session::{Outcome, Report, Session, SessionError, SessionOptions, Streams};
use inarch_vm::{Accel, Arch, Endpoint, Machine};

const BUSYBOX: &str = "/bin/busybox";
const BOOT_DEADLINE: Duration = Duration::from_secs(120);

/// A guest to be started: its disks and its session.
struct Guest {
    directory: tempfile::TempDir,
    disks: Vec<(PathBuf, &'static str)>,
    network: bool,
}

struct Finished {
    report: Result<Report, SessionError>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    warnings: Vec<String>,
    hello: Duration,
    whole: Duration,
}

impl Guest {
    /// `None`, with the reason printed, if there is no QEMU, kernel, mke2fs or busybox.
    fn new() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        for (there, what) in [
            (Qemu::find(Arch::host()).is_ok(), "no QEMU"),
            (Kernel::find(&Cache::at(directory.path())).is_ok(), "no kernel that can be read"),
            (Path::new(BUSYBOX).exists(), "no busybox"),
            (Command::new("mke2fs").arg("-V").output().is_ok(), "no mke2fs"),
        ] {
            if !there {
                println!("skipped: {}: {what}", thread::current().name().unwrap_or("a test"));
                return None;
            }
        }
        Some(Self { directory, disks: Vec::new(), network: false })
    }

    /// Adds an ext4 disk of 64 MiB with the files that `fill` creates.
    fn disk(&mut self, serial: &'static str, fill: impl FnOnce(&Path)) -> PathBuf {
        let content = self.directory.path().join(format!("{serial}.d"));
        let image = self.directory.path().join(format!("{serial}.ext4"));
        fs::create_dir(&content).unwrap();
        fill(&content);
        let made =
            Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&content).arg(&image).arg("64M").status();
        assert!(made.unwrap().success());
        self.disks.push((image.clone(), serial));
        image
    }

    fn start(&self) -> (Process, UnixStream) {
        let kernel = Kernel::find(&Cache::at(self.directory.path())).unwrap();
        let modules = kernel.modules.clone().unwrap_or_default();
        let features = Features {
            file_systems: vec!["ext4".to_owned()],
            disks: !self.disks.is_empty(),
            network: self.network,
            ..Features::default()
        };
        let archive =
            initramfs::build(Arch::host(), &ModuleTree::open(&kernel.release, &modules).unwrap(), &features).unwrap();
        let mut initramfs = tempfile::tempfile().unwrap();
        initramfs.write_all(&archive).unwrap();
        initramfs.rewind().unwrap();
        let (agent, agent_end) = UnixStream::pair().unwrap();
        let (console_end, console) = std::io::pipe().unwrap();
        let machine = Machine {
            kernel,
            firmware: None,
            initramfs: Some(Endpoint::Descriptor(initramfs.into())),
            parameters: Vec::new(),
            accel: Accel::Tcg,
            cpus: 2,
            memory: 512 << 20,
            agent: Some(Endpoint::Descriptor(agent.into())),
            console: Endpoint::Descriptor(console.into()),
            disks: Vec::new(),
            images: Vec::new(),
            shares: Vec::new(),
            sockets: None,
            forwards: Vec::new(),
            streams: Vec::new(),
            network: self.network,
            published: Vec::new(),
            raid: false,
            arguments: Vec::new(),
            verbose: false,
        };
        let mut command = machine.command(&Qemu::find(Arch::host()).unwrap());
        for (image, serial) in &self.disks {
            let drive = format!("if=none,format=raw,id={serial},file={}", image.display());
            let device = format!("virtio-blk-pci,drive={serial},serial={serial}");
            command.arguments.extend(["-drive".into(), drive.into(), "-device".into(), device.into()]);
        }
        (Process::spawn(command, console_end.into(), None).unwrap(), agent_end)
    }

    fn run(&self, request: &SessionRequest, input: Option<OwnedFd>) -> Finished {
        let begun = Instant::now();
        let (process, agent) = self.start();
        let session = Session::greet(agent, BOOT_DEADLINE)
            .unwrap_or_else(|error| panic!("{error}: {:?}", process.explain(Symptom::Silence(BOOT_DEADLINE))));
        let hello = begun.elapsed();
        let (stdout, output) = io::pipe().unwrap();
        let (stderr, error) = io::pipe().unwrap();
        let (stdout, stderr) = (collect(stdout), collect(stderr));
        let streams = Streams { input, output: output.into(), error: error.into() };
        let warnings = std::sync::Mutex::new(Vec::new());
        let warn = |text: &str| warnings.lock().unwrap().push(text.to_owned());
        let options = SessionOptions { timeout: Some(Duration::from_secs(120)), warn: &warn, ..Default::default() };
        let report = session.run(request, streams, &options);
        let whole = begun.elapsed();
        process.kill();
        let (stdout, stderr) = (stdout.join().unwrap(), stderr.join().unwrap());
        Finished { report, stdout, stderr, warnings: warnings.into_inner().unwrap(), hello, whole }
    }
}

impl Finished {
    fn outcome(&self) -> &Outcome {
        &self.report.as_ref().unwrap().outcome
    }

    fn print(&self, name: &str) {
        let started = self.report.as_ref().ok().and_then(|report| report.started);
        println!(
            "{name}: HELLO after {:?}, end after {:?}, guest's clock: {started:?}, {} + {} bytes",
            self.hello,
            self.whole,
            self.stdout.len(),
            self.stderr.len()
        );
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

fn add_busybox(root: &Path) {
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::copy(BUSYBOX, root.join("bin/busybox")).unwrap();
    for applet in ["sh", "cat", "id", "stty", "head", "mount", "hostname", "date", "ls", "sleep", "ip", "test", "tr"] {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
}

fn mount(serial: &str, target: &str, read_only: bool) -> Mount {
    Mount {
        source: MountSource::DiskSerial(serial.to_owned()),
        fstype: "ext4".to_owned(),
        target: target.into(),
        options: String::new(),
        read_only,
        no_suid_no_dev: false,
        no_atime: true,
        overlaid: false,
    }
}

fn shell(script: &str) -> SessionRequest {
    SessionRequest {
        command: vec!["sh".into(), "-c".into(), script.into()],
        environment: vec![("PATH".into(), "/bin:/usr/bin".into())],
        ..Default::default()
    }
}

#[test]
fn a_root_disk_and_a_tree_are_mounted_and_left_clean() {
    let Some(mut guest) = Guest::new() else { return };
    guest.network = true;
    let root = guest.disk("root", |root| {
        add_busybox(root);
        fs::create_dir(root.join("etc")).unwrap();
        fs::write(root.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nalice:x:1234:1235::/home/alice:/bin/sh\n")
            .unwrap();
        fs::write(root.join("etc/group"), "root:x:0:\nalice:x:1235:\nbuild:x:77:bob,alice\n").unwrap();
        std::os::unix::fs::symlink("../run/resolver/resolv.conf", root.join("etc/resolv.conf")).unwrap();
        fs::create_dir(root.join("srv")).unwrap();
        fs::set_permissions(root.join("srv"), fs::Permissions::from_mode(0o1777)).unwrap();
    });
    guest.disk("tree", |tree| fs::write(tree.join("hello"), "from the tree\n").unwrap());
    let script = "
        id; pwd; echo $HOME; hostname; cat /mnt/a/tree/hello /etc/resolv.conf
        echo no > /mnt/a/tree/new || echo read-only
        echo mine > /srv/written; echo also > /tmp/x && cat /tmp/x; test -e /dev/null && test -d /proc/1 && echo api
        ip -4 addr show dev eth0 | cat; ip route; date +%s >&2; cat /dev/stdin; kill -TERM $$";
    let request = SessionRequest {
        mounts: vec![mount("root", "/", false), mount("tree", "/mnt/a/tree", true), Mount::tmpfs("/tmp")],
        user: Some(User::Name("alice".to_owned())),
        hostname: Some("grafted".to_owned()),
        set_clock: true,
        network: Some(Network::QEMU_USER),
        directory: Some("/srv".into()),
        clean_shutdown: true,
        ..shell(script)
    };
    let (input, mut writer) = io::pipe().unwrap();
    writer.write_all(b"from our side\n").unwrap();
    drop(writer);
    let finished = guest.run(&request, Some(input.into()));
    finished.print("root disk");
    assert_eq!(finished.warnings, [""; 0]);
    assert_eq!(*finished.outcome(), Outcome::Signaled(15), "{}", String::from_utf8_lossy(&finished.stderr));
    let stdout = String::from_utf8(finished.stdout).unwrap();
    for line in [
        "uid=1234(alice) gid=1235(alice) groups=77(build),1235(alice)",
        "/srv",
        "/home/alice",
        "grafted",
        "from the tree",
        "nameserver 10.0.2.3",
        "read-only",
        "also",
        "api",
        "from our side",
    ] {
        assert!(stdout.lines().any(|l| l == line), "no line '{line}' in\n{stdout}");
    }
    assert!(stdout.contains("inet 10.0.2.15/24") && stdout.contains("default via 10.0.2.2"), "{stdout}");
    let stderr = String::from_utf8(finished.stderr).unwrap();
    let seconds: u64 = stderr.lines().last().unwrap().parse().unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    assert!(now.abs_diff(seconds) < 30, "the guest's clock says {seconds}, ours {now}");
    let check = Command::new("e2fsck").arg("-fn").arg(&root).output().unwrap();
    let said = String::from_utf8_lossy(&check.stdout).into_owned();
    assert!(check.status.success() && !said.contains("recovering"), "{said}");
    let written = Command::new("debugfs").args(["-R", "cat /srv/written"]).arg(&root).output().unwrap();
    assert_eq!(written.stdout, b"mine\n");
}

#[test]
fn a_terminal_on_a_root_of_nothing_but_a_tree() {
    let Some(mut guest) = Guest::new() else { return };
    guest.disk("tools", add_busybox);
    let request = SessionRequest {
        mounts: vec![mount("tools", "/opt/tools", true)],
        environment: vec![("PATH".into(), "/opt/tools/bin".into())],
        terminal: Some(WindowSize { rows: 31, columns: 99 }),
        ..shell("test -t 0 && test -t 2 && stty size; ls /; head -c 3000000 /dev/zero | tr '\\0' 'x'")
    };
    let finished = guest.run(&request, None);
    finished.print("terminal");
    assert_eq!(*finished.outcome(), Outcome::Exited(0));
    let (text, filler) = finished.stdout.split_at(finished.stdout.len().saturating_sub(3_000_000));
    assert!(filler.len() == 3_000_000 && filler.iter().all(|byte| *byte == b'x'));
    let text = String::from_utf8_lossy(text);
    assert!(text.starts_with("31 99\r\n"), "{text}");
    let mut names: Vec<&str> = text.lines().skip(1).flat_map(str::split_whitespace).collect();
    names.sort_unstable();
    assert_eq!(names, ["dev", "opt", "proc", "root", "run", "sys"]);
}

#[test]
fn a_disk_that_is_missing_is_named() {
    let Some(mut guest) = Guest::new() else { return };
    guest.disk("root", add_busybox);
    let request = SessionRequest { mounts: vec![mount("absent", "/", true)], ..shell("true") };
    let finished = guest.run(&request, None);
    let Outcome::Failed { status: 125, message } = finished.outcome() else { panic!("{:?}", finished.outcome()) };
    assert!(message.contains("no disk with the serial 'absent'"), "{message}");
}
