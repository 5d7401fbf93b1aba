//! What an image says of how it is started.

use super::document::Config;
use super::malformed;
use crate::ReadError;

/// How a container of an image is started (the image specification's config.md). What else is said there (volumes, ports,
/// a signal to stop it by, labels) has no meaning for a machine's root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// A name or number of a user, and after a colon a group's; empty: root.
    pub user: String,
    /// Variables, `NAME=VALUE` each.
    pub environment: Vec<String>,
    /// The first words of what is run.
    pub entrypoint: Vec<String>,
    /// The words after those, unless others are given.
    pub command: Vec<String>,
    /// Where it is run; empty: in the root.
    pub working_directory: String,
}

impl ImageConfig {
    /// What `document`, found at `name`, says. Fails where a word could not be one of a program's.
    pub(super) fn new(document: Config, name: &str) -> Result<ImageConfig, ReadError> {
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
        Ok(ImageConfig { user, environment, entrypoint, command, working_directory })
    }
}
