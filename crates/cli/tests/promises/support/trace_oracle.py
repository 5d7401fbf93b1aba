"""Runs a command twice in the same scene, once under strace and once under `inarch trace`, and compares what each saw.

    trace_oracle.py INARCH DIR SETUP COMMAND [ARGUMENT]...

SETUP, a shell script, makes the scene in DIR/scene, where COMMAND runs. Prints what the trace says of paths in the scene, a line
each. Exits with 1 and says why if the trace missed something, or has something that the command did not do.

The rules. strace gives system calls and their results; the order between processes is not used. A path is followed one name at a
time, as the scene was before the command.

- Each name on the way was found. A symbolic link on the way was followed. The first name that is missing was absent.
- The last name counts by the call: see FOUND, CHANGES and the functions below. A call that failed for another reason than
  absence used the way only.
- An executed file leads to its interpreter: of its first line, or of its program header.
- What lies at or beneath a path that the command changed may be the old or the new thing. It must be told as an input or as an
  output; how, the expectations of the test say.
- A file with several names may be told by each name that the command looked up: a kernel that knows names asks by the file.
- What the trace says is checked against the scene, too: an input was there before unless it was absent, an output is there now
  unless it is gone, and whatever in the scene is other than before is an output or in a directory that is one.
- The kernel itself reads access control lists and capabilities: "xattrs" may be said of each path.
"""
import json, os, re, stat, struct, subprocess, sys, shutil

OUTSIDE = ("/dev", "/proc", "/sys", "/run")
PATH_CALLS = "%file,getdents,getdents64,fgetxattr,flistxattr,fsetxattr,fremovexattr,ftruncate,fallocate,copy_file_range," \
             "fchmod,fchown,sendfile,fchdir,name_to_handle_at,bind,connect"
# Calls whose path is only looked up.
FOUND = {"stat", "lstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "chdir", "fchdir", "statfs",
         "name_to_handle_at", "inotify_add_watch", "connect"}
CHANGES = {"mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat", "unlink", "unlinkat", "rmdir", "chmod", "fchmodat",
           "fchmodat2", "fchmod", "chown", "lchown", "fchown", "fchownat", "utime", "utimes", "utimensat", "futimesat",
           "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr", "bind"}
NO_FOLLOW = {"lstat", "readlink", "readlinkat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2", "link",
             "linkat", "mkdir", "mkdirat", "mknod", "mknodat", "symlink", "symlinkat", "lchown", "lsetxattr", "lgetxattr",
             "llistxattr", "lremovexattr", "bind"}

def arguments(text):
    """Splits the arguments of a call at its commas."""
    parts, depth, at, start = [], 0, 0, 0
    while at < len(text):
        c = text[at]
        if c == '"':
            at += 1
            while text[at] != '"':
                at += 2 if text[at] == "\\" else 1
        elif c == "<":
            at = text.index(">", at)
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
        at += 1
    last = text[start:].strip()
    return parts + [last] if last else parts

def quoted(text):
    """The string in quotes, or None."""
    match = re.match(r'"((?:[^"\\]|\\.)*)"', text)
    return match and match[1].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")

def fd_path(text):
    """The path of a descriptor or of AT_FDCWD; None if it has none."""
    match = re.match(r"(?:AT_FDCWD|\d+)<(/.*)>(?:\(deleted\))?$", text)
    if not match or text.endswith("(deleted)"):
        return None
    return match[1]

class Call:
    def __init__(self, name, args, result, error):
        self.name, self.args, self.result, self.error = name, args, result, error

def calls(prefix):
    """The calls of all processes, those of each in order."""
    directory = os.path.dirname(prefix)
    for file in sorted(os.listdir(directory)):
        if not file.startswith(os.path.basename(prefix) + "."):
            continue
        for line in open(os.path.join(directory, file), errors="surrogateescape"):
            match = re.match(r"(\w+)\((.*)\)\s+= (.*)$", line)
            if not match:
                continue
            result = match[3]
            error = re.match(r"-1 (E\w+)", result)
            if result.startswith("?"):
                continue
            yield Call(match[1], arguments(match[2]), result.split(" (")[0], error and error[1])

