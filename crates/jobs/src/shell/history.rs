//! The history file: lines that were typed into earlier shells.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use inarch_lifecycle::shown;
use inarch_lifecycle::state;
use inarch_lifecycle::trust::{self, Missing, Owner};

/// Its name in the user's directory of state.
const NAME: &str = "shell.history";

/// The file, which is this user's alone. It is made if it is missing.
///
/// # Errors
/// It cannot be made, or not be trusted; or the user has no home.
pub fn file() -> Result<PathBuf, String> {
    let home = state::home().ok_or("neither XDG_STATE_HOME nor HOME is set")?;
    trust::directory(&home, &[], Missing::Make, Owner::User).map_err(|obstacle| obstacle.to_string())?;
    let path = home.join(NAME);
    let opened = trust::open(&path, OpenOptions::new().append(true).create(true).mode(0o600));
    opened.map(|_| path.clone()).map_err(|error| format!("{}: {error}", shown(&path)))
}
