//! A small root and a store of kept runs, both gone at the end.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, any_machine, host, manifest_program, scratch};

/// A root for a guest, and a place for what is kept.
pub struct Scene {
    dir: tempfile::TempDir,
}

impl Scene {
    /// A root with busybox and, in `/data`: files `f1` to `f5`, another name of the last, a large one, and a directory.
    pub fn new() -> Scene {
        let dir = scratch();
        let script = "mkdir -p root/bin root/etc root/data/sub state && cp /bin/busybox root/bin/ && \
            for tool in sh cat ls mv rm mkdir rmdir ln chmod chown touch sync dd echo cp sleep seq mknod mkfifo truncate dmesg; do \
                ln -s busybox root/bin/$tool; done && \
            printf 'root:x:0:0::/root:/bin/sh\\n' > root/etc/passwd && printf 'root:x:0:\\n' > root/etc/group && \
            for i in 1 2 3 4 5; do echo file $i > root/data/f$i; done && ln root/data/f5 root/data/f5too && \
            head -c 3000000 /dev/urandom > root/data/big && echo below > root/data/sub/below && chown -R 0:0 root";
        host("sh", &["-c", script], dir.path());
        Scene { dir }
    }

    /// Where all of it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The host's path of one in the root.
    pub fn host(&self, path: &str) -> PathBuf {
        self.dir.path().join("root").join(path)
    }

    /// `inarch` with these arguments and the scene's store.
    pub fn inarch<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(INARCH);
        command.args(arguments).env("XDG_STATE_HOME", self.dir.path().join("state"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    /// Runs that.
    pub fn call<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        self.inarch(arguments).output().expect("inarch starts")
    }

    /// A kept run of a script over the root.
    pub fn run_command(&self, name: &str, script: &str) -> Command {
        self.inarch(["run", "-q", any_machine(), "--keep", name, "--root", "root", "--", "/bin/sh", "-c", script])
    }

    /// Runs that.
    pub fn run(&self, name: &str, script: &str) -> Output {
        self.run_command(name, script).output().expect("inarch starts")
    }

    /// The program of `support::MANIFEST` run over the root, without times of a change of attributes.
    pub fn manifest(&self, root: &Path) -> String {
        let program = manifest_program(self.dir.path());
        let text = host("python3", &[&program.display().to_string(), &root.display().to_string()], self.dir.path());
        text.lines().map(without_ctime).collect::<Vec<_>>().join("\n")
    }
}

/// A line of the manifest without its sixth field.
fn without_ctime(line: &str) -> String {
    let fields: Vec<&str> = line.split(' ').collect();
    fields.iter().enumerate().filter(|(i, _)| *i != 5).map(|(_, field)| *field).collect::<Vec<_>>().join(" ")
}
