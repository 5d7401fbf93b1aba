//! [`ProjectFile`]: what a project fixes of its runs, in its file `inarch.toml`.
//!
//! The file gives a guest directories and a network, so it matters who wrote it. Only a file of this user or root is read, as git does with the
//! configuration of a repository (`safe.directory`). A repository that this user has cloned is this user's, though others wrote it. So the caller
//! bounds what a file can do outside of the guest. Options that are not among [`KEYS`] are for the command line alone.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use inarch_lifecycle::shown;
use inarch_lifecycle::trust;
use toml::de::{DeTable, DeValue};

pub use inarch_cache::PROJECT_FILE;
/// A longer file is refused.
const LONGEST: u64 = 64 << 10;
/// The table with the options of `inarch run`.
const TABLE: &str = "run";

/// What a key's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A string, or a number.
    Word,
    /// `true` or `false`.
    Switch,
    /// `true`, `false` or a string.
    SwitchOrWord,
    /// An array of strings.
    List,
    /// A table of strings.
    Variables,
}

/// The keys, in the order in which they are applied.
const KEYS: [(&str, Kind); 22] = [
    ("root", Kind::Word),
    ("read-only", Kind::Switch),
    ("trees", Kind::List),
    ("volumes", Kind::List),
    ("disks", Kind::List),
    ("caches", Kind::List),
    ("via", Kind::Word),
    ("hold", Kind::Switch),
    ("exclude", Kind::List),
    ("include", Kind::List),
    ("ignore-file", Kind::List),
    ("cross", Kind::Switch),
    ("owner", Kind::Word),
    ("environment", Kind::Variables),
    ("workdir", Kind::Word),
    ("user", Kind::Word),
    ("timeout", Kind::Word),
    ("accel", Kind::Word),
    ("cpus", Kind::Word),
    ("memory", Kind::Word),
    ("net", Kind::SwitchOrWord),
    ("publish", Kind::List),
];

/// The file of a project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectFile {
    /// Its path.
    pub path: PathBuf,
    /// What it says.
    pub settings: Vec<Setting>,
}

/// One key of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key.
    pub key: &'static str,
    /// Its line, from 1.
    pub line: usize,
    /// Its value: one, or each of a list; `true` or `false` for a switch; `KEY=VALUE` for a variable.
    pub values: Vec<String>,
}

/// Why a project's file is not read.
#[derive(Debug, thiserror::Error)]
pub enum ProjectFileError {
    /// It cannot be read, or is not trusted.
    #[error("{}: {error} (--no-project does without the file)", shown(path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not TOML, or a value is of the wrong kind.
    #[error("{}:{line}: {reason}", shown(path))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A key is not known.
    #[error("{}:{line}: '{key}' is not an option that a project can fix", shown(path))]
    Unknown {
        /// The file.
        path: PathBuf,
        /// Where.
        line: usize,
        /// The key.
        key: String,
    },
}

impl ProjectFile {
    /// The innermost file at or above `directory`, but none above the innermost directory that has a `.git`.
    ///
    /// # Errors
    /// There is one that cannot be read, is not trusted, or is wrong.
    pub fn find(directory: &Path) -> Result<Option<ProjectFile>, ProjectFileError> {
        for above in directory.ancestors() {
            let path = above.join(PROJECT_FILE);
            if let Some(text) =
                read(&path).map_err(|error| ProjectFileError::Unreadable { path: path.clone(), error })?
            {
                return ProjectFile::parse(path, &text).map(Some);
            }
            if above.join(".git").symlink_metadata().is_ok() {
                break;
            }
        }
        Ok(None)
    }