class Scene:
    """The state before the command."""
    def __init__(self, cwd):
        self.cwd = cwd

    def walk(self, base, text, follow):
        """The names on the way, each with what is there: "directory", "link", "file", "absent"; and the last path, or None."""
        hops, links = [], 0
        at = "/" if text.startswith("/") else base
        names = [name for name in text.split("/") if name]
        must_be_directory = text.endswith("/")
        kind = "directory"
        while names:
            name = names.pop(0)
            if name == ".":
                continue
            if name == "..":
                at, kind = os.path.dirname(at), "directory"
                continue
            path = os.path.join(at, name)
            if outside(path):
                # What leads there, /proc/self for one, leads elsewhere for another process.
                return hops, None
            try:
                mode = os.lstat(path).st_mode
            except OSError:
                return hops + [(path, "absent")], None
            if stat.S_ISLNK(mode):
                hops.append((path, "link"))
                if names or follow or must_be_directory:
                    links += 1
                    if links > 40:
                        return hops, None
                    target = os.readlink(path)
                    names = [part for part in target.split("/") if part] + names
                    if target.startswith("/"):
                        at = "/"
                    continue
                return hops, path
            kind = "directory" if stat.S_ISDIR(mode) else "file"
            hops.append((path, kind))
            if kind == "file" and (names or must_be_directory):
                return hops, None
            at = path
        return hops, at

def interpreters(path):
    """What the kernel opens to execute a file besides it."""
    try:
        with open(path, "rb") as file:
            head = file.read(1 << 12)
    except OSError:
        return []
    if head.startswith(b"#!"):
        return [os.fsdecode(head[2:].split(b"\n")[0].split()[0])]
    if head[:4] == b"\x7fELF" and head[4] == 2:
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        for number in range(count):
            kind, = struct.unpack_from("<I", head, offset + number * size)
            if kind == 3:
                start, length = struct.unpack_from("<Q", head, offset + number * size + 8)[0], \
                    struct.unpack_from("<Q", head, offset + number * size + 32)[0]
                return [os.fsdecode(head[start:start + length].rstrip(b"\0"))]
    return []

