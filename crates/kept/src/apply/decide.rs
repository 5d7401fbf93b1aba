//! Decides what is to be done about each difference: a function of what differs and of what the host has.

use std::collections::{BTreeMap, HashSet};

use inarch_tree::InodeId;

use super::host::{Volume, file_type};
use super::look::{Facts, Found};
use super::paths::parent;
use super::progress::Progress;
use super::sides::Sides;
use super::ties::Ties;
use crate::diff::LOST;

/// What is done about a difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was not asked for.
    Left,
    /// The host has the guest's version.
    Done,
    /// What is there gets attributes.
    Attributes,
    /// It is brought or removed.
    Wanted,
    /// It is left alone, and why.
    Refused(String),
    /// It requires this difference, which is left alone.
    Held(usize),
}

impl Verdict {
    /// Whether it changes the host.
    pub fn is_wanted(&self) -> bool {
        matches!(self, Verdict::Wanted | Verdict::Attributes)
    }
}

/// The facts that a decision follows from.
pub(super) struct Decision<'d, 'a> {
    pub sides: &'d Sides<'a>,
    pub facts: &'d Facts,
    pub progress: &'d Progress,
    pub force: bool,
    /// What earlier applies have made: the directory of its temporary name.
    pub ready: &'d BTreeMap<usize, Vec<u8>>,
    /// Differences whose temporary name is taken by something that stays.
    pub blocked: &'d HashSet<usize>,
}

impl Decision<'_, '_> {
    /// Decides for every difference.
    pub fn all(&self, chosen: &[bool], ties: &Ties) -> Vec<Verdict> {
        let decide = |(i, chosen): (usize, &bool)| if *chosen { self.one(i) } else { Verdict::Left };
        let mut verdicts: Vec<Verdict> = chosen.iter().enumerate().map(decide).collect();
        // A difference that is held may have been the only new place of another file's bytes.
        loop {
            let refused: Vec<usize> =
                (0..verdicts.len()).filter(|i| matches!(verdicts.get(*i), Some(Verdict::Refused(_)))).collect();
            let held = ties.held(&refused, &|i| verdicts.get(i) == Some(&Verdict::Done));
            for (i, (verdict, held)) in verdicts.iter_mut().zip(held).enumerate() {
                let is_tied = match verdict {
                    Verdict::Wanted => true,
                    Verdict::Attributes => self.sides.touches(i).is_some(),
                    _ => false,
                };
                if let Some(why) = held.filter(|_| is_tied) {
                    *verdict = Verdict::Held(why);
                }
            }
            let mut orphans: Vec<(usize, String)> =
                (0..verdicts.len()).filter_map(|i| Some((i, self.last_place(i, &verdicts)?))).collect();
            orphans.extend(self.incomplete(&verdicts));
            if orphans.is_empty() {
                return verdicts;
            }
            for (i, reason) in orphans {
                if let Some(verdict) = verdicts.get_mut(i) {
                    *verdict = Verdict::Refused(reason);
                }
            }
        }
    }

    fn one(&self, i: usize) -> Verdict {
        let (Some(found), Some(stat)) = (self.facts.found.get(i), self.facts.stats.get(i)) else {
            return Verdict::Left;
        };
        let begun = self.progress.had_begun(self.sides.path(i));
        let old = self.sides.old(i).is_some();
        let new = self.sides.new_inode(i).is_some();
        let conflict = |reason: &str| match self.force {
            true => self.forced(i, reason),
            false => Verdict::Refused(format!("{reason}{}", if self.is_lost(i) { LOST } else { "" })),
        };
        if let Some(name) = self.facts.crowded.get(&i) {
            return Verdict::Refused(format!("the host has {} in it", String::from_utf8_lossy(name).escape_debug()));
        }
        if *found == Found::Alias {
            let reason = "the host takes this name for another one: it does not tell upper from lower case there";
            return Verdict::Refused(reason.to_owned());
        }
        if new && self.facts.homeless.contains(&i) {
            return Verdict::Refused("its directory is not there on the host".to_owned());
        }
        let is_done = *found == Found::Guests || (*found == Found::Nothing && !new);
        if !begun && !is_done && self.sides.conflicting.contains(self.sides.path(i)) {
            return conflict("it changed on the host, too");
        }
        match found {
            Found::Unknown(errno) => Verdict::Refused(std::io::Error::from(*errno).to_string()),
            Found::Nothing if !new => Verdict::Done,
            Found::Nothing if !old || self.ready.contains_key(&i) || (begun && !self.sides.in_place(i)) => {
                self.possible(i)
            }
            Found::Nothing => conflict("it is gone on the host"),
            Found::Scanned { strictly } if *strictly || begun || self.sides.was_directory(i) => {
                if self.sides.in_place(i) { self.attributes(i) } else { self.possible(i) }
            }
            Found::Guests => Verdict::Done,
            Found::GuestsContent if begun => Verdict::Attributes,
            Found::Torn if begun => self.possible(i),
            Found::Directory if self.sides.brings_directory(i) => {
                if begun {
                    Verdict::Attributes
                } else {
                    Verdict::Done
                }
            }
            Found::Directory => Verdict::Refused("it is another directory on the host".to_owned()),
            // A directory that nobody looked into is not replaced.
            _ if stat.as_ref().is_some_and(super::look::is_directory) && !self.sides.was_directory(i) => {
                Verdict::Refused("it is a directory on the host".to_owned())
            }
            _ if old => conflict("it changed on the host"),
            _ => conflict("it is there on the host, and differs"),
        }
    }

