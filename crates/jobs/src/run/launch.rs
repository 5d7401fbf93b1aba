//! [`Launch`]: what runs in the guest, in which directory, as which user and with which variables: the user's request,
//! over the configuration of a container image. Follows Docker's rules (`docker run`, and the image specification's
//! config.md).

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc::Sender;

use inarch_format::oci::ImageConfig;
use inarch_lifecycle::Events;
use inarch_lifecycle::shown;
use inarch_vm::protocol::{SessionRequest, User};

use super::{Root, RunError, RunEvent, RunRequest, command};

/// The most bytes of one word that a program is started with: the kernel's `MAX_ARG_STRLEN`, minus its NUL.
const MOST_OF_A_WORD: usize = 128 * 1024 - 1;

/// The most bytes of all words and variables: the kernel accepts a quarter of the stack, which is 8 MiB.
const MOST_OF_ALL: usize = 2 << 20;

/// Additional bytes for each word: a NUL and a pointer.
const BESIDE_A_WORD: usize = 9;

/// The most bytes of a path (`PATH_MAX`, minus its NUL).
const MOST_OF_A_PATH: usize = 4095;

/// The most bytes of a user's and a group's name: Linux's `LOGIN_NAME_MAX` is 256.
const MOST_OF_A_USER: usize = 512;

/// The default `PATH` of a container.
const USUAL_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What the agent starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launch {
    command: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    /// Make the directory if the guest does not have it.
    make_directory: bool,
    user: Option<User>,
}

impl Launch {
    /// What `request` starts. `image` is the root's configuration, if the root is a container image; `directory` is the
    /// requested directory.
    ///
    /// # Errors
    /// There is nothing to start, or the image requests something impossible.
    pub fn new(
        request: &RunRequest,
        directory: Option<&Path>,
        image: Option<&ImageConfig>,
    ) -> Result<Launch, RunError> {
        let directory = directory.map(Path::to_owned);
        let Some(config) = image else {
            if request.entrypoint.is_some() {
                let root = match &request.root {
                    Root::Host => "this machine".to_owned(),
                    Root::None => "nothing".to_owned(),
                    Root::Source(source) => source.to_string(),
                };
                return Err(RunError::Entrypoint { root });
            }
            return Ok(Launch {
                command: command::command(request)?,
                environment: command::environment(request),
                directory,
                make_directory: false,
                user: command::requested_user(request)?,
            });
        };
        let image = Image { request, config, name: image_name(request) };
        let launch = Launch {
            command: image.command()?,
            environment: image.environment(),
            directory: directory.map_or_else(|| image.directory(), |directory| Ok(Some(directory)))?,
            make_directory: true,
            user: Some(match &request.user {
                Some(text) => command::user(text)?,
                None => image.user()?,
            }),
        };
        launch.check_size(&image.name)?;
        Ok(launch)
    }

    /// Adds this to the session `request`.
    pub fn complete(self, request: SessionRequest) -> SessionRequest {
        let Launch { command, environment, directory, make_directory, user } = self;
        SessionRequest { command, environment, directory, make_directory, user, ..request }
    }

    /// Sends this to the waiting session.
    pub fn tell(self, is_of_image: bool, waiting: &Sender<Launch>, events: &Events<RunEvent>) {
        if is_of_image {
            events.emit(self.event());
        }
        // Nobody receives it if the guest has failed.
        let _ = waiting.send(self);
    }

    /// Says what the image runs.
    fn event(&self) -> RunEvent {
        let user = match &self.user {
            Some(User::Name(name)) if name != "0" => name.clone(),
            _ => "root".to_owned(),
        };
        let directory = self.directory.clone().unwrap_or_else(|| "/".into());
        RunEvent::Image { command: self.command.clone(), directory, user }
    }

    /// Refuses sizes with which no program can start.
    fn check_size(&self, image: &str) -> Result<(), RunError> {
        let words = self.command.iter().map(|word| word.len());
        let variables = self.environment.iter().map(|(name, value)| name.len() + 1 + value.len());
        let (mut all, mut longest) = (0usize, 0);
        for length in words.chain(variables) {
            all = all.saturating_add(length).saturating_add(BESIDE_A_WORD);
            longest = longest.max(length);
        }
        let fail = |what, bytes, most| Err(RunError::TooLarge { image: image.to_owned(), what, bytes, most });
        if longest > MOST_OF_A_WORD {
            return fail("a word of its command or a variable of its environment has", longest, MOST_OF_A_WORD);
        }
        if all > MOST_OF_ALL {
            return fail("its command and its environment take", all, MOST_OF_ALL);
        }
        Ok(())
    }
}

