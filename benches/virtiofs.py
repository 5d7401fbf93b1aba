#!/usr/bin/env python3
"""In one guest, side by side: a directory shared by `inarch serve virtiofs`, by QEMU's C virtiofsd and by the Rust one.

Find, first read of every byte, second read, and making and removing many small files; every boot mounts each share anew
with the guest's caches dropped, in another order. Servers of one caching mode are compared with each other: what may be a
second old (ours: --changes host, theirs: cache=auto), and what only the guest changes (--changes guest, cache=always).
A server that is not installed is left out. Usage: virtiofs.py [TREE] [ROUNDS] [FILES]"""

import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from measure import INARCH

tree = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "/usr/include"
count = int(sys.argv[2]) if len(sys.argv) > 2 else 6
files = int(sys.argv[3]) if len(sys.argv) > 3 else 2000

C_SERVER = "/usr/lib/qemu/virtiofsd"
RUST_SERVER = os.environ.get("VIRTIOFSD") or shutil.which("virtiofsd") or "/usr/libexec/virtiofsd"
WORK = ("find", "first-read", "second-read", "make-remove")

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in $(cat /modules/order); do insmod /modules/$m; done
up() { cut -d' ' -f1 /proc/uptime; }
timed() { s=$(up); eval "$3" >/dev/null 2>&1; echo "RESULT $1 $2 $(awk "BEGIN{print $(up)-$s}")"; }
churn() { i=0; while [ $i -lt @FILES@ ]; do echo $i > $1/f$i; i=$((i+1)); done; rm -r $1; }
for tag in @ORDER@; do
  mount -t virtiofs $tag /tree || { echo "FAILED $tag"; continue; }
  echo 3 > /proc/sys/vm/drop_caches
  timed $tag find 'find /tree/tree | wc -l'
  echo 3 > /proc/sys/vm/drop_caches
  timed $tag first-read 'tar cf - /tree/tree | cat'
  timed $tag second-read 'tar cf - /tree/tree | cat'
  mkdir /tree/churn
  timed $tag make-remove 'churn /tree/churn'
  umount /tree
done
echo DONE
poweroff -f
"""


def contestants(share, work):
    """Name -> (mode, the server's command line, given its socket)."""
    ours = lambda mode: lambda socket: [INARCH, "serve", "virtiofs", share, "--socket", socket, "--changes", mode]
    c = lambda mode: lambda socket: [C_SERVER, f"--socket-path={socket}", "-o", f"source={share},cache={mode}"]
    rust = lambda mode: lambda socket: [RUST_SERVER, "--shared-dir", share, "--socket-path", socket, "--cache", mode]
    all_of_them = {
        "inarch-host": ("a second", ours("host")),
        "inarch-guest": ("alone", ours("guest")),
        "c-auto": ("a second", c("auto")),
        "c-always": ("alone", c("always")),
        "rust-auto": ("a second", rust("auto")),
        "rust-always": ("alone", rust("always")),
    }
    missing = {"c": not os.path.exists(C_SERVER), "rust": not os.path.exists(RUST_SERVER)}
    return {name: it for name, it in all_of_them.items() if not missing.get(name.split("-")[0])}


def initramfs(work, kernel, order):
    root = os.path.join(work, "root")
    if not os.path.isdir(root):
        for name in ("bin", "proc", "sys", "dev", "tree", "modules"):
            os.makedirs(os.path.join(root, name))
        subprocess.check_call(["cp", "/bin/busybox", f"{root}/bin/busybox"])
        loaded = []
        for module in ("virtio_pci", "virtiofs"):
            shown = subprocess.check_output(["modprobe", "-S", kernel, "--show-depends", module], text=True)
            for path in re.findall(r"^insmod (\S+)", shown, re.M):
                name = os.path.basename(path)
                if name not in loaded:
                    loaded.append(name)
                    subprocess.check_call(["cp", path, f"{root}/modules/{name}"])
        with open(f"{root}/modules/order", "w") as f:
            f.write("\n".join(loaded))
    with open(f"{root}/init", "w") as f:
        f.write(INIT.replace("@ORDER@", " ".join(order)).replace("@FILES@", str(files)))
    os.chmod(f"{root}/init", 0o755)
    out = os.path.join(work, "initrd")
    subprocess.check_call(f"cd {root} && find . | cpio -o -H newc --quiet > {out}", shell=True)
    return out


def boot(kernel, initrd, work, servers, order):
    """One guest with a device of every server; gives what it printed."""
    running, devices = [], []
    try:
        for name in order:
            socket = os.path.join(work, f"{name}.socket")
            command = servers[name][1](socket)
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            devices.append(
                f"-chardev socket,id={name},path={socket} "
                f"-device vhost-user-fs-pci,chardev={name},tag={name},queue-size=1024"
            )
            while not os.path.exists(socket):
                assert running[-1].poll() is None, f"{name} does not start"
                time.sleep(0.01)
        command = (
            "qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m 2G -machine q35,memory-backend=mem "
            f"-nodefaults -no-user-config -display none -serial stdio -no-reboot -kernel /boot/vmlinuz-{kernel} "
            f"-initrd {initrd} -append 'console=ttyS0 quiet panic=-1 mitigations=off swiotlb=noforce rodata=off' "
            f"-object memory-backend-memfd,id=mem,size=2G,share=on {' '.join(devices)}"
        )
        return subprocess.check_output(command, shell=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
    finally:
        for server in running:
            server.terminate()
            server.wait()
        for name in order:
            for path in (f"{name}.socket", f"{name}.socket.pid"):
                if os.path.exists(os.path.join(work, path)):
                    os.unlink(os.path.join(work, path))


def main():
    kernel = sorted(k for k in os.listdir("/lib/modules") if "cloud" not in k and os.path.exists(f"/boot/vmlinuz-{k}"))[-1]
    times = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        share = os.path.join(work, "share")
        os.mkdir(share)
        subprocess.check_call(["cp", "-a", tree, os.path.join(share, "tree")])
        number = int(subprocess.check_output(f"find {share} -type f | wc -l", shell=True))
        size = int(subprocess.check_output(["du", "-sm", "--apparent-size", share]).split()[0])
        servers = contestants(share, work)
        print(f"tree {tree}: {number} files, {size} MiB; {files} files made and removed; kernel {kernel}; {count} boots, TCG")
        for turn in range(count):
            names = list(servers)
            order = names[turn % len(names):] + names[: turn % len(names)]
            order = order[:: 1 if turn % 2 else -1]
            shown = boot(kernel, initramfs(work, kernel, order), work, servers, order)
            assert "DONE" in shown and "FAILED" not in shown, shown
            for name, done, seconds in re.findall(r"RESULT (\S+) (\S+) ([\d.]+)", shown):
                times.setdefault((done, name), []).append(float(seconds))
    for mode in ("a second", "alone"):
        names = [name for name, (of_mode, _) in servers.items() if of_mode == mode]
        print(f"\n{mode:14}" + "".join(f"{name:>16}" for name in names) + f"   (medians of {count}, seconds; x ours)")
        for done in WORK:
            middle = [statistics.median(times[done, name]) for name in names]
            print(f"{done:14}" + "".join(f"{value:10.2f} {value / middle[0]:4.1f}x" for value in middle))


main()
