//! Finds the kernel modules that a guest needs in `/lib/modules/VERSION`, in load order.
//!
//! depmod(8) lists there what each module needs. If it has not run, for instance because a kernel's package was only
//! unpacked, the list of modules is that of the kernel's build (`modules.order`), and each module's own file says what
//! the module needs.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::module_file::statements;

/// The largest module accepted, unpacked. Debian's largest is a GPU driver of 25 MiB.
const MODULE_MAX: u64 = 256 << 20;

/// A driver that the kernel lacks, or an error in its modules.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The driver is neither built in nor a module.
    #[error(
        "kernel {version} has no {module}: neither built in nor a module under {}; {}install a full kernel \
         (Debian: linux-image-amd64), or choose one with --kernel",
        directory.display(), if directory.is_dir() { "" } else { "name the directory of its modules with --modules DIR, " }
    )]
    Missing {
        /// The kernel's release.
        version: String,
        /// The module's name.
        module: String,
        /// The directory searched.
        directory: PathBuf,
    },
    /// A file of the module tree cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A module's dependencies are circular.
    #[error("{}: module {module} depends on itself", path.display())]
    Circle {
        /// `modules.dep`.
        path: PathBuf,
        /// One module of the circle.
        module: String,
    },
    /// A module is larger than any real one.
    #[error("{}: unpacks to more than {} MiB", path.display(), MODULE_MAX >> 20)]
    TooLarge {
        /// The module's file.
        path: PathBuf,
    },
}

/// One module to load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Module {
    /// Its name, with `_` for `-`.
    pub name: String,
    /// Its file, possibly compressed.
    pub path: PathBuf,
}

impl Module {
    /// Reads and unpacks the module's ELF file.
    pub fn read(&self) -> Result<Vec<u8>, ModuleError> {
        let failed = |source| ModuleError::Read { path: self.path.clone(), source };
        let file = fs::File::open(&self.path).map_err(failed)?;
        let mut reader: Box<dyn Read> = match self.path.extension().and_then(|e| e.to_str()) {
            Some("xz") => Box::new(liblzma::read::XzDecoder::new(file)),
            Some("gz") => Box::new(flate2::read::GzDecoder::new(file)),
            Some("zst") => Box::new(zstd::stream::read::Decoder::new(file).map_err(failed)?),
            _ => Box::new(file),
        };
        let mut bytes = Vec::new();
        reader.by_ref().take(MODULE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MODULE_MAX {
            return Err(ModuleError::TooLarge { path: self.path.clone() });
        }
        Ok(bytes)
    }
}

/// The modules of one kernel: `modules.dep`, `modules.builtin` and `modules.softdep`, as depmod(8) writes them.
#[derive(Debug)]
pub struct ModuleTree {
    version: String,
    directory: PathBuf,
    /// By name: the path below `directory` and the names of the dependencies, if those are known without the module's file.
    modules: HashMap<String, (String, Option<Vec<String>>)>,
    builtin: HashSet<String>,
    /// By name: the modules to be loaded before it.
    before: HashMap<String, Vec<String>>,
    takes_unsigned: bool,
}

/// What a module needs.
#[derive(Default)]
struct Needs {
    /// Modules of which each must be loaded.
    modules: Vec<String>,
    /// Modules that are better loaded before it.
    soft: Vec<String>,
}

impl ModuleTree {
    /// Reads the module tree of kernel `version` in `directory` (usually `/lib/modules/VERSION`).
    ///
    /// A directory without these files is an empty tree: everything may be built in.
    pub fn open(version: &str, directory: &Path) -> Result<Self, ModuleError> {
        let dep = read(directory, "modules.dep")?;
        let modules = if dep.is_empty() { parse_order(&read(directory, "modules.order")?) } else { parse_dep(&dep) };
        let builtin = read(directory, "modules.builtin")?;
        let softdep = read(directory, "modules.softdep")?;
        Ok(Self {
            version: version.to_owned(),
            directory: directory.to_owned(),
            modules,
            builtin: builtin.lines().map(module_name).collect(),
            before: parse_softdep(&softdep),
            takes_unsigned: takes_unsigned(version, directory),
        })
    }

