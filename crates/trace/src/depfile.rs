//! Dependencies as make(1) and ninja read them.
//!
//! Both parsers differ, and neither can read every name. Where they disagree, we write what make reads. ninja then takes it for a file that
//! is missing, and does the work again rather than too seldom. Found by trials with GNU Make 4.3 and ninja 1.11, in addition to make's
//! manual and ninja's src/depfile_parser.in.cc.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::Inherited;
use super::touched::{Change, Touched};

/// The targets of a rule, and what they depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependencies {
    targets: Vec<PathBuf>,
    inputs: Vec<PathBuf>,
}

impl Dependencies {
    /// The target is `target`, else every file made or written, else `output`, the file that standard output went to. It depends on all
    /// files whose content was used, and on those open for reading when the command started. Paths at or beneath `base` are relative to it.
    pub fn of(
        touched: &Touched,
        inherited: &[Inherited],
        target: Option<&Path>,
        output: Option<&Path>,
        base: &Path,
    ) -> Dependencies {
        let named = |path: &Path| path.strip_prefix(base).map_or_else(|_| path.to_owned(), Path::to_owned);
        let made = |change| matches!(change, Change::Made | Change::Written);
        let targets: Vec<PathBuf> = match target {
            Some(target) => vec![target.to_owned()],
            None => {
                let made = touched.outputs().filter(|output| made(output.change) && !output.is_directory);
                let made: Vec<PathBuf> = made.map(|output| named(output.path)).collect();
                // The log of a whole build is no target of the commands that make something.
                if made.is_empty() { output.into_iter().map(named).collect() } else { made }
            }
        };
        // A target that was read before it was written is none of its own prerequisites.
        let places: HashSet<PathBuf> = targets.iter().map(|target| base.join(target)).collect();
        let used = touched.inputs().filter(super::Input::is_content).map(|input| input.path);
        let open = inherited.iter().filter(|one| one.is_input).map(|one| &*one.path);
        let mut seen = HashSet::new();
        let inputs = used.chain(open).filter(|path| !places.contains(*path) && seen.insert(*path)).map(named).collect();
        Dependencies { targets, inputs }
    }

    /// Whether there is nothing that depends on anything.
    pub fn has_no_target(&self) -> bool {
        self.targets.is_empty()
    }
}

/// Writes them as a rule. Each prerequisite gets a rule without prerequisites, too, so that make goes on when one is removed.
///
/// # Errors
/// Those of `out`.
pub fn depfile(dependencies: &Dependencies, out: &mut dyn Write) -> io::Result<()> {
    rules(&dependencies.targets, dependencies.inputs.clone(), out)
}

fn rules(targets: &[PathBuf], mut inputs: Vec<PathBuf>, out: &mut dyn Write) -> io::Result<()> {
    // A first prerequisite with this sign would be a variable of the target's.
    inputs.sort_by_key(|path| bytes(path).contains(&b'='));
    let names: Vec<Vec<u8>> = targets.iter().map(|path| escaped(bytes(path), Place::Target)).collect();
    // Without a target make takes nothing for a rule.
    if let Some(last) = names.last() {
        out.write_all(&names.join(&b' '))?;
        // `&:` means that one recipe makes all targets.
        out.write_all(if last.ends_with(b"&") { b" :" } else { b":" })?;
        for input in &inputs {
            out.write_all(b" \\\n  ")?;
            out.write_all(&escaped(bytes(input), Place::Prerequisite))?;
        }
        out.write_all(b"\n")?;
    }
    for input in inputs.iter().filter(|input| may_stand_alone(bytes(input))) {
        out.write_all(b"\n")?;
        out.write_all(&escaped(bytes(input), Place::Prerequisite))?;
        out.write_all(b":\n")?;
    }
    Ok(())
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Whether make takes a rule without prerequisites for this name as one: not as a pattern, a variable or a group.
fn may_stand_alone(name: &[u8]) -> bool {
    !name.contains(&b'%') && !name.contains(&b'=') && !name.ends_with(b"&")
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Target,
    Prerequisite,
}

/// A name as make reads it in a rule: a backslash precedes what has a meaning, and two stand for each backslash before that;
/// two dollar signs stand for one. What make cannot quote is `?`, which matches any character.
fn escaped(name: &[u8], place: Place) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    // A sign at the start of a word would be that of a variable.
    if name.first() == Some(&b'=') {
        out.extend(b"./");
    }
    let mut backslashes = 0;
    for (at, byte) in name.iter().enumerate() {
        let is_last = at + 1 == name.len();
        let own = match byte {
            b';' | b'|' | b'\t' | b'\n' | b'\r' => b'?',
            b'\\' | b' ' if is_last => b'?',
            // A home directory, even after `./`, which make drops first.
            b'~' if at == 0 => b'?',
            own => *own,
        };
        let is_quoted = matches!(own, b' ' | b'#' | b':' | b'*') || (own == b'%' && place == Place::Target);
        if is_quoted {
            out.extend(std::iter::repeat_n(b'\\', backslashes + 1));
        }
        if own == b'$' {
            out.push(b'$');
        }
        backslashes = if own == b'\\' { backslashes + 1 } else { 0 };
        out.push(own);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(targets: &[&str], inputs: &[&str]) -> String {
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let mut out = Vec::new();
        rules(&paths(targets), paths(inputs), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_rule_and_one_for_each_input() {
        assert_eq!(
            written(&["out", "log"], &["/usr/bin/cc", "a.c"]),
            "out log: \\\n  /usr/bin/cc \\\n  a.c\n\n/usr/bin/cc:\n\na.c:\n"
        );
        assert_eq!(written(&[], &["a.c"]), "\na.c:\n");
    }

    #[test]
    fn what_would_be_a_pattern_a_variable_or_a_group_gets_no_rule() {
        let text = written(&["t&"], &["k=v", "100%", "a&", "b"]);
        assert_eq!(text, "t& : \\\n  100% \\\n  a& \\\n  b \\\n  k=v\n\nb:\n");
    }

    #[test]
    fn names_are_quoted_as_make_reads_them() {
        for (name, target, prerequisite) in [
            ("a b", r"a\ b", r"a\ b"),
            (r"a\ b", r"a\\\ b", r"a\\\ b"),
            (r"a\b", r"a\b", r"a\b"),
            ("a#b:c", r"a\#b\:c", r"a\#b\:c"),
            ("$(x)", "$$(x)", "$$(x)"),
            ("50%", r"50\%", "50%"),
            ("a*", r"a\*", r"a\*"),
            ("~user", "?user", "?user"),
            ("=", "./=", "./="),
            ("x;rm y", r"x?rm\ y", r"x?rm\ y"),
            ("a\nb\tc|d\r", "a?b?c?d?", "a?b?c?d?"),
            ("end\\", "end?", "end?"),
            ("end ", "end?", "end?"),
            ("ü", "ü", "ü"),
        ] {
            for (place, quoted) in [(Place::Target, target), (Place::Prerequisite, prerequisite)] {
                assert_eq!(String::from_utf8(escaped(name.as_bytes(), place)).unwrap(), quoted, "{name:?}");
            }
        }
    }
}
