"""Measures whole commands in alternating rounds; prints medians and ratios. Machines are noisy, so compare only ratios of one run."""

import glob
import os
import random
import resource
import statistics
import subprocess
import sys
import time

INARCH = os.path.abspath(os.environ.get("INARCH", "target/release/inarch"))


def once(command, **options):
    """Seconds that a command takes. Discards its output; fails if it fails."""
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    return time.monotonic() - started


def rounds(contestants, count, before=None):
    """Runs every contestant (name -> callable that returns seconds) `count` times, in another order each round."""
    times = {name: [] for name in contestants}
    names = list(contestants)
    for _ in range(count):
        random.shuffle(names)
        for name in names:
            if before:
                before()
            times[name].append(contestants[name]())
    return times


def table(title, times, reference):
    """Prints medians, ranges, and each median's ratio to the reference's."""
    base = statistics.median(times[reference])
    print(f"\n{title}")
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.3f}-{max(values):.3f}"
        ratio = f"{median / base:6.2f} x {reference}" if name != reference else ""
        print(f"  {name:<34} {median:8.3f} s  ({spread}, {len(values)} runs)  {ratio}")
    sys.stdout.flush()


def peak_memory_of_children():
    """Peak memory in MiB of the largest child so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def debian_source(package, work):
    """The source of a package of this Debian, unpacked below the directory `work`; returns where. Changes nothing of apt's own files."""
    place = os.path.join(work, package)
    os.makedirs(os.path.join(work, "lists/partial"))
    sources = "/etc/apt/sources.list.d/debian.sources"
    with open(sources) as file, open(os.path.join(work, "source.sources"), "w") as out:
        out.write(file.read().replace("Types: deb\n", "Types: deb-src\n"))
    apt = ["apt-get", "-qq", "-o", f"Dir::Etc::sourcelist={work}/source.sources", "-o", "Dir::Etc::sourceparts=-"]
    apt += ["-o", f"Dir::State::lists={work}/lists", "-o", "APT::Sandbox::User=root"]
    quiet = {"check": True, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": work}
    subprocess.run([*apt, "update"], **quiet)
    subprocess.run([*apt, "source", "--download-only", package], **quiet)
    os.makedirs(place)
    archive = glob.glob(os.path.join(work, f"{package}_*.orig.tar.*"))[0]
    subprocess.run(["tar", "-xf", archive, "-C", place, "--strip-components=1"], check=True)
    return place
