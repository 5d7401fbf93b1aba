#!/usr/bin/env python3
"""Measures how long a disk image takes from the start of `inarch mount` to its being mounted, on demand, by FUSE.
Usage: mount_ready.py [ROUNDS] [--files COUNT] [--keep DIRECTORY]

Makes a tree of 1,000,000 empty files in directories of 1,000, and images of it by mke2fs, mkfs.erofs, mksquashfs and `inarch image`,
in $WORK (/var/tmp). What is mounted must not be read first, so the time should not depend on the number of files; --files says so with
another number. A directory with one file is the reference: what a mount takes that has nothing to read. --keep makes the images there,
or takes those that are there."""

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time

from measure import INARCH, rounds, table

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("rounds", nargs="?", type=int, default=11)
arguments.add_argument("--files", type=int, default=1_000_000)
arguments.add_argument("--keep")
arguments = arguments.parse_args()
work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/var/tmp"), prefix="mount-ready-")
images, point = arguments.keep or work, os.path.join(work, "point")
os.makedirs(images, exist_ok=True)
os.makedirs(point)


def make_tree(root, count):
    """Creates so many empty files."""
    for number in range(count):
        if number % 1000 == 0:
            directory = os.path.join(root, f"d{number // 1000:04}")
            os.makedirs(directory)
        os.close(os.open(os.path.join(directory, f"file{number:07}"), os.O_CREAT | os.O_WRONLY))


def makers(tree, image):
    """Commands that make an image of a tree, by the names of what they make."""
    # Inodes of 256 bytes, and what each directory takes.
    size = f"{arguments.files * 400 // 1_000_000 + 64}M"
    return {
        "ext4 of mke2fs": ["mke2fs", "-q", "-F", "-t", "ext4", "-N", str(arguments.files + 4096), "-d", tree, image, size],
        "ext4 of inarch": [INARCH, "image", tree, "-o", image],
        "erofs of mkfs.erofs": ["mkfs.erofs", image, tree],
        "squashfs of mksquashfs": ["mksquashfs", tree, image, "-quiet", "-no-progress", "-noappend"],
        "squashfs of inarch": [INARCH, "image", tree, "-o", image],
    }


def make_images():
    """Makes what is missing of the images; gives their paths by their names."""
    paths = {name: os.path.join(images, f"{name.replace(' ', '-')}.{name.split()[0]}") for name in makers("", "")}
    missing = [name for name, path in paths.items() if not os.path.exists(path)]
    if missing:
        tree = os.path.join(work, "tree")
        make_tree(tree, arguments.files)
        for name in missing:
            subprocess.run(makers(tree, paths[name])[name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(tree)
    return paths


peaks = []


def ready(source):
    """Seconds from the start of a mount to the line that says that it is there."""
    started = time.monotonic()
    process = subprocess.Popen([INARCH, "mount", "--via", "fuse", source, point], stderr=subprocess.PIPE)
    line = process.stderr.readline()
    took = time.monotonic() - started
    assert line.startswith(b"mounted"), line
    with open(f"/proc/{process.pid}/status") as status:
        peaks.extend(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    return took


small = os.path.join(work, "small")
make_tree(small, 1)
contestants = {"a directory of one file": small, **make_images()}
try:
    times = rounds({name: lambda source=source: ready(source) for name, source in contestants.items()}, arguments.rounds)
    table(f"mounted, {arguments.files} files (lower is better)", times, "a directory of one file")
    print(f"  memory of a server that is ready: {max(peaks) / 1024:.1f} MiB at most")
finally:
    shutil.rmtree(work)
