#!/usr/bin/env python3
"""How soon a mount of a large tree at a remote can be used, and how much of it is transferred.

Makes a tree of about 1 GB (5,000 files of 200 KiB on average), publishes it into a directory, and serves that by HTTP on this machine with a delay before
each answer. Then a machine that has nothing of it mounts it, and reads 5 % of the files, chosen at random; then a directory's files in a row.
Prints one JSON object. Usage: benches/remote.py [milliseconds of delay, default 20]"""

import http.server, json, os, random, shutil, subprocess, sys, tempfile, threading, time

INARCH = os.environ.get("INARCH", "target/release/inarch")
DELAY = float(sys.argv[1]) / 1000 if len(sys.argv) > 1 else 0.02
FILES, DIRECTORIES = 5000, 50

sent = requests = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        global sent, requests
        time.sleep(DELAY)
        try:
            file = open(os.path.join(ROOT, self.path.lstrip("/")), "rb")
        except OSError:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            asked = self.headers.get("Range")
            start, end = 0, size - 1
            if asked:
                start, end = (int(number) for number in asked.removeprefix("bytes=").split("-"))
                end = min(end, size - 1)
            file.seek(start)
            body = file.read(end - start + 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end}/{size}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        sent, requests = sent + len(body), requests + 1


def inarch(machine, *words):
    environment = {**os.environ, "XDG_STATE_HOME": os.path.join(PLACE, machine)}
    subprocess.run([INARCH, *words], env=environment, check=True, stderr=subprocess.DEVNULL)


PLACE = tempfile.mkdtemp(dir="/var/tmp")
ROOT = os.path.join(PLACE, "remote")
tree, point = os.path.join(PLACE, "tree"), os.path.join(PLACE, "mnt")
try:
    random.seed(1)
    names = [f"d{number % DIRECTORIES}/f{number}" for number in range(FILES)]
    total = 0
    for name in names:
        os.makedirs(os.path.dirname(os.path.join(tree, name)), exist_ok=True)
        with open(os.path.join(tree, name), "wb") as file:
            total += file.write(os.urandom(random.randrange(1000, 400_000)))
    begun = time.monotonic()
    inarch("one", "push", tree, f"file://{ROOT}")
    push = time.monotonic() - begun
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.mkdir(point)
    begun = time.monotonic()
    environment = {**os.environ, "XDG_STATE_HOME": os.path.join(PLACE, "two")}
    words = [INARCH, "mount", f"http://127.0.0.1:{server.server_port}", point, "--ro"]
    mount = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(first := os.listdir(point)) < DIRECTORIES and mount.poll() is None:
        time.sleep(0.005)
    ready = time.monotonic() - begun
    assert len(first) == DIRECTORIES
    at_start = sent

    def read(some):
        return sum(len(open(os.path.join(point, name), "rb").read()) for name in some)

    begun, some = time.monotonic(), random.sample(names, FILES // 20)
    some_bytes = read(some)
    result = {"bytes": total, "push_seconds": round(push, 2), "delay_ms": DELAY * 1000, "ready_seconds": round(ready, 2),
              "transferred_at_start": at_start, "read": some_bytes, "read_seconds": round(time.monotonic() - begun, 2),
              "transferred": sent, "transferred_share": round(sent / total, 4), "read_share": round(some_bytes / total, 4),
              "requests": requests}
    before, before_requests, begun = sent, requests, time.monotonic()
    again = read(some)
    result["second_read_seconds"], result["second_read_transferred"] = round(time.monotonic() - begun, 2), sent - before
    begun = time.monotonic()
    row = read(sorted(name for name in names if name.startswith("d7/")))
    result |= {"row": row, "row_transferred": sent - before, "row_requests": requests - before_requests,
               "row_seconds": round(time.monotonic() - begun, 2)}
    print(json.dumps(result))
finally:
    subprocess.run(["umount", point], stderr=subprocess.DEVNULL)
    shutil.rmtree(PLACE, ignore_errors=True)
