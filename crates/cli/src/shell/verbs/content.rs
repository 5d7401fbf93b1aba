//! Verbs about the content of files.

use std::io;
use std::path::Path;

use anyhow::{anyhow, bail};
use inarch_jobs::guest::{Algorithm, Checksum};
use inarch_jobs::shell::content::{Counts, Dump, Lines, Tail, Texts, extended};
use regex::bytes::RegexBuilder;

use super::{Call, Shell, Verb, aliased, verb};
use crate::shell::lex;

pub const VERBS: &[Verb] = &[
    aliased("cat", &["read-file"], "PATH", "print a file", cat),
    aliased("more", &["less"], "PATH", "show a file in the pager of $PAGER", more),
    verb("read-lines", "PATH", "print a file's lines", read_lines),
    verb("head", "PATH", "print the first 10 lines", head),
    verb("head-n", "LINES PATH", "print the first lines; with a negative number all but the last", head_n),
    verb("tail", "PATH", "print the last 10 lines", tail),
    verb("tail-n", "LINES PATH", "print the last lines; with a negative number those from that line on", tail_n),
    verb("wc-l", "PATH", "count lines", wc_l),
    verb("wc-w", "PATH", "count words", wc_w),
    verb("wc-c", "PATH", "count bytes", wc_c),
    verb("checksum", "crc|md5|sha1|sha224|sha256|sha384|sha512 PATH", "print a checksum", checksum),
    verb(
        "checksum-device",
        "crc|md5|sha1|sha224|sha256|sha384|sha512 DEVICE",
        "print a checksum of a device",
        checksum_device,
    ),
    verb(
        "grep",
        "REGEX PATH [extended:BOOL] [fixed:BOOL] [insensitive:BOOL]",
        "print the lines in which a regular expression is found",
        grep,
    ),
    verb("egrep", "REGEX PATH", "the same with an extended one", egrep),
    verb("fgrep", "TEXT PATH", "print the lines in which a text is found", fgrep),
    verb("grepi", "REGEX PATH", "grep, whatever the case of letters", grepi),
    verb("egrepi", "REGEX PATH", "egrep, whatever the case of letters", egrepi),
    verb("fgrepi", "TEXT PATH", "fgrep, whatever the case of letters", fgrepi),
    verb("hexdump", "PATH", "print a file's bytes as numbers and letters", hexdump),
    verb("strings", "PATH", "print the texts in a file", strings),
    verb("pread", "PATH COUNT OFFSET", "print a part of a file", pread),
    verb("pread-device", "DEVICE COUNT OFFSET", "print a part of a device", pread_device),
    verb("equal", "PATH PATH", "whether two files have the same content", equal),
    verb("is-zero", "PATH", "whether a file holds nothing but zeros", is_zero),
    verb("is-zero-device", "DEVICE", "whether a device holds nothing but zeros", is_zero_device),
];

type Done = anyhow::Result<()>;
type Taker<'a> = dyn FnMut(&[u8]) -> io::Result<bool> + 'a;

/// The lines of a file, until `take` returns false.
fn lines(shell: &Shell, path: &Path, take: &mut Taker<'_>) -> Done {
    let mut is_enough = false;
    let mut take = |line: &[u8]| {
        is_enough = !take(line)?;
        Ok(!is_enough)
    };
    let mut lines = Lines::new(&mut take);
    shell.read(path, &mut |bytes| lines.feed(bytes))?;
    lines.finish()?;
    Ok(())
}

/// Writes a line.
fn put(out: &mut dyn io::Write, line: &[u8]) -> io::Result<bool> {
    out.write_all(line)?;
    out.write_all(b"\n")?;
    Ok(true)
}

fn cat(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let path = call.path(0);
    let out = &mut *call.out;
    shell.read(path, &mut |bytes| out.write_all(bytes).map(|()| true))
}

fn more(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let set = shell.variables.iter().rev().find(|(name, _)| name == "PAGER").map(|(_, value)| value.clone());
    let pager = set.unwrap_or_else(|| std::env::var_os("PAGER")).unwrap_or_else(|| "more".into());
    let words = call.words().iter().map(|word| (*word).to_owned()).collect();
    let verb = lex::Verb { name: "cat".to_owned(), words, pipe: Some(pager), may_fail: false };
    shell.run_verb(&verb, call.inner().1)
}

fn read_lines(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let path = call.path(0);
    let out = &mut *call.out;
    lines(shell, path, &mut |line| put(out, line))
}

fn head(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    first(shell, call, 0, 10)
}

fn head_n(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let count: i64 = call.number(0)?;
    let number = usize::try_from(count.unsigned_abs())?;
    if count >= 0 {
        return first(shell, call, 1, number);
    }
    let mut tail = Tail::new(number);
    let path = call.path(1);
    let out = &mut *call.out;
    lines(shell, path, &mut |line| tail.push(line)?.map_or(Ok(true), |line| put(out, &line)))
}

fn first(shell: &Shell, call: &mut Call<'_>, place: usize, count: usize) -> Done {
    let path = call.path(place);
    let mut left = count;
    let out = &mut *call.out;
    lines(shell, path, &mut |line| {
        if left == 0 {
            return Ok(false);
        }
        left -= 1;
        put(out, line)?;
        Ok(left > 0)
    })
}

fn tail(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    last(shell, call, 0, 10)
}

fn tail_n(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let count: i64 = call.number(0)?;
    let number = usize::try_from(count.unsigned_abs())?;
    if count >= 0 {
        return last(shell, call, 1, number);
    }
    let path = call.path(1);
    let out = &mut *call.out;
    let mut at = 0;
    lines(shell, path, &mut |line| {
        at += 1;
        if at < number { Ok(true) } else { put(out, line) }
    })
}

