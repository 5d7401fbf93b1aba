//! Dependencies as make(1) and ninja read them.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::touched::{Change, Touched};

/// Writes a rule: `target`, or without one all files that were made or written, depends on all files whose content was used.
/// Each of these gets a rule without prerequisites, too, so that make goes on when one is removed. Paths at or beneath `base`
/// are relative to it.
///
/// # Errors
/// Those of `out`. A path with a line break is left out, as neither program can read one.
pub fn depfile(touched: &Touched, target: Option<&Path>, base: &Path, out: &mut dyn Write) -> io::Result<()> {
    let named = |path: &Path| path.strip_prefix(base).map_or_else(|_| path.to_owned(), Path::to_owned);
    let made = |change| matches!(change, Change::Made | Change::Written);
    let targets: Vec<PathBuf> = match target {
        Some(target) => vec![target.to_owned()],
        None => touched
            .outputs()
            .filter(|output| made(output.change) && !output.is_directory)
            .map(|output| named(output.path))
            .collect(),
    };
    let inputs: Vec<PathBuf> =
        touched.inputs().filter(super::Input::is_content).map(|input| named(input.path)).collect();
    let [targets, inputs] =
        [targets, inputs].map(|paths| paths.iter().filter_map(|path| escaped(path)).collect::<Vec<_>>());
    for (number, target) in targets.iter().enumerate() {
        if number > 0 {
            out.write_all(b" ")?;
        }
        out.write_all(target)?;
    }
    out.write_all(b":")?;
    for input in &inputs {
        out.write_all(b" \\\n  ")?;
        out.write_all(input)?;
    }
    out.write_all(b"\n")?;
    for input in inputs.iter().filter(|input| !targets.contains(input)) {
        out.write_all(b"\n")?;
        out.write_all(input)?;
        out.write_all(b":\n")?;
    }
    Ok(())
}

/// A path as GCC writes it (`munge` of its libcpp/mkdeps.cc): a backslash before a blank or `#`, and one more for each backslash
/// that precedes it; two dollar signs for one. `None` if it has a line break.
fn escaped(path: &Path) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut backslashes = 0;
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'\n' => return None,
            b' ' | b'\t' => {
                out.extend(std::iter::repeat_n(b'\\', backslashes + 1));
            }
            b'#' => out.push(b'\\'),
            b'$' => out.push(b'$'),
            _ => {}
        }
        backslashes = if *byte == b'\\' { backslashes + 1 } else { 0 };
        out.push(*byte);
    }
    Some(out)
}
