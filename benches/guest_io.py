#!/usr/bin/env python3
"""Measures file access in one guest: the same tree on our virtual disk and on a raw ext4 image with QEMU's virtio-blk.

Measures find, the first read of every byte, and the second read. Every boot mounts both disks with the guest's caches
dropped. The order changes with each boot, because the first pays for QEMU's translation. Usage: guest_io.py [TREE] [ROUNDS]"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

from measure import INARCH

tree = os.path.abspath(sys.argv[1]) if len(sys.argv) > 1 else "/usr/include"
count = int(sys.argv[2]) if len(sys.argv) > 2 else 10

INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc p /proc; mount -t sysfs s /sys; mount -t devtmpfs d /dev
for m in $(cat /modules/order); do insmod /modules/$m; done
up() { cut -d' ' -f1 /proc/uptime; }
timed() { s=$(up); eval "$3" >/dev/null 2>&1; echo "RESULT $1 $2 $(awk "BEGIN{print $(up)-$s}")"; }
for disk in @ORDER@; do
  for d in /sys/block/vd*; do [ "$(cat $d/serial)" = $disk ] && dev=/dev/${d##*/}; done
  mount -t ext4 -o ro $dev /tree
  echo 3 > /proc/sys/vm/drop_caches
  timed $disk find 'find /tree/@SUB@ | wc -l'
  echo 3 > /proc/sys/vm/drop_caches
  timed $disk first-read 'tar cf - /tree/@SUB@ | cat'
  timed $disk second-read 'tar cf - /tree/@SUB@ | cat'
  umount /tree
done
echo DONE
poweroff -f
"""


def initramfs(work, kernel, order):
    root = os.path.join(work, "root")
    if not os.path.isdir(root):
        for name in ("bin", "proc", "sys", "dev", "tree", "modules"):
            os.makedirs(os.path.join(root, name))
        subprocess.check_call(["cp", "/bin/busybox", f"{root}/bin/busybox"])
        loaded = []
        for module in ("virtio_pci", "virtio_blk", "ext4"):
            shown = subprocess.check_output(["modprobe", "-S", kernel, "--show-depends", module], text=True)
            for path in re.findall(r"^insmod (\S+)", shown, re.M):
                name = os.path.basename(path)
                if name not in loaded:
                    loaded.append(name)
                    subprocess.check_call(["cp", path, f"{root}/modules/{name}"])
        with open(f"{root}/modules/order", "w") as f:
            f.write("\n".join(loaded))
    with open(f"{root}/init", "w") as f:
        f.write(INIT.replace("@ORDER@", " ".join(order)).replace("@SUB@", "."))
    os.chmod(f"{root}/init", 0o755)
    out = os.path.join(work, "initrd")
    subprocess.check_call(f"cd {root} && find . | cpio -o -H newc --quiet > {out}", shell=True)
    return out


def main():
    kernel = sorted(k for k in os.listdir("/lib/modules") if "cloud" not in k and os.path.exists(f"/boot/vmlinuz-{k}"))[-1]
    files = int(subprocess.check_output(f"find {tree} -xdev -type f | wc -l", shell=True))
    size = int(subprocess.check_output(["du", "-sxm", "--apparent-size", tree]).split()[0])
    print(f"tree {tree}: {files} files, {size} MiB; kernel {kernel}; {count} boots under TCG")
    times = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
        image = os.path.join(work, "raw")
        with open(image, "w") as f:
            f.truncate((size * 2 + 1024) << 20)
        subprocess.check_call(["mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, image])
        subprocess.check_call(f"cat {image} > /dev/null; tar cf - {tree} 2>/dev/null | cat >/dev/null", shell=True)
        for boot in range(count):
            order = ["raw", "inarch-0"][:: 1 if boot % 2 else -1]
            initrd = initramfs(work, kernel, order)
            socket = os.path.join(work, "socket")
            server = subprocess.Popen([INARCH, "serve", "blk", tree, "--socket", socket, "--serial", "inarch-0"], stderr=subprocess.DEVNULL)
            while not os.path.exists(socket):
                time.sleep(0.01)
            arguments = subprocess.check_output(
                f"{INARCH} serve blk {tree} --socket {socket} --serial inarch-0 --print-qemu-args --qemu-memory none", shell=True, text=True
            )
            command = (
                "qemu-system-x86_64 -accel tcg,thread=multi -cpu max,-erms,-fsrm -smp 2 -m 4G -machine q35,memory-backend=mem "
                f"-nodefaults -no-user-config -display none -serial stdio -no-reboot -kernel /boot/vmlinuz-{kernel} "
                f"-initrd {initrd} -append 'console=ttyS0 quiet panic=-1 mitigations=off swiotlb=noforce rodata=off' "
                f"-drive file={image},if=none,id=raw,format=raw -device virtio-blk-pci,drive=raw,serial=raw,num-queues=2 "
                f"-object memory-backend-memfd,id=mem,size=4G,share=on {arguments}"
            )
            try:
                shown = subprocess.check_output(command, shell=True, text=True, stdin=subprocess.DEVNULL, timeout=900)
            finally:
                server.terminate()
                server.wait()
            found = re.findall(r"RESULT (\S+) (\S+) ([\d.]+)", shown)
            assert "DONE" in shown and len(found) == 6, shown
            for disk, work_done, seconds in found:
                times.setdefault((work_done, disk), []).append(float(seconds))
    print(f"{'':14}{'raw image':>12}{'inarch':>12}{'ratio':>8}   (medians of {count}, seconds in the guest)")
    for work_done in ("find", "first-read", "second-read"):
        raw = statistics.median(times[work_done, "raw"])
        ours = statistics.median(times[work_done, "inarch-0"])
        print(f"{work_done:14}{raw:12.2f}{ours:12.2f}{ours / raw:8.3f}")


main()
