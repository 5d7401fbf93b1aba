#!/usr/bin/env python3
"""Compares the ways by which a guest gets the files of a real build, lz4's library in a Debian with a compiler, by `inarch compare`; and the build's own time with the
same files in an image that `mke2fs -d` has made before, on a raw disk of such a guest.

Usage: compare.py [--runs N] [--vmm uml|qemu] [--svg FILE]. Needs root, debootstrap, mke2fs, and --vmm's program. Takes a quarter of an hour with User-Mode Linux."""

import argparse
import os
import shutil
import subprocess
import tempfile

from measure import INARCH, debian_source, rounds, table

BUILD = ["make", "-s", "-C", "lib", "liblz4.a", "CFLAGS=-O0"]
WAYS = "ext4,erofs,squashfs,virtiofs,9p"

parser = argparse.ArgumentParser()
parser.add_argument("--runs", type=int, default=3)
parser.add_argument("--vmm", default="uml")
parser.add_argument("--svg")
arguments = parser.parse_args()
work = tempfile.mkdtemp(dir="/var/tmp")


def guest(*options):
    """Seconds of the build alone, as the guest tells them."""

    def run():
        command = [INARCH, "run", "-q", "--vmm", arguments.vmm, "-u", "root", "--root", whole, "--via", "ext4", *options]
        output = subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout
        return float(output.split()[-1])

    return run


def by_all_ways():
    command = [INARCH, "compare", "--vmm", arguments.vmm, "--root", root, "--tree", f"{source}:/src", "-w", "/src", "--via", WAYS]
    command += ["--runs", str(arguments.runs), "--page-cache", "both"]
    command += ["--svg", arguments.svg] if arguments.svg else []
    subprocess.run([*command, "--", *BUILD], check=True)


def against_a_ready_image():
    # What the guest changes must not be there in the next run.
    image, copy = os.path.join(work, "ready.ext4"), os.path.join(work, "copy.ext4")
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", whole, image, "2G"], check=True)
    timed = "cd /src; s=$(date +%s.%N); " + " ".join(BUILD) + " >&2; e=$(date +%s.%N); echo $s $e | awk '{ print $2 - $1 }'"
    inside = "mount $INARCH_DISK_1 /mnt && mount --bind /dev /mnt/dev && mount -t proc proc /mnt/proc && exec chroot /mnt sh -c \"$0\""
    ready = guest("--disk", copy, "--", "sh", "-c", inside, timed)

    def fresh():
        subprocess.run(["cp", "--sparse=always", image, copy], check=True)

    contestants = {"a ready image, mke2fs -d": ready, "inarch run, ext4": guest("--", "sh", "-c", timed)}
    for run in contestants.values():
        fresh()
        run()
    table("the build alone", rounds(contestants, arguments.runs + 2, before=fresh), "a ready image, mke2fs -d")


try:
    source = debian_source("lz4", work)
    root, whole = os.path.join(work, "root"), os.path.join(work, "whole")
    debootstrap = ["debootstrap", "--variant=minbase", "--include=gcc,libc6-dev,make", "bookworm", root]
    subprocess.run(debootstrap, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cp", "-a", root, whole], check=True)
    subprocess.run(["cp", "-a", source, os.path.join(whole, "src")], check=True)
    by_all_ways()
    against_a_ready_image()
finally:
    shutil.rmtree(work, ignore_errors=True)
