"""Two users of a mount, and a host that changes beneath it: what somebody may do is never decided by what was there before.

two_users.py SOURCE POINT [absences] [names] [nodes] [permissions] [directories] [over]: runs as root; SOURCE is an empty
directory that is mounted on POINT. Each part is a list of checks; `over` says that what is written to POINT is kept elsewhere,
and SOURCE stays as it is. Prints what went wrong, a line each.

Each check first lets the mount's kernel cache the permissions of SOURCE, then changes them in SOURCE. A second user then acts: the
cached permissions allow it, the new ones do not. If the TTL has run out before that, the kernel asks again, and the check proves less.
"""

import ctypes
import errno
import os
import stat
import sys
import time

SOURCE, POINT = map(os.path.abspath, sys.argv[1:3])
OVER = "over" in sys.argv[3:]
USER = 65534
# The flags of renameat2 (include/uapi/linux/fs.h).
NOREPLACE, EXCHANGE = 1, 2
libc = ctypes.CDLL(None, use_errno=True)
wrong = []


def source(name):
    return os.path.join(SOURCE, name)


def point(name):
    return os.path.join(POINT, name)


def as_user(act):
    """The name of the error with which `act` fails for the user; what it returns, if it does not."""
    back, front = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(USER, USER, USER)
            said = str(act())
        except OSError as error:
            said = errno.errorcode[error.errno]
        except BaseException as error:
            said = repr(error)
        os.write(front, said.encode())
        os._exit(0)
    os.close(front)
    with os.fdopen(back) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def check(what, said, *expected):
    if said not in expected:
        wrong.append(f"{what}: {said}, not {' or '.join(expected)}")


def check_within_a_minute(what, act, *expected):
    """The same for what a kernel answers by itself until the TTL has run out."""
    end = time.monotonic() + 60
    while (said := as_user(act)) not in expected and time.monotonic() < end:
        time.sleep(0.1)
    check(what, said, *expected)


def make(name, owner=0, mode=0o600, content="secret"):
    """Makes a file in the source, in place of what is there."""
    path = source(name)
    fresh = path + ".new"
    with open(fresh, "w") as file:
        file.write(content)
    os.chown(fresh, owner, owner)
    os.chmod(fresh, mode)
    os.rename(fresh, path)


def unchanged(what, directory, *names):
    found = sorted(os.listdir(source(directory)))
    if found != sorted(names):
        wrong.append(f"{what}: in {directory} there is {found}")
    elif OVER:
        found = sorted(os.listdir(point(directory)))
        if found != sorted(names):
            wrong.append(f"{what}: in {directory} there seems to be {found}")


def make_directory(name, owner=0, mode=0o755):
    os.mkdir(source(name))
    os.chown(source(name), owner, owner)
    os.chmod(source(name), mode)


def seen(name):
    """Has the mount's kernel see what is there, or is not."""
    try:
        return os.lstat(point(name))
    except FileNotFoundError:
        return None


def opened(name, flags):
    descriptor = os.open(point(name), flags, 0o644)
    with os.fdopen(descriptor, "r") as file:
        return file.read()


