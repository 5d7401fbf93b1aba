//! The shell's own verbs.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use globset::GlobBuilder;
use inarch_jobs::shell::Kind;
use inarch_jobs::shown;

use super::elsewhere::{Elsewhere, GROUPS_OF_GUESTFS, Why};
use super::{Call, GROUPS, Shell, Verb, aliased, verb};
use crate::columns::columns;
use crate::shell::lex;

pub const VERBS: &[Verb] = &[
    verb("help", "[VERB]", "list the verbs, or explain one", help),
    aliased("quit", &["exit", "q"], "", "end the shell, as Ctrl-D does", quit),
    verb("echo", "[WORD...]", "print words", echo),
    verb("time", "VERB [WORD...]", "run a verb, and print how long it took", time),
    verb("glob", "VERB [WORD...]", "run a verb for every path or device that the words match", glob),
    verb("not", "VERB [WORD...]", "run a verb that must fail", not),
    verb("lcd", "LOCALDIR", "change this machine's working directory", lcd),
    verb("setenv", "NAME VALUE", "set a variable for commands of this machine", setenv),
    verb("unsetenv", "NAME", "take such a variable away", unsetenv),
    verb("supported", "", "list libguestfs's groups of verbs, and whether they are here", supported),
    aliased("available", &["feature-available"], "GROUPS", "fail if verbs of a group are not here", available),
    verb("available-all-groups", "", "list libguestfs's groups of verbs", all_groups),
    verb("version", "", "print the version of inarch", version),
];

type Done = anyhow::Result<()>;

/// The most commands that one line with patterns may become.
const MOST_COMMANDS: usize = 100_000;

fn help(_: &mut Shell, call: &mut Call<'_>) -> Done {
    if call.words().is_empty() {
        return overview(call);
    }
    let name = call.text(0)?;
    if let Some(verb) = Verb::named(name) {
        call.line(verb)?;
        for alias in verb.aliases {
            call.line(format_args!("{}", format!("{alias} {}", verb.usage).trim_end()))?;
        }
        return call.line(format_args!("    {}", verb.about));
    }
    let Some(Elsewhere { group, why, .. }) = Elsewhere::named(name) else {
        bail!("{}: there is no such verb{}", name.escape_debug(), super::hint(name));
    };
    let why = match why {
        Why::Changes => "it is none of the changes that this shell makes",
        Why::Not(why) => why,
    };
    call.line(format_args!("{name} ({group}) is not here: {why}"))
}

fn overview(call: &mut Call<'_>) -> Done {
    for group in &GROUPS {
        call.line(format_args!("{}:", group.title))?;
        let mut line = String::new();
        for name in group.verbs.iter().map(|verb| verb.name) {
            if line.len() + name.len() > 76 {
                call.line(format_args!(" {line}"))?;
                line.clear();
            }
            line += &format!(" {name}");
        }
        call.line(format_args!(" {line}"))?;
    }
    call.line("'help VERB' explains one. 'VERB | COMMAND' pipes to a command of this machine, '!COMMAND' runs one, '-VERB' may fail.")?;
    call.line("A session: add disk.img, list-filesystems, mount /dev/sda1 /, ll /")
}

fn quit(shell: &mut Shell, _: &mut Call<'_>) -> Done {
    shell.has_ended = true;
    Ok(())
}

fn echo(_: &mut Shell, call: &mut Call<'_>) -> Done {
    let words: Vec<&[u8]> = call.words().iter().map(|word| word.as_bytes()).collect();
    call.out.write_all(&words.join(&b' '))?;
    Ok(call.out.write_all(b"\n")?)
}

fn time(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (verb, depth) = call.inner();
    let started = Instant::now();
    shell.call(&verb, depth, call.out)?;
    call.line(format_args!("elapsed time: {:.2} seconds", started.elapsed().as_secs_f64()))
}

fn not(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (verb, depth) = call.inner();
    match shell.call(&verb, depth, call.out) {
        Ok(()) => Err(anyhow!("{} did not fail", verb.name.escape_debug())),
        Err(_) => Ok(()),
    }
}