class Expected:
    def __init__(self, cwd):
        self.scene = Scene(cwd)
        self.must, self.may = {}, {}
        self.changed = set()
        self.beneath = set()
        # Pairs of names of one file, which the command made.
        self.linked = []

    def add(self, path, use, must=True):
        self.may.setdefault(path, set()).add(use)
        if must:
            self.must.setdefault(path, set()).add(use)

    def change(self, path):
        self.changed.add(path)
        self.add(path, "absent", must=False)
        self.add(path, "found", must=False)

    def go(self, base, text, follow=True, must=True):
        """Follows a path; returns where it leads."""
        if base is None:
            # Relative to a directory that is gone.
            return None
        hops, last = self.scene.walk(base, text, follow)
        for number, (path, kind) in enumerate(hops):
            if kind == "absent":
                self.add(path, "absent", must)
                # By the time of the call it may be there.
                self.lax(path, text, number, hops)
            else:
                self.add(path, "found", must)
                if kind == "link" and (path != last or follow):
                    self.add(path, "followed", must)
        return last

    def lax(self, path, text, number, hops):
        """What lies beyond an absent name, if the command makes it."""
        self.add(path, "found", must=False)
        rest = os.path.normpath(os.path.join(os.path.dirname(path), text)) if not text.startswith("/") else os.path.normpath(text)
        while rest.startswith(os.path.dirname(path)) and rest not in ("/", os.path.dirname(path)):
            for use in ("absent", "found", "followed"):
                self.add(rest, use, must=False)
            rest = os.path.dirname(rest)

    def real(self, base, text, follow=True):
        """Where a path leads by words alone, if it leads nowhere before the command: the parent is resolved."""
        hops, last = self.scene.walk(base, text, follow)
        if last is not None:
            return last
        return os.path.normpath(os.path.join(base, text))

    def call(self, call):
        name, args, error = call.name, call.args, call.error
        handler = getattr(self, "call_" + name, None)
        if handler:
            return handler(call)
        base, text, rest = self.target(call)
        if text is None and base is None:
            return
        follow = name not in NO_FOLLOW and "AT_SYMLINK_NOFOLLOW" not in " ".join(rest)
        if name in FOUND:
            self.use(base, text, follow, error, None)
        elif "getxattr" in name or "listxattr" in name:
            self.use(base, text, follow, None if error in ("ENODATA", "EOPNOTSUPP") else error, "xattrs")
        elif name in CHANGES:
            self.use(base, text, follow, error, None)
            if not error:
                self.change(self.real(base, text or "", follow))

    def target(self, call):
        """The directory and the path of a call's first path, and the other arguments."""
        args = call.args
        if not args:
            return None, None, []
        text = quoted(args[0])
        if text is not None:
            return self.cwd(call), text, args[1:]
        base = fd_path(args[0])
        if len(args) > 1 and quoted(args[1]) is not None:
            return base, quoted(args[1]), args[2:]
        if call.name in ("bind", "connect"):
            match = re.search(r'sun_path=("(?:[^"\\]|\\.)*")', args[1])
            return (self.cwd(call), quoted(match[1]), []) if match else (None, None, [])
        return base, "", args[1:]

    def cwd(self, call):
        # Calls without a descriptor of their directory are relative to where the process is.
        return call.cwd

    def use(self, base, text, follow, error, use):
        if base is None:
            return
        if text == "":
            # The descriptor itself.
            self.add(base, "found", must=False)
            if use and not error:
                self.add(base, use)
            return
        if error in ("EACCES", "EPERM", "ELOOP", "EROFS", "EXDEV"):
            last = self.go(base, text, follow, must=False)
        else:
            last = self.go(base, text, follow)
        if last is None:
            last = self.real(base, text, follow)
            if use and not error:
                self.add(last, use, must=False)
            if error and error != "ENOENT":
                self.add(last, "failed", must=False)
            return
        if error and error != "ENOENT":
            self.add(last, "failed", must=False)
        if use and not error:
            self.add(last, use)

    def opened(self, call, base, text, flags):
        follow = "O_NOFOLLOW" not in flags and not ("O_CREAT" in flags and "O_EXCL" in flags)
        if "O_TMPFILE" in flags:
            return self.use(base, text, True, call.error, None)
        self.use(base, text, follow, call.error, None)
        if call.error:
            return
        to = fd_path(call.result)
        if to is None or "O_PATH" in flags:
            return
        writes = "O_WRONLY" in flags or "O_RDWR" in flags
        if writes or "O_TRUNC" in flags:
            self.change(to)
        if os.path.isdir(to):
            return
        if writes and "O_TRUNC" not in flags or "O_RDWR" in flags:
            self.add(to, "read", must=False)
        if not writes:
            self.add(to, "read")

    def call_open(self, call):
        self.opened(call, call.cwd, quoted(call.args[0]), call.args[1])

    def call_creat(self, call):
        self.opened(call, call.cwd, quoted(call.args[0]), "O_WRONLY|O_CREAT|O_TRUNC")

    def call_openat(self, call):
        self.opened(call, fd_path(call.args[0]), quoted(call.args[1]), call.args[2])

    call_openat2 = call_openat

    def executed(self, base, text, error):
        if error:
            return self.use(base, text, True, error, None)
        last = base if text == "" else self.go(base, text)
        while last is not None:
            for use in ("executed", "read"):
                self.add(last, use)
            next = None
            for interpreter in interpreters(last):
                next = self.go(self.scene.cwd, interpreter)
            last = next

    def call_execve(self, call):
        self.executed(call.cwd, quoted(call.args[0]), call.error)

    def call_execveat(self, call):
        self.executed(fd_path(call.args[0]), quoted(call.args[1]), call.error)

    def call_readlink(self, call):
        base, text, _ = self.target(call)
        self.use(base, text, False, call.error, "followed")

    call_readlinkat = call_readlink

    def call_getdents64(self, call):
        path = fd_path(call.args[0])
        if path and not call.error:
            self.add(path, "listed")

    call_getdents = call_getdents64

    def truncated(self, call):
        base, text, rest = self.target(call)
        self.use(base, text, True, call.error, None)
        if not call.error:
            path = self.real(base, text)
            self.change(path)
            self.add(path, "read", must=False)

    call_truncate = call_ftruncate = truncated

    def call_fallocate(self, call):
        path = fd_path(call.args[0])
        if path and not call.error:
            self.change(path)
            self.add(path, "read", must=False)

    def call_copy_file_range(self, call):
        source, target = fd_path(call.args[0]), fd_path(call.args[2])
        if source and not call.error:
            self.add(source, "read")
        if target and not call.error:
            self.change(target)

    def call_sendfile(self, call):
        pass

    def two(self, call):
        args = call.args
        if quoted(args[0]) is not None:
            places = [(call.cwd, quoted(args[0])), (call.cwd, quoted(args[1]))]
        else:
            places = [(fd_path(args[0]), quoted(args[1])), (fd_path(args[2]), quoted(args[3]))]
        links = call.name.startswith("link")
        follow = "AT_SYMLINK_FOLLOW" in " ".join(args)
        first = None
        for number, (base, text) in enumerate(places):
            if base is None or text is None or text.startswith("/proc/"):
                continue
            # The second is not looked for if the first is missing.
            if call.error and number == 1:
                self.go(base, text, False, must=False)
            else:
                self.use(base, text, follow and number == 0, call.error, None)
            path = self.real(base, text, False)
            if number == 0:
                first = path
            self.add(path, "moved", must=False)
            if links and number == 1 and not call.error and first:
                self.linked.append((first, path))
            if not call.error and not (links and number == 0):
                self.change(path)
                self.beneath.add(path)

    call_rename = call_renameat = call_renameat2 = call_link = call_linkat = two

    def call_symlink(self, call):
        self.use(call.cwd, quoted(call.args[1]), False, call.error, None)
        if not call.error:
            self.change(self.real(call.cwd, quoted(call.args[1]), False))

    def call_symlinkat(self, call):
        self.use(fd_path(call.args[1]), quoted(call.args[2]), False, call.error, None)
        if not call.error:
            self.change(self.real(fd_path(call.args[1]), quoted(call.args[2]), False))