    /// The keys that a file may have.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        KEYS.iter().map(|(key, _)| *key)
    }

    /// Its directory, from which its paths lead.
    pub fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new("/"))
    }

    /// Parses its text. Any bytes are safe.
    ///
    /// # Errors
    /// It is not TOML, has unknown keys, or values of the wrong kind.
    pub fn parse(path: PathBuf, text: &[u8]) -> Result<ProjectFile, ProjectFileError> {
        let wrong =
            |line, reason: &str| ProjectFileError::Wrong { path: path.clone(), line, reason: reason.to_owned() };
        let text = str::from_utf8(text).map_err(|error| {
            let before = text.get(..error.valid_up_to()).unwrap_or_default();
            wrong(1 + before.iter().filter(|byte| **byte == b'\n').count(), "this is not UTF-8 text")
        })?;
        let line = |at: usize| 1 + text.get(..at).unwrap_or(text).matches('\n').count();
        let document = DeTable::parse(text).map_err(|error| {
            let reason = error.message().replace('\n', ", ");
            wrong(error.span().map_or(1, |span| line(span.start)), &reason)
        })?;
        let mut settings = Vec::new();
        for (name, value) in document.get_ref() {
            let at = line(name.span().start);
            if name.get_ref() != TABLE {
                let is_misplaced = KEYS.iter().any(|(key, _)| key == name.get_ref());
                return Err(match is_misplaced {
                    true => wrong(at, &format!("'{}' belongs into the table [{TABLE}]", name.get_ref())),
                    false => wrong(at, &format!("'{}' is not a table of this file; it has [{TABLE}]", name.get_ref())),
                });
            }
            let Some(table) = value.get_ref().as_table() else {
                return Err(wrong(at, &format!("'{TABLE}' is a table: write [{TABLE}]")));
            };
            for (key, value) in table {
                let at = line(key.span().start);
                let known = KEYS.iter().find(|(known, _)| known == key.get_ref());
                let Some((key, kind)) = known else {
                    return Err(ProjectFileError::Unknown { path, line: at, key: key.get_ref().to_string() });
                };
                let values = values(value.get_ref(), *kind).map_err(|wanted| wrong(at, &format!("{key}: {wanted}")))?;
                settings.push(Setting { key, line: at, values });
            }
        }
        let place = |setting: &Setting| KEYS.iter().position(|(key, _)| *key == setting.key);
        settings.sort_by_key(place);
        Ok(ProjectFile { path, settings })
    }
}

/// The values of a key; what is wanted instead, if they are of another kind.
fn values(value: &DeValue<'_>, kind: Kind) -> Result<Vec<String>, &'static str> {
    let one = |text: String| Ok(vec![text]);
    match (kind, value) {
        (Kind::Word | Kind::SwitchOrWord, DeValue::String(text)) => one(text.to_string()),
        // In the way in which it was written, in decimal.
        (Kind::Word, DeValue::Integer(number)) if number.radix() == 10 => one(number.as_str().replace('_', "")),
        (Kind::Switch | Kind::SwitchOrWord, DeValue::Boolean(is_on)) => one(is_on.to_string()),
        (Kind::List, DeValue::Array(list)) => {
            let strings = list.iter().map(|each| each.get_ref().as_str().map(str::to_owned));
            strings.collect::<Option<_>>().ok_or("a list of strings is wanted")
        }
        (Kind::Variables, DeValue::Table(table)) => {
            let variable = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
                let name: &std::borrow::Cow<'_, str> = name.get_ref();
                if name.is_empty() || name.contains(['=', '\0']) {
                    return Err("a variable's name has no '='");
                }
                let value = value.get_ref().as_str().ok_or("a variable's value is a string")?;
                Ok(format!("{name}={value}"))
            };
            table.iter().map(variable).collect()
        }
        (Kind::Word, _) => Err("a string is wanted"),
        (Kind::Switch, _) => Err("true or false is wanted"),
        (Kind::SwitchOrWord, _) => Err("true, false or a string is wanted"),
        (Kind::List, _) => Err("a list of strings is wanted"),
        (Kind::Variables, _) => Err("a table is wanted: { KEY = \"value\" }"),
    }
}

