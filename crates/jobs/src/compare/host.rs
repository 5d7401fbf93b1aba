//! Command lines of this machine in a comparison: the command without a guest, by itself, in a mount or under a tracer; or another
//! program's, which does the same work.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Instant;

use inarch_lifecycle::Events;
use inarch_source::Source;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::handle::{Subject, Turn};
use super::report::OneRun;
use crate::JobError;
use crate::mount::{self, MountHandle, MountRequest, MountWrites};
use crate::run::CpuSeconds;

/// A command line of this machine, with this process's environment.
#[derive(Clone, Debug)]
pub struct HostWay {
    /// Its name in the report.
    pub name: String,
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// Where it runs.
    pub place: HostPlace,
}

/// Where a command of this machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPlace {
    /// In the current directory.
    Here,
    /// In a mount of the current directory, which writes go through. It is mounted and unmounted in each run.
    Mount,
}

impl HostWay {
    /// Runs it once, with its output in `output`.
    ///
    /// # Errors
    /// It cannot be started, or there can be no mount.
    pub(super) fn run(&self, output: &File, scratch: &Path, turn: &Turn) -> Result<OneRun, JobError> {
        let began = Instant::now();
        let place = match self.place {
            HostPlace::Here => None,
            HostPlace::Mount => Some(MountedHere::new(scratch)?),
        };
        let prepared = began.elapsed();
        let before = cpu_of_children();
        let status = self.execute(output, place.as_ref(), turn)?;
        let after = cpu_of_children();
        let command = began.elapsed() - prepared;
        place.map_or(Ok(()), MountedHere::end)?;
        Ok(OneRun {
            prepare: prepared.as_secs_f64(),
            boot: 0.0,
            command: command.as_secs_f64(),
            cpu: before.zip(after).map(|(before, after)| CpuSeconds {
                user: after.user - before.user,
                system: after.system - before.system,
            }),
            total: began.elapsed().as_secs_f64(),
            status: shell_status(status),
            requests: None,
            disk_bytes: None,
            is_outlier: false,
        })
    }

    fn execute(&self, output: &File, place: Option<&MountedHere>, turn: &Turn) -> Result<ExitStatus, JobError> {
        let program = self.words.first().map_or_else(PathBuf::new, PathBuf::from);
        let fail = |error| JobError::path(&program, "cannot be run", error);
        let mut command = Command::new(&program);
        command.args(self.words.iter().skip(1)).stdin(Stdio::null());
        command.stdout(output.try_clone().map_err(fail)?).stderr(output.try_clone().map_err(fail)?);
        if let Some(place) = place {
            command.current_dir(&place.point.path).env("PWD", &place.point.path);
        }
        let mut child = turn.begin(|| {
            let mut child = command.spawn().map_err(fail)?;
            match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
                Ok(process) => Ok((child, Subject::Command(process))),
                Err(errno) => {
                    let _ = child.kill().and_then(|()| child.wait());
                    Err(fail(errno.into()))
                }
            }
        })?;
        let status = child.wait();
        turn.end();
        status.map_err(fail)
    }
}

/// A mount of the current directory. It is unmounted in any case.
struct MountedHere {
    mounted: Option<MountHandle>,
    point: Point,
}

impl MountedHere {
    fn new(scratch: &Path) -> Result<MountedHere, JobError> {
        let here = std::env::current_dir().map_err(|error| JobError::path(Path::new("."), "has no path", error))?;
        // A place outside of what is mounted, if there is one.
        let places = [scratch, Path::new("/dev/shm"), Path::new("/run")];
        let place = places.into_iter().find(|place| !place.starts_with(&here)).unwrap_or(scratch);
        let point = Point::within(place)?;
        let request = MountRequest {
            writes: MountWrites::Through,
            ..MountRequest::new(Source::Directory(here), point.path.clone())
        };
        let mounted = MountedHere { mounted: Some(mount::start(request, Events::ignored())?), point };
        mounted.mounted.as_ref().map_or(Ok(()), MountHandle::answers)?;
        Ok(mounted)
    }

    fn end(mut self) -> Result<(), JobError> {
        self.unmount()
    }

    fn unmount(&mut self) -> Result<(), JobError> {
        let Some(mounted) = self.mounted.take() else { return Ok(()) };
        mounted.stop();
        mounted.wait()
    }
}

impl Drop for MountedHere {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

/// An empty directory to mount on, in one that no other user can enter: a mount would hide the permissions of its point, and those
/// above the current directory do not protect it there. Only empty directories are ever removed: what is mounted are the user's files.
struct Point {
    around: PathBuf,
    path: PathBuf,
}

impl Point {
    fn within(directory: &Path) -> Result<Point, JobError> {
        let fail = |error| JobError::path(directory, "no directory can be made there", error);
        let around = tempfile::Builder::new().prefix(".inarch-mount.").tempdir_in(directory).map_err(fail)?.keep();
        let point = Point { path: around.join("mount"), around };
        fs::create_dir(&point.path).map_err(fail)?;
        Ok(point)
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.path);
        let _ = fs::remove_dir(&self.around);
    }
}

/// As a shell tells it.
fn shell_status(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    number.and_then(|number| u8::try_from(number).ok()).unwrap_or(u8::MAX)
}

/// The processor time of all children that have ended, and of theirs (proc_pid_stat(5), cutime and cstime).
fn cpu_of_children() -> Option<CpuSeconds> {
    let text = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in parentheses, may contain anything.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(13);
    let mut seconds = || Some(fields.next()?.parse::<f64>().ok()? / clock_ticks_per_second() as f64);
    Some(CpuSeconds { user: seconds()?, system: seconds()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> HostWay {
        let words = ["sh", "-c", script].map(OsString::from).to_vec();
        HostWay { name: "shell".to_owned(), words, place: HostPlace::Here }
    }

    #[test]
    fn status_output_and_processor_time_are_the_commands() {
        let output = tempfile::NamedTempFile::new().unwrap();
        let scratch = Path::new("/tmp");
        let script = "echo said; i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; exit 7";
        let run = shell(script).run(output.as_file(), scratch, &Turn::default()).unwrap();
        assert_eq!((run.status, fs::read_to_string(output.path()).unwrap().as_str()), (7, "said\n"));
        let cpu = run.cpu.unwrap();
        assert!(cpu.user + cpu.system > 0.0 && run.total >= run.command, "{run:?}");
        assert_eq!(shell("kill -9 $$").run(output.as_file(), scratch, &Turn::default()).unwrap().status, 137);
        let missing = HostWay { words: vec!["/no/such/program".into()], ..shell("") };
        let error = missing.run(output.as_file(), scratch, &Turn::default()).unwrap_err().to_string();
        assert!(error.contains("/no/such/program"), "{error}");
    }
}
