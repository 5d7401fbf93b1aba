//! Has this machine's apt fetch packages for another system: of any architecture and suite, into a directory of its own.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inarch_lifecycle::PathError;
use inarch_lifecycle::scratch::Scratch;
use inarch_vm::Arch;

use super::DebianError;

/// The keys with which Debian's archive is signed.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The mirror of Debian to use if this machine's own sources name none.
const USUAL_MIRROR: &str = "http://deb.debian.org/debian";

/// apt for one suite and architecture, with everything it writes in one directory.
pub(super) struct Apt<'a> {
    directory: &'a Path,
    arch: Arch,
    suite: &'a str,
    pub(super) mirror: String,
    what: String,
    by_hand: &'static str,
}

impl<'a> Apt<'a> {
    /// Sets it up in `directory`, which is there. `what` is to be fetched; `by_hand` tells what a user gives instead.
    ///
    /// # Errors
    /// This machine has no apt, or no keys.
    pub fn new(
        directory: &'a Path,
        arch: Arch,
        suite: &'a str,
        what: String,
        by_hand: &'static str,
    ) -> Result<Apt<'a>, DebianError> {
        if !Path::new(KEYS).is_file() {
            return Err(DebianError::NoKeys { path: KEYS.into(), by_hand });
        }
        let mut apt = Apt { directory, arch, suite, mirror: String::new(), what, by_hand };
        apt.mirror = apt.own_mirror()?;
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            let parents = path.parent().map_or(Ok(()), fs::create_dir_all);
            parents
                .and_then(|()| fs::write(&path, text))
                .map_err(|error| PathError::new(&path, "cannot write it", error))
        };
        for name in ["state/lists/partial", "cache/archives/partial", "etc/apt.conf.d", "etc/preferences.d"] {
            let path = directory.join(name);
            fs::create_dir_all(&path).map_err(|error| PathError::new(&path, "cannot make it", error))?;
        }
        write("state/status", String::new())?;
        write("etc/sources.list", format!("deb [signed-by={KEYS}] {} {suite} main\n", apt.mirror))?;
        write("apt.conf", apt.configuration()?)?;
        Ok(apt)
    }

    /// The mirror that this machine's own sources name.
    fn own_mirror(&self) -> Result<String, DebianError> {
        let targets = self.start("apt-get", ["indextargets", "--format", "$(REPO_URI)"].map(OsStr::new), None)?;
        let is_debian = |line: &&str| line.trim_end_matches('/').ends_with("/debian");
        let found = targets.lines().map(str::trim).find(is_debian);
        Ok(found.map_or(USUAL_MIRROR, |mirror| mirror.trim_end_matches('/')).to_owned())
    }

    /// apt's configuration: how this machine reaches the network (proxies, time limits), and nothing else of its own.
    fn configuration(&self) -> Result<String, DebianError> {
        let own = self.start("apt-config", [OsStr::new("dump")], None)?;
        let own = own.lines().filter(|line| line.starts_with("Acquire::") && !line.starts_with("Acquire::Languages"));
        let directory = self.directory.to_string_lossy();
        // This machine's own limits come later, and count. A mirror that is silent is given up soon.
        let mut text = format!(
            "Acquire::http::Timeout \"15\";\nAcquire::https::Timeout \"15\";\n\
             APT::Architecture \"{arch}\";\nAPT::Architectures {{ \"{arch}\"; }};\nAPT::Install-Recommends \"false\";\n\
             APT::Update::Error-Mode \"any\";\nAPT::Sandbox::User \"root\";\nAcquire::Languages \"none\";\n\
             Acquire::Retries \"1\";\nDir \"{directory}\";\nDir::State \"state\";\n\
             Dir::State::status \"{directory}/state/status\";\nDir::Cache \"cache\";\nDir::Etc \"etc\";\n",
            arch = self.arch.debian(),
        );
        own.for_each(|line| {
            text.push_str(line);
            text.push('\n');
        });
        Ok(text)
    }

    /// Fetches the lists of packages.
    pub fn update(&self) -> Result<(), DebianError> {
        self.run("apt-get", &["update", "-q"]).map(drop)
    }

    /// The packages that `package` depends on.
    pub fn needs(&self, package: &str) -> Result<Vec<String>, DebianError> {
        let lines = self.run("apt-cache", &["depends", package])?;
        Ok(lines.lines().filter_map(|line| Some(line.trim().strip_prefix("Depends: ")?.to_owned())).collect())
    }

    /// Fetches a package alone; returns its file.
    pub fn download(&self, package: &str) -> Result<PathBuf, DebianError> {
        self.run("apt-get", &["download", "-q", package])?;
        let mut found = debs(self.directory)?;
        found.pop().ok_or_else(|| self.failed("apt-get download left no file"))
    }

    /// Fetches packages with all that they depend on; returns their files.
    pub fn download_all(&self, packages: &[&str]) -> Result<Vec<PathBuf>, DebianError> {
        let words = [&["install", "-q", "-y", "--download-only", "--"], packages].concat();
        self.run("apt-get", &words)?;
        debs(&self.directory.join("cache/archives"))
    }

    fn run(&self, program: &'static str, words: &[&str]) -> Result<String, DebianError> {
        self.start(program, words.iter().map(OsStr::new), Some(&self.directory.join("apt.conf")))
    }

    fn start<'w>(
        &self,
        program: &'static str,
        words: impl IntoIterator<Item = &'w OsStr>,
        configuration: Option<&Path>,
    ) -> Result<String, DebianError> {
        let mut command = Command::new(program);
        command.args(words).current_dir(self.directory).env("LC_ALL", "C").stdin(Stdio::null());
        if let Some(configuration) = configuration {
            command.env("APT_CONFIG", configuration);
        }
        let output = match command.output() {
            Ok(output) => output,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(DebianError::NoProgram { program, package: "apt", by_hand: self.by_hand });
            }
            Err(error) => return Err(self.failed(&format!("{program}: {error}"))),
        };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        // The first error is the cause.
        let line = said.lines().find(|line| line.starts_with("E:")).or_else(|| said.lines().next());
        Err(self.failed(line.unwrap_or("apt failed").trim_start_matches("E: ")))
    }

    fn failed(&self, reason: &str) -> DebianError {
        let (what, mirror) = (self.what.clone(), format!("{} ({})", self.mirror, self.suite));
        DebianError::Fetch { what, mirror, reason: reason.to_owned(), by_hand: self.by_hand }
    }
}