/// The file's bytes; `None` if there is none.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = trust::open_given(path)? else { return Ok(None) };
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LONGEST {
        return Err(io::Error::other(format!("it is longer than {} KiB", LONGEST >> 10)));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<ProjectFile, String> {
        ProjectFile::parse("/p/inarch.toml".into(), text.as_bytes()).map_err(|error| error.to_string())
    }

    #[test]
    fn every_kind_of_value_is_read() {
        let text = "# comment\n[run]\nmemory = \"4G\"\ncpus = 1_0\ncaches = [\"maven\",\n  'npm,ro']\nnet = true\nenvironment = { B = \"2\", A = \"x y\" }\n";
        let file = parse(text).unwrap();
        let settings: Vec<_> = file.settings.iter().map(|s| (s.key, s.line, s.values.join("|"))).collect();
        assert_eq!(
            settings,
            [
                ("caches", 5, "maven|npm,ro".to_owned()),
                ("environment", 8, "A=x y|B=2".to_owned()),
                ("cpus", 4, "10".to_owned()),
                ("memory", 3, "4G".to_owned()),
                ("net", 7, "true".to_owned())
            ]
        );
        assert_eq!(parse("").unwrap().settings, []);
        let variables = parse("[run.environment]\nX = \"1\"\n").unwrap();
        assert_eq!(variables.settings[0].values, ["X=1"]);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, parts) in [
            ("[run]\nnet = true\nmemroy = \"1G\"\n", &["inarch.toml:3:", "'memroy'"][..]),
            ("memory = \"1G\"\n", &[":1:", "[run]"]),
            ("[run]\n[build]\n", &[":2:", "'build'"]),
            ("run = 1\n", &[":1:", "[run]"]),
            ("[run]\n\nmemory = true\n", &[":3:", "memory: a string"]),
            ("[run]\ncaches = \"maven\"\n", &[":2:", "a list of strings"]),
            ("[run]\ncaches = [1]\n", &[":2:", "a list of strings"]),
            ("[run]\nread-only = \"yes\"\n", &[":2:", "true or false"]),
            ("[run]\nenvironment = [\"A=1\"]\n", &[":2:", "{ KEY"]),
            ("[run]\nenvironment = { A = 1 }\n", &[":2:", "is a string"]),
            ("[run]\nmemory = \n", &[":2:"]),
            ("[run]\ncpus = 1\ncpus = 2\n", &[":3:", "duplicate"]),
            ("[run]\nkernel = \"/x\"\n", &[":2:", "'kernel'"]),
        ] {
            let line = parse(text).unwrap_err();
            assert!(parts.iter().all(|part| line.contains(part)), "{text:?}: {line}");
            assert_eq!(line.lines().count(), 1, "{line}");
        }
        assert!(ProjectFile::parse("x".into(), b"[run]\n\xff").unwrap_err().to_string().contains("x:2:"));
    }

    #[test]
    fn the_innermost_file_of_the_project_is_read() {
        let top = tempfile::tempdir().unwrap();
        let at = |path: &str| top.path().canonicalize().unwrap().join(path);
        fs::create_dir_all(at("p/a/b")).unwrap();
        fs::create_dir_all(at("p/git/.git")).unwrap();
        fs::create_dir_all(at("p/git/x")).unwrap();
        let found = |path: &str| ProjectFile::find(&at(path)).unwrap().map(|file| file.path);
        assert_eq!(found("p/a/b"), None);
        fs::write(at("p/inarch.toml"), "").unwrap();
        assert_eq!(found("p/a/b"), Some(at("p/inarch.toml")));
        // Not above a repository.
        assert_eq!(found("p/git/x"), None);
        fs::write(at("p/git/inarch.toml"), "").unwrap();
        fs::write(at("p/a/inarch.toml"), "").unwrap();
        assert_eq!(found("p/git/x"), Some(at("p/git/inarch.toml")));
        assert_eq!(found("p/a/b"), Some(at("p/a/inarch.toml")));
    }

    #[test]
    fn a_file_that_another_user_could_write_is_refused() {
        use std::os::unix::fs::{PermissionsExt, chown, symlink};
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join(PROJECT_FILE);
        let refused = |part: &str| {
            let line = ProjectFile::find(top.path()).unwrap_err().to_string();
            assert!(line.contains(part) && line.contains("--no-project"), "{line}");
        };
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o646)).unwrap();
        refused("other users may write to it");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::hard_link(&path, top.path().join("other")).unwrap();
        refused("another name");
        fs::remove_file(top.path().join("other")).unwrap();
        if rustix::process::geteuid().is_root() {
            chown(&path, None, Some(4242)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
            refused("group 4242");
            chown(&path, Some(4242), None).unwrap();
            refused("user 4242");
        }
        fs::remove_file(&path).unwrap();
        symlink("elsewhere", &path).unwrap();
        refused("symbolic link");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        refused("no regular file");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, " ".repeat(LONGEST as usize + 1)).unwrap();
        refused("longer than 64 KiB");
    }

    proptest! {
        #[test]
        fn any_bytes_are_safe(bytes in proptest::collection::vec(any::<u8>(), 0..300), text in "[\\[\\]a-z=\"{}',.\n 0-9#-]{0,200}") {
            let _ = ProjectFile::parse("x".into(), &bytes);
            let _ = ProjectFile::parse("x".into(), format!("[run]\n{text}").as_bytes());
        }
    }
}
