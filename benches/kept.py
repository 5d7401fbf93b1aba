#!/usr/bin/env python3
"""Measures applying a kept run against `cp -a` of the same files, and listing its changes. Usage: kept.py [ROUNDS]

Everything lies on one file system: a fresh ext4 where this is root, since ext4 is slow for minutes after many files were
removed from it; $WORK or /var/tmp otherwise. No files are removed between the rounds."""

import os
import random
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

from measure import INARCH, once, rounds, table

count = int(sys.argv[1]) if len(sys.argv) > 1 else 7
WORK = os.environ.get("WORK", "/var/tmp")


def make_root(root):
    """A root that contains only busybox."""
    for directory in ("bin", "etc", "data", "proc", "dev", "tmp"):
        os.makedirs(os.path.join(root, directory))
    shutil.copy("/bin/busybox", os.path.join(root, "bin"))
    for tool in ("sh", "cp", "seq"):
        os.symlink("busybox", os.path.join(root, "bin", tool))


def make_files(top):
    """`small`: 10,000 files as small as sources; `large`: 240 MB in ten files."""
    random.seed(1)
    noise = random.randbytes(1 << 20)
    for directory in range(100):
        path = os.path.join(top, "small", f"{directory:02}", "src")
        os.makedirs(path)
        for file in range(100):
            size = int(random.lognormvariate(8, 1.2)) % 60000
            start = random.randrange(len(noise) - size)
            with open(os.path.join(path, f"file{file}.c"), "wb") as out:
                out.write(noise[start : start + size])
    os.makedirs(os.path.join(top, "large"))
    for file in range(10):
        with open(os.path.join(top, "large", str(file)), "wb") as out:
            for _ in range(24):
                out.write(random.randbytes(1 << 20))


def guest(name, root, script, *options):
    command = [INARCH, "run", "--quiet", "--accel", "tcg", "--keep", name, "--root", root, *options]
    subprocess.run([*command, "--", "/bin/sh", "-c", script], check=True, stdin=subprocess.DEVNULL)


def apply_against_cp(work):
    root, files, done = (os.path.join(work, name) for name in ("root", "files", "done"))
    make_root(root)
    make_files(files)
    os.mkdir(done)
    os.mkdir(os.path.join(root, "data", "out"))
    # What is applied leaves its kept run: every round has a run of its own.
    for round in range(count + 1):
        guest(f"apply{round}", root, "cp -a /files/* /data/out", "--tree", f"{files}:/files,ro")
    for part in ("small", "large"):
        made = os.path.join(root, "data", "out", part)
        number = iter(range(1000))
        runs = iter(range(count + 1))
        processor = {"cp -a": [], "cp -a; sync": [], "inarch apply": []}

        def aside():
            """Moves the result away, without deleting it, and waits until the disk is idle."""
            kept = os.path.join(done, f"{part}{next(number)}")
            os.rename(made, kept)
            subprocess.run(["sync", "--file-system", done], check=True)

        def measured(name, command):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds = once(command)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = [usage.ru_utime + usage.ru_stime for usage in (before, after)]
            processor[name].append(used[1] - used[0])
            aside()
            return seconds

        copy = ["cp", "-a", os.path.join(files, part), made]
        # `apply` ends when all is on the disk, since the run's own bytes go then.
        durable = ["sh", "-c", f"{shlex.join(copy)} && sync --file-system {shlex.quote(root)}"]
        contestants = {
            "cp -a": lambda: measured("cp -a", copy),
            "cp -a; sync": lambda: measured("cp -a; sync", durable),
            "inarch apply": lambda: measured("inarch apply", [INARCH, "apply", "-q", f"apply{next(runs)}", f"/data/out/{part}"]),
        }
        # Warm-up.
        contestants["inarch apply"]()
        for times in processor.values():
            times.clear()
        files_of = sum(len(names) for _, _, names in os.walk(os.path.join(files, part)))
        times = rounds(contestants, count)
        table(f"apply of {files_of} {part} new files", times, "cp -a")
        table("  its processor time", processor, "cp -a")


def listing(work):
    """Measures `diff` over 100,000 entries, 1,000 of them changed."""
    root = os.path.join(work, "root-of-many")
    make_root(root)
    for directory in range(1000):
        path = os.path.join(root, "data", f"{directory:03}")
        os.mkdir(path)
        for file in range(99):
            with open(os.path.join(path, f"{file}"), "w") as out:
                out.write(f"file {file} of {directory}\n")
    guest("many", root, "for i in /data/*; do echo changed >> $i/50; done")
    listed = subprocess.check_output([INARCH, "diff", "many"], text=True).count("\n")
    times = rounds({"inarch diff": lambda: once([INARCH, "diff", "many"])}, count)
    table(f"diff of a kept run over 100,000 entries, {listed} changes", times, "inarch diff")
    if statistics.median(times["inarch diff"]) > 1:
        raise SystemExit("diff takes longer than a second")


with tempfile.TemporaryDirectory(dir=WORK) as work:
    disk, mount = os.path.join(work, "disk"), os.path.join(work, "mount")
    os.mkdir(mount)
    mounted = os.geteuid() == 0
    if mounted:
        with open(disk, "wb") as file:
            file.truncate(16 << 30)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", disk], check=True)
        subprocess.run(["mount", "-o", "loop", disk, mount], check=True)
    os.environ["XDG_STATE_HOME"] = os.path.join(mount, "state")
    try:
        apply_against_cp(mount)
        listing(mount)
    finally:
        if mounted:
            subprocess.run(["umount", mount], check=True)
