#!/usr/bin/env python3
"""Measures a mounted directory against the directory itself and, for root, the same mount as mount(8) makes it.
Usage: mount.py [ROUNDS] [--via auto|kernel|fuse] [--ephemeral] [--changes guest|host|none] [--io-uring] [--only PARTS]
    [--states STATES]

Creates a git repository of 50,000 files, a file of 1 GiB and a small C program in $WORK (/var/tmp). The mount has its default
options, unless --changes sets another one. "fresh" is the first use of a mount whose directory is in the host's memory; "again" is
the second use. "cold" starts with empty caches, so that both sides read from the disk. "names forgotten" starts without dentries and
without the mount's inodes, but with the directory's inodes, which its cached pages keep. These two need root. --io-uring switches
FUSE over io_uring on for the duration, and measures the mount with and without it."""

import argparse
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from functools import partial

from measure import INARCH, once, rounds, table

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("rounds", nargs="?", type=int, default=5)
arguments.add_argument("--via", default="auto", help="as of inarch mount")
arguments.add_argument("--ephemeral", action="store_true", help="writes stay in memory, as of inarch mount")
arguments.add_argument("--changes", help="as of inarch mount; its default")
arguments.add_argument("--io-uring", action="store_true", help="switch FUSE over io_uring on, and compare")
arguments.add_argument("--only", default="", help="of find, names, status, grep, tar, read, build, comma-separated; all")
arguments.add_argument("--states", default="fresh,again,cold,names forgotten", help="of these, comma-separated")
arguments = arguments.parse_args()
work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/var/tmp"), prefix="mount-bench-")
source, point = os.path.join(work, "source"), os.path.join(work, "point")
os.makedirs(source)
os.makedirs(point)
big_size, block = 1 << 30, 4096

SWITCH = "/sys/module/fuse/parameters/enable_uring"


def switched(on):
    """Sets the kernel's switch for FUSE over io_uring, if it exists and we may; returns its previous value."""
    try:
        with open(SWITCH) as file:
            before = file.read().strip()
        if before != on:
            with open(SWITCH, "w") as file:
                file.write(on)
        return before
    except OSError:
        return "N"


def has_rings():
    """Whether mounts can use FUSE over io_uring."""
    return os.path.exists(SWITCH) and open(SWITCH).read().startswith("Y")


class Mount:
    """Mounts the source for the duration of a `with` block."""

    def __init__(self, rings="auto"):
        self.rings = rings

    def __enter__(self):
        command = [INARCH, "mount", source, point, "--io-uring", self.rings, "--via", arguments.via]
        command += ["--ephemeral"] if arguments.ephemeral else []
        command += ["--changes", arguments.changes] if arguments.changes else []
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE)
        line = self.process.stderr.readline()
        assert line.startswith(b"mounted"), line

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait() == 0


class ByHand:
    """The same mount as mount(8) makes it, for the duration of a `with` block: a bind mount, or an overlayfs."""

    def __enter__(self):
        command = ["mount", "--bind", source, point]
        if arguments.ephemeral:
            self.upper = tempfile.mkdtemp(dir=work)
            upper, scratch = os.path.join(self.upper, "upper"), os.path.join(self.upper, "work")
            os.mkdir(upper), os.mkdir(scratch)
            options = f"lowerdir={source},upperdir={upper},workdir={scratch}"
            command = ["mount", "-t", "overlay", "-o", options, "overlay", point]
        subprocess.run(command, check=True)

    def __exit__(self, *_):
        subprocess.run(["umount", point], check=True)


def make_source():
    """Creates the tree, the large file and the program to be measured."""
    generator = random.Random(1)
    repository = os.path.join(source, "tree")
    for number in range(50_000):
        directory = os.path.join(repository, f"d{number // 1000}", f"s{number // 50 % 20}")
        os.makedirs(directory, exist_ok=True)
        with open(os.path.join(directory, f"f{number}.c"), "w") as file:
            file.write(f"int f{number};\n" * generator.randrange(1, 200))
    # A commit of so many objects would start their packing in the background, beside what is measured.
    git = ["git", "-c", "gc.auto=0", "-c", "user.name=n", "-c", "user.email=n@example.org", "-C", repository]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "all"], check=True)
    # Otherwise the index is as new as the files, and git reads them again.
    time.sleep(1.1)
    subprocess.run([*git, "status"], check=True, stdout=subprocess.DEVNULL)
    with open(os.path.join(source, "big"), "wb") as file:
        for _ in range(big_size >> 20):
            file.write(generator.randbytes(1 << 20))
    program = os.path.join(source, "program")
    os.makedirs(program)
    for number in range(200):
        with open(os.path.join(program, f"h{number}.h"), "w") as file:
            file.write(f"static inline int h{number}(int x) {{ return x * {number}; }}\n")
        with open(os.path.join(program, f"c{number}.c"), "w") as file:
            headers = "".join(f'#include "h{generator.randrange(number + 1)}.h"\n' for _ in range(20))
            file.write("#include <stdio.h>\n#include <stdlib.h>\n" + guard(headers))
            file.write("".join(f"int c{number}_{i}(int x) {{ return x * {i} + {number}; }}\n" for i in range(50)))
    with open(os.path.join(program, "main.c"), "w") as file:
        file.write("int main(void) { return 0; }\n")
    with open(os.path.join(program, "Makefile"), "w") as file:
        file.write("objects := $(patsubst %.c,%.o,$(wildcard *.c))\nprogram: $(objects)\n\tcc -o $@ $^\n")
        file.write("%.o: %.c\n\tcc $(LEVEL) -c -o $@ $<\n")
        file.write("clean:\n\trm -f *.o program\n")


