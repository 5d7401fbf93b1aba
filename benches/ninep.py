#!/usr/bin/env python3
"""Measures 9P requests a second of one raw client against diod, and the cost of a million live fids. Usage: ninep.py [ROUNDS]"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager

from measure import INARCH

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
CLIENT = os.environ.get("NINEP_CLIENT", os.path.join(os.path.dirname(INARCH), "examples", "client"))
FILES = 2000
SECONDS = "2"
MSIZE = "65536"
FIDS = 1_000_000


@contextmanager
def running(command, socket):
    """Starts a server and waits for its socket."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if os.path.exists(socket):
                break
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()


def client(socket, aname, *words):
    """Requests a second."""
    output = subprocess.check_output([CLIENT, socket, aname, MSIZE, *map(str, words)], timeout=120)
    return float(output)


def compare(title, contestants):
    """Prints medians of alternating rounds; the last contestant is the reference."""
    rates = {name: [] for name in contestants}
    names = list(contestants)
    for _ in range(ROUNDS):
        random.shuffle(names)
        for name in names:
            rates[name].append(contestants[name]())
    reference = statistics.median(rates[list(contestants)[-1]])
    print(f"\n{title}")
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"  {name:<12} {median:10.0f} requests/s  ({min(values):.0f}-{max(values):.0f})  {median / reference:5.2f} x")
    sys.stdout.flush()


def resident(process):
    """A process's resident memory in bytes."""
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024


with tempfile.TemporaryDirectory() as work:
    tree = os.path.join(work, "tree")
    os.makedirs(os.path.join(tree, "d"))
    for n in range(FILES):
        with open(os.path.join(tree, "d", f"file{n}"), "w") as file:
            file.write(f"file {n}\n")
    ours, theirs = os.path.join(work, "ours.sock"), os.path.join(work, "diod.sock")
    serve = [INARCH, "serve", "9p", tree, "--socket", ours]
    diod = ["diod", "-f", "-n", "-N", "-L", os.path.join(work, "log"), "-e", tree, "-l", theirs]
    deaths = 0

    def fresh(command, socket, aname, *words):
        """Requests a second of a new server. Retries, because diod sometimes dies with several requests in flight."""
        global deaths
        while True:
            if os.path.exists(socket):
                # The previous server left it, and the new one has not started.
                os.remove(socket)
            with running(command, socket):
                try:
                    return client(socket, aname, *words)
                except subprocess.CalledProcessError:
                    deaths += 1
                    if deaths > 20:
                        raise

    for depth in (1, 8, 32):
        title = f"walk, getattr, open, read, clunk of {FILES} small files, {depth} in flight"
        words = ("files", "d", SECONDS, depth)
        contestants = {
            "inarch": lambda: fresh(serve, ours, "", *words),
            "diod": lambda: fresh(diod, theirs, tree, *words),
        }
        compare(title, contestants)
    if deaths:
        print(f"runs made again because the server had died: {deaths}")
    with running(serve, ours):
        fids = {count: (lambda count=count: client(ours, "", "fids", count, "d", SECONDS)) for count in (FIDS, 10)}
        compare("walk, getattr, clunk beside so many live fids", {f"{count}": fid for count, fid in fids.items()})
    with running(serve, ours) as process:
        client(ours, "", "fids", 10, "d", 1)
        before = resident(process)
        client(ours, "", "fids", FIDS, "d", 1)
        print(f"\nmemory a live fid: {(resident(process) - before) / FIDS:.0f} bytes, {FIDS} of them")
