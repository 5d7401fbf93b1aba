//! Resolves paths to nodes as the kernel would, confined to the tree's root.

use std::borrow::Cow;

use inarch_tree::NAME_MAX;

use super::{Assembly, Body, Node, ROOT, Refusal, names};

/// The most symlinks on the way, like the kernel's `MAXSYMLINKS`.
const MAX_SYMLINKS: u32 = 40;

/// `PATH_MAX` without the final NUL.
const MAX_PATH: usize = 4095;

/// The most components on the way, including those of symlink targets.
const MAX_STEPS: u32 = 8192;

/// Splits a member's path into its directory part and last name; no name for the root. Leading slashes and `.` are
/// ignored; `..` is refused, wherever it would lead.
pub(super) fn split(path: &[u8]) -> Result<(&[u8], Option<&[u8]>), Refusal> {
    if path.len() > MAX_PATH {
        return Err(Refusal::LongPath);
    }
    for part in path.split(|byte| *byte == b'/') {
        check(part)?;
        if part == b".." {
            return Err(Refusal::DotDot);
        }
    }
    let mut rest = path;
    loop {
        let cut = rest.iter().rposition(|byte| *byte == b'/');
        let (head, last) = cut.map_or((&[][..], rest), |cut| (&rest[..cut], &rest[cut + 1..]));
        match last {
            b"" | b"." if cut.is_none() => return Ok((&[], None)),
            b"" | b"." => rest = head,
            name => return Ok((head, Some(name))),
        }
    }
}

fn check(part: &[u8]) -> Result<(), Refusal> {
    if part.len() > NAME_MAX || part.contains(&0) { Err(Refusal::BadName) } else { Ok(()) }
}

impl Assembly {
    /// The directory and name for a member, creating missing directories; `None` for the root.
    pub(super) fn place<'p>(&mut self, path: &'p [u8]) -> Result<Option<(u32, &'p [u8])>, Refusal> {
        let (head, name) = split(path)?;
        let Some(name) = name else { return Ok(None) };
        if let Some((recent, parent)) = &self.recent
            && recent == head
        {
            return Ok(Some((*parent, name)));
        }
        let parent = self.walk(head, true)?.ok_or(Refusal::NotADirectory)?;
        let mut recent = self.recent.take().map(|(path, _)| path).unwrap_or_default();
        recent.clear();
        recent.extend_from_slice(head);
        self.recent = Some((recent, parent));
        Ok(Some((parent, name)))
    }

    /// The node at a path, without following a final symlink; `None` if there is none.
    pub(super) fn find(&mut self, path: &[u8]) -> Result<Option<u32>, Refusal> {
        let (head, name) = split(path)?;
        let Some(parent) = self.walk(head, false)? else { return Ok(None) };
        Ok(name.map_or(Some(ROOT), |name| self.lookup(parent, name)))
    }

    /// The node of a name.
    pub(super) fn lookup(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let node = self.names.entry(self.names.find(parent, name)?).node;
        (node != names::NONE).then_some(node)
    }

    /// Makes a name refer to `node`, whatever it was before.
    pub(super) fn put(&mut self, parent: u32, name: &[u8], node: u32) -> Result<(), Refusal> {
        if let Some(entry) = self.names.find(parent, name) {
            self.names.set(entry, node, self.layer);
            return Ok(());
        }
        let layer = self.layer;
        let Some(previous) = self.directory(parent).map(|directory| directory.last) else {
            return Err(Refusal::NotADirectory);
        };
        let entry = self.names.add(parent, name, node, layer, previous).ok_or(Refusal::Full)?;
        if let Some(directory) = self.directory_mut(parent) {
            directory.last = entry;
        }
        Ok(())
    }

    /// Resolves a path to a directory. Follows symlinks within the tree, whose root is `/` and its own parent. With
    /// `make`, creates what is missing and marks what exists as this layer's; otherwise returns `None`.
    pub(super) fn walk(&mut self, path: &[u8], make: bool) -> Result<Option<u32>, Refusal> {
        let mut rest = Cow::Borrowed(path);
        let mut from = 0;
        let mut at = ROOT;
        let (mut symlinks, mut steps) = (0, 0);
        while let Some(ahead) = rest.get(from..).filter(|ahead| !ahead.is_empty()) {
            let end = ahead.iter().position(|byte| *byte == b'/').unwrap_or(ahead.len());
            let name = &ahead[..end];
            let after = from + (end + 1).min(ahead.len());
            check(name)?;
            steps += 1;
            if steps > MAX_STEPS {
                return Err(Refusal::Loop);
            }
            match name {
                b"" | b"." => {}
                b".." => at = self.directory(at).map_or(ROOT, |directory| directory.parent),
                name => match self.lookup(at, name) {
                    Some(node) if self.directory(node).is_some() => {
                        if make {
                            self.touch(at, name);
                        }
                        at = node;
                    }
                    Some(node) => {
                        let target = self.target(node).ok_or(Refusal::NotADirectory)?;
                        symlinks += 1;
                        if symlinks > MAX_SYMLINKS || target.len() + rest.len() - after > 2 * MAX_PATH {
                            return Err(Refusal::Loop);
                        }
                        if target.first() == Some(&b'/') {
                            at = ROOT;
                        }
                        rest = Cow::Owned([target, b"/", &rest[after..]].concat());
                        from = 0;
                        continue;
                    }
                    None if make => at = self.make_directory(at, name)?,
                    None => return Ok(None),
                },
            }
            from = after;
        }
        Ok(Some(at))
    }

    fn target(&self, node: u32) -> Option<&[u8]> {
        match self.nodes.get(node as usize)?.body {
            Body::Symlink { start, length } => self.targets.get(start as usize..start as usize + usize::from(length)),
            _ => None,
        }
    }

    /// Marks a directory as this layer's, because a member of this layer is in it.
    fn touch(&mut self, parent: u32, name: &[u8]) {
        if let Some(entry) = self.names.find(parent, name) {
            let node = self.names.entry(entry).node;
            self.names.set(entry, node, self.layer);
        }
    }

    fn make_directory(&mut self, parent: u32, name: &[u8]) -> Result<u32, Refusal> {
        let directory = self.new_directory(parent)?;
        let node = self.push(Node::implied(directory))?;
        self.put(parent, name, node)?;
        Ok(node)
    }
}
