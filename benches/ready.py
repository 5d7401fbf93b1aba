#!/usr/bin/env python3
"""Measures the time from the start of the process to the first block served, on a warm tree. Usage: ready.py [TREE] [ROUNDS]"""

import os
import subprocess
import sys
import tempfile

from measure import INARCH, once, rounds, table

tree = sys.argv[1] if len(sys.argv) > 1 else "/usr"
count = int(sys.argv[2]) if len(sys.argv) > 2 else 11

entries = int(subprocess.check_output(f"find {tree} -mindepth 1 -xdev | wc -l", shell=True))
print(f"tree {tree}: {entries} entries")

find = ["find", tree, "-xdev", "-printf", "%s"]
plan = [INARCH, "plan", tree]
once(find), once(plan)  # warm
times = rounds({"find -printf %s": lambda: once(find), "inarch plan": lambda: once(plan)}, count)
table("ready (lower is better)", times, "find -printf %s")

report = subprocess.check_output(["/usr/bin/time", "-f", "%M", *plan], stderr=subprocess.STDOUT, text=True)
peak = int(report.split()[-1])
budget = 64 * 1024 + 300 * entries / 1024
print(f"  peak memory {peak / 1024:.1f} MiB; budget of 64 MiB + 300 bytes an entry: {budget / 1024:.1f} MiB")

with tempfile.TemporaryDirectory(dir="/var/tmp") as work:
    image = os.path.join(work, "image")
    size = int(subprocess.check_output(["du", "-sm", "--apparent-size", tree]).split()[0]) * 2 + 1024

    def mke2fs():
        if os.path.exists(image):
            os.remove(image)
        with open(image, "w") as f:
            f.truncate(size << 20)
        return once(["mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, image])

    times = rounds({"mke2fs -d": mke2fs, "inarch plan": lambda: once(plan)}, 3)
    table("against building the image", times, "inarch plan")
