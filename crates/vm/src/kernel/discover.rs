//! Chooses which of the machine's kernels a guest boots.
//!
//! Candidates are `/boot/vmlinuz-RELEASE` and `/lib/modules/RELEASE/vmlinuz`. A kernel with modules is better than one
//! without (file systems and virtio drivers are often modules), a general one better than a `cloud` flavour (which
//! lacks drivers), a newer one better than an older one. Only readable kernels are chosen; if there is none, the error
//! names the best unreadable one.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// Why no kernel was found.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DiscoverError {
    /// There is none in the usual places.
    #[error(
        "no kernel found: no vmlinuz-* in {boot}, no vmlinuz in {modules}/*; install one (apt install linux-image-amd64) \
         or give one with --kernel FILE"
    )]
    None {
        /// The directory of kernels.
        boot: PathBuf,
        /// The directory of modules.
        modules: PathBuf,
    },
    /// There are kernels, but this user may read none of them.
    #[error(
        "cannot read {path}: permission denied; make it readable (sudo chmod +r {path}) or give another with --kernel FILE"
    )]
    Unreadable {
        /// The best kernel, which is unreadable.
        path: PathBuf,
    },
}

/// The directories in which a system keeps its kernels.
#[derive(Clone, Debug)]
pub struct Boot {
    root: PathBuf,
}

/// A kernel found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The file.
    pub path: PathBuf,
    /// The release in its name.
    pub release: String,
    /// Whether it has a modules directory.
    pub has_modules: bool,
    /// Whether this user may read it.
    pub readable: bool,
}

impl Boot {
    /// The kernels of this machine.
    pub fn of_this_machine() -> Boot {
        Boot::under(Path::new("/"))
    }

    /// The kernels of the system whose root directory is `root`.
    pub fn under(root: &Path) -> Boot {
        Boot { root: root.to_owned() }
    }

    /// All kernels, the best first, including unreadable ones.
    pub fn candidates(&self) -> Vec<Candidate> {
        let in_boot = entries(&self.boot()).into_iter().filter_map(|(path, name)| {
            let release = name.strip_prefix("vmlinuz-")?.to_owned();
            Some((path, release))
        });
        let in_modules = entries(&self.modules()).into_iter().map(|(path, name)| (path.join("vmlinuz"), name));
        let mut candidates: Vec<Candidate> = in_boot
            .chain(in_modules)
            .filter(|(path, _)| path.is_file())
            .map(|(path, release)| Candidate {
                has_modules: modules_of(&self.root, &release).is_some(),
                readable: File::open(&path).is_ok(),
                path,
                release,
            })
            .collect();
        candidates.sort_by(|a, b| better(a, b).then_with(|| a.path.cmp(&b.path)));
        candidates
    }

    /// The best kernel that this user may read.
    ///
    /// # Errors
    /// There is none.
    pub fn best(&self) -> Result<Candidate, DiscoverError> {
        let mut candidates = self.candidates();
        if let Some(readable) = candidates.iter().position(|candidate| candidate.readable) {
            return Ok(candidates.swap_remove(readable));
        }
        match candidates.into_iter().next() {
            Some(unreadable) => Err(DiscoverError::Unreadable { path: unreadable.path }),
            None => Err(DiscoverError::None { boot: self.boot(), modules: self.modules() }),
        }
    }

    fn boot(&self) -> PathBuf {
        self.root.join("boot")
    }

    fn modules(&self) -> PathBuf {
        self.root.join("lib/modules")
    }
}

/// The modules directory of kernel `release` in the system whose /boot has its file `kernel`, as where a package was unpacked:
/// complete, or with the list of modules that the kernel's build makes.
pub fn modules_beside(kernel: &Path, release: &str) -> Option<PathBuf> {
    let boot = kernel.parent().filter(|directory| directory.ends_with("boot"))?;
    let places = ["lib/modules", "usr/lib/modules"].map(|place| boot.with_file_name(place).join(release));
    places.into_iter().find(|place| ["modules.dep", "modules.order"].iter().any(|list| place.join(list).is_file()))
}

/// The modules directory of kernel `release` in the system under `root`, if it is complete enough to load from.
pub fn modules_of(root: &Path, release: &str) -> Option<PathBuf> {
    let directory = root.join("lib/modules").join(release);
    directory.join("modules.dep").is_file().then_some(directory)
}

