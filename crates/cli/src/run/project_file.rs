//! Applies what a project fixes of its runs (`inarch.toml`) to the options of `inarch run`. The command line wins.
//!
//! Others may have written a project's file: it can come from a repository. So it directs a guest's writes only into directories below its
//! own, and grants no cache that other projects read. What else of this machine it gives the guest is reported.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use anyhow::Context;
use clap::parser::ValueSource;
use clap::{CommandFactory, Parser};
use inarch_jobs::cache::{Scope, tool};
use inarch_jobs::run::{ProjectFile, ProjectFileError, Publish, Setting};
use inarch_jobs::shown;

use super::arguments::{NetworkArgument, RunArguments};
use super::keep::FirstWords;
use crate::arguments::Arguments;
use crate::tree_option::{self, split, unescape};
use crate::{cache_option, disk_option, first_words, nearest};

/// What was taken of a project's file.
pub struct Taken {
    /// The file.
    pub path: PathBuf,
    /// What it gives the guest of this machine.
    pub gives: Vec<String>,
}

/// Whether an option stands on the command line, by its name in [`RunArguments`].
pub type IsGiven<'a> = &'a dyn Fn(&str) -> bool;

/// The options that stand on this process's command line.
pub fn given() -> impl Fn(&str) -> bool {
    let matches = Arguments::command().try_get_matches_from(std::env::args_os()).ok();
    let matches = matches.and_then(|mut matches| matches.remove_subcommand()).map(|(_, matches)| matches);
    move |id| matches.as_ref().is_some_and(|matches| matches.value_source(id) == Some(ValueSource::CommandLine))
}

/// Applies the file of the current directory's project, if there is one.
pub fn apply(arguments: &mut RunArguments, is_given: IsGiven<'_>) -> anyhow::Result<Option<Taken>> {
    let here = std::env::current_dir().context("there is no current directory; go to another")?;
    let file = match ProjectFile::find(&here) {
        Ok(None) => return Ok(None),
        Ok(Some(file)) => file,
        Err(error @ ProjectFileError::Unknown { .. }) => return Err(unknown(&error)),
        Err(error) => return Err(error.into()),
    };
    let mut taken = Taken { path: file.path.clone(), gives: Vec::new() };
    for setting in &file.settings {
        let place = || format!("{}:{}: {}", shown(&file.path), setting.line, setting.key);
        let words = Applied { directory: file.directory(), arguments, is_given, gives: &mut taken.gives };
        words.setting(setting).map_err(|error| anyhow::anyhow!("{}: {error:#}", place()))?;
    }
    Ok(Some(taken))
}

/// The error with what was meant.
fn unknown(error: &ProjectFileError) -> anyhow::Error {
    let ProjectFileError::Unknown { key, .. } = error else { return anyhow::anyhow!("{error}") };
    let keys: Vec<String> = ProjectFile::keys().map(str::to_owned).collect();
    let meant = nearest(key, &keys, 2).join("' or '");
    let command = FirstWords::command();
    let is_option = command.get_arguments().any(|argument| argument.get_long() == Some(&key[..]));
    match (meant.is_empty(), is_option) {
        (false, _) => anyhow::anyhow!("{error}; did you mean '{meant}'?"),
        (true, true) => anyhow::anyhow!("{error}; give --{key} on the command line"),
        (true, false) => anyhow::anyhow!("{error}; it can have {}", keys.join(", ")),
    }
}

/// A file's settings on their way into the options.
struct Applied<'a> {
    directory: &'a Path,
    arguments: &'a mut RunArguments,
    is_given: IsGiven<'a>,
    gives: &'a mut Vec<String>,
}

