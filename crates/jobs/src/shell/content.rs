//! Turns a file's bytes into what a verb prints: lines, the last lines, counts, a hex dump, texts.
//!
//! The file comes in pieces, in order. At most one line of it is kept in memory, and by [`Tail`] the last lines.

use std::collections::VecDeque;
use std::io;

/// The longest line.
const LONGEST: usize = 16 << 20;
/// The most bytes of the last lines of a file.
const MOST_TAIL: usize = 64 << 20;
/// The least letters of a text, for `strings`.
const SHORTEST: usize = 4;
/// Bytes in a line of a dump.
const DUMPED: usize = 16;

/// Splits pieces into lines.
pub struct Lines<'a> {
    rest: Vec<u8>,
    /// Gets a line without its end; says whether it wants more.
    take: &'a mut dyn FnMut(&[u8]) -> io::Result<bool>,
}

impl<'a> Lines<'a> {
    /// For a taker that says whether it wants more.
    pub fn new(take: &'a mut dyn FnMut(&[u8]) -> io::Result<bool>) -> Lines<'a> {
        Lines { rest: Vec::new(), take }
    }

    /// Takes a piece; false if no more is wanted.
    ///
    /// # Errors
    /// A line is too long, or the taker failed.
    pub fn feed(&mut self, piece: &[u8]) -> io::Result<bool> {
        let mut lines = piece.split_inclusive(|byte| *byte == b'\n');
        lines.try_fold(true, |wants, part| if wants { self.part(part) } else { Ok(false) })
    }

    fn part(&mut self, part: &[u8]) -> io::Result<bool> {
        let Some(end) = part.strip_suffix(b"\n") else {
            if self.rest.len() + part.len() > LONGEST {
                return Err(io::Error::other("it has a line of more than 16 MiB; hexdump or download it"));
            }
            self.rest.extend_from_slice(part);
            return Ok(true);
        };
        if self.rest.is_empty() {
            return (self.take)(end);
        }
        self.rest.extend_from_slice(end);
        let wants = (self.take)(&self.rest);
        self.rest.clear();
        wants
    }

    /// Gives the last line, if it has no end.
    ///
    /// # Errors
    /// The taker failed.
    pub fn finish(self) -> io::Result<()> {
        if self.rest.is_empty() { Ok(()) } else { (self.take)(&self.rest).map(drop) }
    }
}

/// The last lines of a file.
pub struct Tail {
    count: usize,
    lines: VecDeque<Vec<u8>>,
    bytes: usize,
}

impl Tail {
    /// For so many lines.
    pub fn new(count: usize) -> Tail {
        Tail { count, lines: VecDeque::new(), bytes: 0 }
    }

    /// Takes a line. Gives the one that is not among the last any more.
    ///
    /// # Errors
    /// There are too many bytes.
    pub fn push(&mut self, line: &[u8]) -> io::Result<Option<Vec<u8>>> {
        self.bytes += line.len();
        self.lines.push_back(line.to_vec());
        let out = if self.lines.len() > self.count { self.lines.pop_front() } else { None };
        self.bytes -= out.as_ref().map_or(0, Vec::len);
        if self.bytes > MOST_TAIL {
            return Err(io::Error::other("these lines have more than 64 MiB"));
        }
        Ok(out)
    }

    /// The last lines.
    pub fn lines(self) -> impl Iterator<Item = Vec<u8>> {
        self.lines.into_iter()
    }
}

/// Lines, words and bytes, as wc(1) counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Line ends.
    pub lines: u64,
    /// Runs of bytes that are no white space.
    pub words: u64,
    /// Bytes.
    pub bytes: u64,
    in_word: bool,
}

impl Counts {
    /// Counts a piece.
    pub fn feed(&mut self, piece: &[u8]) {
        self.bytes += piece.len() as u64;
        for byte in piece {
            self.lines += u64::from(*byte == b'\n');
            // isspace(3) in the C locale.
            let is_space = matches!(byte, b' ' | b'\t'..=b'\r');
            self.words += u64::from(self.in_word && is_space);
            self.in_word = !is_space;
        }
    }