def several(expected):
    """For each path of a file with several names all of them, of those that the command looked up."""
    files = {}
    for path in set(expected.may) | expected.changed:
        try:
            s = os.lstat(path)
        except OSError:
            continue
        if s.st_nlink > 1 and not stat.S_ISDIR(s.st_mode):
            files.setdefault((s.st_dev, s.st_ino), {path}).add(path)
    names = {path: paths for paths in files.values() for path in paths}
    for one, other in expected.linked:
        all = names.get(one, {one}) | names.get(other, {other})
        names.update({path: all for path in all})
    return names

def outside(path):
    return any(path == one or path.startswith(one + "/") for one in OUTSIDE)

def within(path, places):
    while True:
        if path in places:
            return True
        if path == "/":
            return False
        path = os.path.dirname(path)

def with_directories(prefix, cwd):
    """Each call with its process's working directory."""
    # Children inherit theirs; strace names the directory in each call by descriptor, so that one tells it for all.
    where = cwd
    for call in calls(prefix):
        for argument in call.args:
            match = re.match(r"AT_FDCWD<(/.*)>$", argument)
            if match:
                where = match[1]
        call.cwd = where
        if call.name in ("chdir", "fchdir") and not call.error:
            yield call
            text = quoted(call.args[0])
            where = os.path.normpath(os.path.join(where, text)) if text is not None else fd_path(call.args[0]) or where
            continue
        yield call

def state(scene):
    """What is in the scene, and for files what changes with them."""
    found = {}
    for directory, names, files in os.walk(scene):
        for name in names + files:
            path = os.path.join(directory, name)
            s = os.lstat(path)
            times = () if stat.S_ISDIR(s.st_mode) else (s.st_size, s.st_mtime_ns, s.st_ino)
            found[path] = (s.st_mode, s.st_uid, s.st_gid) + times
    return found

def check_states(scene, before, inputs, outputs):
    faults, after = [], state(scene)
    was = lambda path: path in before if path.startswith(scene + "/") else os.path.lexists(path)
    for path, line in inputs.items():
        uses = set(line["uses"])
        if uses - {"absent", "failed", "xattrs"} and not was(path):
            faults.append(f"invented {path}, which was not there: {' '.join(sorted(uses))}")
        if "absent" in uses and was(path):
            faults.append(f"invented the absence of {path}")
    kinds = {"made": (False, True), "written": (True, True), "attributes": (True, True), "removed": (True, False),
             "temporary": (False, False)}
    for path, line in outputs.items():
        if path.startswith(scene + "/") and kinds[line["change"]] != (path in before, path in after):
            faults.append(f"{path} is not {line['change']}")
    for path in set(before) | set(after):
        if before.get(path) != after.get(path) and not within(path, outputs):
            faults.append(f"missed the change of {path} from {before.get(path)} to {after.get(path)}")
    return faults

