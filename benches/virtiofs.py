#!/usr/bin/env python3
"""Measures, in one guest, a directory shared by `inarch serve virtiofs`, QEMU's C virtiofsd, the Rust virtiofsd, `inarch serve 9p`
(through QEMU's user-mode network) and QEMU's own 9p, and the same files on an ext4 disk (virtio-blk).

Measures find; the first, second and third read of every byte; grep -r; git status without and with the guest's caches; making and
removing many small files; many small writes; and a C build and its repetition. Every boot mounts each share anew with the guest's
caches dropped, in another order. Servers are compared within one caching mode: up to a second old (ours by default, theirs with
cache=auto); changed by the guest only (--changes guest, cache=always); writes kept away from the directory (in the server's memory, or
in the guest's by overlayfs over the same share); writes kept on the host (--overlay, or overlayfs in the guest with its upper
directory on a second share); and 9P. A server that is not installed is left out; $VIRTIOFSD is the Rust one. git, make and gcc come
from this machine, on a disk of /usr."""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from measure import INARCH

WORK = ("find", "find-again", "first-read", "second-read", "third-read", "grep", "status-cold", "status-warm", "make-remove", "small-writes", "build", "rebuild")

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("tree", nargs="?", default="/usr/include", type=os.path.abspath)
arguments.add_argument("rounds", nargs="?", type=int, default=6)
arguments.add_argument("files", nargs="?", type=int, default=2000, help="how many files are made and removed")
arguments.add_argument("--work", default=",".join(WORK), help="what is done, of " + ",".join(WORK))
arguments.add_argument("--only", default="", help="prefixes of the contestants' names")
arguments = arguments.parse_args()

C_SERVER = "/usr/lib/qemu/virtiofsd"
RUST_SERVER = os.environ.get("VIRTIOFSD") or shutil.which("virtiofsd") or "/usr/libexec/virtiofsd"

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/tmp
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev; mount -t tmpfs t /tmp
for m in $(cat /modules/order); do insmod /modules/$m; done
mount -t ext4 -o ro /dev/vda /usr || echo FAILED usr
git --version >/dev/null && gcc --version >/dev/null && make --version >/dev/null || echo FAILED tools
up() { cut -d' ' -f1 /proc/uptime; }
forget() { echo 3 > /proc/sys/vm/drop_caches; }
timed() {
  case ,@WORK@, in *,$2,*) ;; *) return ;; esac
  s=$(up); eval "$3" >/dev/null 2>/tmp/err || { echo "FAILED $1 $2"; cat /tmp/err; }
  echo "RESULT $1 $2 $(awk "BEGIN{print $(up)-$s}")"
}
ninep=version=9p2000.L,msize=262144,cache=mmap
churn() { mkdir $1; i=0; while [ $i -lt @FILES@ ]; do echo $i > $1/f$i; i=$((i+1)); done; rm -r $1; }
# Otherwise the first contestant would pay for the kernel's work after its boot.
sleep 4; find /usr/share >/dev/null
for tag in @ORDER@; do
  case $tag in
    ext4) mount -t ext4 /dev/vdb /tree ;;
    qemu-9p) mount -t 9p -o trans=virtio,$ninep qemu-9p /tree ;;
    inarch-9p) ifconfig eth0 10.0.2.15; mount -t 9p -o trans=tcp,$ninep 10.0.2.100 /tree ;;
    over-guest)
      mount -t virtiofs over-guest /lower && mount -t tmpfs upper /upper && mkdir /upper/upper /upper/work &&
      mount -t overlay -o lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work overlay /tree ;;
    # A share does not support trusted.* attributes.
    kept-guest)
      mount -t virtiofs kept-guest /lower && mount -t virtiofs kept-upper /upper && mkdir -p /upper/upper /upper/work &&
      mount -t overlay -o userxattr,lowerdir=/lower,upperdir=/upper/upper,workdir=/upper/work overlay /tree ;;
    *) mount -t virtiofs $tag /tree ;;
  esac || { echo "FAILED $tag"; continue; }
  forget
  timed $tag find 'find /tree/tree | wc -l'
  timed $tag find-again 'find /tree/tree | wc -l'
  forget
  timed $tag first-read 'tar cf - /tree/tree | cat'
  timed $tag second-read 'tar cf - /tree/tree | cat'
  timed $tag third-read 'tar cf - /tree/tree | cat'
  timed $tag grep '/usr/bin/grep -r "no such text" /tree/tree || test $? = 1'
  # Refreshes the index: on another file system the files have other inode numbers.
  case ,@WORK@, in *status*) git -C /tree/tree status -s >/dev/null ;; esac
  forget
  timed $tag status-cold 'git -C /tree/tree status -s'
  timed $tag status-warm 'git -C /tree/tree status -s'
  timed $tag make-remove 'churn /tree/churn'
  timed $tag small-writes 'dd if=/dev/zero of=/tree/small bs=512 count=4000; rm /tree/small'
  forget
  timed $tag build 'make -s -j2 -C /tree/build'
  make -s -C /tree/build clean
  timed $tag rebuild 'make -s -j2 -C /tree/build'
  make -s -C /tree/build clean
  umount /tree
  case $tag in over-guest|kept-guest) umount /lower /upper 2>/dev/null ;; esac