    /// The counts at the end.
    pub fn finish(mut self) -> Counts {
        self.words += u64::from(self.in_word);
        self.in_word = false;
        self
    }
}

/// A dump as `hexdump -C` prints it.
#[derive(Default)]
pub struct Dump {
    rest: Vec<u8>,
    at: u64,
    last: Option<[u8; DUMPED]>,
    is_squeezed: bool,
}

impl Dump {
    /// Takes a piece; gives lines.
    pub fn feed(&mut self, piece: &[u8]) -> String {
        let mut text = String::new();
        self.rest.extend_from_slice(piece);
        let rest = std::mem::take(&mut self.rest);
        let (lines, left) = rest.as_chunks::<DUMPED>();
        for line in lines {
            if self.last.as_ref() == Some(line) {
                if !std::mem::replace(&mut self.is_squeezed, true) {
                    text += "*\n";
                }
            } else {
                text += &dumped(self.at, line);
                self.is_squeezed = false;
                self.last = Some(*line);
            }
            self.at += DUMPED as u64;
        }
        self.rest = left.to_vec();
        text
    }

    /// The last lines.
    pub fn finish(self) -> String {
        let end = self.at + self.rest.len() as u64;
        let rest = if self.rest.is_empty() { String::new() } else { dumped(self.at, &self.rest) };
        if end == 0 { rest } else { format!("{rest}{end:08x}\n") }
    }
}

fn dumped(at: u64, line: &[u8]) -> String {
    let mut text = format!("{at:08x} ");
    for place in 0..DUMPED {
        if place % 8 == 0 {
            text.push(' ');
        }
        match line.get(place) {
            Some(byte) => text += &format!("{byte:02x} "),
            None => text += "   ",
        }
    }
    let letter = |byte: &u8| if matches!(byte, b' '..=b'~') { char::from(*byte) } else { '.' };
    let letters: String = line.iter().map(letter).collect();
    text + &format!(" |{letters}|\n")
}

/// Texts among bytes, as strings(1) finds them: runs of printable ASCII and tabs.
#[derive(Default)]
pub struct Texts {
    /// The beginning of a run that is too short yet.
    start: Vec<u8>,
    is_long: bool,
}

impl Texts {
    /// Takes a piece, and appends texts, each with a line's end, to `out`.
    pub fn feed(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for byte in piece {
            match byte {
                b'\t' | b' '..=b'~' if self.is_long => out.push(*byte),
                b'\t' | b' '..=b'~' => {
                    self.start.push(*byte);
                    if self.start.len() == SHORTEST {
                        out.append(&mut self.start);
                        self.is_long = true;
                    }
                }
                _ => self.finish(out),
            }
        }
    }

    /// Ends the run.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        self.start.clear();
        if std::mem::take(&mut self.is_long) {
            out.push(b'\n');
        }
    }
}

/// A basic regular expression of grep(1) in the notation of extended ones: what has a backslash there has none here, and the other way round.
pub fn extended(basic: &str) -> String {
    let (mut text, mut letters) = (String::new(), basic.chars().peekable());
    let mut in_class = false;
    while let Some(letter) = letters.next() {
        match letter {
            '[' if !in_class => {
                in_class = true;
                text.push(letter);
                // A bracket that comes first is one of the class.
                for first in ['^', ']'] {
                    if letters.next_if_eq(&first).is_some() {
                        text += if first == ']' { "\\]" } else { "^" };
                    }
                }
            }
            ']' if in_class => {
                in_class = false;
                text.push(letter);
            }
            _ if in_class => {
                text +=
                    &if letter == '[' && letters.peek() != Some(&':') { "\\[".to_owned() } else { letter.to_string() }
            }
            '\\' => match letters.next() {
                Some(special @ ('(' | ')' | '{' | '}' | '|' | '+' | '?')) => text.push(special),
                Some('<' | '>') => text += "\\b",
                Some(other) => text.extend(['\\', other]),
                None => text += "\\\\",
            },
            '(' | ')' | '{' | '}' | '|' | '+' | '?' => text.extend(['\\', letter]),
            '*' if text.is_empty() || text == "^" => text += "\\*",
            letter => text.push(letter),
        }
    }
    text
}

#[cfg(test)]
mod tests;
