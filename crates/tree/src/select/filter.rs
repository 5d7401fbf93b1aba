//! [`Filter`]: decides which names are included, by the user's patterns and by gitignore-style files in the tree.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use globset::{Candidate, Glob, GlobBuilder, GlobSet, GlobSetBuilder};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use regex::bytes::{RegexBuilder, RegexSet};

/// The most bytes that are read of an ignore file.
pub(crate) const IGNORE_FILE_MAX: u64 = 1 << 20;

/// Why a pattern is invalid.
#[derive(Debug, thiserror::Error)]
pub enum FilterError {
    /// It is not a glob.
    #[error("the pattern {pattern:?} is not a glob: {source}")]
    Glob {
        /// As it was given.
        pattern: String,
        /// What is wrong with it.
        source: globset::Error,
    },
    /// It is not a regular expression.
    #[error("the pattern {pattern:?} is not a regular expression: {reason}")]
    Regex {
        /// As it was given.
        pattern: String,
        /// What is wrong with it, in one line.
        reason: String,
    },
}

/// Decides which names are included in the tree; by default all.
///
/// Rules are tried in the order in which they were given and **the first one that matches decides**, as with rsync. If
/// none matches, the lists decide, in the order given; then the ignore files, the deepest first. Within a list or an
/// ignore file the last matching line decides, as with git. A name that nothing matches is included. An excluded
/// directory is not descended, so nothing below it can be included again.
///
/// A pattern's form decides where it applies, as in a `.gitignore`:
/// - Without a `/`, except at its end, it is matched against the last component of every path: `*.o`, `target/`.
/// - With a `/` at its start or within, it is matched against the whole path from the scanned directory: `/build`,
///   `src/*.c`.
/// - With a `/` at its end it matches only directories.
/// - `*` and `?` match no `/`; `**` matches any number of components; `[a-z]`, `{a,b}` and `\` work as in a shell.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    rules: Vec<Rule>,
    by_name: RuleSet,
    by_path: RuleSet,
    by_regex: RegexRules,
    lists: Vec<Gitignore>,
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

/// Regular expressions that are matched together.
#[derive(Clone, Debug, Default)]
struct RegexRules {
    expressions: RegexSet,
    /// The rule of each expression: ascending.
    rules: Vec<usize>,
}

/// Collects the rules of a [`Filter`].
#[derive(Clone, Debug, Default)]
pub struct FilterBuilder {
    rules: Vec<(Pattern, bool)>,
    lists: Vec<Gitignore>,
    ignore_files: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Pattern {
    Glob(String),
    Regex(String),
}

impl FilterBuilder {
    /// Adds a rule that excludes what `pattern` matches.
    pub fn exclude(mut self, pattern: &str) -> FilterBuilder {
        self.rules.push((Pattern::Glob(pattern.to_owned()), false));
        self
    }

    /// Adds a rule that excludes every path in which the regular expression `pattern` is found; the path counts from
    /// the tree's root, without a leading slash. Syntax: that of the `regex` crate, which is Perl's without look-around
    /// and back-references; `^` and `$` anchor.
    pub fn exclude_regex(mut self, pattern: &str) -> FilterBuilder {
        self.rules.push((Pattern::Regex(pattern.to_owned()), false));
        self
    }

    /// Adds a list of patterns with the syntax of gitignore(5), anchored at the tree's root. Invalid lines are skipped.
    pub fn exclude_list(mut self, text: &[u8]) -> FilterBuilder {
        self.lists.extend(gitignore(text));
        self
    }

    /// Adds a rule that includes what `pattern` matches, whatever later rules and ignore files say.
    pub fn include(mut self, pattern: &str) -> FilterBuilder {
        self.rules.push((Pattern::Glob(pattern.to_owned()), true));
        self
    }

    /// Applies the file of this name (such as `.gitignore`) in every directory that has one: a regular file with the
    /// syntax of gitignore(5), whose patterns apply to that directory and below. Only the first MiB is read; invalid
    /// lines are skipped. If a directory has several such files, the name given first takes precedence.
    pub fn ignore_file(mut self, name: &OsStr) -> FilterBuilder {
        self.ignore_files.push(name.as_bytes().to_owned());
        self
    }

