//! `INARCH_LOG`: what this program does, step by step, on standard error.

use std::io::{self, Write};

use inarch_jobs::shown;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::uptime;

/// The variable. A level (error, warn, info, debug, trace) is that of this project's own code; `TARGET=LEVEL,...` may name the libraries that
/// it uses as well.
pub const VARIABLE: &str = "INARCH_LOG";

/// Begins to log, if the variable asks for it.
///
/// # Errors
/// The variable is neither a level nor a list of targets with levels.
pub fn begin() -> anyhow::Result<()> {
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else { return Ok(()) };
    let wrong =
        || anyhow::anyhow!("{VARIABLE}={}: write a level, as in debug, or TARGET=LEVEL,...", shown(value.as_ref()));
    let text = value.to_str().ok_or_else(wrong)?;
    // Crates of this project are `inarch_...`.
    let filter = if text.contains('=') { text.to_owned() } else { format!("inarch={text}") };
    let filter = EnvFilter::builder().parse(filter).map_err(|_| wrong())?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| StandardError).with_ansi(false);
    log.with_timer(uptime()).try_init().map_err(|error| anyhow::anyhow!("{VARIABLE}: {error}"))
}

/// Standard error, where a line that cannot be written is lost: the log ends nothing.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