def renamed(old, new, flags):
    here = -100
    if libc.renameat2(here, point(old).encode(), here, point(new).encode(), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def unharmed(what, name, owner=0, mode=0o600, content="secret"):
    there = os.lstat(source(name))
    found = (there.st_uid, stat.S_IMODE(there.st_mode), open(source(name)).read())
    if found != (owner, mode, content):
        wrong.append(f"{what}: {name} is {found} now")


def absences():
    """A name that was absent is somebody's file by now."""
    create = os.O_RDWR | os.O_CREAT
    for flags in [create, create | os.O_TRUNC, create | os.O_APPEND, os.O_RDONLY | os.O_CREAT]:
        name = f"absent-{flags}"
        seen(name)
        make(name)
        check(f"open with {flags:o}", as_user(lambda: opened(name, flags)), "EACCES")
        unharmed(f"open with {flags:o}", name)
    seen("exclusive")
    make("exclusive")
    check("open with O_EXCL", as_user(lambda: opened("exclusive", create | os.O_EXCL)), "EEXIST")
    for owner, mode in [(USER, 0o600), (0, 0o666)]:
        name = f"allowed-{owner}"
        seen(name)
        make(name, owner, mode, "mine")
        check("open of what is allowed", as_user(lambda: opened(name, create)), "mine")
    seen("emptied")
    make("emptied", USER, 0o600, "mine")
    check("truncation of what is allowed", as_user(lambda: opened("emptied", create | os.O_TRUNC)), "")
    check("what was truncated", as_user(lambda: opened("emptied", os.O_RDONLY)), "")
    make("aim")
    seen("link")
    os.symlink(point("aim"), source("link"))
    check("open of a new link", as_user(lambda: opened("link", create)), "EACCES")
    seen("fifo")
    os.mkfifo(source("fifo"), 0o600)
    check("open of a new fifo", as_user(lambda: opened("fifo", create | os.O_NONBLOCK)), "EACCES")
    make("taken", USER, 0o644)
    for name, act in [
        ("mkdir", lambda path: os.mkdir(path)),
        ("mknod", lambda path: os.mknod(path)),
        ("symlink", lambda path: os.symlink("x", path)),
        ("link", lambda path: os.link(point("taken"), path)),
    ]:
        seen(name)
        make(name)
        check(name, as_user(lambda: act(point(name))), "EEXIST")
        unharmed(name, name)
    seen("new")
    check("open of what stays absent", as_user(lambda: opened("new", create)), "")


def names():
    """A name that was the user's own file is somebody else's by now, in a directory where that matters."""
    make_directory("sticky", 0, 0o1777)
    make_directory("open", 0, 0o777)

    def replaced(name):
        make(name, USER, 0o644, "mine")
        seen(name)
        make(name)

    replaced("sticky/unlink")
    check("unlink", as_user(lambda: os.unlink(point("sticky/unlink"))), "EPERM")
    unharmed("unlink", "sticky/unlink")
    replaced("sticky/from")
    check("rename of it", as_user(lambda: os.rename(point("sticky/from"), point("open/stolen"))), "EPERM")
    unharmed("rename of it", "sticky/from")
    replaced("sticky/to")
    make("sticky/mine", USER, 0o644, "mine")
    check("rename onto it", as_user(lambda: os.rename(point("sticky/mine"), point("sticky/to"))), "EPERM")
    unharmed("rename onto it", "sticky/to")
    seen("sticky/made")
    make("sticky/made")
    check("rename onto a new one", as_user(lambda: os.rename(point("sticky/mine"), point("sticky/made"))), "EPERM")
    unharmed("rename onto a new one", "sticky/made")
    # 9P has no such renames.
    replaced("sticky/exchanged")
    exchanged = as_user(lambda: renamed("sticky/mine", "sticky/exchanged", EXCHANGE))
    check("exchange with it", exchanged, "EPERM", "EINVAL")
    unharmed("exchange with it", "sticky/exchanged")
    seen("sticky/come")
    make("sticky/come")
    come = as_user(lambda: renamed("sticky/mine", "sticky/come", NOREPLACE))
    check("rename onto a new one, replacing nothing", come, "EEXIST", "EINVAL")
    unharmed("rename onto a new one, replacing nothing", "sticky/come")
    replaced("sticky/link")
    check("link of it", as_user(lambda: os.link(point("sticky/link"), point("open/link"))), "EPERM", "EACCES")
    for old, new in [("sticky/directory", "sticky/elsewhere"), ("open/directory", "sticky/directory-2")]:
        # To lie in another directory, a directory itself must be written to.
        make_directory(old, USER)
        seen(old)
        os.rmdir(source(old))
        make_directory(old)
        if old.startswith("sticky"):
            check("rmdir", as_user(lambda: os.rmdir(point(old))), "EPERM")
        check(f"rename of {old}", as_user(lambda: os.rename(point(old), point(new))), "EPERM", "EACCES")
        if not os.path.isdir(source(old)):
            wrong.append(f"{old} is gone")
    # Where all may remove all, what is there goes, as on a disk.
    replaced("open/unlink")
    check("unlink where all may", as_user(lambda: os.unlink(point("open/unlink"))), "None")
    replaced("open/from")
    check("rename where all may", as_user(lambda: os.rename(point("open/from"), point("open/to"))), "None")
    if not OVER:
        unharmed("rename where all may", "open/to")
    make("sticky/own", USER, 0o644, "mine")
    check("unlink of one's own", as_user(lambda: os.unlink(point("sticky/own"))), "None")
    make("sticky/anybody's", 1, 0o644)
    seen("sticky/anybody's")
    os.unlink(point("sticky/anybody's"))


def nodes():
    """A file that was the user's own is somebody else's by now, under the same name."""

    def attempts(name):
        path = point(name)
        yield "open to read", lambda: opened(name, os.O_RDONLY)
        yield "open to write", lambda: opened(name, os.O_RDWR)
        yield "open to truncate", lambda: opened(name, os.O_RDWR | os.O_TRUNC)
        yield "truncate", lambda: os.truncate(path, 0)
        yield "chmod", lambda: os.chmod(path, 0o4777)
        yield "chown", lambda: os.chown(path, USER, USER)
        yield "utime", lambda: os.utime(path, (1, 1))
        yield "setxattr", lambda: os.setxattr(path, "user.x", b"x")
        yield "removexattr", lambda: os.removexattr(path, "user.x")

    for number, (what, _) in enumerate(attempts("")):
        name = f"node-{number}"
        make(name, USER, 0o644, "mine")
        seen(name)
        make(name)
        act = list(attempts(name))[number][1]
        check(what, as_user(act), "EPERM", "EACCES")
        unharmed(what, name)


def permissions():
    """A file that was the user's own was given to somebody else."""
    make_directory("given", 0, 0o1777)

    def given(name):
        make(name, USER, 0o644, "mine")
        seen(name)
        os.chown(source(name), 0, 0)
        os.chmod(source(name), 0o600)

    given("given/unlink")
    check("unlink", as_user(lambda: os.unlink(point("given/unlink"))), "EPERM")
    given("given/chmod")
    check("chmod", as_user(lambda: os.chmod(point("given/chmod"), 0o4755)), "EPERM")
    unharmed("chmod", "given/chmod", 0, 0o600, "mine")
    given("given/open")
    check("open", as_user(lambda: opened("given/open", os.O_RDONLY)), "EACCES")
    make("given/exec", USER, 0o755, "mine")
    seen("given/exec")
    os.chown(source("given/exec"), 0, 0)
    os.chmod(source("given/exec"), 0o700)
    check("exec", as_user(lambda: os.execv(point("given/exec"), ["exec"])), "EACCES")
    given("given/truncate")
    check("truncate", as_user(lambda: os.truncate(point("given/truncate"), 0)), "EACCES")
    given("given/setxattr")
    check("setxattr", as_user(lambda: os.setxattr(point("given/setxattr"), "user.x", b"")), "EACCES", "EPERM")
    make("given/removexattr", USER, 0o644, "mine")
    os.setxattr(source("given/removexattr"), "user.x", b"x")
    seen("given/removexattr")
    os.chown(source("given/removexattr"), 0, 0)
    os.chmod(source("given/removexattr"), 0o600)
    check("removexattr", as_user(lambda: os.removexattr(point("given/removexattr"), "user.x")), "EACCES", "EPERM")
    check("what was removed", str(os.listxattr(source("given/removexattr"))), "['user.x']")
    given("given/chown")
    check("chown", as_user(lambda: os.chown(point("given/chown"), USER, USER)), "EPERM")
    unharmed("chown", "given/chown", 0, 0o600, "mine")
    given("given/utime")
    check("utime", as_user(lambda: os.utime(point("given/utime"), (1, 1))), "EPERM")
    check("time of last write", str(os.stat(source("given/utime")).st_mtime == 1), "False")
    make("secret", USER, 0o644)
    os.setxattr(source("secret"), "user.s", b"secret")
    seen("secret")
    os.chown(source("secret"), 0, 0)
    os.chmod(source("secret"), 0o600)
    check("getxattr", as_user(lambda: os.getxattr(point("secret"), "user.s")), "EACCES")
    # Linux shows these names to root alone.
    make("hidden", USER, 0o644)
    try:
        os.setxattr(source("hidden"), "trusted.hidden", b"")
    except PermissionError:
        # A guest sets none on a share.
        pass
    check("listxattr", as_user(lambda: os.listxattr(point("hidden"))), "[]")
    # Who may use a file is its owner's to say, even where the kernel keeps no access control lists.
    make("list", 0, 0o644)
    everybody = b"\2\0\0\0" + b"".join(bytes([tag, 0, 6, 0]) + b"\xff" * 4 for tag in (1, 4, 32))
    everybody_s = lambda: os.setxattr(point("list"), "system.posix_acl_access", everybody)
    check("an access control list", as_user(everybody_s), "EPERM", "EOPNOTSUPP")
    unharmed("an access control list", "list", 0, 0o644)
    # And the other way round: what has become the user's is at once.
    make("received")
    seen("received")
    os.chown(source("received"), USER, USER)
    check("open of what was given", as_user(lambda: opened("received", os.O_RDONLY)), "secret", "EACCES")


def directories():
    """A directory that all might change was closed, or its names are their owners' alone by now."""

    def beneath(name, act):
        """The same with the directory as the working directory, which the kernel does not look up."""
        descriptor = os.open(point(name), os.O_RDONLY)

        def within():
            os.fchdir(descriptor)
            return act(".")

        return as_user(within), os.close(descriptor)

    create = os.O_RDWR | os.O_CREAT

    def create_in(path):
        os.close(os.open(path + "/new", create))

    attempts = [
        ("create", create_in),
        ("unnamed", lambda path: os.close(os.open(path, os.O_RDWR | os.O_TMPFILE))),
        ("mkdir", lambda path: os.mkdir(path + "/new")),
        ("mknod", lambda path: os.mknod(path + "/new")),
        ("symlink", lambda path: os.symlink("x", path + "/new")),
        ("link", lambda path: os.link(path + "/own", path + "/new")),
        ("unlink", lambda path: os.unlink(path + "/own")),
        ("rmdir", lambda path: os.rmdir(path + "/empty")),
        ("rename", lambda path: os.rename(path + "/own", path + "/new")),
        ("rename onto another", lambda path: os.rename(path + "/own", path + "/other")),
        ("rename out of it", lambda path: os.rename(path + "/own", point("elsewhere/own"))),
        ("rename into it", lambda path: os.rename(point("elsewhere/mine"), path + "/new")),
        ("list", lambda path: os.listdir(path)),
    ]
    make_directory("elsewhere", 0, 0o777)
    make("elsewhere/mine", USER, 0o644, "mine")

    def permitted(number, mode):
        name = f"directory-{number}-{mode:o}"
        make_directory(name, 0, 0o777)
        make_directory(name + "/empty", USER)
        for file, owner in [("own", USER), ("other", 0)]:
            make(f"{name}/{file}", owner, 0o666, "there")
        for one in ["", "/empty", "/own", "/other", "/new"]:
            seen(name + one)
        return name

    for number, (what, act) in enumerate(attempts):
        for mode in [0o700, 0o755]:
            if what == "list" and mode == 0o755:
                continue
            name = permitted(number, mode)
            os.chmod(source(name), mode)
            check(f"{what} in {mode:o}", as_user(lambda: act(point(name))), "EACCES")
            unchanged(f"{what} in {mode:o}", name, "empty", "other", "own")
            name = permitted(number + 100, mode)
            os.chmod(source(name), mode)
            check(f"{what} in . of {mode:o}", beneath(name, act)[0], "EACCES")
            unchanged(f"{what} in . of {mode:o}", name, "empty", "other", "own")
    for what, act in [
        ("unlink", lambda path: os.unlink(path + "/other")),
        ("rename", lambda path: os.rename(path + "/other", path + "/new")),
        ("rename onto it", lambda path: os.rename(path + "/own", path + "/other")),
    ]:
        name = permitted(what.replace(" ", "-"), 0o1777)
        os.chmod(source(name), 0o1777)
        check(f"{what} in a directory that became sticky", as_user(lambda: act(point(name))), "EPERM")
        unchanged(what, name, "empty", "other", "own")
    for what, act in [
        ("stat", lambda path: os.stat(path + "/own")),
        ("lstat", lambda path: os.lstat(path + "/link")),
        ("readlink", lambda path: os.readlink(path + "/link")),
        ("chdir", lambda path: os.chdir(path)),
        ("chdir below it", lambda path: os.chdir(path + "/empty")),
    ]:
        name = permitted(what.replace(" ", "-"), 0o700)
        os.symlink("own", source(name + "/link"))
        seen(name + "/link")
        check(f"{what} where all may", as_user(lambda: act(point(name)) and None), "None")
        os.chmod(source(name), 0o700)
        check_within_a_minute(what, lambda: act(point(name)), "EACCES")
    # A name that is new since the directory was closed.
    name = permitted("news", 0o700)
    os.chmod(source(name), 0o700)
    make(name + "/news", 0, 0o644)
    check("open of what is new", as_user(lambda: opened(name + "/news", os.O_RDONLY)), "EACCES")
    # And who still may does not notice.
    name = permitted("opened", 0o1777)
    os.chmod(source(name), 0o1777)
    check("create where all may", beneath(name, create_in)[0], "None")
    check("unlink of one's own", as_user(lambda: os.unlink(point(name + "/own"))), "None")


PARTS = {
    "absences": absences,
    "names": names,
    "nodes": nodes,
    "permissions": permissions,
    "directories": directories,
}
for part in [part for part in sys.argv[3:] if part != "over"]:
    try:
        PARTS[part]()
    except OSError as error:
        wrong.append(f"{part}: {error!r}")
print("\n".join(wrong))
