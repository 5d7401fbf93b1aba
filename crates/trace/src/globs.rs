//! Paths and globs by which a user names files of a view.

use std::collections::{BTreeSet, HashMap};
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use globset::{Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use inarch_lifecycle::PathError;

use super::{LineError, Touched};

/// A pattern that is no glob.
#[derive(Debug, thiserror::Error)]
#[error("the pattern {pattern:?} is not a glob: {reason}")]
pub struct GlobError {
    /// As it was given.
    pub pattern: String,
    /// What is wrong with it.
    pub reason: String,
}

/// `*` and `?` match no slash; `**` matches any number of components; `[a-z]`, `{a,b}` and `\` work as in a shell.
fn glob(text: &str) -> Result<Glob, GlobError> {
    let glob = GlobBuilder::new(text).literal_separator(true).backslash_escape(true).build();
    glob.map_err(|error| GlobError { pattern: text.to_owned(), reason: error.kind().to_string() })
}

fn set(globs: Vec<Glob>) -> Result<GlobSet, GlobError> {
    let mut set = GlobSetBuilder::new();
    for glob in globs {
        set.add(glob);
    }
    set.build().map_err(|error| GlobError { pattern: "all patterns together".into(), reason: error.to_string() })
}

/// The directory as a glob that matches nothing else.
fn quoted(directory: &Path) -> String {
    let text = directory.to_string_lossy();
    text.chars().flat_map(|c| ['\\'].into_iter().filter(move |_| "\\*?[]{},!".contains(c)).chain([c])).collect()
}

/// A pattern without `.`, `..` and repeated slashes, absolute: from `base` if it does not begin with a slash.
fn absolute(pattern: &str, base: &Path) -> String {
    let whole = if pattern.starts_with('/') { pattern.to_owned() } else { format!("{}/{pattern}", quoted(base)) };
    cleaned(Path::new(&whole)).to_string_lossy().into_owned()
}

/// A path without `.` and `..`; symbolic links are not followed.
fn cleaned(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut clean, component| {
        match component {
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir => {}
            other => clean.push(other),
        }
        clean
    })
}

/// What is left out of a trace: what a glob matches, and all beneath it. A glob without a slash, except at its end, is matched
/// with the last component of every path, any other one with the whole path.
#[derive(Clone, Debug, Default)]
pub struct Ignored {
    names: GlobSet,
    paths: GlobSet,
}

impl Ignored {
    /// Paths that do not begin with a slash count from `base`.
    ///
    /// # Errors
    /// One of them is no glob.
    pub fn new(globs: &[String], base: &Path) -> Result<Ignored, GlobError> {
        let (mut names, mut paths) = (Vec::new(), Vec::new());
        for pattern in globs {
            let trimmed = pattern.trim_end_matches('/');
            if trimmed.is_empty() {
                let reason = if pattern.is_empty() { "it is empty" } else { "it would leave out everything" };
                return Err(GlobError { pattern: pattern.clone(), reason: reason.to_owned() });
            }
            if trimmed.contains('/') {
                paths.push(glob(&absolute(trimmed, base))?);
            } else {
                names.push(glob(trimmed)?);
            }
        }
        Ok(Ignored { names: set(names)?, paths: set(paths)? })
    }

    /// Whether an absolute path is left out.
    pub fn is_ignored(&self, path: &Path) -> bool {
        let is_matched = |path: &Path| {
            self.paths.is_match(path) || path.file_name().is_some_and(|name| self.names.is_match(Path::new(name)))
        };
        !(self.names.is_empty() && self.paths.is_empty()) && path.ancestors().any(is_matched)
    }
}

/// The longest list of expectations, in bytes.
const LONGEST_LIST: u64 = 64 << 20;

/// The inputs that a user expects of a command.
#[derive(Clone, Debug, Default)]
pub struct Expectations {
    /// In the order of the list, without globs.
    paths: Vec<PathBuf>,
    /// The places in `paths` of those that stand for themselves, by the path and by what it leads to.
    themselves: HashMap<PathBuf, Vec<usize>>,
    /// The same for those that stand for everything beneath.
    directories: HashMap<PathBuf, Vec<usize>>,
    file_globs: GlobSet,
    directory_globs: GlobSet,
}

