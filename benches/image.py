#!/usr/bin/env python3
"""Measures images of a large tree against the formats' own tools. Usage: image.py [TREE] [ROUNDS] [--newest DIR] [--only PART]...

--newest DIR: a folder with a later system (made by debootstrap) whose mkfs.erofs, mksquashfs and mke2fs are measured too.
Needs root for the runs on XFS with reflink. Images are made in /var/tmp, or in $WORK."""

import argparse
import os
import shutil
import subprocess
import tempfile

from measure import INARCH, once, rounds, table

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("tree", nargs="?", default="/usr")
arguments.add_argument("rounds", nargs="?", type=int, default=5)
arguments.add_argument("--newest", metavar="DIR")
arguments.add_argument("--only", metavar="PART", action="append", help="ext4, plain, zstd, tar, reflink or memory")
arguments = arguments.parse_args()
tree, count = arguments.tree, arguments.rounds
WORK = os.environ.get("WORK", "/var/tmp")


def size_of(path):
    return int(subprocess.check_output(["du", "-sm", "--apparent-size", "-x", path]).split()[0])


def newest(tool):
    """The command line of a tool of the newer system, with that system's loader and libraries."""
    root = arguments.newest
    for place in ("usr/sbin", "usr/bin", "sbin", "bin"):
        program = os.path.join(root, place, tool)
        if os.path.exists(program):
            libraries = ":".join(os.path.join(root, p) for p in ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"))
            loader = os.path.join(root, "usr/lib64/ld-linux-x86-64.so.2")
            return [loader, "--library-path", libraries, program]
    raise SystemExit(f"{root}: there is no {tool}")


def fresh(path, megabytes=None):
    """Removes `path`, or makes it an empty file of a given size."""
    if os.path.exists(path):
        os.remove(path)
    if megabytes:
        with open(path, "wb") as file:
            file.truncate(megabytes << 20)


def maker(command, path, megabytes=None):
    def run():
        fresh(path, megabytes)
        # Writes back first, so that no contestant's time includes another's data.
        os.sync()
        return once(command)

    return run


def inarch(source, path, *options):
    return maker([INARCH, "image", "--quiet", source, "-o", path, *options], path)


def compare(title, contestants, reference):
    for run in contestants.values():
        run()  # warm
    table(title, rounds(contestants, count), reference)


def peers(tool, arguments_of, path, megabytes=None):
    """The tool of this system and, if given, of the newer one."""
    found = {tool: maker([tool, *arguments_of], path, megabytes)}
    if arguments.newest:
        found[f"{tool} (newest)"] = maker([*newest(tool), *arguments_of], path, megabytes)
    return found


def ext4(work):
    image = os.path.join(work, "image")
    mke2fs = ["-q", "-F", "-t", "ext4", "-d", tree, image]
    megabytes = size_of(tree) * 2 + 1024
    compare("ext4", {**peers("mke2fs", mke2fs, image, megabytes), "inarch": inarch(tree, image + ".ext4")}, "inarch")


def plain(work):
    # All images go to one place in turn: how fast memory is available depends on what was removed just before.
    image = os.path.join(work, "image")
    options = ["-noI", "-noD", "-noF", "-noX", "-no-progress", "-quiet", "-noappend"]
    contestants = {
        **peers("mkfs.erofs", ["--quiet", image, tree], image),
        **peers("mksquashfs", [tree, image, *options], image),
        "inarch erofs": inarch(tree, image, "--format", "erofs"),
        "inarch squashfs": inarch(tree, image, "--format", "squashfs"),
    }
    compare("read-only, without compression", contestants, "inarch erofs")


def zstd(work):
    image = os.path.join(work, "image")
    options = ["-comp", "zstd", "-Xcompression-level", "3", "-no-progress", "-quiet", "-noappend"]
    squashfs = image + ".squashfs"
    contestants = {
        "inarch squashfs zstd:3": inarch(tree, squashfs, "--compress", "zstd:3"),
        **peers("mksquashfs", [tree, image, *options], image),
    }
    compare("squashfs, zstd level 3", contestants, "mksquashfs")
    print(f"  size: {os.path.getsize(squashfs) / os.path.getsize(image):.3f} of mksquashfs's")


def tar(work):
    image, archive = os.path.join(work, "image"), os.path.join(work, "tree.tar")
    subprocess.run([INARCH, "image", "--quiet", tree, "-o", archive], check=True)
    contestants = {"inarch tar to erofs": inarch(archive, image + ".erofs")}
    if arguments.newest:
        command = [*newest("mkfs.erofs"), "--tar=f", "--quiet", image, archive]
        contestants["mkfs.erofs --tar=f (newest)"] = maker(command, image)
    compare("erofs from a tar archive", contestants, "inarch tar to erofs")


def reflink(work):
    """Measures, on a fresh XFS, an image of files of 128 KiB and more against copying them."""
    if os.geteuid() != 0:
        return
    disk, mount = os.path.join(work, "xfs"), os.path.join(work, "mount")
    fresh(disk, 12 << 10)
    os.mkdir(mount)
    subprocess.run(["mkfs.xfs", "-q", "-m", "reflink=1", disk], check=True)
    subprocess.run(["mount", "-o", "loop", disk, mount], check=True)
    try:
        source, copy = os.path.join(mount, "source"), os.path.join(mount, "copy")
        os.mkdir(source)
        block = os.urandom(1 << 20)
        for size, number in ((128, 2000), (256, 1000), (512, 500), (1024, 250), (4096, 60), (16384, 16)):
            for file in range(number):
                with open(os.path.join(source, f"{size}k-{file}"), "wb") as out:
                    for left in range(size, 0, -1024):
                        out.write(block[: min(left, 1024) << 10])
        os.sync()

        def cp():
            shutil.rmtree(copy, ignore_errors=True)
            return once(["cp", "-r", "--reflink=never", source, copy])

        image = os.path.join(mount, "image")
        contestants = {
            "cp --reflink=never": cp,
            "inarch ext4": inarch(source, image + ".ext4"),
            "inarch erofs": inarch(source, image + ".erofs"),
        }
        compare("XFS with reflink, files of 128 KiB and more", contestants, "cp --reflink=never")
    finally:
        subprocess.run(["umount", mount], check=True)


def memory(work):
    """Peak memory for a million files."""
    million, image = os.path.join(work, "million"), os.path.join(work, "million.img")
    for directory in range(1000):
        path = os.path.join(million, f"{directory:03}")
        os.makedirs(path)
        for file in range(1000):
            os.close(os.open(os.path.join(path, f"file-{file:03}.c"), os.O_CREAT | os.O_WRONLY))
    print("\npeak memory, a million files")
    for name in ("ext4", "erofs", "squashfs", "tar"):
        command = ["/usr/bin/time", "-f", "%M", INARCH, "image", "--quiet", million, "-o", image, "--format", name]
        report = subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True).stderr
        print(f"  {name:<34} {int(report.split()[-1]) / 1024:8.1f} MiB")


entries = int(subprocess.check_output(f"find {tree} -mindepth 1 -xdev | wc -l", shell=True))
print(f"tree {tree}: {entries} entries, {size_of(tree)} MiB")
for part in (ext4, plain, zstd, tar, reflink, memory):
    if not arguments.only or part.__name__ in arguments.only:
        with tempfile.TemporaryDirectory(dir=WORK) as work:
            part(work)