/// Unpacks a package into the directory `path`, as this user, whom everything belongs to then. It gets its name when it is whole, on the disk and has
/// passed `check`; unfinished work is in `scratch`.
pub(super) fn unpack(
    deb: &Path,
    path: &Path,
    scratch: &Scratch,
    check: impl FnOnce(&Path) -> Result<(), DebianError>,
) -> Result<(), DebianError> {
    let unpacked = scratch.path().join("unpacked");
    extract(deb, &unpacked)?;
    check(&unpacked)?;
    sync(&unpacked)?;
    Ok(fs::rename(&unpacked, path).map_err(|error| PathError::new(path, "cannot give it its name", error))?)
}

fn extract(deb: &Path, into: &Path) -> Result<(), DebianError> {
    let package = deb.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let output = Command::new("dpkg-deb").arg("-x").arg(deb).arg(into).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(DebianError::Unpack { package, reason: said.lines().next().unwrap_or("dpkg-deb failed").to_owned() })
        }
        Err(error) => Err(DebianError::Unpack { package, reason: format!("dpkg-deb: {error}") }),
    }
}

/// Brings all that was unpacked onto the disk, before it gets its name.
fn sync(directory: &Path) -> Result<(), DebianError> {
    let fail = |error: std::io::Error| PathError::new(directory, "cannot write it to the disk", error);
    let opened = fs::File::open(directory).map_err(fail)?;
    Ok(rustix::fs::syncfs(opened).map_err(|error| fail(error.into()))?)
}

/// The packages in a directory.
fn debs(directory: &Path) -> Result<Vec<PathBuf>, DebianError> {
    let fail = |error| PathError::new(directory, "cannot list it", error);
    let entries = fs::read_dir(directory).map_err(fail)?;
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.retain(|path| path.extension().is_some_and(|end| end == "deb"));
    found.sort();
    Ok(found)
}
