//! Lists every verb of the shell by group, and checks the words that a verb is called with. `elsewhere.rs` lists the verbs of guestfish
//! that the shell does not have.

pub mod changes;
mod content;
mod devices;
mod drives;
pub mod elsewhere;
mod files;
mod inspection;
mod lookup;
mod making;
mod mounts;
mod own;
mod print;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::path::Path;

use anyhow::{anyhow, bail};
use inarch_jobs::shown;

use super::run::text;
use super::{Shell, lex};
use elsewhere::{Elsewhere, Why};

/// A group of verbs.
pub struct Group {
    /// Its title.
    pub title: &'static str,
    /// Those that the shell has.
    pub verbs: &'static [Verb],
}

/// The groups, in the order of help.
pub static GROUPS: [Group; 10] = [
    Group { title: "Drives", verbs: drives::VERBS },
    Group { title: "Devices", verbs: devices::VERBS },
    Group { title: "Mounts", verbs: mounts::VERBS },
    Group { title: "Files", verbs: files::VERBS },
    Group { title: "What files are", verbs: lookup::VERBS },
    Group { title: "Content", verbs: content::VERBS },
    Group { title: "Files, changed", verbs: changes::VERBS },
    Group { title: "Inspection", verbs: inspection::VERBS },
    Group { title: "Making disks", verbs: making::VERBS },
    Group { title: "The shell", verbs: own::VERBS },
];

/// What a verb does.
pub type Run = fn(&mut Shell, &mut Call<'_>) -> anyhow::Result<()>;

/// A verb.
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// The words that follow: `WORD`, `[WORD]`, `WORD...` for one or more, `[WORD...]`, and `[name:VALUE]` for an option.
    pub usage: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// Does it.
    pub run: Run,
}

/// A verb, for tables.
const fn verb(name: &'static str, usage: &'static str, about: &'static str, run: Run) -> Verb {
    Verb { name, aliases: &[], usage, about, run }
}

/// A verb with other names.
const fn aliased(
    name: &'static str,
    aliases: &'static [&'static str],
    usage: &'static str,
    about: &'static str,
    run: Run,
) -> Verb {
    Verb { name, aliases, usage, about, run }
}

impl Verb {
    /// All verbs of the shell.
    pub fn all() -> impl Iterator<Item = &'static Verb> {
        GROUPS.iter().flat_map(|group| group.verbs)
    }

    /// The verb of that name. Guestfish takes `-` and `_` for the same.
    pub fn named(name: &str) -> Option<&'static Verb> {
        let name = name.replace('_', "-");
        Verb::all().find(|verb| verb.names().any(|known| known == name))
    }

    /// Whether this is the name of a verb, here or in guestfish.
    pub fn is_known(name: &str) -> bool {
        Verb::named(name).is_some() || Elsewhere::named(name).is_some()
    }

    /// Its names.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        [self.name].into_iter().chain(self.aliases.iter().copied())
    }

    fn words(&self) -> impl Iterator<Item = Wanted> {
        self.usage.split_whitespace().map(Wanted::parse).filter(|wanted| !wanted.is_option)
    }

    fn options(&self) -> impl Iterator<Item = &'static str> {
        let named = |word: &'static str| Some(word.strip_prefix('[')?.split_once(':')?.0);
        self.usage.split_whitespace().filter_map(named)
    }

    /// What the word at `place`, from 0, may be: words of the usage.
    pub fn words_at(&self, place: usize) -> Vec<&'static str> {
        let words: Vec<Wanted> = self.words().collect();
        match words.iter().position(|wanted| wanted.is_many) {
            Some(many) if place >= many => words.iter().skip(many).map(|wanted| wanted.word).collect(),
            _ => words.get(place).map(|wanted| wanted.word).into_iter().collect(),
        }
    }
}

/// A word of a usage.
struct Wanted {
    word: &'static str,
    is_needed: bool,
    is_many: bool,
    is_option: bool,
}

impl Wanted {
    fn parse(text: &'static str) -> Wanted {
        let inner = text.trim_start_matches('[').trim_end_matches(']');
        let word = inner.trim_end_matches("...");
        Wanted {
            word,
            is_needed: !text.starts_with('['),
            is_many: inner.ends_with("..."),
            is_option: text.starts_with('[') && text.contains(':'),
        }
    }
}

/// A verb that is called.
pub struct Call<'a> {
    verb: &'static Verb,
    words: Vec<&'a OsStr>,
    options: Vec<(&'static str, &'a str)>,
    depth: usize,
    /// Where it prints.
    pub out: &'a mut dyn Write,
}

