//! Finds inputs that a command reads but does not need, by bisection, as delta debugging does.
//!
//! The files are sorted, so that those of a directory are together. A part of them is taken away, and the command is run: if it makes the
//! same, the whole part is surplus. Otherwise both halves of the part are tried. Surplus files stay hidden, so that all of them can be
//! missing at once.

use std::path::{Path, PathBuf};

/// Which inputs are surplus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Minimised {
    /// Files that the command did not need: without all of them it made the same.
    pub surplus: Vec<PathBuf>,
    /// The number of files that the command used.
    pub files: usize,
    /// The number of runs.
    pub runs: u32,
    /// Whether the search finished: every other file is needed. It did not if it was stopped or ran out of runs.
    pub is_whole: bool,
}

/// Searches, in at most `most_runs` runs. `works_without` says whether the command makes the same without these files; `None` ends the
/// search.
pub(super) fn minimise<E>(
    files: &[&Path],
    most_runs: u32,
    works_without: impl FnMut(&[&Path]) -> Result<Option<bool>, E>,
) -> Result<Minimised, E> {
    let mut search = Search { most_runs, works_without, away: Vec::new(), runs: 0, is_over: false };
    search.reduce(files, false)?;
    let Search { mut away, runs, is_over, .. } = search;
    away.sort_unstable();
    let surplus = away.into_iter().map(Path::to_owned).collect();
    Ok(Minimised { surplus, files: files.len(), runs, is_whole: !is_over })
}

struct Search<'p, F> {
    most_runs: u32,
    works_without: F,
    /// What was found surplus.
    away: Vec<&'p Path>,
    runs: u32,
    is_over: bool,
}

impl<'p, F> Search<'p, F> {
    /// Takes away what can be missing of `part`; returns whether all of it can. If it is `needed` as a whole, that is not tried.
    fn reduce<E>(&mut self, part: &[&'p Path], needed: bool) -> Result<bool, E>
    where
        F: FnMut(&[&Path]) -> Result<Option<bool>, E>,
    {
        if part.is_empty() || !needed && self.works_without(part)? {
            self.away.extend(part);
            return Ok(true);
        }
        if part.len() == 1 || self.is_over {
            return Ok(false);
        }
        let (left, right) = part.split_at(part.len() / 2);
        let has_left = !self.reduce(left, false)?;
        // Without the left half it is the whole part that would be missing.
        self.reduce(right, !has_left)?;
        Ok(false)
    }

    fn works_without<E>(&mut self, part: &[&'p Path]) -> Result<bool, E>
    where
        F: FnMut(&[&Path]) -> Result<Option<bool>, E>,
    {
        if self.is_over || self.runs == self.most_runs {
            self.is_over = true;
            return Ok(false);
        }
        self.runs += 1;
        let away: Vec<&Path> = self.away.iter().chain(part).copied().collect();
        let works = (self.works_without)(&away)?;
        self.is_over = works.is_none();
        Ok(works == Some(true))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// The search for the files that `needs` names among `a` to `z`.
    fn search(needs: &str, most_runs: u32) -> (String, u32, bool) {
        let names: Vec<String> = ('a'..='z').map(String::from).collect();
        let files: Vec<&Path> = names.iter().map(Path::new).collect();
        let works = |away: &[&Path]| {
            let is_needed = |path: &&Path| needs.contains(path.to_str().unwrap());
            Ok::<_, Infallible>(Some(!away.iter().any(is_needed)))
        };
        let Ok(found) = minimise(&files, most_runs, works);
        assert_eq!(found.files, 26);
        let surplus = found.surplus.iter().map(|path| path.to_str().unwrap()).collect();
        (surplus, found.runs, found.is_whole)
    }

    #[test]
    fn what_is_not_needed_is_surplus() {
        let all: String = ('a'..='z').collect();
        assert_eq!(search("", 100), (all.clone(), 1, true));
        let (surplus, runs, is_whole) = search("cx", 100);
        assert_eq!((surplus.as_str(), is_whole), ("abdefghijklmnopqrstuvwyz", true));
        assert!(runs < 20, "{runs}");
        let (surplus, runs, is_whole) = search(&all, 100);
        assert_eq!((surplus.as_str(), is_whole), ("", true));
        assert!(runs < 2 * 26, "{runs}");
    }

    #[test]
    fn one_of_two_that_stand_in_for_each_other_stays() {
        let files = ["a", "b", "c"].map(Path::new);
        let works = |away: &[&Path]| Ok::<_, Infallible>(Some(!(away.contains(&files[0]) && away.contains(&files[2]))));
        let Ok(found) = minimise(&files, 100, works);
        assert_eq!(found.surplus, ["a", "b"].map(PathBuf::from));
    }

    #[test]
    fn a_search_that_ends_early_says_so() {
        let (surplus, runs, is_whole) = search("cx", 5);
        assert_eq!((runs, is_whole), (5, false));
        assert!(!surplus.contains(['c', 'x']));
        let files = ["a", "b"].map(Path::new);
        let Ok(found) = minimise(&files, 9, |_| Ok::<_, Infallible>(None));
        assert_eq!(found, Minimised { surplus: Vec::new(), files: 2, runs: 1, is_whole: false });
        let Ok(found) = minimise(&[], 9, |_| Ok::<_, Infallible>(None));
        assert_eq!(found, Minimised { is_whole: true, ..Minimised::default() });
    }
}
