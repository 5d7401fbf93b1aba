//! `--sandbox`: an option of every server.

use clap::{Args, ValueEnum};
use inarch_jobs::Sandbox;

/// Whether a server sandboxes itself.
#[derive(Args, Clone, Copy, Debug)]
pub struct SandboxArgument {
    /// Restrict the server to what it serves, by all that this kernel offers (auto), or not at all (none)
    // Without this, the heading of the previous option group would apply.
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
