//! A kept run made without a machine, for tests.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::sync::Arc;

use inarch_tree::compare::{Lineage, differences};
use inarch_tree::layer::{Bytes, Facts, Holder, Identity, Layer, Lender, Part};
use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::select::{Owners, Selection, select};
use inarch_tree::{FileType, InodeId, Tree};

use super::apply::{ApplyReport, ApplyRequest, Calls, Faults, apply_to};
use super::{KeptRun, KeptTree, OwnersBack, Record, Store};
use crate::KeptError;

thread_local! {
    /// What goes wrong in this thread.
    static FAULTS: RefCell<Option<Arc<Faults>>> = const { RefCell::new(None) };
    /// The start of the machine that this thread takes for the last one.
    static BOOT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What is to go wrong for applies of this thread.
pub(super) fn faults() -> Option<Arc<Faults>> {
    FAULTS.with_borrow(Clone::clone)
}

/// Lets something go wrong, or nothing any more.
pub(super) fn go_wrong(faults: Option<Arc<Faults>>) {
    FAULTS.set(faults);
}

/// Whether the next write to what is kept may be made.
pub(super) fn call() -> io::Result<()> {
    Ok(Calls { faults: faults() }.next()?)
}

/// The start of the machine that tests want.
pub(super) fn boot() -> Option<String> {
    BOOT.with_borrow(Clone::clone)
}

/// The machine is started again, under this name.
pub(super) fn start(boot: &str) {
    BOOT.set(Some(boot.to_owned()));
}

/// The guest's tree is a directory of the host's, and the names tell what is what.
struct Copied {
    base: Tree,
    guest: Tree,
    /// The guest's files, and where each is in the overlay.
    files: HashMap<InodeId, (Vec<u8>, u64)>,
    /// The host's.
    before: HashMap<InodeId, Vec<u8>>,
    overlay: String,
}

fn contents(root: &Path, tree: &Tree) -> HashMap<InodeId, Vec<u8>> {
    let files = tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular);
    files.map(|(id, _)| (id, fs::read(root.join(std::str::from_utf8(&tree.path(id)).unwrap())).unwrap())).collect()
}

fn scanned(root: &Path) -> Tree {
    scan(root, &ScanOptions { threads: 1, ..ScanOptions::default() }).unwrap().tree
}

impl Copied {
    /// If the guest `shares`, its files of the same bytes have them at one place of the overlay.
    fn new((host, owners): (&Path, &Owners), (guest, shares): (&Path, bool), overlay: &Path) -> Copied {
        let selection = Selection { owners: owners.clone(), ..Selection::default() };
        let base = select(&scanned(host), &selection, &|_, _| None).unwrap().tree;
        let tree = scanned(guest);
        let (mut all, mut files, mut places) = (Vec::new(), HashMap::new(), HashMap::new());
        for (id, bytes) in contents(guest, &tree) {
            let end = all.len() as u64;
            let at = if shares { *places.entry(bytes.clone()).or_insert(end) } else { end };
            if at == end {
                all.extend(&bytes);
            }
            files.insert(id, (bytes, at));
        }
        fs::write(overlay, all).unwrap();
        let before = contents(host, &base);
        let overlay = overlay.file_name().unwrap().to_str().unwrap().to_owned();
        Copied { base, guest: tree, files, before, overlay }
    }
}

impl Lineage for Copied {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.base.lookup(&self.guest.path(new))
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        self.before[&old] == self.files[&new].0
    }
}

impl Facts for &Copied {
    fn origin(&self, _: InodeId) -> Option<Lender> {
        None
    }

    fn bytes(&mut self, new: InodeId) -> io::Result<Bytes> {
        let (bytes, at) = &self.files[&new];
        let holder = Holder::File(self.overlay.clone());
        let part = Part { offset: 0, length: bytes.len() as u64, at: *at, holder };
        Ok(Bytes::Parts(if bytes.is_empty() { Vec::new() } else { vec![part] }))
    }

    fn was(&self, _: &[u8]) -> Option<Option<Identity>> {
        None
    }
}

/// The run, and the folder that it is kept in.
pub(super) struct Staged {
    pub run: KeptRun,
    _home: tempfile::TempDir,
}

impl Staged {
    /// A run over the tree at `host`, whose guest left the content of `guest`.
    pub fn new(host: &Path, guest: &Path) -> Staged {
        Staged::with_owners(host, guest, &Owners::default())
    }

    /// The same, of a guest whose disk is damaged: all files with the same bytes claim one place for them.
    pub fn with_shared_places(host: &Path, guest: &Path) -> Staged {
        Staged::make((host, &Owners::default()), (guest, true))
    }

    /// The same, with owners of the host's that are others in the guest.
    pub fn with_owners(host: &Path, guest: &Path, owners: &Owners) -> Staged {
        Staged::make((host, owners), (guest, false))
    }

    fn make((host, owners): (&Path, &Owners), guest: (&Path, bool)) -> Staged {
        let home = tempfile::tempdir().unwrap();
        let mut run = Store::at(home.path()).open_or_create("staged").unwrap();
        let files = run.files(0);
        let copied = Copied::new((host, owners), guest, &files.overlay(1));
        files.keep_base(&copied.base).unwrap();
        let found = differences(&copied.base, &copied.guest, &copied).unwrap();
        let layer = Layer::new(&copied.base, &copied.guest, &found, &mut &copied).unwrap();
        files.save_layer(&layer).unwrap();
        let tree = KeptTree::new(host, Path::new("/guest"), false, 0, OwnersBack::new(owners), false);
        run.save(Record { trees: vec![tree.with_volume().unwrap()], ..Record::begun() }).unwrap();
        Staged { run, _home: home }
    }

    /// Applies everything.
    pub fn apply(&mut self) -> Result<ApplyReport, KeptError> {
        let request = ApplyRequest { name: "staged".to_owned(), paths: Vec::new(), force: false, dry_run: false };
        apply_to(&mut self.run, &request)
    }

    /// As if everything had been applied before the machine was started.
    pub fn start_machine_again(&mut self) {
        let mut record = self.run.record.clone().unwrap();
        record.applied.as_mut().unwrap().boot = "another start".to_owned();
        if let Some(made) = &mut record.made {
            made.boot = "another start".to_owned();
        }
        self.run.save(record).unwrap();
    }
}

/// Truncates a file's data to its first bytes, as a crash may, and keeps its size and time.
pub(super) fn tear(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    let before = file.metadata().unwrap();
    file.set_len(1).unwrap();
    file.set_len(before.len()).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
}
