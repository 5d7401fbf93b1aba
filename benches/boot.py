#!/usr/bin/env python3
"""Measures `inarch run -- true` against the fastest bare boot of the same kernel, and against virtme-ng. Usage: boot.py [ROUNDS]

All run under TCG. virtme-ng gets a virtual environment in the cache directory."""

import os
import re
import subprocess
import sys

from measure import INARCH, once, rounds, table

count = int(sys.argv[1]) if len(sys.argv) > 1 else 7
here = os.path.dirname(os.path.abspath(__file__))
cache = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "inarch-bench")


def virtme_ng():
    """The path of vng; installs it if it is missing."""
    vng = os.path.join(cache, "virtme-ng", "bin", "vng")
    if not os.path.exists(vng):
        subprocess.check_call([sys.executable, "-m", "venv", os.path.join(cache, "virtme-ng")])
        subprocess.check_call([os.path.join(cache, "virtme-ng", "bin", "pip"), "install", "--quiet", "virtme-ng"])
    return vng


def bare():
    """Seconds of the bare boot, which measures itself from the start of QEMU to its end."""
    shown = subprocess.check_output([os.path.join(here, "bare-boot.sh"), "1"], text=True)
    return float(re.findall(r"([\d.]+) s", shown)[-1])


def newest_kernel():
    kernels = [k for k in os.listdir("/boot") if k.startswith("vmlinuz-") and "cloud" not in k]
    return os.path.join("/boot", sorted(kernels)[-1])


vng = virtme_ng()
environment = dict(os.environ, PATH=os.path.dirname(vng) + ":" + os.environ["PATH"])
run = [INARCH, "run", "--quiet", "--accel", "tcg"]
there = os.path.dirname(here)
once([*run, "--", "true"], cwd=there), bare()  # warm: the kernel is unpacked once

entries = int(subprocess.check_output("find / -xdev 2>/dev/null | wc -l", shell=True))
times = rounds(
    {
        "bare boot": bare,
        f"inarch run -- true (/, {entries} names)": lambda: once([*run, "--", "true"], cwd=there),
    },
    count,
)
table("boot, run true, end", times, "bare boot")
times = rounds(
    {
        "virtme-ng": lambda: once(
            [vng, "--disable-kvm", "-r", newest_kernel(), "--", "true"], cwd=there, env=environment, stdin=subprocess.DEVNULL
        ),
        "inarch run -- true": lambda: once([*run, "--", "true"], cwd=there),
    },
    3,
)
table("against virtme-ng", times, "inarch run -- true")