/// What was used and what was expected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Files whose content was used, and that nobody expected.
    pub undeclared: Vec<PathBuf>,
    /// Paths that were expected, and not used.
    pub unused: Vec<PathBuf>,
    /// Paths that were expected, and have undeclared files beneath: directories that lack a slash, most likely.
    pub directories: Vec<PathBuf>,
}

impl Expectations {
    /// Reads a list: a path or a glob on each line, those that do not begin with a slash from `base`. One that ends with a slash
    /// stands for everything beneath. Empty lines and those that begin with `#` are skipped; `\` quotes a character of a glob,
    /// and the first `#`.
    ///
    /// # Errors
    /// The list cannot be read, or a line is no glob.
    pub fn read(list: &Path, base: &Path) -> Result<Expectations, LineError> {
        let fail = |error| PathError::new(list, "cannot read it", error);
        let mut text = Vec::new();
        std::fs::File::open(list).map_err(fail)?.take(LONGEST_LIST + 1).read_to_end(&mut text).map_err(fail)?;
        if text.len() as u64 > LONGEST_LIST {
            return Err(LineError::new(list, 0, format!("it is longer than {} MiB", LONGEST_LIST >> 20)));
        }
        Expectations::parse(&text, base).map_err(|(number, reason)| LineError::new(list, number, reason))
    }

    /// Of the text of a list. An error comes with the number of its line.
    fn parse(text: &[u8], base: &Path) -> Result<Expectations, (u64, String)> {
        let mut expected = Expectations::default();
        let (mut files, mut directories) = (Vec::new(), Vec::new());
        for (number, line) in (1..).zip(text.split(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let trimmed = line.strip_suffix(b"/").unwrap_or(line);
            let is_directory = trimmed.len() < line.len();
            if let Some(path) = literal(trimmed) {
                // The root is a slash and nothing else.
                let path = if trimmed.is_empty() { Path::new("/") } else { &path };
                expected.add(cleaned(&base.join(path)), is_directory);
                continue;
            }
            let text = std::str::from_utf8(trimmed).map_err(|_| (number, "a glob must be UTF-8 text".to_owned()))?;
            let glob = glob(&absolute(text, base)).map_err(|error| (number, error.to_string()))?;
            if is_directory { directories.push(glob) } else { files.push(glob) }
        }
        let all = |globs| set(globs).map_err(|error| (0, error.to_string()));
        Ok(Expectations { file_globs: all(files)?, directory_globs: all(directories)?, ..expected })
    }

    fn add(&mut self, path: PathBuf, is_directory: bool) {
        let leads_to = path.canonicalize().ok().filter(|other| *other != path);
        let places = if is_directory { &mut self.directories } else { &mut self.themselves };
        for own in leads_to.into_iter().chain([path.clone()]) {
            places.entry(own).or_default().push(self.paths.len());
        }
        self.paths.push(path);
    }

    /// Compares with what a command touched.
    pub fn compare(&self, touched: &Touched) -> Compared {
        let mut is_used = vec![false; self.paths.len()];
        for input in touched.inputs().filter(|input| input.identity.is_some()) {
            self.places(input.path).for_each(|place| is_used[place] = true);
        }
        let content = touched.inputs().filter(super::Input::is_content).map(|input| input.path);
        let unused = self.paths.iter().zip(is_used).filter(|(_, is_used)| !is_used);
        let undeclared: Vec<PathBuf> = content.filter(|path| !self.is_expected(path)).map(Path::to_owned).collect();
        let above = undeclared.iter().flat_map(|path| path.ancestors().skip(1));
        let places = above.filter_map(|above| self.themselves.get(above)).flatten();
        let directories: BTreeSet<&PathBuf> = places.filter_map(|place| self.paths.get(*place)).collect();
        // A list of used files may well have a link to a directory.
        let directories = directories.into_iter().filter(|path| !path.is_symlink()).cloned().collect();
        Compared { undeclared, unused: unused.map(|(path, _)| path.clone()).collect(), directories }
    }

    /// The places in `paths` of those that match.
    fn places(&self, path: &Path) -> impl Iterator<Item = usize> {
        let beneath = path.ancestors().filter_map(|above| self.directories.get(above));
        self.themselves.get(path).into_iter().chain(beneath).flatten().copied()
    }

    fn is_expected(&self, path: &Path) -> bool {
        self.places(path).next().is_some()
            || self.file_globs.is_match(path)
            || path.ancestors().skip(1).any(|above| self.directory_globs.is_match(above))
    }
}

/// The path that a line means if it is no glob.
fn literal(line: &[u8]) -> Option<PathBuf> {
    let mut path = Vec::with_capacity(line.len());
    let mut bytes = line.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'*' | b'?' | b'[' | b'{' => return None,
            b'\\' => path.push(*bytes.next().unwrap_or(byte)),
            other => path.push(*other),
        }
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_glob_matches_is_ignored_with_all_beneath() {
        let ignored = |globs: &[&str]| {
            let globs: Vec<String> = globs.iter().map(|glob| (*glob).to_owned()).collect();
            Ignored::new(&globs, Path::new("/src/a[b]"))
        };
        let is = |globs: &[&str], path: &str| ignored(globs).unwrap().is_ignored(Path::new(path));
        for (glob, path) in [
            ("*.pyc", "/x/y/z.pyc"),
            ("__pycache__", "/x/__pycache__/y/z"),
            ("__pycache__/", "/x/__pycache__"),
            ("/var/cache", "/var/cache/x"),
            ("out/*.o", "/src/a[b]/out/x.o"),
            ("./out/../x/y", "/src/a[b]/x/y"),
            ("../*/y", "/src/c/y"),
            ("/**/x", "/a/b/x"),
            ("{a,b}", "/b"),
        ] {
            assert!(is(&[glob], path), "{glob} {path}");
        }
        for (glob, path) in [
            ("*.pyc", "/x/z.py"),
            ("/var/cache", "/var/cached"),
            ("out/*.o", "/src/ab/out/x.o"),
            ("out/*.o", "/out/x.o"),
            ("/a/*", "/a"),
        ] {
            assert!(!is(&[glob], path), "{glob} {path}");
        }
        assert!(!is(&[], "/"));
        let error = ignored(&["[a"]).unwrap_err().to_string();
        assert!(error.contains("\"[a\"") && error.contains("unclosed"), "{error}");
        assert!(ignored(&[""]).unwrap_err().to_string().contains("it is empty"));
        assert!(ignored(&["/"]).unwrap_err().to_string().contains("everything"));
    }