    /// The filter. Errors if a pattern is not a glob, or not a regular expression.
    pub fn build(self) -> Result<Filter, FilterError> {
        let mut filter = Filter { lists: self.lists, ignore_files: self.ignore_files, ..Filter::default() };
        let (mut by_name, mut by_path, mut expressions) = (GlobSetBuilder::new(), GlobSetBuilder::new(), Vec::new());
        for (index, (pattern, include)) in self.rules.into_iter().enumerate() {
            let mut directories_only = false;
            match pattern {
                Pattern::Regex(pattern) => {
                    // Compiled alone first, so that an error names the pattern.
                    RegexBuilder::new(&pattern).build().map_err(|error| regex_error(&pattern, &error))?;
                    expressions.push(pattern);
                    filter.by_regex.rules.push(index);
                }
                Pattern::Glob(pattern) => {
                    let trimmed = pattern.strip_suffix('/').unwrap_or(&pattern);
                    directories_only = trimmed.len() < pattern.len();
                    let glob = glob(trimmed.strip_prefix('/').unwrap_or(trimmed), &pattern)?;
                    let (set, rules) = match trimmed.contains('/') {
                        true => (&mut by_path, &mut filter.by_path.rules),
                        false => (&mut by_name, &mut filter.by_name.rules),
                    };
                    set.add(glob);
                    rules.push(index);
                }
            }
            filter.rules.push(Rule { include, directories_only });
        }
        let all = "all patterns together";
        let globs =
            |set: GlobSetBuilder| set.build().map_err(|source| FilterError::Glob { pattern: all.to_owned(), source });
        filter.by_name.globs = globs(by_name)?;
        filter.by_path.globs = globs(by_path)?;
        filter.by_regex.expressions = RegexSet::new(expressions).map_err(|error| regex_error(all, &error))?;
        Ok(filter)
    }
}

fn glob(relative: &str, pattern: &str) -> Result<Glob, FilterError> {
    let glob = GlobBuilder::new(relative).literal_separator(true).backslash_escape(true).build();
    glob.map_err(|source| FilterError::Glob { pattern: pattern.to_owned(), source })
}

fn regex_error(pattern: &str, error: &regex::Error) -> FilterError {
    // The error's text shows the pattern over several lines; the last line has the reason.
    let text = error.to_string();
    let reason = text.lines().last().unwrap_or_default().trim_start_matches("error:").trim().to_owned();
    FilterError::Regex { pattern: pattern.to_owned(), reason }
}

/// The rules of a text with the syntax of gitignore(5); `None` if it has none.
fn gitignore(text: &[u8]) -> Option<Gitignore> {
    let mut builder = GitignoreBuilder::new("");
    for line in text.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // An invalid line is not added; git skips it too.
        let _ = builder.add_line(None, &String::from_utf8_lossy(line));
    }
    builder.build().ok().filter(|rules| !rules.is_empty())
}

impl Filter {
    /// A filter without rules.
    pub fn builder() -> FilterBuilder {
        FilterBuilder::default()
    }

    /// Whether the filter includes everything.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.lists.is_empty() && self.ignore_files.is_empty()
    }

    /// Names of the ignore files, in order of precedence.
    pub(crate) fn ignore_files(&self) -> &[Vec<u8>] {
        &self.ignore_files
    }

    /// Whether `path`, relative to the scanned directory, is excluded. `levels` are the ignore files that apply in its
    /// directory.
    pub(crate) fn leaves_out(&self, path: &[u8], directory: bool, levels: Option<&Arc<IgnoreLevel>>) -> bool {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let by_name = self.by_name.first(name, directory, &self.rules);
        let by_path = self.by_path.first(path, directory, &self.rules);
        let by_regex = self.by_regex.first(path);
        let first = [by_name, by_path, by_regex].into_iter().flatten().min();
        if let Some(rule) = first.and_then(|index| self.rules.get(index)) {
            return !rule.include;
        }
        for list in &self.lists {
            match list.matched(Path::new(OsStr::from_bytes(path)), directory) {
                Match::Ignore(_) => return true,
                Match::Whitelist(_) => return false,
                Match::None => {}
            }
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

impl RegexRules {
    /// The first rule that matches `path`.
    fn first(&self, path: &[u8]) -> Option<usize> {
        let matched = self.expressions.matches(path);
        matched.iter().next().and_then(|expression| self.rules.get(expression).copied())
    }
}

/// One ignore file, and those of the directories above.
#[derive(Debug)]
pub(crate) struct IgnoreLevel {
    above: Option<Arc<IgnoreLevel>>,
    rules: Gitignore,
    /// Length of its directory's path, including the slash that follows.
    prefix: usize,
}

impl IgnoreLevel {
    /// The level of an ignore file that contains `text`. Its directory's path, including a slash at the end, has
    /// `prefix` bytes. Returns `above` if the file has no rules.
    pub(crate) fn new(text: &[u8], prefix: usize, above: Option<Arc<IgnoreLevel>>) -> Option<Arc<IgnoreLevel>> {
        match gitignore(text) {
            Some(rules) => Some(Arc::new(IgnoreLevel { above, rules, prefix })),
            None => above,
        }
    }
}

impl Drop for IgnoreLevel {
    /// Frees one level after the other: the chain may be as long as the tree is deep, and recursion would overflow the
    /// stack.
    fn drop(&mut self) {
        let mut next = self.above.take();
        while let Some(mut level) = next.and_then(Arc::into_inner) {
            next = level.above.take();
        }
    }
}
