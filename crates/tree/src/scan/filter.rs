//! Which names a scan takes into the tree: globs given by the user, and gitignore-style files found on the way.

use std::ffi::OsStr;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use globset::{Candidate, GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

/// Of an ignore file, no more than this is read.
const IGNORE_FILE_MAX: u64 = 1 << 20;

/// A pattern that is no glob.
#[derive(Debug, thiserror::Error)]
#[error("the pattern {pattern:?} is not a glob: {source}")]
pub struct FilterError {
    pattern: String,
    source: globset::Error,
}

/// Which names are taken into the tree; by default all.
///
/// Rules are tried in the order in which they were given and **the first one that matches decides**, as with
/// rsync; if none does, the ignore files decide, the deepest first, each by its last matching line, as with git;
/// if they say nothing either, the name is taken. An excluded directory is not descended, so nothing below it can
/// be included again.
///
/// A pattern's form says where it applies, as in a `.gitignore`:
/// - Without a `/`, except at its end, it is matched with the last component of every path: `*.o`, `target/`.
/// - With a `/` at its start or within, it is matched with the whole path from the scanned directory: `/build`,
///   `src/*.c`.
/// - A `/` at its end lets it match only directories.
/// - `*` and `?` match no `/`; `**` matches any number of components; `[a-z]`, `{a,b}` and `\` work as in a shell.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Vec<Rule>,
    by_name: RuleSet,
    by_path: RuleSet,
    ignore_files: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    include: bool,
    directories_only: bool,
}

/// Globs that are matched together.
#[derive(Clone, Debug, Default)]
struct RuleSet {
    globs: GlobSet,
    /// The rule of each glob: ascending.
    rules: Vec<usize>,
}

/// Collects the rules of a [`Filter`].
#[derive(Clone, Debug, Default)]
pub struct FilterBuilder {
    rules: Vec<(bool, String)>,
    ignore_files: Vec<Vec<u8>>,
}

impl FilterBuilder {
    /// Adds a rule that leaves out what `pattern` matches.
    pub fn exclude(mut self, pattern: &str) -> FilterBuilder {
        self.rules.push((false, pattern.to_owned()));
        self
    }

    /// Adds a rule that takes what `pattern` matches, whatever later rules and ignore files say.
    pub fn include(mut self, pattern: &str) -> FilterBuilder {
        self.rules.push((true, pattern.to_owned()));
        self
    }

    /// Honours the file of this name (`.gitignore`, say) in every directory that has one: a regular file with the
    /// syntax of gitignore(5), whose patterns apply to that directory and below. Of a larger file the first MiB
    /// counts; a line that is no pattern is passed over. Of several names in one directory the one given first
    /// goes before the others.
    pub fn ignore_file(mut self, name: &OsStr) -> FilterBuilder {
        self.ignore_files.push(name.as_bytes().to_owned());
        self
    }

    /// The filter. Errors if a pattern is not a glob.
    pub fn build(self) -> Result<Filter, FilterError> {
        let mut filter = Filter { ignore_files: self.ignore_files, ..Filter::default() };
        let (mut by_name, mut by_path) = (GlobSetBuilder::new(), GlobSetBuilder::new());
        for (include, pattern) in self.rules {
            let error = |source| FilterError { pattern: pattern.clone(), source };
            let trimmed = pattern.strip_suffix('/').unwrap_or(&pattern);
            let relative = trimmed.strip_prefix('/').unwrap_or(trimmed);
            let glob =
                GlobBuilder::new(relative).literal_separator(true).backslash_escape(true).build().map_err(error)?;
            let index = filter.rules.len();
            filter.rules.push(Rule { include, directories_only: trimmed.len() < pattern.len() });
            if trimmed.contains('/') {
                by_path.add(glob);
                filter.by_path.rules.push(index);
            } else {
                by_name.add(glob);
                filter.by_name.rules.push(index);
            }
        }
        let all = |source| FilterError { pattern: "all patterns together".to_owned(), source };
        filter.by_name.globs = by_name.build().map_err(all)?;
        filter.by_path.globs = by_path.build().map_err(all)?;
        Ok(filter)
    }
}

impl Filter {
    /// A filter without rules yet.
    pub fn builder() -> FilterBuilder {
        FilterBuilder::default()
    }

    /// Whether the filter takes everything.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.ignore_files.is_empty()
    }

    /// Names of the ignore files, the one that goes first first.
    pub(super) fn ignore_files(&self) -> &[Vec<u8>] {
        &self.ignore_files
    }

    /// Whether `path`, relative to the scanned directory, is left out. `levels` are the ignore files that apply in
    /// its directory.
    pub(super) fn leaves_out(&self, path: &[u8], directory: bool, levels: Option<&Arc<IgnoreLevel>>) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let by_name = self.by_name.first(name, directory, &self.rules);
        let by_path = self.by_path.first(path, directory, &self.rules);
        let first = [by_name, by_path].into_iter().flatten().min();
        if let Some(rule) = first.and_then(|index| self.rules.get(index)) {
            return !rule.include;
        }
        let mut next = levels;
        while let Some(level) = next {
            let below = path.get(level.prefix..).unwrap_or(path);
            match level.rules.matched(Path::new(OsStr::from_bytes(below)), directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => next = level.above.as_ref(),
            }
        }
        false
    }
}

impl RuleSet {
    /// The first rule that matches `path`.
    fn first(&self, path: &[u8], directory: bool, rules: &[Rule]) -> Option<usize> {
        if self.globs.is_empty() {
            return None;
        }
        let candidate = Candidate::new(OsStr::from_bytes(path));
        let matched = self.globs.matches_candidate(&candidate);
        let indices = matched.into_iter().filter_map(|glob| self.rules.get(glob).copied());
        indices.filter(|index| rules.get(*index).is_some_and(|rule| directory || !rule.directories_only)).min()
    }
}

/// One ignore file, and those above it.
#[derive(Debug)]
pub(super) struct IgnoreLevel {
    above: Option<Arc<IgnoreLevel>>,
    rules: Gitignore,
    /// Length of the path of its directory, with the slash that follows.
    prefix: usize,
}

impl IgnoreLevel {
    /// Reads an ignore file that is in a directory whose path, with a slash behind it, has `prefix` bytes. `above`
    /// comes back if the file cannot be read or says nothing.
    pub(super) fn read(file: OwnedFd, prefix: usize, above: Option<Arc<IgnoreLevel>>) -> Option<Arc<IgnoreLevel>> {
        let mut text = Vec::new();
        let mut file = std::fs::File::from(file).take(IGNORE_FILE_MAX);
        if file.read_to_end(&mut text).is_err() {
            return above;
        }
        let mut builder = GitignoreBuilder::new("");
        for line in text.split(|byte| *byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            // A line that is no glob fails to be added; git passes over it too.
            let _ = builder.add_line(None, &String::from_utf8_lossy(line));
        }
        match builder.build() {
            Ok(rules) if !rules.is_empty() => Some(Arc::new(IgnoreLevel { above, rules, prefix })),
            _ => above,
        }
    }
}

impl Drop for IgnoreLevel {
    /// One level after the other: the chain may be as long as the tree is deep, and the stack is not.
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(mut level) = next.and_then(Arc::into_inner) {
            next = level.above.take();
        }
    }
}