    /// The verdict on attributes of what is still what was scanned. Of a directory only those are set that the host has
    /// not changed.
    fn attributes(&self, i: usize) -> Verdict {
        let (Some((_, was)), Some((_, is))) = (self.sides.old(i), self.sides.new_inode(i)) else {
            return Verdict::Done;
        };
        let Some(Some(stat)) = self.facts.stats.get(i) else { return Verdict::Attributes };
        let Some(difference) = self.sides.differences.get(i) else { return Verdict::Attributes };
        if file_type(stat) != Some(inarch_tree::FileType::Directory) || self.force {
            return Verdict::Attributes;
        }
        let owners = self.sides.owners;
        let is_owner = |uid: u32, gid: u32| {
            owners.uid(uid).is_none_or(|uid| uid == stat.st_uid) && owners.gid(gid).is_none_or(|gid| gid == stat.st_gid)
        };
        let is_mode = |mode: u32| (mode ^ stat.st_mode) & 0o7777 == 0;
        if difference.aspects.mode && !is_mode(was.mode()) && !is_mode(is.mode()) {
            return Verdict::Refused("its permissions changed on the host".to_owned());
        }
        if difference.aspects.owner && !is_owner(was.uid(), was.gid()) && !is_owner(is.uid(), is.gid()) {
            return Verdict::Refused("its owner changed on the host".to_owned());
        }
        if self.facts.contested.contains(&i) {
            return Verdict::Refused("its extended attributes changed on the host".to_owned());
        }
        Verdict::Attributes
    }

    /// Whether the guest's version cannot be read any more, because a part of it was in a file of the host that changed.
    fn is_lost(&self, i: usize) -> bool {
        let Some((new, _)) = self.sides.new_inode(i).filter(|_| self.sides.brings(i)) else { return false };
        let unreadable = |old: &InodeId| self.facts.lenders.get(old).is_some_and(|lender| !lender.readable);
        self.sides.lost.contains(self.sides.path(i))
            || self.linked_from(new).is_none() && self.sides.lenders(new).iter().any(unreadable)
    }

    /// The verdict of `--force` on a conflict.
    fn forced(&self, i: usize, reason: &str) -> Verdict {
        if !self.sides.in_place(i) {
            return self.possible(i);
        }
        // No other content is available than that of the host's old file, so only attributes are set.
        let is = self.sides.new_inode(i).map(|(_, is)| is.file_type());
        let there = self.facts.stats.get(i).copied().flatten();
        match there.is_some_and(|stat| file_type(&stat) == is) {
            true => Verdict::Attributes,
            false => Verdict::Refused(reason.to_owned()),
        }
    }

    /// Directories that would replace what only force replaces, although something in them cannot be brought: what the host has
    /// is worth more than a part of them.
    fn incomplete(&self, verdicts: &[Verdict]) -> Vec<(usize, String)> {
        let is_by_force = |i: usize| {
            let is_other = matches!(self.facts.found.get(i), Some(Found::Other | Found::Scanned { strictly: false }));
            let is_in_place = verdicts.get(i) == Some(&Verdict::Wanted) && self.sides.brings_directory(i);
            is_in_place && (is_other || self.sides.conflicting.contains(self.sides.path(i)))
        };
        let refused = (0..verdicts.len()).filter(|i| matches!(verdicts.get(*i), Some(Verdict::Refused(_))));
        let replacing = |i: usize| {
            let directory = std::iter::successors(self.sides.above(i), |above| self.sides.above(*above))
                .find(|i| is_by_force(*i))?;
            Some((directory, format!("{} in it cannot be brought", self.sides.guest_path(self.sides.path(i)))))
        };
        if self.force { refused.filter_map(replacing).collect() } else { Vec::new() }
    }

