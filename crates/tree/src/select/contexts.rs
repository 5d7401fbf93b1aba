//! Assigns SELinux security contexts by path, from a policy's `file_contexts`.

use std::collections::HashMap;

use regex::bytes::{Regex, RegexBuilder};

use crate::FileType;

/// The extended attribute that holds an inode's context (`XATTR_NAME_SELINUX` of `include/uapi/linux/xattr.h`).
pub(super) const LABEL: &[u8] = b"security.selinux";

/// The context of a rule that leaves a file's label unchanged.
const NONE: &str = "<<none>>";

/// What is wrong with a `file_contexts` file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub struct ContextsError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// The rules of a `file_contexts` file (selabel_file(5)): a regular expression for a whole path, an optional file type,
/// and a context.
///
/// As in libselinux the last rule that matches decides, and rules that are plain paths are tried before all others.
#[derive(Debug, Default)]
pub struct FileContexts {
    /// In the order in which they are tried.
    rules: Vec<Rule>,
    /// Rules whose first component is plain, by this component: ascending indices.
    by_component: HashMap<Vec<u8>, Vec<u32>>,
    /// All other rules: ascending indices.
    others: Vec<u32>,
}

#[derive(Debug)]
struct Rule {
    matcher: Matcher,
    file_type: Option<FileType>,
    /// `None` for `<<none>>`.
    context: Option<String>,
}

#[derive(Debug)]
enum Matcher {
    Path(Vec<u8>),
    Regex(Regex),
}

impl FileContexts {
    /// Parses a file's text.
    pub fn parse(text: &str) -> Result<FileContexts, ContextsError> {
        let mut rules = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let fail = |reason: String| ContextsError { line: index + 1, reason };
            let words: Vec<&str> = line.split_whitespace().collect();
            let (pattern, file_type, context) = match &words[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [pattern, context] => (pattern, None, context),
                [pattern, file_type, context] => (pattern, Some(parse_type(file_type).map_err(fail)?), context),
                _ => return Err(fail("not a regular expression, maybe a file type, and a context".to_owned())),
            };
            let matcher = Matcher::new(pattern).map_err(fail)?;
            let context = (*context != NONE).then(|| (*context).to_owned());
            rules.push((first_component(pattern), Rule { matcher, file_type, context }));
        }
        // Tried from the first on: plain paths, then expressions, each with the file's last rule first.
        rules.reverse();
        rules.sort_by_key(|(_, rule)| matches!(rule.matcher, Matcher::Regex(_)));
        let mut contexts = FileContexts::default();
        for (index, (component, rule)) in rules.into_iter().enumerate() {
            match component {
                Some(component) => contexts.by_component.entry(component).or_default().push(index as u32),
                None => contexts.others.push(index as u32),
            }
            contexts.rules.push(rule);
        }
        Ok(contexts)
    }

    /// The rule that labels the inode of this type at `path` (from the root, without a leading slash); `None` if it
    /// keeps its label.
    pub(super) fn lookup(&self, path: &[u8], file_type: FileType) -> Option<u32> {
        let absolute = [b"/", path].concat();
        let component = path.split(|byte| *byte == b'/').next().unwrap_or_default();
        let of_component = self.by_component.get(component).map_or(&[][..], |rules| rules);
        let matches = |index: &&u32| {
            let rule = self.rules.get(**index as usize);
            rule.is_some_and(|rule| {
                rule.file_type.is_none_or(|wanted| wanted == file_type) && rule.matcher.matches(&absolute)
            })
        };
        let found = [of_component, &self.others].map(|rules| rules.iter().find(matches));
        let index = found.into_iter().flatten().min().copied()?;
        self.rules.get(index as usize)?.context.as_ref().map(|_| index)
    }

    /// The attribute's value that a rule gives: the context plus a NUL, as setfiles(8) writes it.
    pub(super) fn value(&self, rule: u32) -> Option<Box<[u8]>> {
        let context = self.rules.get(rule as usize)?.context.as_ref()?;
        Some([context.as_bytes(), b"\0"].concat().into())
    }
}

impl Matcher {
    fn new(pattern: &str) -> Result<Matcher, String> {
        if let Some(path) = plain(pattern) {
            return Ok(Matcher::Path(path));
        }
        // As libselinux does: matches the whole path, by bytes, and a dot matches any byte.
        let whole = RegexBuilder::new(&format!("^(?:{pattern})$")).unicode(false).dot_matches_new_line(true).build();
        whole.map(Matcher::Regex).map_err(|error| {
            let text = error.to_string();
            let reason = text.lines().last().unwrap_or_default().trim_start_matches("error:").trim();
            format!("{pattern:?} is not a regular expression: {reason}")
        })
    }

    fn matches(&self, path: &[u8]) -> bool {
        match self {
            Matcher::Path(plain) => plain == path,
            Matcher::Regex(regex) => regex.is_match(path),
        }
    }
}

/// The text that a pattern without operators stands for; `None` if it has operators.
fn plain(pattern: &str) -> Option<Vec<u8>> {
    let mut path = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'.' | b'^' | b'$' | b'?' | b'*' | b'+' | b'|' | b'[' | b'(' | b'{' => return None,
            // A backslash before a letter or a digit is an operator too.
            b'\\' => path.push(bytes.next().filter(|next| !next.is_ascii_alphanumeric())?),
            byte => path.push(byte),
        }
    }
    Some(path)
}

/// The first component of every path that a pattern matches, if it is known. Most rules of a policy have one, and need
/// not be tried on other paths.
fn first_component(pattern: &str) -> Option<Vec<u8>> {
    if pattern.contains('|') && has_outer_alternative(pattern) {
        return None;
    }
    let rest = pattern.strip_suffix("(/.*)?").unwrap_or(pattern).strip_prefix('/')?;
    let (component, below) = rest.split_once('/').unwrap_or((rest, ""));
    // The slash may be optional or repeated.
    if below.starts_with(['?', '*', '+', '{']) { None } else { plain(component) }
}

/// Whether an alternative may be outside of every group. May say yes for a pattern with bracket expressions.
fn has_outer_alternative(pattern: &str) -> bool {
    let mut depth = 0;
    let mut bytes = pattern.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'(' => depth += 1,
            b')' => depth -= 1,
            b'|' if depth == 0 => return true,
            b'[' => return true,
            _ => {}
        }
    }
    false
}

/// A file type as in the mode of `ls -l`; `--` is a regular file.
fn parse_type(text: &str) -> Result<FileType, String> {
    Ok(match text {
        "--" => FileType::Regular,
        "-d" => FileType::Directory,
        "-l" => FileType::Symlink,
        "-c" => FileType::CharDevice,
        "-b" => FileType::BlockDevice,
        "-p" => FileType::Fifo,
        "-s" => FileType::Socket,
        other => return Err(format!("{other:?} is not a file type; --, -d, -l, -c, -b, -p and -s are")),
    })
}
