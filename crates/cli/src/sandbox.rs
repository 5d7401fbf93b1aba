//! `--sandbox`, the same for every server.

use clap::{Args, ValueEnum};
use inarch_jobs::Sandbox;

/// Whether a server confines itself.
#[derive(Args, Clone, Copy, Debug)]
pub struct SandboxArgument {
    /// Confine the server to what it serves by all that this machine has (auto), or not at all (none)
    // Some commands have the options of what is taken before it, whose heading would be this one's.
    #[arg(long, value_name = "auto|none", default_value = "auto", value_enum, hide_possible_values = true,
        help_heading = None::<&str>)]
    sandbox: By,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    Auto,
    None,
}

impl From<SandboxArgument> for Sandbox {
    fn from(argument: SandboxArgument) -> Sandbox {
        match argument.sandbox {
            By::Auto => Sandbox::Auto,
            By::None => Sandbox::None,
        }
    }
}