done
echo DONE
poweroff -f
"""


def contestants(share, writes):
    """Name -> (mode, function from a socket to the server's command line). Kept writes go beneath `writes`."""
    ours_of = lambda what, mode: lambda socket: [INARCH, "serve", "virtiofs", what, "--socket", socket, "--changes", mode]
    ours = lambda mode: ours_of(share, mode)
    by_default = lambda socket: [INARCH, "serve", "virtiofs", share, "--socket", socket]
    over = ["--ephemeral", "--in-memory", "1G"]
    c = lambda mode: lambda socket: [C_SERVER, f"--socket-path={socket}", "-o", f"source={share},cache={mode}"]
    rust = lambda mode: lambda socket: [RUST_SERVER, "--shared-dir", share, "--socket-path", socket, "--cache", mode]
    all_of_them = {
        "inarch": ("a second", by_default),
        "inarch-guest": ("alone", ours("guest")),
        "inarch-writeback": ("alone", lambda socket: ours("guest")(socket) + ["--writeback"]),
        "c-auto": ("a second", c("auto")),
        "c-always": ("alone", c("always")),
        "rust-auto": ("a second", rust("auto")),
        "rust-always": ("alone", rust("always")),
        "over-server": ("written over", lambda socket: ours("guest")(socket) + over),
        "over-guest": ("written over", lambda socket: ours("guest")(socket) + ["--ro"]),
        "kept-server": ("kept over", lambda socket: ours("guest")(socket) + ["--overlay", f"{writes}/server"]),
        "kept-guest": ("kept over", lambda socket: ours("guest")(socket) + ["--ro"]),
        "kept-upper": (None, ours_of(f"{writes}/guest", "guest")),
        "inarch-9p": ("9p", lambda socket: [INARCH, "serve", "9p", share, "--socket", socket]),
        "qemu-9p": ("9p", None),
        "ext4": ("disk", None),
    }
    missing = {"c": not os.path.exists(C_SERVER), "rust": not os.path.exists(RUST_SERVER)}
    only = tuple(arguments.only.split(","))
    wanted = lambda name: name.startswith(only) or name == "kept-upper" and "kept-guest".startswith(only)
    return {name: it for name, it in all_of_them.items() if wanted(name) and not missing.get(name.split("-")[0])}


def make_share(share):
    """Creates the share: a copy of the tree as a git repository, and a program with a few sources and many headers."""
    tree, build = os.path.join(share, "tree"), os.path.join(share, "build")
    subprocess.check_call(["cp", "-a", arguments.tree, tree])
    os.makedirs(build)
    for number in range(100):
        with open(f"{build}/h{number}.h", "w") as file:
            file.write(f"#pragma once\nstatic inline int h{number}(int x) {{ return x * {number}; }}\n")
    for number in range(8):
        with open(f"{build}/c{number}.c", "w") as file:
            file.write("".join(f'#include "h{(number * 7 + i * 3) % 100}.h"\n' for i in range(30)))
            file.write(f"int c{number}(int x) {{ return x + {number}; }}\n")
    with open(f"{build}/main.c", "w") as file:
        file.write("int main(void) { return 0; }\n")
    with open(f"{build}/Makefile", "w") as file:
        file.write("objects := $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(objects)\n\tgcc -o $@ $^\n")
        file.write("%.o: %.c\n\tgcc -O0 -c -o $@ $<\nclean:\n\trm -f *.o program\n")
    git = ["git", "-c", "user.name=n", "-c", "user.email=n@example.org", "-C", tree]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "all"], ["repack", "-adq"]):
        subprocess.check_call([*git, *command])
    # Otherwise the index is as new as the files, and git reads them again.
    time.sleep(1.1)
    subprocess.check_call([*git, "status", "-s"], stdout=subprocess.DEVNULL)


