//! [`Branches`]: the branch that a git repository is on, and its default branch, read from its own files.
//!
//! No git is run: its configuration could name programs. gitrepository-layout(5) describes the files.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::CacheError;

/// The most bytes of a file that is read, except `packed-refs`.
const LONGEST: u64 = 4 << 10;
const LONGEST_PACKED: u64 = 16 << 20;
const LONGEST_NAME: usize = 250;

/// What is known of a repository's branches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Branches {
    /// The one that is checked out.
    pub current: Option<String>,
    /// The one that others begin from: that of `origin`, else `main`, else `master`; `None` if there is none of these.
    pub default: Option<String>,
}

impl Branches {
    /// Those of the repository whose work tree `project` is.
    ///
    /// # Errors
    /// It is no repository.
    pub fn of(project: &Path) -> Result<Branches, CacheError> {
        let git = git_directory(project).ok_or_else(|| no(project, "there is no git repository"))?;
        let head = read(&git.join("HEAD"), LONGEST);
        let current = head.as_deref().and_then(|head| branch(head, "refs/heads/"));
        // A linked work tree has a HEAD of its own, and the repository's references.
        let common =
            read(&git.join("commondir"), LONGEST).map_or_else(|| git.clone(), |path| git.join(path.trim_end()));
        let of_origin = read(&common.join("refs/remotes/origin/HEAD"), LONGEST);
        let of_origin = of_origin.as_deref().and_then(|head| branch(head, "refs/remotes/origin/"));
        let packed = || read(&common.join("packed-refs"), LONGEST_PACKED).unwrap_or_default();
        let is_there = |name: &str| {
            let end = format!(" refs/heads/{name}");
            common.join("refs/heads").join(name).is_file() || packed().lines().any(|line| line.ends_with(&end))
        };
        let usual = || ["main", "master"].into_iter().find(|name| is_there(name)).map(str::to_owned);
        Ok(Branches { current, default: of_origin.or_else(usual) })
    }

    /// The branch that is checked out.
    ///
    /// # Errors
    /// There is none.
    pub fn current(&self, project: &Path) -> Result<String, CacheError> {
        self.current.clone().ok_or_else(|| no(project, "no branch is checked out; name one: scope=branch:NAME"))
    }
}

/// Whether a text can be a branch's name here.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= LONGEST_NAME && !name.starts_with('.') && !name.chars().any(char::is_control)
}

fn no(project: &Path, reason: &'static str) -> CacheError {
    CacheError::Branch { project: project.to_owned(), reason }
}

/// The directory of a work tree's repository.
fn git_directory(project: &Path) -> Option<PathBuf> {
    let git = project.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    let text = read(&git, LONGEST)?;
    Some(project.join(text.strip_prefix("gitdir:")?.trim()))
}

/// The branch of a symbolic reference.
fn branch(text: &str, below: &str) -> Option<String> {
    let name = text.strip_prefix("ref:")?.trim().strip_prefix(below)?;
    is_name(name).then(|| name.to_owned())
}

fn read(path: &Path, longest: u64) -> Option<String> {
    let mut text = String::new();
    // A FIFO in its place would block for ever.
    let file = OpenOptions::new().read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed()).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let read = file.take(longest).read_to_string(&mut text);
    read.is_ok().then_some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_branch_and_the_default_one_are_found() {
        let top = tempfile::tempdir().unwrap();
        let at = |path: &str| top.path().join(path);
        assert!(Branches::of(&at("p")).unwrap_err().to_string().contains("no git repository"));
        for directory in ["p/.git/refs/heads", "p/.git/refs/remotes/origin", "p/.git/worktrees/w", "w"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        fs::write(at("p/.git/HEAD"), "ref: refs/heads/topic/one\n").unwrap();
        let of = |path: &str| Branches::of(&at(path)).map(|found| (found.current, found.default)).unwrap();
        let one = Some("topic/one".to_owned());
        assert_eq!(of("p"), (one.clone(), None));
        fs::write(at("p/.git/packed-refs"), "# pack-refs\n0123 refs/heads/master\n").unwrap();
        assert_eq!(of("p"), (one.clone(), Some("master".to_owned())));
        fs::write(at("p/.git/refs/heads/main"), "0123\n").unwrap();
        assert_eq!(of("p"), (one.clone(), Some("main".to_owned())));
        fs::write(at("p/.git/refs/remotes/origin/HEAD"), "ref: refs/remotes/origin/trunk\n").unwrap();
        assert_eq!(of("p"), (one, Some("trunk".to_owned())));
        // A linked work tree.
        fs::write(at("w/.git"), format!("gitdir: {}\n", at("p/.git/worktrees/w").display())).unwrap();
        fs::write(at("p/.git/worktrees/w/HEAD"), "ref: refs/heads/two\n").unwrap();
        fs::write(at("p/.git/worktrees/w/commondir"), "../..\n").unwrap();
        assert_eq!(of("w"), (Some("two".to_owned()), Some("trunk".to_owned())));
        // What would block.
        fs::create_dir_all(at("q/.git")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("q/.git/HEAD"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(of("q"), (None, None));
        // No branch.
        for head in ["0123456789\n", "ref: refs/heads/.invalid\n", "ref: refs/heads/\n", "ref: refs/heads/a\u{7}\n", ""]
        {
            fs::write(at("p/.git/HEAD"), head).unwrap();
            let found = Branches::of(&at("p")).unwrap();
            assert!(found.current(&at("p")).unwrap_err().to_string().contains("scope=branch:NAME"), "{head}");
        }
    }
}