    /// Whether the kernel is known to load unsigned modules. False if its configuration is not available.
    pub fn takes_unsigned(&self) -> bool {
        self.takes_unsigned
    }

    /// Whether the kernel has `module`, built in or not.
    pub fn has(&self, module: &str) -> bool {
        self.builtin.contains(module) || self.modules.contains_key(module)
    }

    /// The modules to load for `wanted`, dependencies first, without duplicates and without built-in ones.
    ///
    /// A soft dependency that the kernel does not have is left out; a missing wanted module or hard dependency is an
    /// error.
    pub fn resolve(&self, wanted: &[&str]) -> Result<Vec<Module>, ModuleError> {
        let mut order = Order::default();
        for module in wanted {
            self.visit(module, &mut order)?;
        }
        Ok(order.modules)
    }

    fn visit(&self, name: &str, order: &mut Order) -> Result<(), ModuleError> {
        if self.builtin.contains(name) || order.done.contains(name) {
            return Ok(());
        }
        let Some((path, listed)) = self.modules.get(name) else {
            return Err(ModuleError::Missing {
                version: self.version.clone(),
                module: name.to_owned(),
                directory: self.directory.clone(),
            });
        };
        if !order.open.insert(name.to_owned()) {
            let path = self.directory.join("modules.dep");
            return Err(ModuleError::Circle { path, module: name.to_owned() });
        }
        let module = Module { name: name.to_owned(), path: self.file_of(path) };
        let needs = match listed {
            Some(modules) => {
                Needs { modules: modules.clone(), soft: self.before.get(name).cloned().unwrap_or_default() }
            }
            None => Needs::said_by(&module.read()?),
        };
        for soft in &needs.soft {
            for provider in providers(soft) {
                if self.modules.contains_key(provider) && !order.open.contains(provider) {
                    self.visit(provider, order)?;
                    break;
                }
            }
        }
        for dependency in &needs.modules {
            self.visit(dependency, order)?;
        }
        order.open.remove(name);
        order.done.insert(name.to_owned());
        order.modules.push(module);
        Ok(())
    }

    /// The file of a module. `modules.order` does not tell how it is compressed.
    fn file_of(&self, path: &str) -> PathBuf {
        let plain = self.directory.join(path);
        let forms = ["", ".xz", ".zst", ".gz"].map(|end| self.directory.join(format!("{path}{end}")));
        if path.ends_with(".ko") { forms.into_iter().find(|form| form.is_file()).unwrap_or(plain) } else { plain }
    }
}

impl Needs {
    /// What the module's own file says (`depends` and `softdep`).
    fn said_by(file: &[u8]) -> Needs {
        let mut needs = Needs::default();
        for (name, value) in statements(file) {
            match name {
                "depends" => needs.modules.extend(value.split(',').filter(|name| !name.is_empty()).map(module_name)),
                "softdep" => needs.soft.extend(before_in(value)),
                _ => {}
            }
        }
        needs
    }
}

/// Checks the kernel's configuration, at the places where distributions install it: beside its modules, in this system's /boot,
/// and in that of the system whose /usr/lib/modules or /lib/modules has them.
fn takes_unsigned(version: &str, directory: &Path) -> bool {
    const REFUSING: [&str; 3] = [
        "CONFIG_MODULE_SIG_FORCE=y",
        "CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY=y",
        "CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY=y",
    ];
    let name = format!("config-{version}");
    let above = directory.ancestors().skip(3).take(2).map(|root| root.join("boot").join(&name));
    let places = [directory.join("config"), Path::new("/boot").join(&name)].into_iter().chain(above);
    let config = places.into_iter().find_map(|path| fs::read_to_string(path).ok());
    config.is_some_and(|config| !config.lines().any(|line| REFUSING.contains(&line)))
}

#[derive(Default)]
struct Order {
    modules: Vec<Module>,
    done: HashSet<String>,
    open: HashSet<String>,
}

/// Modules that satisfy a soft dependency; the first one that the kernel has is used.
///
/// A name like `crypto-crc32c` is an alias of every implementation. One is enough, and the generic one works on every
/// processor.
fn providers(soft: &str) -> Vec<&str> {
    match soft {
        "crypto_crc32c" | "crc32c" => vec!["crc32c_generic", "crc32c_cryptoapi", "crc32c_intel"],
        _ => vec![soft],
    }
}

fn read(directory: &Path, name: &str) -> Result<String, ModuleError> {
    let path = directory.join(name);
    match fs::read(&path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(source) => Err(ModuleError::Read { path, source }),
    }
}

/// `kernel/fs/ext4/ext4.ko.xz` is the module `ext4`.
fn module_name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path).trim();
    file.split(".ko").next().unwrap_or(file).replace('-', "_")
}