    /// `Wanted`, if the guest's version can be read.
    fn possible(&self, i: usize) -> Verdict {
        if self.blocked.contains(&i)
            && self.facts.found.get(i) != Some(&Found::Nothing)
            && self.sides.new_inode(i).is_some()
        {
            return Verdict::Refused("what an earlier apply left beside it is in the way; move that away".to_owned());
        }
        let Some((new, _)) = self.sides.new_inode(i).filter(|_| self.sides.brings(i)) else { return Verdict::Wanted };
        if self.sides.overlapping.contains(&new) {
            let reason = "its blocks on the guest's disk are those of another file too: the file system is damaged";
            return Verdict::Refused(reason.to_owned());
        }
        let is_there = |old: InodeId| self.facts.lenders.get(&old);
        if self.linked_from(new).is_some() || self.ready.contains_key(&i) {
            return Verdict::Wanted;
        }
        let lenders = self.sides.lenders(new);
        match lenders.into_iter().find(|old| is_there(*old).is_some_and(|lender| !lender.readable)) {
            Some(lender) => Verdict::Refused(format!(
                "its content cannot be read: {} changed on the host, which holds a part of it",
                self.sides.host_path(&self.sides.base.path(lender))
            )),
            None => Verdict::Wanted,
        }
    }

    /// The name on the host that an inode of the guest is linked from, rather than copied.
    pub fn linked_from(&self, new: InodeId) -> Option<Vec<u8>> {
        self.home(new).or_else(|| self.moved(new))
    }

    /// The name on the host that a difference is linked from. Between volumes a file is copied while its bytes are
    /// known to be those of the scan; a link would make that unknown.
    pub fn link(&self, i: usize) -> Option<Vec<u8>> {
        let (new, _) = self.sides.new_inode(i)?;
        let from = self.linked_from(new)?;
        let is_readable = |old: &InodeId| self.facts.lenders.get(old).is_some_and(|lender| lender.readable);
        let is_one = self.volume(parent(&from)) == self.volume(parent(self.sides.path(i)));
        (is_one || !self.sides.lenders(new).iter().all(is_readable)).then_some(from)
    }

    /// The volume of a directory.
    pub fn volume(&self, directory: &[u8]) -> Option<Volume> {
        self.facts.volumes.get(directory).copied()
    }

    /// The name on the host of the file that the guest renamed: it is linked, not copied.
    pub fn moved(&self, new: InodeId) -> Option<Vec<u8>> {
        let origin = self.sides.lineage.origin(new)?;
        if !self.sides.is_unmodified(origin, new) || !self.is_only_borrower(origin, new) {
            return None;
        }
        // If the guest has another file at one of its names, and that is no difference, the host's file is not this
        // one's alone.
        let names = self.sides.names.of_base(self.sides.base, origin);
        let is_others =
            |name: &Vec<u8>| self.sides.at(name).is_none() && self.sides.guest.lookup(name).is_some_and(|id| id != new);
        if names.iter().any(is_others) {
            return None;
        }
        self.facts.lenders.get(&origin)?.names.first().cloned()
    }

    fn is_only_borrower(&self, origin: InodeId, new: InodeId) -> bool {
        self.sides.borrowers(origin).iter().all(|borrower| *borrower == new)
    }

    /// A name at which the host already has an inode of the guest with several names.
    pub fn home(&self, new: InodeId) -> Option<Vec<u8>> {
        if self.sides.guest.inode(new).links() < 2 {
            return None;
        }
        let names = self.sides.names.of_guest(self.sides.guest, new);
        names.into_iter().find(|name| match self.sides.at(name) {
            _ if self.facts.homes.contains(name) => true,
            None => false,
            Some(i) => match self.facts.found.get(i) {
                Some(Found::Guests) => true,
                Some(Found::Scanned { .. }) => self.sides.in_place(i),
                _ => false,
            },
        })
    }

    /// Why a name cannot be removed: the guest still has the file under another name, and the host does not.
    fn last_place(&self, i: usize, verdicts: &[Verdict]) -> Option<String> {
        let is_there = matches!(self.facts.found.get(i), Some(Found::Scanned { .. }));
        if verdicts.get(i) != Some(&Verdict::Wanted) || !self.sides.takes(i) || !is_there {
            return None;
        }
        let (old, _) = self.sides.old(i)?;
        let names = self.sides.names.of_base(self.sides.base, old);
        let kept = |name: &&Vec<u8>| {
            let id = self.sides.guest.lookup(name);
            id.is_some_and(|id| self.sides.lineage.origin(id) == Some(old))
                && self.sides.at(name).is_none_or(|j| self.sides.in_place(j))
        };
        let stays: Vec<&Vec<u8>> = names.iter().filter(kept).collect();
        let lender = self.facts.lenders.get(&old)?;
        let quiet = self.sides.quiet_borrowers(old);
        let name = match quiet.iter().find(|name| !self.facts.homes.contains(*name)) {
            Some(name) => name,
            // Files without bytes: links, devices and the like.
            None if stays.iter().any(|name| lender.names.contains(name)) => return None,
            None => *stays.first()?,
        };
        let name = self.sides.guest_path(name);
        Some(format!("it holds what the guest has as {name}, which was changed or removed on the host"))
    }
}
