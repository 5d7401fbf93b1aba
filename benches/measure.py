"""Timing of whole commands: rounds of A B A B, medians, ratios. Machines are noisy; one run's ratios are what counts."""

import os
import random
import resource
import statistics
import subprocess
import sys
import time

INARCH = os.path.abspath(os.environ.get("INARCH", "target/release/inarch"))


def once(command, **options):
    """Seconds that a command takes; its output is thrown away, its failure is ours."""
    started = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **options)
    return time.monotonic() - started


def rounds(contestants, count, before=None):
    """Runs every contestant (name -> callable that returns seconds) `count` times, in a new order each round."""
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
    """Prints medians, ranges and the ratio of each to the reference's median."""
    base = statistics.median(times[reference])
    print(f"\n{title}")
    for name, values in times.items():
        median = statistics.median(values)
        spread = f"{min(values):.3f}-{max(values):.3f}"
        ratio = f"{median / base:6.2f} x {reference}" if name != reference else ""
        print(f"  {name:<34} {median:8.3f} s  ({spread}, {len(values)} runs)  {ratio}")
    sys.stdout.flush()


def peak_memory_of_children():
    """MiB of the largest child so far."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