fn entries(directory: &Path) -> Vec<(PathBuf, String)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| Some((entry.path(), entry.file_name().into_string().ok()?))).collect()
}

fn better(a: &Candidate, b: &Candidate) -> Ordering {
    let general = |candidate: &Candidate| !candidate.release.contains("cloud");
    b.has_modules
        .cmp(&a.has_modules)
        .then_with(|| general(b).cmp(&general(a)))
        .then_with(|| compare_releases(&b.release, &a.release))
}

/// Orders releases by age: runs of digits compare as numbers, and an `rc` comes before its final release.
fn compare_releases(a: &str, b: &str) -> Ordering {
    let (mut a, mut b) = (parts(a), parts(b));
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Ordering::Equal,
            (left, right) => match part_rank(left).cmp(&part_rank(right)) {
                Ordering::Equal => {}
                order => return order,
            },
        }
    }
}

/// The order of a release's parts: `rc` before the end, the end before other words, words before numbers.
fn part_rank(part: Option<&str>) -> (u8, u64, &str) {
    match part {
        Some("rc") => (0, 0, ""),
        None => (1, 0, ""),
        Some(part) => match part.parse() {
            Ok(number) => (3, number, ""),
            Err(_) => (2, 0, part),
        },
    }
}

/// The runs of digits and of letters in a release.
fn parts(release: &str) -> impl Iterator<Item = &str> {
    release.split(|c: char| !c.is_ascii_alphanumeric()).flat_map(|word| {
        let mut rest = word;
        std::iter::from_fn(move || {
            let digits = rest.starts_with(|c: char| c.is_ascii_digit());
            let end = rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len());
            let (part, tail) = rest.split_at(end);
            rest = tail;
            (!part.is_empty()).then_some(part)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(kernels: &[(&str, bool)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("boot")).unwrap();
        for (release, modules) in kernels {
            fs::write(root.path().join(format!("boot/vmlinuz-{release}")), "").unwrap();
            if *modules {
                let directory = root.path().join("lib/modules").join(release);
                fs::create_dir_all(&directory).unwrap();
                fs::write(directory.join("modules.dep"), "").unwrap();
            }
        }
        root
    }

    #[test]
    fn newest_general_kernel_with_modules_wins() {
        let root = system(&[
            ("6.1.0-9-amd64", true),
            ("6.1.0-56-amd64", true),
            ("6.12.0-1-amd64", false),
            ("6.5.0-1-cloud-amd64", true),
        ]);
        assert_eq!(Boot::under(root.path()).best().unwrap().release, "6.1.0-56-amd64");
    }

    #[test]
    fn cloud_kernel_is_better_than_none() {
        let root = system(&[("6.5.0-1-cloud-amd64", true)]);
        assert_eq!(Boot::under(root.path()).best().unwrap().release, "6.5.0-1-cloud-amd64");
    }

    #[test]
    fn kernel_beside_its_modules_is_found() {
        let root = system(&[("6.1.0", true)]);
        fs::remove_dir_all(root.path().join("boot")).unwrap();
        fs::write(root.path().join("lib/modules/6.1.0/vmlinuz"), "").unwrap();
        assert_eq!(Boot::under(root.path()).best().unwrap().path, root.path().join("lib/modules/6.1.0/vmlinuz"));
    }

    #[test]
    fn system_without_kernels_says_where_it_looked() {
        let root = tempfile::tempdir().unwrap();
        let message = Boot::under(root.path()).best().unwrap_err().to_string();
        assert!(message.contains(&format!("{}/boot", root.path().display())), "{message}");
        assert!(message.contains("--kernel"), "{message}");
    }

    #[test]
    fn releases_are_ordered_by_age() {
        let ordered =
            ["5.10.0-1", "6.1.0-9-amd64", "6.1.0-56-amd64", "6.10-rc1-amd64", "6.10-rc2-amd64", "6.10-amd64", "6.12"];
        for pair in ordered.windows(2) {
            assert_eq!(compare_releases(pair[0], pair[1]), Ordering::Less, "{pair:?}");
            assert_eq!(compare_releases(pair[1], pair[0]), Ordering::Greater, "{pair:?}");
        }
    }
}