/// The root's image, for messages.
fn image_name(request: &RunRequest) -> String {
    match &request.root {
        Root::Source(source) => source.to_string(),
        Root::Host | Root::None => "the image".to_owned(),
    }
}

/// A container image to be run; its strings are hostile.
struct Image<'a> {
    request: &'a RunRequest,
    config: &'a ImageConfig,
    name: String,
}

impl Image<'_> {
    fn fail<T>(&self, reason: &str) -> Result<T, RunError> {
        Err(RunError::Image { image: self.name.clone(), reason: reason.to_owned() })
    }

    /// The entry point and the words after it. A user who replaces the entry point does not want the image's Cmd.
    fn command(&self) -> Result<Vec<OsString>, RunError> {
        let of_image = |words: &[String]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let mut words = match &self.request.entrypoint {
            Some(word) => vec![word.clone()],
            None => of_image(&self.config.entrypoint),
        };
        // A single empty word means none.
        if words.len() == 1 && words.first().is_some_and(|word| word.is_empty()) {
            words.clear();
        }
        match (self.request.command.is_empty(), &self.request.entrypoint) {
            (false, _) => words.extend(self.request.command.iter().cloned()),
            (true, None) => words.extend(of_image(&self.config.command)),
            (true, Some(_)) => {}
        }
        match words.first() {
            None if self.request.entrypoint.is_some() => self.fail(&format!(
                "without its entry point a command is needed: inarch run --root {} --entrypoint '' CMD...",
                self.name
            )),
            None => self.fail(&format!(
                "the image names no command (neither Entrypoint nor Cmd); give one: inarch run --root {} CMD...",
                self.name
            )),
            Some(first) if first.is_empty() => {
                self.fail("the first word of the command is empty; give another with --entrypoint WORD")
            }
            Some(_) => Ok(words),
        }
    }

    /// The image's variables override the terminal's, and variables given by name override both. Nothing else of this
    /// machine's environment reaches a container.
    fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut all = BTreeMap::from([("PATH".into(), USUAL_PATH.into())]);
        all.extend(command::terminal_variables());
        for line in &self.config.environment {
            match line.split_once('=') {
                Some(("", _)) => {}
                Some((name, value)) => drop(all.insert(name.into(), value.into())),
                // As in Docker: unsets the variable.
                None => drop(all.remove(OsStr::new(line))),
            }
        }
        all.extend(self.request.environment.iter().cloned());
        all.into_iter().collect()
    }

    /// The image's working directory; `None` for its root.
    fn directory(&self) -> Result<Option<PathBuf>, RunError> {
        let text = &self.config.working_directory;
        if text.is_empty() {
            return Ok(None);
        }
        if text.len() > MOST_OF_A_PATH {
            return self.fail(&format!("its working directory has {} bytes; give another with -w DIR", text.len()));
        }
        if !text.starts_with('/') {
            let text = shown(Path::new(text));
            return self
                .fail(&format!("its working directory '{text}' is not an absolute path; give another with -w DIR"));
        }
        // `..` removes a name, whatever the name leads to, as where the image was built.
        let mut path = PathBuf::from("/");
        for component in Path::new(text).components() {
            match component {
                Component::Normal(name) => path.push(name),
                Component::ParentDir => drop(path.pop()),
                Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
            }
        }
        Ok(Some(path))
    }

    /// The image's user; root if it names none.
    fn user(&self) -> Result<User, RunError> {
        let text = &self.config.user;
        if text.len() > MOST_OF_A_USER {
            return self.fail(&format!("its user's name has {} bytes; give another with -u USER", text.len()));
        }
        Ok(User::Name(if text.is_empty() || text.starts_with(':') { format!("0{text}") } else { text.clone() }))
    }
}

#[cfg(test)]
mod tests;