impl Applied<'_> {
    fn setting(mut self, setting: &Setting) -> anyhow::Result<()> {
        let (values, is_on) = (&setting.values, setting.values.iter().any(|value| value == "true"));
        let first = || setting.values.first().cloned().unwrap_or_default();
        let is_free = |id: &str| !(self.is_given)(id);
        match setting.key {
            // A kept run has the root with which it began.
            "root" if is_free("root") && self.arguments.root == "host" => {
                let root = first();
                let is_word = root == "host" || root == "none";
                self.arguments.root = if is_word { root.into() } else { self.placed(root.as_ref(), false)? };
                let root = self.arguments.root.as_bytes();
                let path = Path::new(OsStr::from_bytes(root.strip_prefix(b"oci:").unwrap_or(root)));
                if !is_word && !self.is_inside(path) {
                    self.gives.push(format!("{} as its root", shown(Path::new(&self.arguments.root))));
                }
            }
            "read-only" if is_free("ro") && !self.arguments.rw => self.arguments.ro = is_on,
            "trees" => self.arguments.tree = self.trees(values, false)?,
            "volumes" => self.arguments.volume = self.trees(values, true)?,
            "disks" => {
                let disks = values.iter().map(|text| self.disk(text)).collect::<anyhow::Result<Vec<_>>>()?;
                self.arguments.disk.splice(..0, disks);
            }
            "caches" => self.caches(values)?,
            "hold" if is_free("no_hold") => self.arguments.no_hold = !is_on,
            "exclude" => prepend(&mut self.arguments.source.exclude, values),
            "include" => prepend(&mut self.arguments.source.include, values),
            "ignore-file" => prepend(&mut self.arguments.source.ignore_file, values),
            "cross" if is_free("cross") => self.arguments.source.cross = is_on,
            "environment" => prepend(&mut self.arguments.environment, values),
            "workdir" if is_free("workdir") => self.arguments.workdir = Some(first().into()),
            "user" if is_free("user") => self.arguments.user = Some(first()),
            "via" if is_free("via") => self.arguments.via = parsed("via", &first())?.via,
            "owner" if is_free("owner") => {
                self.arguments.source.owners.owner = parsed("owner", &first())?.source.owners.owner
            }
            "timeout" if is_free("timeout") => self.arguments.timeout = parsed("timeout", &first())?.timeout,
            "accel" if is_free("accel") => self.arguments.machine.accel = parsed("accel", &first())?.machine.accel,
            "cpus" if is_free("cpus") => self.arguments.machine.cpus = parsed("cpus", &first())?.machine.cpus,
            "memory" if is_free("memory") => self.arguments.machine.memory = parsed("memory", &first())?.machine.memory,
            "net" if is_free("net") => {
                let net = match &first()[..] {
                    "true" => Some(NetworkArgument::User),
                    "false" => Some(NetworkArgument::None),
                    word => parsed("net", word)?.machine.net,
                };
                if net == Some(NetworkArgument::User) {
                    self.gives.push("a network".to_owned());
                }
                self.arguments.machine.net = net;
            }
            // Without a network nothing is forwarded.
            "publish" if self.arguments.machine.net != Some(NetworkArgument::None) => {
                for value in values {
                    let ports = parsed("publish", value)?.machine.publish;
                    self.gives.push(format!("port {value}"));
                    self.arguments.machine.publish.splice(..0, ports);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The trees of the file, but those where the command line has one of its own, and then those of the command line.
    fn trees(&mut self, values: &[String], are_volumes: bool) -> anyhow::Result<Vec<OsString>> {
        let parse = if are_volumes { tree_option::volume } else { tree_option::parse };
        let mut trees = Vec::new();
        let place = |option: tree_option::TreeOption| option.destination.unwrap_or(option.source.into());
        let own = |parse: fn(&OsStr) -> Result<tree_option::TreeOption, String>, all: &[OsString]| {
            all.iter().filter_map(|text| parse(text).ok()).map(place).collect::<Vec<_>>()
        };
        let mut taken = own(tree_option::parse, &self.arguments.tree);
        taken.extend(own(tree_option::volume, &self.arguments.volume));
        for text in values {
            let text = self.placed(text.as_ref(), true)?;
            let option = parse(&text).map_err(anyhow::Error::msg)?;
            let (source, is_written) = (PathBuf::from(&option.source), option.write_through);
            let destination = place(option);
            if taken.contains(&destination) {
                continue;
            }
            if is_written {
                self.below(&source)?;
                self.gives.push(format!("writes to {}", shown(&source)));
            } else if !self.is_inside(&source) {
                self.gives.push(format!("{} at {}", shown(&source), shown(&destination)));
            }
            trees.push(text);
        }
        // What the command line has stays the last.
        let which = if are_volumes { &self.arguments.volume } else { &self.arguments.tree };
        trees.extend(which.iter().cloned());
        Ok(trees)
    }

    fn disk(&mut self, text: &str) -> anyhow::Result<OsString> {
        let text = self.placed(text.as_ref(), true)?;
        let disk = disk_option::parse(&text).map_err(anyhow::Error::msg)?;
        if !disk.read_only {
            self.below(&disk.path)?;
            self.gives.push(format!("writes to {}", shown(&disk.path)));
        } else if !self.is_inside(&disk.path) {
            self.gives.push(format!("the disk {}", shown(&disk.path)));
        }
        Ok(text)
    }

    /// The caches that the command line does not name.
    fn caches(&mut self, values: &[String]) -> anyhow::Result<()> {
        // A kept run keeps what a guest writes by itself.
        if self.arguments.keep.is_some() {
            return Ok(());
        }
        let whole = |name: &str| {
            let tools: Vec<String> = tool(name).iter().map(|tool| tool.name.to_owned()).collect();
            if tools.is_empty() { vec![name.to_owned()] } else { tools }
        };
        let name = |word: &str| word.split_once('=').map_or(word, |(name, _)| name).to_owned();
        let own = self.arguments.cache.iter().flat_map(|text| text.split(','));
        let own: Vec<String> = own.flat_map(|word| whole(&name(word))).collect();
        let mut caches = Vec::new();
        for text in values {
            let asked = cache_option::parse(text)?;
            // A branch's file that names another branch would reach that one's runs.
            let is_own_scope =
                matches!(asked.scope, Scope::Project(_) | Scope::Branch { .. }) && !text.contains("scope=branch:");
            anyhow::ensure!(
                is_own_scope || asked.publish == Publish::Never,
                "'{text}': a project's file publishes to its own caches only, as others would execute what it publishes; add ro, or give \
                 --cache on the command line"
            );
            let is_own = |word: &str| {
                asked.names.iter().any(|(of, _)| *of == name(word))
                    && whole(&name(word)).iter().any(|one| own.contains(one))
            };
            let words: Vec<&str> = text.split(',').filter(|word| !is_own(word)).collect();
            if words.iter().any(|word| asked.names.iter().any(|(of, _)| *of == name(word))) {
                caches.push(words.join(","));
            }
        }
        self.arguments.cache.splice(..0, caches);
        Ok(())
    }

    /// A path of the file, which leads from its directory, at the beginning of an option. `~/` is the home directory.
    fn placed(&self, text: &OsStr, has_escapes: bool) -> anyhow::Result<OsString> {
        let bytes = text.as_bytes();
        if let Some(rest) = bytes.strip_prefix(b"oci:") {
            let rest = self.placed(OsStr::from_bytes(rest), has_escapes)?;
            return Ok([OsStr::new("oci:"), &rest].into_iter().collect());
        }
        if [&b"/"[..], b"cache:", b"libvirt:"].iter().any(|start| bytes.starts_with(start)) {
            return Ok(text.to_owned());
        }
        let (directory, rest) = match bytes.strip_prefix(b"~/") {
            Some(rest) => {
                let home = std::env::home_dir().filter(|home| home.is_absolute());
                (home.context("~: there is no home directory")?, rest)
            }
            None => (self.directory.to_owned(), bytes),
        };
        let rest = rest.strip_prefix(b"./").unwrap_or(rest);
        let mut placed = Vec::new();
        for byte in directory.as_os_str().as_bytes() {
            if has_escapes && b":,\\".contains(byte) {
                placed.push(b'\\');
            }
            placed.push(*byte);
        }
        // The directory itself, with or without a destination and options.
        let name_ends = split(&split(rest, b',').swap_remove(0), b':').swap_remove(0);
        let is_itself = unescape(name_ends) == b".";
        if !is_itself {
            placed.push(b'/');
        }
        placed.extend_from_slice(rest.get(usize::from(is_itself)..).unwrap_or_default());
        Ok(OsString::from_vec(placed))
    }

    /// Whether a path is in the file's directory.
    fn is_inside(&self, path: &Path) -> bool {
        let [path, directory] = [path, self.directory].map(real);
        path.zip(directory).is_some_and(|(path, directory)| path.starts_with(directory))
    }

    /// Fails unless a path is below the file's directory, and not git's, which executes what it finds there.
    fn below(&self, path: &Path) -> anyhow::Result<()> {
        let (path_s, directory) = (real(path).unwrap_or_default(), real(self.directory).unwrap_or_default());
        let below = path_s.strip_prefix(&directory).ok().filter(|below| below.components().next().is_some());
        let is_git_s = below.is_some_and(|below| below.components().any(|name| name.as_os_str() == ".git"));
        anyhow::ensure!(
            below.is_some() && !is_git_s,
            "{}: a project's file lets a guest write to what is below its own directory only, and not to .git; give it on the command line",
            shown(path)
        );
        Ok(())
    }
}

/// Where a path leads; for one that is not there the path itself, unless it could lead up from what is not there.
fn real(path: &Path) -> Option<PathBuf> {
    let leads_up = || path.components().any(|part| part == Component::ParentDir);
    path.canonicalize().ok().or_else(|| (!leads_up()).then(|| path.to_owned()))
}

fn prepend<T: for<'a> From<&'a str>>(all: &mut Vec<T>, values: &[String]) {
    all.splice(..0, values.iter().map(|value| T::from(value)));
}

/// The options that one option makes.
fn parsed(option: &str, value: &str) -> anyhow::Result<RunArguments> {
    let words = FirstWords::try_parse_from(["run".to_owned(), format!("--{option}={value}")]);
    words.map(|words| words.arguments).map_err(|error| anyhow::anyhow!("{}", first_words(&error)))
}

#[cfg(test)]
mod tests {
    use super::super::keep::parse;
    use super::*;

    /// The options of these words and a file of this text, in a new directory; and what the file gives.
    fn applied(words: &[&str], text: &str) -> Result<(RunArguments, Vec<String>), String> {
        let place = inarch_jobs::Scratch::within(&std::env::temp_dir()).unwrap();
        std::fs::create_dir_all(place.path().join("out")).unwrap();
        let path = place.path().canonicalize().unwrap().join("inarch.toml");
        let file = ProjectFile::parse(path, format!("[run]\n{text}").as_bytes())
            .map_err(|error| unknown(&error).to_string())?;
        let matches = FirstWords::command().try_get_matches_from([&["run"], words].concat()).unwrap();
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let (mut arguments, mut gives) = (parse(words), Vec::new());
        for setting in &file.settings {
            let applied = Applied {
                directory: file.directory(),
                arguments: &mut arguments,
                is_given: &is_given,
                gives: &mut gives,
            };
            applied
                .setting(setting)
                .map_err(|error| format!("{error:#}").replace(file.directory().to_str().unwrap(), "DIR"))?;
        }
        let top = file.directory().to_str().unwrap().to_owned();
        for word in arguments.tree.iter_mut().chain(&mut arguments.volume).chain(&mut arguments.disk) {
            *word = word.to_str().unwrap().replace(&top, "DIR").into();
        }
        gives.iter_mut().for_each(|give| *give = give.replace(&top, "DIR"));
        Ok((arguments, gives))
    }

    #[test]
    fn a_root_outside_is_told() {
        for (root, told) in [
            ("host", vec![]),
            ("none", vec![]),
            ("out", vec![]),
            ("oci:out:app", vec![]),
            ("/etc", vec!["/etc as its root"]),
            ("..", vec!["DIR/.. as its root"]),
            ("oci:../x:app", vec!["oci:DIR/../x:app as its root"]),
            ("cache:user/x", vec!["cache:user/x as its root"]),
        ] {
            assert_eq!(applied(&[], &format!("root = \"{root}\"")).unwrap().1, told, "{root}");
        }
    }

    #[test]
    fn the_command_line_wins() {
        let text = "memory = \"1G\"\ncpus = 3\nnet = true\npublish = [\"80:80\"]\nuser = \"root\"\ntimeout = 5\nhold = false\nread-only = true
            via = \"erofs\"\nenvironment = { A = \"1\" }\nexclude = [\"*.o\"]\ncaches = [\"go,ro\", \"npm\"]\n";
        let (file, gives) = applied(&[], text).unwrap();
        assert_eq!(
            (file.machine.memory, file.machine.cpus, file.machine.net),
            (Some(1 << 30), Some(3), Some(NetworkArgument::User))
        );
        assert_eq!(
            (file.user.as_deref(), file.timeout.map(|t| t.as_secs()), file.no_hold, file.ro),
            (Some("root"), Some(5), true, true)
        );
        assert_eq!(
            (&file.environment, &file.source.exclude, &file.cache),
            (&vec!["A=1".into()], &vec!["*.o".into()], &vec!["go,ro".into(), "npm".into()])
        );
        assert_eq!(gives, ["a network", "port 80:80"]);
        let words = [
            "-m",
            "2G",
            "--cpus=1",
            "--net=none",
            "-u",
            "me",
            "--timeout=9",
            "--rw",
            "--via",
            "ext4",
            "-e",
            "A=2",
            "--cache",
            "go-mod,always",
        ];
        let (both, gives) = applied(&words, text).unwrap();
        assert_eq!(
            (both.machine.memory, both.machine.cpus, both.machine.net),
            (Some(2 << 30), Some(1), Some(NetworkArgument::None))
        );
        assert_eq!((both.user.as_deref(), both.timeout.map(|t| t.as_secs()), both.ro), (Some("me"), Some(9), false));
        // The last one counts.
        assert_eq!(both.way().unwrap().0.name(), "ext4");
        assert_eq!(both.environment, ["A=1", "A=2"]);
        assert_eq!((both.cache, gives), (vec!["npm".to_owned(), "go-mod,always".to_owned()], Vec::new()));
        assert!(both.machine.publish.is_empty());
    }

    #[test]
    fn paths_lead_from_the_file() {
        let text = "trees = [\".:/src,ro\", \"out:/a,rw\", \"/usr:/usr\", \"./out:/b\"]\nvolumes = [\"out:/c\"]\ndisks = [\"out/d.img\"]\n";
        let (arguments, gives) = applied(&["--tree", "/x:/b"], text).unwrap();
        assert_eq!(arguments.tree, ["DIR:/src,ro", "DIR/out:/a,rw", "/usr:/usr", "/x:/b"]);
        assert_eq!((arguments.volume, arguments.disk), (vec!["DIR/out:/c".into()], vec!["DIR/out/d.img".into()]));
        assert_eq!(gives, ["writes to DIR/out", "/usr at /usr", "writes to DIR/out", "writes to DIR/out/d.img"]);
        assert_eq!(applied(&[], "root = \"none\"").unwrap().0.root, "none");
        assert!(applied(&[], "root = \"oci:image:tag\"").unwrap().0.root.to_str().unwrap().ends_with("/image:tag"));
    }

    #[test]
    fn writes_and_caches_stay_within_the_project() {
        for (text, part) in [
            ("volumes = [\"/:/host\"]", "below its own directory"),
            ("volumes = [\"..:/up\"]", "below its own directory"),
            ("volumes = [\".:/up\"]", "below its own directory"),
            ("trees = [\"out/..:/up,rw\"]", "below its own directory"),
            ("trees = [\"out/.git:/up,rw\"]", "not to .git"),
            ("disks = [\"/dev/sda\"]", "below its own directory"),
            ("volumes = [\"none/../../x:/x\"]", "below its own directory only"),
            ("caches = [\"npm,scope=user\"]", "add ro"),
            ("caches = [\"npm,scope=team\"]", "add ro"),
            ("caches = [\"npm,scope=branch:main\"]", "npm,scope=branch:main"),
            ("memory = \"x\"", "memory"),
            ("via = \"ext5\"", "ext5"),
            ("timeout = \"soon\"", "soon"),
            ("memroy = 5", "'memory'"),
            ("kernel = \"x\"", "give --kernel on the command line"),
            ("qemu-arg = \"x\"", "on the command line"),
            ("nonsense = \"x\"", "it can have root, read-only"),
        ] {
            let line = applied(&[], text).map(drop).unwrap_err();
            assert!(line.contains(part) && line.lines().count() == 1, "{text}: {line}");
        }
        assert!(applied(&[], "caches = [\"npm,scope=user,ro\"]").is_ok());
    }
}
