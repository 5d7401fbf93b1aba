//! A guest without Inarch: Debian's kernel, busybox, and a script, booted by QEMU.

use std::fs;
use std::path::{Path, PathBuf};

use super::host;

/// What comes before a guest's script: its file systems, and the modules in their order.
const START: &str = "#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for module in $(cat /modules/order); do insmod /modules/$module; done
";

/// A kernel of this host, and what a guest of it does.
pub struct BareGuest {
    kernel: PathBuf,
    version: String,
}

impl BareGuest {
    /// As [`new`](Self::new); where there is none, `test` says that it is skipped.
    pub fn or_skip(test: &str) -> Option<BareGuest> {
        let guest = BareGuest::new();
        if guest.is_none() {
            println!("skipped: {test}: no kernel in /boot (install linux-image-amd64)");
        }
        guest
    }

    /// Of the newest kernel whose modules are installed; nothing if there is none.
    fn new() -> Option<BareGuest> {
        let mut versions: Vec<String> = fs::read_dir("/lib/modules")
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|version| fs::File::open(format!("/boot/vmlinuz-{version}")).is_ok())
            .collect();
        versions.sort();
        let version = versions.pop()?;
        Some(BareGuest { kernel: PathBuf::from(format!("/boot/vmlinuz-{version}")), version })
    }

    /// Boots it in `dir` with `modules`, 256 MiB of shared memory and further arguments for QEMU; gives what `script` told in
    /// lines that begin with `report `.
    pub fn run(&self, dir: &Path, modules: &str, script: &str, arguments: &str) -> Vec<String> {
        self.make_initramfs(dir, modules, script);
        let boot = format!(
            "timeout -k 5 240 qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 256 -M q35 -nodefaults -no-user-config \
             -object memory-backend-memfd,id=mem,size=256M,share=on -machine memory-backend=mem -display none \
             -serial stdio -kernel {} -initrd initramfs -append 'console=ttyS0 quiet panic=-1' {arguments} < /dev/null",
            self.kernel.display()
        );
        let console = host("sh", &["-c", &boot], dir);
        let reports: Vec<String> =
            console.lines().filter_map(|line| line.trim_end().strip_prefix("report ")).map(str::to_owned).collect();
        assert_eq!(reports.last().map(String::as_str), Some("the end"), "{console}");
        reports
    }

    /// By the tools of the host.
    fn make_initramfs(&self, dir: &Path, modules: &str, script: &str) {
        fs::write(dir.join("init"), format!("{START}{script}\necho report the end\npoweroff -f\n")).unwrap();
        let version = &self.version;
        let make = format!(
            "set -e; mkdir -p r/bin r/proc r/sys r/dev r/mnt r/modules; cp /bin/busybox r/bin/; install -m 755 init r/init
             for name in {modules}; do modprobe -S {version} --show-depends $name; done |
             sed -n 's/^insmod //p' | while read path rest; do
               name=${{path##*/}}; [ -e r/modules/$name ] || {{ cp $path r/modules/; echo $name >> r/modules/order; }}; done
             cd r; find . | cpio -o -H newc --quiet > ../initramfs; cd ..; rm -r r init"
        );
        host("sh", &["-c", &make], dir);
    }
}