def guard(headers):
    """Includes each header once."""
    return "".join(dict.fromkeys(headers.splitlines(keepends=True)))


def find(root):
    return ["find", f"{root}/tree", "-size", "+100k"]


def names(root):
    return ["find", f"{root}/tree", "-name", "*.none"]


def status(root):
    return ["git", "-C", f"{root}/tree", "status", "--short"]


def grep(root):
    # Status 1 means that the text was not found.
    return ["sh", "-c", f"grep -r --include='*.c' 'no such text' {root}/tree || test $? = 1"]


def tar(root):
    # Not directly to /dev/null: tar detects that and reads nothing.
    return ["sh", "-c", f"tar -cf - -C {root}/tree . | cat > /dev/null"]


def sequential(root):
    return ["dd", f"if={root}/big", "of=/dev/null", "bs=1M"]


def read_at_random(root):
    """100,000 reads of a page."""
    generator = random.Random(2)
    offsets = [generator.randrange(big_size // block) * block for _ in range(100_000)]

    def run():
        with open(f"{root}/big", "rb", buffering=0) as file:
            descriptor = file.fileno()
            started = time.monotonic()
            for offset in offsets:
                os.pread(descriptor, block, offset)
            return time.monotonic() - started

    return run


def build(level):
    def of(root):
        def run():
            subprocess.run(["make", "-s", "-C", f"{root}/program", "clean"], check=True)
            return once(["make", "-s", "-j2", "-C", f"{root}/program", f"LEVEL={level}"])

        return run

    return of


def command(of, root):
    return lambda: once(of(root))


def forget_names():
    """Drops dentries, and inodes without cached pages."""
    drop_caches("2")


def forget_all():
    """Drops all caches."""
    os.sync()
    # An inode can be dropped only after its pages.
    drop_caches("3")
    drop_caches("3")


def drop_caches(which):
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write(which)


def native_after(forget, of):
    def run():
        forget()
        return once(of(source))

    return run


def native_warm(of):
    def run():
        once(of(source))
        return once(of(source))

    return run


def mounted_after(forget, of, mount):
    def run():
        with mount():
            forget()
            return once(of(point))

    return run


def fresh(of, mount):
    def run():
        once(of(source))
        with mount():
            return once(of(point))

    return run


def warm(of, mount):
    def run():
        with mount():
            once(of(point))
            return once(of(point))

    return run


def wanted(part):
    return not arguments.only or part in arguments.only.split(",")


def compare(title, of):
    for state, native, mounted in (
        ("fresh", native_warm, fresh),
        ("again", native_warm, warm),
        ("cold", partial(native_after, forget_all), partial(mounted_after, forget_all)),
        ("names forgotten", partial(native_after, forget_names), partial(mounted_after, forget_names)),
    ):
        if state not in arguments.states.split(","):
            continue
        contestants = {"native": native(of), "mount": mounted(of, partial(Mount, "off" if arguments.io_uring else "auto"))}
        if arguments.io_uring and has_rings():
            contestants["mount, io_uring"] = mounted(of, partial(Mount, "on"))
        if arguments.via != "fuse" and os.geteuid() == 0:
            contestants["mount(8)"] = mounted(of, ByHand)
        table(f"{title}, {state}", rounds(contestants, arguments.rounds), "native")


def compare_in_one_mount(title, of):
    with Mount():
        contestants = {"native": of(source), "mount": of(point)}
        for run in contestants.values():
            run()
        table(title, rounds(contestants, arguments.rounds), "native")


before = switched("Y") if arguments.io_uring else None
try:
    make_source()
    print(f"\ninarch mount --via {arguments.via}", end="")
    print(" --ephemeral" if arguments.ephemeral else "", f" --changes {arguments.changes}" if arguments.changes else "")
    for part, title, of in (
        ("find", "find -size", find),
        ("names", "find -name", names),
        ("status", "git status", status),
        ("grep", "grep -r", grep),
        ("tar", "tar", tar),
    ):
        if wanted(part):
            compare(f"{title}, 50,000 files", of)
    if wanted("read"):
        compare_in_one_mount("read 1 GiB from front to end", lambda root: command(sequential, root))
        compare_in_one_mount("read 100,000 pages at random", read_at_random)
    for level in ("-O0", "-O2") if wanted("build") else ():
        compare_in_one_mount(f"make -j2 of 201 C files, {level}", build(level))
finally:
    if before:
        switched(before)
    shutil.rmtree(work)