    #[test]
    fn lists_have_paths_and_globs() {
        let list =
            "# a comment\n\nmain.c\n./sub/../other.c\r\ninclude/\n*.h\n/usr/**/libc.so*\nlib[0-9]/\n\\#odd \\*name\n";
        let expectations = Expectations::parse(list.as_bytes(), Path::new("/src")).unwrap();
        for path in [
            "/src/main.c",
            "/src/other.c",
            "/src/include/deep/er.h",
            "/src/a.h",
            "/usr/lib/x/libc.so.6",
            "/src/lib7/x/y",
            "/src/#odd *name",
        ] {
            assert!(expectations.is_expected(Path::new(path)), "{path}");
        }
        for path in
            ["/main.c", "/src/main.cc", "/src/sub/a.h", "/src/included", "/src/libx/y", "/src/lib7", "/src/# a comment"]
        {
            assert!(!expectations.is_expected(Path::new(path)), "{path}");
        }
        let everything = Expectations::parse(b"/\n", Path::new("/src")).unwrap();
        assert!(everything.is_expected(Path::new("/any/thing")));
    }

    #[test]
    fn a_bad_line_is_named() {
        let parse = |list: &[u8]| Expectations::parse(list, Path::new("/")).unwrap_err();
        assert_eq!(parse(b"a\n\nb*\xff\n"), (3, "a glob must be UTF-8 text".to_owned()));
        let (number, reason) = parse(b"a\n[b");
        assert!(number == 2 && reason.contains("unclosed"), "{reason}");
        // A path may be anything.
        assert!(Expectations::parse(b"\xff\n\\", Path::new("/")).is_ok());
    }
}