/// Every combination of what the words match.
fn glob(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (verb, depth) = call.inner();
    let mut commands = vec![Vec::new()];
    for word in &verb.words {
        let found = matching(shell, word)?;
        if commands.len().saturating_mul(found.len()) > MOST_COMMANDS {
            bail!("these patterns match more than {MOST_COMMANDS} times");
        }
        commands = commands
            .iter()
            .flat_map(|before: &Vec<OsString>| {
                found.iter().map(|word| [&**before, std::slice::from_ref(word)].concat()).collect::<Vec<_>>()
            })
            .collect();
    }
    let mut failed = None;
    for words in commands {
        shell.check()?;
        let command = lex::Verb { words, ..verb.clone() };
        // The others are run all the same, as by guestfish.
        if let Err(error) = shell.call(&command, depth, call.out) {
            failed = failed.or(Some(error));
        }
    }
    failed.map_or(Ok(()), Err)
}

/// What a word matches: devices, paths, or nothing but itself.
fn matching(shell: &mut Shell, word: &OsString) -> anyhow::Result<Vec<OsString>> {
    let itself = || vec![word.clone()];
    let is_pattern = word.as_bytes().iter().any(|byte| b"*?[{".contains(byte));
    if !word.as_bytes().starts_with(b"/") || !is_pattern {
        return Ok(itself());
    }
    if word.as_bytes().starts_with(b"/dev/") {
        let glob = GlobBuilder::new(&word.to_string_lossy()).literal_separator(true).build();
        let glob = glob.with_context(|| shown(Path::new(word)))?.compile_matcher();
        let session = &mut shell.session;
        let mut names = session.devices();
        names.extend(session.partitions()?);
        names.extend(session.above(Kind::Array)?.into_iter().map(|(name, _)| name));
        names.extend(session.above(Kind::Logical)?.into_iter().map(|(name, _)| name));
        names.retain(|name| glob.is_match(name));
        return Ok(if names.is_empty() { itself() } else { names.into_iter().map(OsString::from).collect() });
    }
    let found = shell.session.guest()?.glob(Path::new(word), true)?;
    Ok(if found.is_empty() { itself() } else { found.into_iter().map(OsString::from_vec).collect() })
}

fn lcd(_: &mut Shell, call: &mut Call<'_>) -> Done {
    let path = call.path(0);
    std::env::set_current_dir(path).with_context(|| shown(path))
}

fn setenv(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let name = call.word(0);
    if name.is_empty() || name.as_bytes().contains(&b'=') {
        bail!("{}: it is no name of a variable", shown(Path::new(name)));
    }
    shell.variables.retain(|(known, _)| known != name);
    shell.variables.push((name.to_owned(), Some(call.word(1).to_owned())));
    Ok(())
}

fn unsetenv(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let name = call.word(0);
    shell.variables.retain(|(known, _)| known != name);
    shell.variables.push((name.to_owned(), None));
    Ok(())
}

fn supported(_: &mut Shell, call: &mut Call<'_>) -> Done {
    let rows: Vec<_> = GROUPS_OF_GUESTFS
        .iter()
        .map(|(name, here)| vec![(*name).to_owned(), here.unwrap_or("no").to_owned()])
        .collect();
    Ok(write!(call.out, "{}", columns(&rows, &[]))?)
}

fn available(_: &mut Shell, call: &mut Call<'_>) -> Done {
    for wanted in call.text(0)?.split_whitespace() {
        match GROUPS_OF_GUESTFS.iter().find(|(name, _)| *name == wanted) {
            Some((_, Some(_))) => {}
            Some((_, None)) => bail!("{wanted}: its verbs are not here"),
            None => bail!("{}: there is no such group", wanted.escape_debug()),
        }
    }
    Ok(())
}

fn all_groups(_: &mut Shell, call: &mut Call<'_>) -> Done {
    GROUPS_OF_GUESTFS.iter().try_for_each(|(name, _)| call.line(name))
}

fn version(_: &mut Shell, call: &mut Call<'_>) -> Done {
    call.line(format_args!("inarch {}", env!("INARCH_VERSION")))
}
