#!/usr/bin/env python3
"""Measures looking into a guest's disk against libguestfs. Usage: disk.py [ROUNDS] [--root DIRECTORY]

Makes a Debian guest (debootstrap, minbase; or takes --root) on a GPT disk with an ext4 root, raw and as qcow2, in $WORK (/var/tmp). Needs root, and
libguestfs-tools. libguestfs boots a virtual machine for each question, so it is asked a few times only."""

import argparse
import os
import shutil
import subprocess
import tempfile
import time

from measure import INARCH, once, rounds, table

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("rounds", nargs="?", type=int, default=11)
arguments.add_argument("--root", help="the guest's files")
arguments = arguments.parse_args()
work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/var/tmp"), prefix="disk-bench-")
os.environ["LIBGUESTFS_BACKEND"] = "direct"
doctor = subprocess.run([INARCH, "doctor"], capture_output=True, text=True).stdout
if "no guest comes up under it" in doctor:
    # libguestfs would wait for ever for a KVM that opens and then hangs.
    os.environ.setdefault("LIBGUESTFS_BACKEND_SETTINGS", "force_tcg")


def shell(script):
    subprocess.run(["sh", "-ec", script], check=True, cwd=work, stdout=subprocess.DEVNULL)


def make():
    """Makes guest.img and guest.qcow2: a partition of 4 GiB on a disk of 10 GiB."""
    if arguments.root:
        os.symlink(os.path.abspath(arguments.root), os.path.join(work, "root"))
    else:
        shell("debootstrap --variant=minbase bookworm root >/dev/null")
        shell("echo 'LABEL=root / ext4 defaults 0 1' > root/etc/fstab; echo guest > root/etc/hostname")
    shell(
        "mke2fs -q -t ext4 -L root -d root part 4G; truncate -s 10G guest.img;"
        "echo 'label: gpt\nsize=4G,type=L,name=root' | sfdisk -q guest.img;"
        "dd if=part of=guest.img bs=1M seek=1 conv=notrunc,sparse status=none; rm part;"
        "qemu-img convert -O qcow2 guest.img guest.qcow2"
    )


def compare(title, ours, theirs, reference="libguestfs"):
    """Ours often, theirs twice."""
    times = rounds({"inarch": lambda: once(ours)}, arguments.rounds)
    try:
        times |= rounds({reference: lambda: once(theirs)}, 2)
    except subprocess.CalledProcessError as error:
        print(f"skipped: {reference}: {theirs[0]} failed with status {error.returncode}")
    table(title, times, "inarch")


def mounted(command, point):
    """Seconds until something is mounted, and its root can be listed."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.ismount(point) or not os.listdir(point):
        if process.poll() not in (None, 0):
            raise SystemExit(f"{command} failed")
        time.sleep(0.0005)
    seconds = time.monotonic() - start
    subprocess.run(["umount", point], check=True)
    process.wait()
    return seconds


def main():
    make()
    for image in ("guest.img", "guest.qcow2"):
        path = os.path.join(work, image)
        print(f"\n{image}, {os.path.getsize(path) >> 20} MiB")
        compare("partitions and file systems", [INARCH, "disk", "list", path], ["virt-filesystems", "-a", path, "--all", "--long", "--uuid"])
        compare("which system, which packages", [INARCH, "disk", "inspect", "--json", path], ["virt-inspector", "-a", path])
        compare("print one file", [INARCH, "disk", "cat", path, "/etc/passwd"], ["virt-cat", "-a", path, "/etc/passwd"])
        compare("free space", [INARCH, "disk", "df", path], ["virt-df", "-a", path])
        out = os.path.join(work, "out.tar")
        compare("everything as a tar", [INARCH, "image", "-q", path, "-o", out], ["virt-tar-out", "-a", path, "/", out])
        point = os.path.join(work, "point")
        os.makedirs(point, exist_ok=True)
        ours = rounds({"inarch": lambda: mounted([INARCH, "mount", "-q", "--via", "fuse", path, point], point)}, arguments.rounds)
        theirs = rounds({"guestmount": lambda: mounted(["guestmount", "-a", path, "-i", "--ro", point], point)}, 2)
        table("mounted, and its root listed", ours | theirs, "inarch")
    if os.geteuid() == 0:
        image, point, out = (os.path.join(work, name) for name in ("guest.img", "point", "out.tar"))
        subprocess.run(["mount", "-o", "loop,ro,offset=1048576", image, point], check=True)
        try:
            contestants = {
                "inarch": lambda: once([INARCH, "image", "-q", image, "-o", out]),
                "tar over a loop mount": lambda: once(["tar", "-C", point, "--xattrs", "--acls", "-cf", out, "."]),
            }
            table("everything as a tar, warm", rounds(contestants, 5), "inarch")
        finally:
            subprocess.run(["umount", point], check=True)


try:
    main()
finally:
    shutil.rmtree(work, ignore_errors=True)