def initramfs(work, kernel, order):
    root = os.path.join(work, "root")
    if not os.path.isdir(root):
        for name in ("bin", "proc", "sys", "dev", "tmp", "tree", "lower", "upper", "usr", "modules"):
            os.makedirs(os.path.join(root, name))
        for name in ("lib", "lib64"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
        subprocess.check_call(["cp", "/bin/busybox", f"{root}/bin/busybox"])
        loaded = []
        for module in ("virtio_pci", "virtio_blk", "ext4", "virtiofs", "overlay", "virtio_net", "9pnet_virtio", "9pnet_fd", "9p"):
            shown = subprocess.check_output(["modprobe", "-S", kernel, "--show-depends", module], text=True)
            for path in re.findall(r"^insmod (\S+)", shown, re.M):
                name = os.path.basename(path)
                if name not in loaded:
                    loaded.append(name)
                    subprocess.check_call(["cp", path, f"{root}/modules/{name}"])
        with open(f"{root}/modules/order", "w") as f:
            f.write("\n".join(loaded))
    with open(f"{root}/init", "w") as f:
        values = {"ORDER": " ".join(order), "FILES": str(arguments.files), "WORK": arguments.work}
        f.write(re.sub(r"@(\w+)@", lambda name: values[name[1]], INIT))
    os.chmod(f"{root}/init", 0o755)
    out = os.path.join(work, "initrd")
    subprocess.check_call(f"cd {root} && find . | cpio -o -H newc --quiet > {out}", shell=True)
    return out


def boot(kernel, initrd, work, servers, order):
    """Runs one guest with a device of every server; returns its output."""
    running, devices = [], []
    tools = os.path.join(work, "tools.socket")
    writes = os.path.join(work, "writes")
    shutil.rmtree(writes, ignore_errors=True)
    os.makedirs(f"{writes}/guest")
    commands = {"tools": [INARCH, "serve", "blk", "/usr", "--socket", tools]}
    devices.append(f"-chardev socket,id=tools,path={tools} -device vhost-user-blk-pci,chardev=tools")
    disk = os.path.join(work, "disk")
    if os.path.exists(disk):
        devices.append(f"-drive if=none,id=disk,format=raw,file={disk} -device virtio-blk-pci,drive=disk")
    for name in servers:
        if servers[name][1]:
            socket = os.path.join(work, f"{name}.socket")
            commands[name] = servers[name][1](socket)
            device = f"vhost-user-fs-pci,chardev={name},tag={name},queue-size=1024"
            if servers[name][0] == "9p":
                forward = f"guestfwd=tcp:10.0.2.100:564-chardev:{name}"
                device = f"virtio-net-pci,netdev=n -netdev user,id=n,{forward}"
            devices.append(f"-chardev socket,id={name},path={socket} -device {device}")
        elif name == "qemu-9p":
            devices.append(f"-virtfs local,path={work}/share,mount_tag={name},security_model=passthrough,multidevs=remap")
    try:
        for name, command in commands.items():
            running.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            while not os.path.exists(os.path.join(work, f"{name}.socket")):
                assert running[-1].poll() is None, f"{name} does not start"
                time.sleep(0.01)
        command = (
            "qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m 2G -machine q35,memory-backend=mem "
            f"-nodefaults -no-user-config -display none -serial stdio -no-reboot -kernel /boot/vmlinuz-{kernel} "
            f"-initrd {initrd} -append 'console=ttyS0 quiet panic=-1 mitigations=off swiotlb=noforce rodata=off' "
            f"-object memory-backend-memfd,id=mem,size=2G,share=on {' '.join(devices)}"
        )
        return subprocess.check_output(command, shell=True, text=True, stdin=subprocess.DEVNULL, timeout=1800)
    finally:
        for server in running:
            server.terminate()
            server.wait()
        for name in commands:
            for path in (f"{name}.socket", f"{name}.socket.pid"):
                if os.path.exists(os.path.join(work, path)):
                    os.unlink(os.path.join(work, path))


def show(servers, times):
    """Prints one table for each caching mode: medians, their ratios to ours, and our ratio to the disk."""
    for mode in ("a second", "alone", "written over", "kept over", "9p"):
        names = [name for name, (of_mode, _) in servers.items() if of_mode == mode]
        if not names:
            continue
        disk = ["ext4"] if "ext4" in servers else []
        print(f"\n{mode:14}" + "".join(f"{name:>16}" for name in names + disk)
              + f"   (medians of {arguments.rounds}, seconds; x ours)")
        for done in (done for done in WORK if (done, names[0]) in times):
            middle = [statistics.median(times[done, name]) for name in names + disk]
            print(f"{done:14}" + "".join(f"{value:10.2f} {value / middle[0]:4.2f}x" for value in middle)
                  + (f"   {middle[0] / middle[-1]:.2f} x ext4" if disk and middle[-1] else ""))


def main():
    kernel = sorted(k for k in os.listdir("/lib/modules") if "cloud" not in k and os.path.exists(f"/boot/vmlinuz-{k}"))[-1]
    times = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        share = os.path.join(work, "share")
        os.mkdir(share)
        make_share(share)
        number = int(subprocess.check_output(f"find {share}/tree -path '*/.git' -prune -o -type f -print | wc -l", shell=True))
        size = int(subprocess.check_output(["du", "-sm", "--apparent-size", share]).split()[0])
        servers = contestants(share, os.path.join(work, "writes"))
        if "ext4" in servers:
            subprocess.check_call(["mke2fs", "-q", "-t", "ext4", "-d", share, f"{work}/disk", f"{size * 2 + 256}M"])
        print(f"tree {arguments.tree}: {number} files, {size} MiB; {arguments.files} files made and removed; kernel {kernel}; "
              f"{arguments.rounds} boots, TCG", flush=True)
        for turn in range(arguments.rounds):
            names = [name for name, (mode, _) in servers.items() if mode]
            order = names[turn % len(names):] + names[: turn % len(names)]
            order = order[:: 1 if turn % 2 else -1]
            shown = boot(kernel, initramfs(work, kernel, order), work, servers, order)
            assert "DONE" in shown and "FAILED" not in shown, shown
            for name, done, seconds in re.findall(r"RESULT (\S+) (\S+) ([\d.]+)", shown):
                times.setdefault((done, name), []).append(float(seconds))
    show(servers, times)


main()