fn last(shell: &Shell, call: &mut Call<'_>, place: usize, count: usize) -> Done {
    let mut tail = Tail::new(count);
    lines(shell, call.path(place), &mut |line| tail.push(line).map(|_| true))?;
    for line in tail.lines() {
        put(call.out, &line)?;
    }
    Ok(())
}

fn counts(shell: &Shell, call: &Call<'_>) -> anyhow::Result<Counts> {
    let mut counts = Counts::default();
    shell.read(call.path(0), &mut |bytes| {
        counts.feed(bytes);
        Ok(true)
    })?;
    Ok(counts.finish())
}

fn wc_l(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let counts = counts(shell, call)?;
    call.line(counts.lines)
}

fn wc_w(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let counts = counts(shell, call)?;
    call.line(counts.words)
}

fn wc_c(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let counts = counts(shell, call)?;
    call.line(counts.bytes)
}

fn kind(call: &Call<'_>) -> anyhow::Result<Checksum> {
    let kind = call.text(0)?;
    Ok(kind.parse::<Algorithm>().map_err(|error| anyhow!(error))?.start())
}

fn checksum(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut sum = kind(call)?;
    shell.read(call.path(1), &mut |bytes| {
        sum.feed(bytes);
        Ok(true)
    })?;
    call.line(sum.finish())
}

/// The bytes of a device, until `take` returns false.
fn device(shell: &mut Shell, name: &str, range: (u64, u64), take: &mut Taker<'_>) -> Done {
    let interrupted = std::sync::Arc::clone(&shell.interrupted);
    let is_interrupted = || interrupted.load(std::sync::atomic::Ordering::Relaxed);
    let read = shell.session.read_device(name, range, |bytes| if is_interrupted() { Ok(false) } else { take(bytes) });
    read?;
    if is_interrupted() { bail!("interrupted") } else { Ok(()) }
}

fn checksum_device(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut sum = kind(call)?;
    device(shell, call.text(1)?, (0, u64::MAX), &mut |bytes| {
        sum.feed(bytes);
        Ok(true)
    })?;
    call.line(sum.finish())
}

/// How a pattern is read.
#[derive(Clone, Copy)]
enum Pattern {
    Basic,
    Extended,
    Fixed,
}

fn grep(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let pattern = match (call.flag("fixed")?, call.flag("extended")?) {
        (true, _) => Pattern::Fixed,
        (_, true) => Pattern::Extended,
        _ => Pattern::Basic,
    };
    let any_case = call.flag("insensitive")?;
    search(shell, call, pattern, any_case)
}

fn egrep(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    search(shell, call, Pattern::Extended, false)
}

fn fgrep(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    search(shell, call, Pattern::Fixed, false)
}

fn grepi(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    search(shell, call, Pattern::Basic, true)
}

fn egrepi(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    search(shell, call, Pattern::Extended, true)
}

fn fgrepi(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    search(shell, call, Pattern::Fixed, true)
}

fn search(shell: &Shell, call: &mut Call<'_>, pattern: Pattern, any_case: bool) -> Done {
    let text = call.text(0)?;
    let expression = match pattern {
        Pattern::Basic => extended(text),
        Pattern::Extended => text.to_owned(),
        Pattern::Fixed => regex::escape(text),
    };
    let regex = RegexBuilder::new(&expression).case_insensitive(any_case).unicode(true).build();
    let regex =
        regex.map_err(|_| anyhow!("{}: it is no regular expression that is known here", text.escape_debug()))?;
    let path = call.path(1);
    let out = &mut *call.out;
    lines(shell, path, &mut |line| if regex.is_match(line) { put(out, line) } else { Ok(true) })
}

fn hexdump(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut dump = Dump::default();
    let path = call.path(0);
    let out = &mut *call.out;
    shell.read(path, &mut |bytes| out.write_all(dump.feed(bytes).as_bytes()).map(|()| true))?;
    Ok(out.write_all(dump.finish().as_bytes())?)
}

fn strings(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (mut texts, mut found) = (Texts::default(), Vec::new());
    let path = call.path(0);
    let out = &mut *call.out;
    shell.read(path, &mut |bytes| {
        texts.feed(bytes, &mut found);
        out.write_all(&found)?;
        found.clear();
        Ok(true)
    })?;
    texts.finish(&mut found);
    Ok(out.write_all(&found)?)
}

/// The most bytes that `pread` reads at once.
const MOST_READ: u64 = 64 << 20;

fn range(call: &Call<'_>) -> anyhow::Result<(u64, u64)> {
    let (count, offset) = (call.number(1)?, call.number(2)?);
    if count > MOST_READ {
        bail!("{count}: it reads 64 MiB at most; download-offset copies more");
    }
    Ok((offset, count))
}

fn pread(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (offset, count) = range(call)?;
    let bytes = shell.session.guest()?.read_at(call.path(0), offset, count)?;
    Ok(call.out.write_all(&bytes)?)
}

fn pread_device(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (range, name) = (range(call)?, call.text(0)?);
    let out = &mut *call.out;
    device(shell, name, range, &mut |bytes| out.write_all(bytes).map(|()| true))
}

fn equal(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let are_equal = shell.session.guest()?.are_equal(call.path(0), call.path(1))?;
    call.line(are_equal)
}

fn is_zero(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut is_so = true;
    shell.read(call.path(0), &mut |bytes| {
        is_so = bytes.iter().all(|byte| *byte == 0);
        Ok(is_so)
    })?;
    call.line(is_so)
}

fn is_zero_device(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut is_so = true;
    device(shell, call.text(0)?, (0, u64::MAX), &mut |bytes| {
        is_so = bytes.iter().all(|byte| *byte == 0);
        Ok(is_so)
    })?;
    call.line(is_so)
}