impl<'a> Call<'a> {
    /// Checks the number of words, and takes options from their end.
    pub fn new(
        verb: &'static Verb,
        words: &'a [OsString],
        depth: usize,
        out: &'a mut dyn Write,
    ) -> anyhow::Result<Call<'a>> {
        let mut words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        let mut options = Vec::new();
        let option = |word: &&'a OsStr| -> Option<(&'static str, &'a str)> {
            let (name, value) = word.to_str()?.split_once(':')?;
            Some((verb.options().find(|known| *known == name)?, value))
        };
        while let Some(found) = words.last().and_then(option) {
            options.push(found);
            words.pop();
        }
        let least = verb.words().filter(|wanted| wanted.is_needed).count();
        let most = if verb.words().any(|wanted| wanted.is_many) { usize::MAX } else { verb.words().count() };
        if !(least..=most).contains(&words.len()) {
            bail!("it is used as '{}'", verb);
        }
        Ok(Call { verb, words, options, depth, out })
    }

    /// A word, as it is.
    pub fn word(&self, place: usize) -> &'a OsStr {
        self.words.get(place).copied().unwrap_or_default()
    }

    /// All words.
    pub fn words(&self) -> Vec<&'a OsStr> {
        self.words.clone()
    }

    /// A word that is a path.
    pub fn path(&self, place: usize) -> &'a Path {
        Path::new(self.word(place))
    }

    /// A word that is text.
    pub fn text(&self, place: usize) -> anyhow::Result<&'a str> {
        self.word(place).to_str().ok_or_else(|| anyhow!("{}: it is no UTF-8 text", text(self.word(place))))
    }

    /// A word that is a number.
    pub fn number<T: std::str::FromStr>(&self, place: usize) -> anyhow::Result<T> {
        let word = self.text(place)?;
        word.parse().map_err(|_| anyhow!("{}: a number is wanted", word.escape_debug()))
    }

    /// An option's value.
    pub fn option(&self, name: &str) -> Option<&'a str> {
        self.options.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }

    /// An option that is true or false.
    pub fn flag(&self, name: &str) -> anyhow::Result<bool> {
        match self.option(name) {
            None | Some("false" | "0" | "f" | "no" | "n" | "off") => Ok(false),
            Some("true" | "1" | "t" | "yes" | "y" | "on") => Ok(true),
            Some(other) => Err(anyhow!("{name}:{}: it is true or false", other.escape_debug())),
        }
    }

    /// The verb that the words are, for verbs that run others.
    pub fn inner(&self) -> (lex::Verb, usize) {
        let mut words = self.words.iter();
        let name = words.next().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let words = words.map(|word| (*word).to_owned()).collect();
        (lex::Verb { name, words, ..lex::Verb::default() }, self.depth + 1)
    }

    /// Prints a line.
    pub fn line(&mut self, line: impl fmt::Display) -> anyhow::Result<()> {
        Ok(writeln!(self.out, "{line}")?)
    }

    /// Prints a name of the guest on a line, as text that does nothing to a terminal.
    pub fn name(&mut self, name: &[u8]) -> anyhow::Result<()> {
        use std::os::unix::ffi::OsStrExt;
        self.line(shown(Path::new(OsStr::from_bytes(name))))
    }
}

/// How it is used.
impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", format!("{} {}", self.name, self.usage).trim_end())
    }
}

/// What came of a verb that the shell does not have.
pub fn elsewhere(verb: &lex::Verb) -> anyhow::Result<()> {
    match Elsewhere::named(&verb.name).map(|found| &found.why) {
        Some(Why::Changes) => Err(anyhow!(
            "this shell does not make that change; 'help' lists those that it makes, and 'inarch disk' and 'inarch mount --rw' make others"
        )),
        Some(Why::Not(why)) => Err(anyhow!("{why}")),
        None => match hint(&verb.name) {
            hint if hint.is_empty() => Err(anyhow!("there is no such verb; help lists them")),
            hint => Err(anyhow!("there is no such verb{hint}")),
        },
    }
}

/// Verbs whose names are like this one: the continuation of a message.
pub fn hint(name: &str) -> String {
    let known: Vec<String> = Verb::all().flat_map(Verb::names).map(str::to_owned).collect();
    match &*crate::nearest(name, &known, 2) {
        [] => String::new(),
        [first, ..] => format!("; did you mean '{first}'?"),
    }
}

#[cfg(test)]
mod tests;
