//! Chooses which files of a run's trees are held: those of the project of the working directory.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inarch_source::Source;
use inarch_tree::select::Filter;

use super::holding::Held;
use super::trees::Trees;

impl Trees {
    /// Holds the project that contains the guest's `directory`, if it is on one of the disks.
    pub fn hold_project(&mut self, directory: &Path) {
        let others = self.shares.iter().map(|shared| &shared.destination);
        let others = others.chain(self.unpacked.iter().map(|tree| &tree.destination));
        let depth = |destination: &Path| directory.starts_with(destination).then(|| destination.components().count());
        let covered = others.filter_map(|destination| depth(destination)).max();
        let disks = self.disks.iter_mut().filter_map(|disk| Some((depth(disk.destination.as_deref()?)?, disk)));
        let Some((_, disk)) = disks.max_by_key(|(depth, _)| *depth).filter(|(depth, _)| Some(*depth) > covered) else {
            return;
        };
        let (Source::Directory(source), None, Some(destination)) = (&disk.recipe.source, &disk.hold, &disk.destination)
        else {
            return;
        };
        let home = std::env::home_dir().and_then(|home| home.canonicalize().ok());
        let (Ok(source), Ok(within)) = (source.canonicalize(), directory.strip_prefix(destination)) else { return };
        let below = source.join(within).canonicalize().ok().and_then(|here| part(&source, &here, home.as_deref()));
        // Build output is large, and nobody edits it.
        let filter = Filter::builder().ignore_file(".gitignore".as_ref()).build();
        disk.hold = below.zip(filter.ok()).map(|(below, filter)| Held { below, filter });
    }
}

/// The part of the tree at `source` that belongs to the project of `here`, a directory in it: a path from the tree's
/// root.
fn part(source: &Path, here: &Path, home: Option<&Path>) -> Option<Vec<u8>> {
    let project = project(here, home).filter(|_| here.starts_with(source))?;
    // The tree may be a part of the project.
    let below = project.strip_prefix(source).unwrap_or(Path::new(""));
    Some(below.as_os_str().as_bytes().to_owned())
}

/// The nearest directory from `here` upwards that git manages, else `here` itself. Never `/`, a home directory, or a
/// directory above one: they contain more than a project.
fn project(here: &Path, home: Option<&Path>) -> Option<PathBuf> {
    let is_narrow = |path: &&Path| path.parent().is_some() && !home.is_some_and(|home| home.starts_with(path));
    // In a worktree or a submodule, `.git` is a file.
    let is_managed = |path: &&Path| path.join(".git").symlink_metadata().is_ok();
    let managed = here.ancestors().find(is_managed).filter(is_narrow);
    managed.or(Some(here).filter(is_narrow)).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_project_is_what_git_manages_or_the_directory_itself() {
        let top = tempfile::tempdir().unwrap();
        let at = |path: &str| top.path().join(path);
        std::fs::create_dir_all(at("home/project/src/deep")).unwrap();
        std::fs::create_dir_all(at("home/plain/sub")).unwrap();
        std::fs::create_dir_all(at("home/project/worktree/x")).unwrap();
        std::fs::create_dir(at("home/project/.git")).unwrap();
        std::fs::write(at("home/project/worktree/.git"), "gitdir: elsewhere").unwrap();
        let home = at("home");
        let project = |path: &str| project(&at(path), Some(&home));
        assert_eq!(project("home/project/src/deep"), Some(at("home/project")));
        assert_eq!(project("home/project"), Some(at("home/project")));
        assert_eq!(project("home/project/worktree/x"), Some(at("home/project/worktree")));
        assert_eq!(project("home/plain/sub"), Some(at("home/plain/sub")));
        assert_eq!((project("home"), project("")), (None, None));
        assert_eq!(super::project(Path::new("/"), None), None);
        // A home directory that git manages is not a project, and does not make its content one.
        std::fs::create_dir(at("home/.git")).unwrap();
        assert_eq!(project("home/plain/sub"), Some(at("home/plain/sub")));
        assert_eq!((project("home"), project("")), (None, None));
    }

    #[test]
    fn the_part_of_a_tree_that_is_of_the_project() {
        let top = tempfile::tempdir().unwrap();
        let at = |path: &str| top.path().join(path);
        std::fs::create_dir_all(at("project/src")).unwrap();
        std::fs::create_dir(at("project/.git")).unwrap();
        assert_eq!(part(top.path(), &at("project/src"), None), Some(b"project".to_vec()));
        assert_eq!(part(&at("project"), &at("project/src"), None), Some(Vec::new()));
        assert_eq!(part(&at("project/src"), &at("project/src"), None), Some(Vec::new()));
        // Through a symlink it is in no part of the tree.
        assert_eq!(part(&at("other"), &at("project/src"), None), None);
    }
}
