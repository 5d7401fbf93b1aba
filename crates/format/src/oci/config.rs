//! [`ImageConfig`]: how a container image is started.

use super::document::Config;
use super::malformed;
use crate::ReadError;

/// How a container of an image is started (the image specification's config.md). The other fields (volumes, ports, stop
/// signal, labels) have no meaning for a machine's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// A user's name or number, optionally followed by a colon and a group's; empty for root.
    pub user: String,
    /// Variables, `NAME=VALUE` each.
    pub environment: Vec<String>,
    /// The first words of the command.
    pub entrypoint: Vec<String>,
    /// The arguments, unless the user gives others.
    pub command: Vec<String>,
    /// Working directory; empty for the root.
    pub working_directory: String,
    /// The architecture that its programs are for, as images name it; empty if it is not said.
    pub architecture: String,
}

impl ImageConfig {
    /// Converts `document`, found at `name`. Fails if a string could not be a program's argument.
    pub(super) fn new(document: Config, name: &str) -> Result<ImageConfig, ReadError> {
        let architecture = document.architecture;
        let config = document.config.unwrap_or_default();
        let user = config.user.unwrap_or_default();
        let environment = config.env.unwrap_or_default();
        let entrypoint = config.entrypoint.unwrap_or_default();
        let command = config.cmd.unwrap_or_default();
        let working_directory = config.working_dir.unwrap_or_default();
        let lists = environment.iter().chain(&entrypoint).chain(&command);
        if lists.chain([&user, &working_directory]).any(|word| word.contains('\0')) {
            return Err(malformed(format!("{}: a string of its configuration has a NUL in it", name.escape_debug())));
        }
        Ok(ImageConfig { user, environment, entrypoint, command, working_directory, architecture })
    }
}