/// Lines of `path`, without the end of a compressed file.
fn parse_order(text: &str) -> HashMap<String, (String, Option<Vec<String>>)> {
    text.lines().map(|path| (module_name(path), (path.to_owned(), None))).collect()
}

/// Lines of `path: dependency dependency...`.
fn parse_dep(text: &str) -> HashMap<String, (String, Option<Vec<String>>)> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(path, dependencies)| {
            let dependencies = dependencies.split_whitespace().map(module_name).collect();
            (module_name(path), (path.to_owned(), Some(dependencies)))
        })
        .collect()
}

/// Lines of `softdep NAME pre: MODULE... post: MODULE...`.
fn parse_softdep(text: &str) -> HashMap<String, Vec<String>> {
    let mut before: HashMap<String, Vec<String>> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if words.next() != Some("softdep") {
            continue;
        }
        let Some(name) = words.next() else { continue };
        let rest: Vec<&str> = words.collect();
        before.entry(module_name(name)).or_default().extend(before_in(&rest.join(" ")));
    }
    before
}

/// The modules after `pre:`.
fn before_in(softdep: &str) -> impl Iterator<Item = String> {
    let pre = softdep.split_whitespace().skip_while(|word| *word != "pre:").skip(1);
    pre.take_while(|word| *word != "post:").map(module_name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn tree(files: &[(&str, &[u8])]) -> (tempfile::TempDir, ModuleTree) {
        let directory = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = directory.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let tree = ModuleTree::open("6.1.0-test", directory.path()).unwrap();
        (directory, tree)
    }

    const DEP: &[u8] = b"kernel/fs/ext4/ext4.ko.xz: kernel/fs/mbcache.ko kernel/fs/jbd2/jbd2.ko
kernel/fs/mbcache.ko:
kernel/fs/jbd2/jbd2.ko: kernel/lib/crc16.ko
kernel/lib/crc16.ko:
kernel/crypto/crc32c_generic.ko:
kernel/arch/x86/crypto/crc32c-intel.ko:
kernel/a.ko: kernel/b.ko
kernel/b.ko: kernel/a.ko
";

    fn names(modules: &[Module]) -> Vec<&str> {
        modules.iter().map(|module| module.name.as_str()).collect()
    }

    #[test]
    fn dependencies_come_first_and_once_and_what_is_built_in_never() {
        let (_directory, tree) = tree(&[
            ("modules.dep", DEP),
            ("modules.builtin", b"kernel/drivers/virtio/virtio-pci.ko\n"),
            ("modules.softdep", b"# text\nsoftdep ext4 pre: crypto-crc32c no-such post: b\n"),
        ]);
        let modules = tree.resolve(&["virtio_pci", "crc16", "ext4", "ext4"]).unwrap();
        assert_eq!(names(&modules), ["crc16", "crc32c_generic", "mbcache", "jbd2", "ext4"]);
        assert!(modules[4].path.ends_with("kernel/fs/ext4/ext4.ko.xz"));
        assert!(tree.has("virtio_pci") && tree.has("crc32c_intel") && !tree.has("virtio_blk"));
    }

    /// A module's file: an ELF file whose only sections are its statements and the sections' names.
    fn module(statements: &str) -> Vec<u8> {
        let (text, names) = (statements.replace('|', "\0").into_bytes(), b"\0.modinfo\0.shstrtab\0");
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        let (at_text, at_names) = (64 * 4, 64 * 4 + text.len());
        file[0x28..0x30].copy_from_slice(&64u64.to_le_bytes());
        file[0x3c..0x3e].copy_from_slice(&3u16.to_le_bytes());
        file[0x3e..0x40].copy_from_slice(&2u16.to_le_bytes());
        for (name, at, length) in [(0u32, 0, 0), (1, at_text, text.len()), (10, at_names, names.len())] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(length as u64).to_le_bytes());
            file.extend(header);
        }
        [file, text, names.to_vec()].concat()
    }

    #[test]
    fn without_depmod_each_module_says_what_it_needs() {
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&module("license=GPL|depends=mbcache,jbd2|softdep=pre: crypto-crc32c post: x|")).unwrap();
        let order = b"kernel/fs/ext4/ext4.ko\nkernel/fs/mbcache.ko\nkernel/jbd2.ko\nkernel/crypto/crc32c_generic.ko\n";
        let (_directory, tree) = tree(&[
            ("modules.order", order),
            ("modules.builtin", b"kernel/drivers/virtio/virtio_pci.ko\n"),
            ("kernel/fs/ext4/ext4.ko.xz", &xz.finish().unwrap()),
            ("kernel/fs/mbcache.ko", &module("depends=|")),
            ("kernel/jbd2.ko", &module("depends=virtio_pci|")),
            ("kernel/crypto/crc32c_generic.ko", b"no ELF file"),
        ]);
        let modules = tree.resolve(&["ext4"]).unwrap();
        assert_eq!(names(&modules), ["crc32c_generic", "mbcache", "jbd2", "ext4"]);
        assert!(tree.has("mbcache") && !tree.has("virtio_blk"));
        let whole = module("depends=a,b|");
        for end in 0..whole.len() {
            Needs::said_by(&whole[..end]);
        }
        assert_eq!(Needs::said_by(&whole).modules, ["a", "b"]);
    }

    #[test]
    fn what_the_kernel_lacks_is_named() {
        let (_directory, tree) = tree(&[("modules.dep", DEP)]);
        let error = tree.resolve(&["virtio_blk"]).unwrap_err().to_string();
        assert!(
            error.starts_with("kernel 6.1.0-test has no virtio_blk: neither built in nor a module under /"),
            "{error}"
        );
        assert!(matches!(tree.resolve(&["a"]), Err(ModuleError::Circle { .. })));
    }

    #[test]
    fn compressed_modules_are_unpacked() {
        let content = b"\x7fELF and so on".repeat(1000);
        let mut xz = liblzma::write::XzEncoder::new(Vec::new(), 1);
        xz.write_all(&content).unwrap();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(&content).unwrap();
        let zst = zstd::encode_all(&content[..], 1).unwrap();
        let (directory, _) = tree(&[
            ("a.ko.xz", &xz.finish().unwrap()),
            ("a.ko.gz", &gz.finish().unwrap()),
            ("a.ko.zst", &zst),
            ("a.ko", &content),
        ]);
        for name in ["a.ko.xz", "a.ko.gz", "a.ko.zst", "a.ko"] {
            let module = Module { name: "a".to_owned(), path: directory.path().join(name) };
            assert!(module.read().unwrap() == content, "{name}");
        }
        let broken = Module { name: "a".to_owned(), path: directory.path().join("broken.ko.xz") };
        fs::write(&broken.path, b"no xz").unwrap();
        assert!(broken.read().unwrap_err().to_string().contains("broken.ko.xz"));
    }

    #[test]
    fn signatures_stay_where_the_kernel_may_want_them() {
        assert!(!tree(&[]).1.takes_unsigned());
        assert!(tree(&[("config", b"CONFIG_MODULE_SIG=y\n# CONFIG_MODULE_SIG_FORCE is not set\n")]).1.takes_unsigned());
        assert!(!tree(&[("config", b"CONFIG_MODULE_SIG_FORCE=y\n")]).1.takes_unsigned());
    }
}