def set_up(scene, script):
    shutil.rmtree(scene, ignore_errors=True)
    os.mkdir(scene)
    subprocess.run(["/bin/sh", "-ec", script], cwd=scene, check=True)

def main():
    inarch, top, script, *command = sys.argv[1:]
    scene = os.path.join(top, "scene")
    env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    set_up(scene, script)
    for file in os.listdir(top):
        if file.startswith("strace."):
            os.unlink(os.path.join(top, file))
    prefix = os.path.join(top, "strace")
    quiet = {"stdin": subprocess.DEVNULL, "env": env, "cwd": scene, "timeout": 120}
    own = subprocess.run(["strace", "-ff", "-y", "-qq", "-s", "4096", "-e", "signal=none", "-e", "trace=" + PATH_CALLS,
                          "-o", prefix, "--", *command], stdout=subprocess.PIPE, **quiet)
    set_up(scene, script)
    expected = Expected(scene)
    expected.scene.walk(scene, scene, True)
    parts = scene.split("/")[1:]
    for count in range(1, len(parts) + 1):
        expected.add("/" + "/".join(parts[:count]), "found", must=False)
    expected.add("/", "found", must=False)
    for call in with_directories(prefix, scene):
        expected.call(call)
    trace = os.path.join(top, "trace.json")
    before, names = state(scene), several(expected)
    traced = subprocess.run([inarch, "trace", "--quiet", "--json", trace, "--", *command], stdout=subprocess.PIPE, **quiet)
    faults = []
    if own.returncode or (own.returncode, own.stdout) != (traced.returncode, traced.stdout):
        faults.append(f"status and output {own.returncode} {own.stdout}, traced {traced.returncode} {traced.stdout}")
    lines = [json.loads(line) for line in open(trace)]
    if not lines or lines[-1] != {"end": True}:
        faults.append("the trace does not end")
    inputs = {line["input"]: line for line in lines if "input" in line}
    outputs = {line["output"]: line for line in lines if "output" in line}
    faults += compare(expected, names, inputs, outputs) + check_states(scene, before, inputs, outputs)
    for path in sorted(set(inputs) | set(outputs)):
        if path == scene or path.startswith(scene + "/"):
            line = told(os.path.relpath(path, scene), inputs.get(path), outputs.get(path))
            print(line.replace(scene, "SCENE"))
    if faults:
        sys.exit("\n".join(faults))

def told(path, input, output):
    words = [path + ":"]
    if input:
        words += [use for use in input["uses"] if use != "xattrs"]
        names = input.get("names")
        if names is not None:
            # A part of a long listing is what the kernel fetched at once.
            words += ["(" + ",".join(names) + ")" if len(names) < 9 else "SOME" if len(names) < 3000 else "ALL"]
        words += ["-> " + input["target"]] if "target" in input else []
        words += [input["error"]] if "error" in input else []
    if output:
        words += ["| " + output["change"]]
    return " ".join(words)

def compare(expected, names, inputs, outputs):
    faults = []
    for path, uses in expected.must.items():
        if outside(path) or path == "/":
            continue
        if within(path, expected.changed):
            if path not in inputs and path not in outputs and not within(os.path.dirname(path), expected.changed):
                faults.append(f"missed {path}, which the command changed")
            continue
        lacks = uses - set(inputs.get(path, {"uses": []})["uses"])
        if lacks:
            faults.append(f"missed {path}: {' '.join(sorted(lacks))}")
    for path in expected.changed:
        if not outside(path) and path not in outputs:
            faults.append(f"missed the change of {path}")
    for path, line in inputs.items():
        may = set().union(*(expected.may.get(name, set()) for name in names.get(path, {path})))
        surplus = set(line["uses"]) - may - {"xattrs"}
        if path in expected.may and not surplus:
            continue
        if within(path, expected.beneath):
            continue
        faults.append(f"invented {path}: {' '.join(sorted(surplus)) or 'xattrs'}")
    for path in outputs:
        if not names.get(path, {path}) & expected.changed and not within(path, expected.beneath):
            faults.append(f"invented the change of {path}")
    return faults

main()
