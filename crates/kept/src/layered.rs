//! The host's tree, with a kept run's layer over it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Allowance, BackedFiles, Backing, Borrower, ChangedFiles, Content, Cursor, Hold};
use inarch_lifecycle::shown;
use inarch_source::Opened;
use inarch_tree::compare::Lineage;
use inarch_tree::layer::{Below, Conflict, Layer, Merged, Origin, Place, merge};
use inarch_tree::{Extent, InodeId, Timestamp, Tree};

use super::files::DiskFiles;
use super::same::{Side, have_same_bytes};
use crate::KeptError;

/// The most conflicts that a line names.
const NAMED: usize = 4;

/// What a kept run has of a tree: for making its disk.
#[derive(Clone, Debug)]
pub struct KeptBase {
    /// The name of the run.
    pub run: String,
    /// Where its guest sees the tree.
    pub destination: PathBuf,
    /// The files in the store that belong to its disk.
    pub files: DiskFiles,
}

/// A source with a kept run's layer over it.
pub struct Laid {
    /// Both, as one source, without a selection and a stamp: only what is on the disk identifies it.
    pub opened: Opened,
    pub layered: Arc<Layered>,
    /// The bytes of the host's files.
    pub host: Arc<dyn Content>,
}

impl KeptBase {
    /// Lays what the run has changed so far over `opened`, the host's tree.
    pub fn lay_over(&self, opened: Opened) -> Result<Laid, KeptError> {
        let host = Arc::clone(&opened.content);
        let (layered, content) = match self.files.load_layer()?.filter(|layer| !layer.is_empty()) {
            None => (Arc::new(Layered::plain(&opened.tree)), Arc::clone(&host)),
            Some(layer) => {
                let layered = Arc::new(Layered::new(&opened.tree, layer)?);
                let content = LayeredContent::new(&layered, &host, &self.files)?;
                (layered, Arc::new(content) as Arc<dyn Content>)
            }
        };
        let tree = Arc::clone(&layered.tree);
        let opened = Opened { tree, content, original: None, stamp: Vec::new(), ..opened };
        Ok(Laid { opened, layered, host })
    }
}

/// Names and attributes of a layered tree, and where each inode is from.
pub struct Layered {
    /// The host's tree.
    pub lower: Arc<Tree>,
    /// What was changed over it.
    pub layer: Layer,
    /// What both make.
    pub tree: Arc<Tree>,
    /// For each inode of that, which of both it comes from.
    pub origins: Vec<Origin>,
    /// For each lender of the layer, the file of the host that is still what it was.
    pub lent: Vec<Option<InodeId>>,
    /// Paths that host and run changed.
    pub conflicts: Vec<Conflict>,
}

impl Layered {
    /// Lays `layer` over the host's tree.
    pub fn new(lower: &Arc<Tree>, layer: Layer) -> Result<Layered, KeptError> {
        let merged = merge(lower, &layer);
        let Merged { tree, origins, lent, conflicts } = merged.map_err(KeptError::Merge)?;
        Ok(Layered { lower: Arc::clone(lower), layer, tree: Arc::new(tree), origins, lent, conflicts })
    }

    /// The host's tree alone.
    pub fn plain(lower: &Arc<Tree>) -> Layered {
        let origins = lower.inodes().map(|(id, _)| Origin::Lower(id)).collect();
        let tree = Arc::clone(lower);
        let (lower, layer) = (Arc::clone(lower), Layer::empty());
        Layered { lower, layer, tree, origins, lent: Vec::new(), conflicts: Vec::new() }
    }

    /// The origin of an inode of the tree.
    pub fn owner(&self, inode: InodeId) -> Option<Origin> {
        self.origins.get(inode.index()).copied()
    }

    /// The file of the host that an inode of the tree is, or grew out of.
    pub fn origin(&self, inode: InodeId) -> Option<InodeId> {
        match self.owner(inode)? {
            Origin::Lower(lower) => Some(lower),
            Origin::Upper(upper) => self.lent.get(self.layer.origin(upper)?).copied().flatten(),
        }
    }

    /// The host file that all bytes of an inode belong to.
    pub fn whole(&self, inode: InodeId) -> Option<InodeId> {
        match self.owner(inode)? {
            Origin::Lower(lower) => Some(lower),
            Origin::Upper(upper) => self.layer.whole_lender(&self.lower, upper),
        }
    }

    /// What the user should know at the start of a command of the run `name`; `destination` is where its guest sees the tree.
    pub fn notes(&self, name: &str, destination: &Path) -> Vec<String> {
        if self.conflicts.is_empty() {
            return Vec::new();
        }
        let path = |conflict: &Conflict| {
            let how = match conflict.below {
                Below::Added => "added",
                Below::Changed => "changed",
                Below::Removed => "removed",
            };
            format!("{} ({how})", shown(&destination.join(OsStr::from_bytes(&conflict.path))))
        };
        let named: Vec<String> = self.conflicts.iter().take(NAMED).map(path).collect();
        let rest = self.conflicts.len() - named.len();
        let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
        vec![format!(
            "this machine changed {} of the paths that the kept run '{name}' changed, and the guest sees the run's \
             changes: {}{rest}; inarch diff {name} lists them",
            self.conflicts.len(),
            named.join(", ")
        )]
    }
}

/// The bytes of a layered tree's files.
pub(crate) struct LayeredContent {
    layered: Arc<Layered>,
    host: Arc<dyn Content>,
    own: BackedFiles,
}

