//! The command lines of this machine that `inarch compare` measures.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_jobs::compare::{HostPlace, HostWay};
use inarch_jobs::doctor::in_path;
use inarch_jobs::run::{Way, WireOptions};
use inarch_jobs::shown;

/// The command by itself.
pub const NATIVE: &str = "native";

/// `--host`: the command by itself, and by what watches it.
pub fn ways(command: &[OsString]) -> anyhow::Result<Vec<HostWay>> {
    let program = command.first().map_or_else(OsString::new, OsString::clone);
    let is_there =
        if program.as_bytes().contains(&b'/') { Path::new(&program).exists() } else { is_installed(&program) };
    anyhow::ensure!(is_there, "{}: there is no such program", shown(Path::new(&program)));
    let way = |name: &str, before: Vec<OsString>, place| HostWay {
        name: name.to_owned(),
        words: before.into_iter().chain(command.iter().cloned()).collect(),
        place,
    };
    let itself = std::env::current_exe().map_err(|error| anyhow::anyhow!("this program has no path: {error}"))?;
    let trace = ["trace", "-o", "/dev/null", "--"].map(OsString::from);
    let mut ways = vec![
        way(NATIVE, Vec::new(), HostPlace::Here),
        way("mount", Vec::new(), HostPlace::Mount),
        way("trace", [itself.into_os_string()].into_iter().chain(trace).collect(), HostPlace::Here),
    ];
    if is_installed("strace".as_ref()) {
        let words = ["strace", "-f", "-qq", "-o", "/dev/null", "--"].map(OsString::from);
        ways.push(way("strace", words.to_vec(), HostPlace::Here));
    }
    Ok(ways)
}

fn is_installed(program: &OsStr) -> bool {
    program.to_str().is_some_and(|name| in_path(name).is_some())
}

/// Parses `--peer`.
pub fn named(text: &str) -> Result<HostWay, String> {
    match text.split_once('=') {
        Some((name, command)) if is_name(name) && !command.trim().is_empty() => {
            let words = ["sh", "-c", command].map(OsString::from).to_vec();
            Ok(HostWay { name: name.to_owned(), words, place: HostPlace::Here })
        }
        _ => Err("write NAME=CMD, as in 'virtme-ng=vng -r -- make check'".to_owned()),
    }
}

/// Whether a text is a name for a table, for CSV as well.
fn is_name(text: &str) -> bool {
    !text.is_empty() && !text.contains(|c: char| c.is_control() || matches!(c, ',' | '"'))
}

/// Whether each has a name of its own.
pub fn check(ways: &[(Way, WireOptions)], host_ways: &[HostWay]) -> anyhow::Result<()> {
    let mut names: Vec<&str> = ways.iter().map(|(way, _)| way.name()).collect();
    for HostWay { name, .. } in host_ways {
        anyhow::ensure!(!names.contains(&name.as_str()), "--peer {}: the name is taken", shown(Path::new(name)));
        names.push(name);
    }
    Ok(())
}
