"""Leaves files on a file system that give power to those who run or open them, in each way that a program has.

powers.py POINT: runs as root; POINT has the files there-0, there-1, ... of mode 6755, which are used one after the other, and
there-device, a character device, and there-capable, of mode 777 with file capabilities. Prints what failed, a line each.
"""

import errno
import os
import socket
import stat
import subprocess
import sys

os.chdir(sys.argv[1])
os.umask(0)
WITH_BITS = 0o6755
# Version 2, CAP_NET_RAW, effective.
CAPABILITIES = bytes([1, 0, 0, 2, 0, 32, 0, 0] + 12 * [0])
count = 0


def attempt(what, act):
    try:
        act()
    except OSError as error:
        print(what, errno.errorcode[error.errno])
    except subprocess.CalledProcessError as error:
        print(what, error.returncode)


def there():
    global count
    count += 1
    return f"there-{count - 1}"


def new(name, mode=0o755):
    with open(name, "w", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write("x")
    return name


def run(*words):
    subprocess.run(words, check=True)


def written(name, flags=0):
    descriptor = os.open(name, os.O_WRONLY | flags)
    os.write(descriptor, b"y")
    os.close(descriptor)


def mapped(name):
    import mmap
    with open(name, "r+b") as file:
        mmap.mmap(file.fileno(), 0)[0:1] = b"z"


def unnamed():
    descriptor = os.open(".", os.O_RDWR | os.O_TMPFILE, WITH_BITS)
    here = os.open(".", os.O_RDONLY)
    # With a directory it is linkat(2), which follows.
    os.link(f"/proc/self/fd/{descriptor}", "new-unnamed", src_dir_fd=here)
    os.close(here)
    os.close(descriptor)


def moved(name):
    os.rename(name, name + "-moved")


def by_tar():
    os.mkdir("/tmp/powers")
    os.chmod(new("/tmp/powers/new-by-tar"), WITH_BITS)
    run("tar", "-C", "/tmp/powers", "-cf", "/tmp/powers.tar", "new-by-tar")
    run("tar", "-xpf", "/tmp/powers.tar")
    run("cp", "-p", "/tmp/powers/new-by-tar", "new-by-cp")
    run("rm", "-r", "/tmp/powers", "/tmp/powers.tar")


def listening():
    socket.socket(socket.AF_UNIX).bind("new-socket")


attempt("open", lambda: os.close(os.open("new-open", os.O_CREAT | os.O_WRONLY, WITH_BITS)))
attempt("mknod", lambda: os.mknod("new-mknod", stat.S_IFREG | WITH_BITS))
attempt("mkdir", lambda: os.mkdir("new-mkdir", 0o2755))
attempt("unnamed", unnamed)
attempt("chmod", lambda: os.chmod(new("new-chmod"), WITH_BITS))
attempt("chmod of a directory", lambda: os.chmod("new-mkdir", 0o2775))
attempt("install", lambda: run("install", "-m", "6755", "/bin/true", "new-install"))
attempt("tar and cp", by_tar)
attempt("setcap", lambda: os.setxattr(new("new-setcap"), "security.capability", CAPABILITIES))
attempt("write", lambda: written(there()))
attempt("write to an empty one", lambda: written(there(), os.O_TRUNC))
attempt("append", lambda: written(there(), os.O_APPEND))
attempt("truncate", lambda: os.truncate(there(), 1))
attempt("store", lambda: mapped(there()))
attempt("store to one with capabilities", lambda: mapped("there-capable"))
attempt("fallocate", lambda: run("fallocate", "-l", "8192", there()))
attempt("chmod of one that is there", lambda: os.chmod(there(), 0o6711))
attempt("link", lambda: os.link(there(), "new-link"))
attempt("rename", lambda: moved(there()))
attempt("c", lambda: os.mknod("new-c", stat.S_IFCHR | 0o666, os.makedev(1, 5)))
attempt("b", lambda: os.mknod("new-b", stat.S_IFBLK | 0o666, os.makedev(7, 0)))
attempt("chmod of a device", lambda: os.chmod("there-device", 0o666))
attempt("link of a device", lambda: os.link("there-device", "new-device"))
attempt("fifo", lambda: os.mkfifo("new-fifo"))
attempt("socket", listening)
attempt("read", lambda: open("there-read").read())
os.sync()