/// A file of the host that lends bytes to others.
struct LentFile {
    host: Arc<dyn Content>,
    /// `None` where it is no longer what it was.
    inode: Option<InodeId>,
    size: u64,
}

impl Backing for LentFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        match self.inode {
            Some(inode) => self.host.read(inode, offset, count, out),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

impl LayeredContent {
    /// `host` has the bytes of the host's tree.
    pub fn new(
        layered: &Arc<Layered>,
        host: &Arc<dyn Content>,
        files: &DiskFiles,
    ) -> Result<LayeredContent, KeptError> {
        let layer = &layered.layer;
        let lent = |inode: &Option<InodeId>| {
            let size = inode.map_or(0, |inode| layered.lower.inode(inode).size());
            Arc::new(LentFile { host: Arc::clone(host), inode: *inode, size }) as Arc<dyn Backing>
        };
        let mut backings: Vec<Arc<dyn Backing>> = layered.lent.iter().map(lent).collect();
        // The order of `Layer::place`.
        backings.extend(files.open_files(layer)?);
        let own = BackedFiles::new(Arc::clone(layer.tree()), layer.extents().clone(), backings);
        Ok(LayeredContent { layered: Arc::clone(layered), host: Arc::clone(host), own })
    }

    /// Which content has the bytes of an inode, and as which.
    fn holder(&self, inode: InodeId) -> io::Result<(&dyn Content, InodeId)> {
        let lost = || io::Error::from_raw_os_error(libc::EIO);
        if let Some(lower) = self.layered.whole(inode) {
            return Ok((&*self.host, lower));
        }
        match self.layered.owner(inode).ok_or_else(lost)? {
            Origin::Upper(upper) if !self.layered.layer.is_whole(upper) => Ok((&self.own, upper)),
            _ => Err(lost()),
        }
    }
}

impl Content for LayeredContent {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        match self.holder(inode) {
            Ok((content, inode)) => content.read(inode, offset, count, out),
            Err(error) => {
                out.fill_zeros(count);
                Err(error)
            }
        }
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        let (content, inode) = self.holder(inode)?;
        content.lend(inode, offset, count, take)
    }

    fn changed(&self) -> ChangedFiles {
        let (mut all, own) = (self.host.changed(), self.own.changed());
        all.count += own.count;
        all.named.extend(own.named);
        all
    }

    fn hold(&self, hold: &Hold<'_>, allowance: &mut Allowance) -> io::Result<()> {
        self.host.hold(hold, allowance)
    }

    fn held(&self) -> ChangedFiles {
        self.host.held()
    }

    fn out_of_descriptors(&self) -> u64 {
        self.host.out_of_descriptors()
    }
}

/// How a layered tree came from the host's.
pub(super) struct LayeredLineage {
    pub layered: Arc<Layered>,
    pub host: Arc<dyn Content>,
    pub content: Arc<dyn Content>,
}

impl LayeredLineage {
    /// For each host file that lends a part of a file, the offset of such a part, whether or not the host file is
    /// unchanged.
    pub fn lent(&self, new: InodeId) -> Vec<u64> {
        let layered = &self.layered;
        if layered.whole(new).is_some() {
            return if layered.tree.inode(new).size() > 0 { vec![0] } else { Vec::new() };
        }
        let Some(Origin::Upper(upper)) = layered.owner(new) else { return Vec::new() };
        let lenders = layered.layer.extents().of(upper).iter().filter_map(|extent| {
            match layered.layer.place(extent.backing)? {
                Place::Lender(at) => Some((at, extent.offset)),
                Place::File(..) => None,
            }
        });
        lenders.collect::<BTreeMap<_, _>>().into_values().collect()
    }

    /// The parts of a file that the host's file `old` has at the same places.
    fn lent_in_place(&self, old: InodeId, new: InodeId) -> Vec<Range<u64>> {
        let layered = &self.layered;
        let Some(Origin::Upper(upper)) = layered.owner(new) else { return Vec::new() };
        let is_olds = |extent: &&Extent| match layered.layer.place(extent.backing) {
            Some(Place::Lender(at)) => {
                extent.at == extent.offset && layered.lent.get(at).copied().flatten() == Some(old)
            }
            _ => false,
        };
        let extents = layered.layer.extents().of(upper).iter();
        extents.filter(is_olds).map(|extent| extent.offset..extent.offset + extent.length).collect()
    }
}

impl Lineage for LayeredLineage {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.layered.origin(new)
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        if self.layered.whole(new) == Some(old) {
            return true;
        }
        let layered = &self.layered;
        let is = Side { content: &*self.content, tree: &layered.tree, inode: new };
        let was = Side { content: &*self.host, tree: &layered.lower, inode: old };
        // What can no longer be read for comparison counts as changed.
        have_same_bytes(is, was, &self.lent_in_place(old, new)).unwrap_or(false)
    }

    fn lenders(&self, new: InodeId) -> Vec<InodeId> {
        let layered = &self.layered;
        // A file that the guest rewrote has no bytes of its old self.
        let mut lenders: Vec<InodeId> = layered.whole(new).into_iter().collect();
        if let Some(Origin::Upper(upper)) = layered.owner(new) {
            let places = layered.layer.extents().of(upper).iter().map(|extent| layered.layer.place(extent.backing));
            lenders.extend(places.filter_map(|place| match place? {
                Place::Lender(at) => layered.lent.get(at).copied().flatten(),
                Place::File(..) => None,
            }));
        }
        lenders.sort_unstable();
        lenders.dedup();
        lenders
    }

    fn as_stored(&self, time: Timestamp) -> Timestamp {
        inarch_format::ext4::stored_time(time)
    }
}
