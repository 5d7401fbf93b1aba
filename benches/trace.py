#!/usr/bin/env python3
"""Measures traced commands against the same commands untraced, and beside `strace -f` and tup.
Usage: trace.py [ROUNDS] [--only PARTS] [--user NAME] [--peers]

Parts: link (`ld -r` of LLVM's archives), build (git's libgit.a at -O2, make -j2, over 200 objects, the compiler and the system's
headers traced too), compile (one of its objects), status (`git status` in 50,000 files that are a minute old, first and again under
one trace). The command's data is in the host's memory. --user runs all as that user, where data passes through the server. --peers
measures strace and, for the link, tup (which must be installed) as well."""

import argparse
import glob
import os
import shutil
import subprocess
import tempfile
import time

from measure import INARCH, debian_source, once, rounds, table

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("rounds", nargs="?", type=int, default=5)
arguments.add_argument("--only", default="link,build,compile,status", help="of these parts, comma-separated")
arguments.add_argument("--user", help="run as this user")
arguments.add_argument("--peers", action="store_true", help="measure strace and tup as well")
arguments = arguments.parse_args()
parts = arguments.only.split(",")
work = tempfile.mkdtemp(dir=os.environ.get("WORK", "/var/tmp"), prefix="trace-bench-")
os.chmod(work, 0o755)

WITHOUT = "NO_OPENSSL=1 NO_CURL=1 NO_EXPAT=1 NO_GETTEXT=1 NO_TCLTK=1 NO_PYTHON=1 NO_PERL=1 NO_REGEX=NeedsStartEnd".split()
MAKE = ["make", "-s", "CFLAGS=-O2", *WITHOUT]


def as_user(command):
    """The command as --user."""
    if not arguments.user:
        return command
    return ["setpriv", f"--reuid={arguments.user}", f"--regid={arguments.user}", "--clear-groups", *command]


def ways(command, **options):
    """The contestants: name -> callable."""
    trace = [INARCH, "trace", "-q", "-o", os.path.join(work, "out.d"), "--", *command]
    by_process = [*trace[:2], "-q", "--by-process", "--json", os.path.join(work, "out.json"), "--", *command]
    found = {
        "untraced": lambda: once(as_user(command), **options),
        "inarch trace": lambda: once(as_user(trace), **options),
        "inarch trace --by-process": lambda: once(as_user(by_process), **options),
    }
    if arguments.peers:
        strace = ["strace", "-f", "-qq", "-e", "trace=%file,%process", "-o", os.path.join(work, "out.strace"), *command]
        found["strace -f"] = lambda: once(as_user(strace), **options)
    return found


def own(path):
    """Gives a directory to --user."""
    if arguments.user:
        subprocess.run(["chown", "-R", f"{arguments.user}:{arguments.user}", path], check=True)


def link():
    place = os.path.join(work, "link")
    os.makedirs(place)
    archives = sorted(glob.glob("/usr/lib/llvm-14/lib/libLLVM*.a"))
    if not archives:
        return print("\nlink: skipped, llvm-14-dev is not installed")
    for archive in archives:
        shutil.copy(archive, place)
    own(work)
    names = [os.path.basename(archive) for archive in archives]
    command = ["ld", "-r", "--allow-multiple-definition", "-o", "big.o", "--whole-archive", *names, "--no-whole-archive"]
    contestants = ways(command, cwd=place)
    if arguments.peers and shutil.which("tup"):
        contestants["tup"] = tup(place, command)
    table(f"link of {len(names)} archives", rounds(contestants, arguments.rounds), "untraced")
    shutil.rmtree(place)


def tup(place, command):
    """tup's time for the same link, in a directory of its own."""
    own_place = place + "-tup"
    shutil.copytree(place, own_place)
    with open(os.path.join(own_place, "Tupfile"), "w") as file:
        file.write(": |> " + " ".join(command) + " |> big.o\n")
    subprocess.run(["tup", "init"], cwd=own_place, check=True, stdout=subprocess.DEVNULL)

    def run():
        os.utime(os.path.join(own_place, "Tupfile"))
        if os.path.exists(os.path.join(own_place, "big.o")):
            os.remove(os.path.join(own_place, "big.o"))
        return once(["tup", "upd"], cwd=own_place)

    return run


def git_source():
    """Git's source of this Debian, unpacked."""
    place = debian_source("git", work)
    own(work)
    return place


def build(place):
    def cleaned(run):
        def one():
            subprocess.run(["make", "-s", "clean"], cwd=place, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            return run()

        return one

    contestants = {name: cleaned(run) for name, run in ways([*MAKE, "-j2", "libgit.a"], cwd=place).items()}
    # Fills the caches, and makes what `make clean` keeps.
    contestants["untraced"]()
    times = rounds(contestants, arguments.rounds)
    count = len(glob.glob(os.path.join(place, "**/*.o"), recursive=True))
    table(f"build of {count} objects", times, "untraced")


def compile_one(place):
    command = ["gcc", "-O2", "-I.", "-DHAVE_CONFIG_H", "-DSHA1_DC", "-DSHA256_BLK", "-DDEFAULT_GIT_TEMPLATE_DIR=\"\"", "-c", "-o", "one.o", "wrapper.c"]
    table("one compile", rounds(ways(command, cwd=place), 4 * arguments.rounds), "untraced")


def status():
    place = os.path.join(work, "status")
    os.makedirs(place)
    for directory in range(500):
        os.makedirs(f"{place}/{directory % 20}/{directory}")
        for number in range(100):
            with open(f"{place}/{directory % 20}/{directory}/{number}.c", "w") as file:
                file.write(f"int f{number};\n")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "safe.directory=*"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], cwd=place, check=True, stdout=subprocess.DEVNULL)
    own(work)
    # Entries as young as the index are read again each time; what changed within the last minute is asked for again.
    time.sleep(61)
    subprocess.run(as_user([*git, "status"]), cwd=place, check=True, stdout=subprocess.DEVNULL)
    script = 'import subprocess, sys, time\nfor _ in range(2):\n    s = time.monotonic()\n    subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n    print(time.monotonic() - s)'
    command = ["python3", "-c", script, *git, "status"]
    trace = [INARCH, "trace", "-q", "-o", os.path.join(work, "out.d"), "--", *command]
    times = {name: [] for name in ("untraced", "first", "again")}
    for _ in range(arguments.rounds):
        for names, words in ((("untraced", "untraced"), command), (("first", "again"), trace)):
            output = subprocess.run(as_user(words), cwd=place, check=True, capture_output=True, text=True).stdout
            for name, line in zip(names, output.split()):
                times[name].append(float(line))
    table("git status of 50,000 files", times, "untraced")
    shutil.rmtree(place)


try:
    print(f"as {arguments.user or 'this user'}")
    if "link" in parts:
        link()
    if "build" in parts or "compile" in parts:
        place = git_source()
        build(place) if "build" in parts else subprocess.run([*MAKE, "-j2", "libgit.a"], cwd=place, check=True, stdout=subprocess.DEVNULL)
        if "compile" in parts:
            compile_one(place)
    if "status" in parts:
        status()
finally:
    shutil.rmtree(work, ignore_errors=True)
