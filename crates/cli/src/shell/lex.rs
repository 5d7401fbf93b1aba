//! A line as guestfish reads it: a verb and its words, quoted or not, and what follows a pipe.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Nothing: it is empty, or a comment.
    Nothing,
    /// `!COMMAND`: a command of the host.
    Host(OsString),
    /// `<!COMMAND`: a command of the host that prints lines for the shell.
    Inline(OsString),
    /// A verb.
    Verb(Verb),
}

/// A verb with its words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verb {
    /// Whether the script goes on if it fails: it begins with `-`.
    pub may_fail: bool,
    /// Its name.
    pub name: String,
    /// Its words.
    pub words: Vec<OsString>,
    /// The host's command that reads its output.
    pub pipe: Option<OsString>,
}

/// Why a line cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LexError {
    /// There is no second quote.
    #[error("a {0} quote has no end")]
    Open(&'static str),
    /// A quote ends within a word.
    #[error("a word in quotes is followed by a space")]
    Joined,
    /// An escape that is none.
    #[error(
        "a backslash in double quotes is followed by one of abfnrtv\\\"'?, by three octal digits, or by x and two hexadecimal ones"
    )]
    Escape,
}

/// Reads a line.
pub fn line(text: &[u8], home: Option<&std::ffi::OsStr>) -> Result<Line, LexError> {
    let mut rest = trimmed(text);
    let mut may_fail = false;
    while let Some(after) = rest.strip_prefix(b"-") {
        may_fail = true;
        rest = trimmed(after);
    }
    match rest {
        [] | [b'#', ..] => return Ok(Line::Nothing),
        [b'!', command @ ..] => return Ok(Line::Host(OsString::from_vec(command.to_vec()))),
        [b'<', b'!', command @ ..] => return Ok(Line::Inline(OsString::from_vec(command.to_vec()))),
        _ => {}
    }
    let (name, mut rest) = word(rest);
    let name = String::from_utf8_lossy(name).into_owned();
    let mut verb = Verb { may_fail, name, ..Verb::default() };
    loop {
        rest = trimmed(rest);
        match rest {
            [] => break,
            [b'|', command @ ..] => {
                verb.pipe = Some(OsString::from_vec(command.to_vec()));
                break;
            }
            [b'"', inner @ ..] => {
                let (text, after) = double_quoted(inner)?;
                verb.words.push(OsString::from_vec(text));
                rest = separated(after)?;
            }
            [b'\'', inner @ ..] => {
                let end = inner.iter().position(|byte| *byte == b'\'').ok_or(LexError::Open("single"))?;
                let (text, after) = inner.split_at(end);
                verb.words.push(OsString::from_vec(text.to_vec()));
                rest = separated(after.get(1..).unwrap_or_default())?;
            }
            _ => {
                let (text, after) = word(rest);
                verb.words.push(at_home(text, home));
                rest = after;
            }
        }
    }
    Ok(Line::Verb(verb))
}

fn is_space(byte: u8) -> bool {
    byte.is_ascii_whitespace()
}

fn trimmed(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|byte| !is_space(*byte)).unwrap_or(text.len());
    text.get(start..).unwrap_or_default()
}

/// A word without quotes, and what follows it.
fn word(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|byte| is_space(*byte)).unwrap_or(text.len()))
}

fn separated(after: &[u8]) -> Result<&[u8], LexError> {
    if after.first().is_none_or(|byte| is_space(*byte)) { Ok(after) } else { Err(LexError::Joined) }
}

/// A word with `~` as the user's home.
fn at_home(word: &[u8], home: Option<&std::ffi::OsStr>) -> OsString {
    let rest = word.strip_prefix(b"~").filter(|rest| rest.is_empty() || rest.starts_with(b"/"));
    let bytes = match (rest, home) {
        (Some(rest), Some(home)) => [home.as_bytes(), rest].concat(),
        _ => word.to_vec(),
    };
    OsString::from_vec(bytes)
}

/// The text up to the second quote, and what follows that.
fn double_quoted(text: &[u8]) -> Result<(Vec<u8>, &[u8]), LexError> {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Err(LexError::Open("double")),
            [b'"', after @ ..] => return Ok((found, after)),
            [b'\\', after @ ..] => {
                let (byte, after) = escaped(after)?;
                found.push(byte);
                after
            }
            [byte, after @ ..] => {
                found.push(*byte);
                after
            }
        };
    }
}

/// The byte that an escape means, and what follows it. A NUL is none.
fn escaped(text: &[u8]) -> Result<(u8, &[u8]), LexError> {
    let number = |digits: &[u8], radix| {
        let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|b| b.is_ascii_alphanumeric()));
        text.and_then(|text| u8::from_str_radix(text, radix).ok()).filter(|byte| *byte != 0).ok_or(LexError::Escape)
    };
    let simple = |byte| Ok((byte, text.get(1..).unwrap_or_default()));
    match text {
        [b'a', ..] => simple(7),
        [b'b', ..] => simple(8),
        [b'f', ..] => simple(12),
        [b'n', ..] => simple(b'\n'),
        [b'r', ..] => simple(b'\r'),
        [b't', ..] => simple(b'\t'),
        [b'v', ..] => simple(11),
        [byte @ (b'\\' | b'"' | b'\'' | b'?'), ..] => simple(*byte),
        [b'x', first, second, after @ ..] => Ok((number(&[*first, *second], 16)?, after)),
        [first @ b'0'..=b'7', second, third, after @ ..] => Ok((number(&[*first, *second, *third], 8)?, after)),
        _ => Err(LexError::Escape),
    }
}

/// A word as a line has it: as it is, or in double quotes with what cannot be typed escaped.
pub fn quoted(word: &[u8]) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"'|#~!<\\".contains(byte);
    match std::str::from_utf8(word) {
        Ok(text)
            if !text.is_empty()
                && text.chars().all(|c| !c.is_ascii() || is_plain(&(c as u8)))
                && !has_control(text) =>
        {
            text.to_owned()
        }
        _ => format!("\"{}\"", escape(word)),
    }
}

/// Whether a text has what does something to a terminal.
fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

/// A word for double quotes.
pub fn escape(word: &[u8]) -> String {
    let mut text = String::new();
    for chunk in word.utf8_chunks() {
        for letter in chunk.valid().chars() {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                '\n' => text += "\\n",
                '\t' => text += "\\t",
                letter if letter.is_control() => {
                    let mut bytes = [0; 4];
                    text.extend(letter.encode_utf8(&mut bytes).bytes().map(|byte| format!("\\x{byte:02x}")));
                }
                letter => text.push(letter),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// The word that is being typed at the end of a line: where it begins, what it means so far, whether it began with a double quote, and how many words come before
/// it. `None` within single quotes, and after a pipe.
pub struct Typed {
    /// The byte of the line where it begins.
    pub start: usize,
    /// What it means so far.
    pub text: Vec<u8>,
    /// Whether it is in double quotes.
    pub is_quoted: bool,
    /// The words before it, the verb first.
    pub before: Vec<OsString>,
}

/// Finds the word that is being typed.
pub fn typed(text: &str) -> Option<Typed> {
    let lead = text.len() - text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '-').len();
    let mut start = lead;
    // The last space that is not in quotes.
    let mut quote = None;
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip_while(|(at, _)| *at < lead) {
        match (quote, letter) {
            _ if is_escaped => is_escaped = false,
            (Some('"'), '\\') => is_escaped = true,
            (Some(open), letter) if letter == open => quote = None,
            (None, '"' | '\'') if at == start => quote = Some(letter),
            (None, letter) if letter.is_ascii_whitespace() => start = at + 1,
            (None, '|') if at == start && start > lead => return None,
            _ => {}
        }
    }
    let (before, word) = text.split_at_checked(start)?;
    let (is_quoted, text) = match (quote, word.as_bytes()) {
        (Some('"'), [_, inner @ ..]) => (true, double_quoted(&[inner, b"\""].concat()).ok()?.0),
        (Some(_), _) => return None,
        (None, word) => (false, word.to_vec()),
    };
    let before = match line(before.as_bytes(), None).ok()? {
        Line::Verb(verb) => [vec![verb.name.into()], verb.words].concat(),
        Line::Nothing => Vec::new(),
        _ => return None,
    };
    Some(Typed { start, text, is_quoted, before })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        match line(text.as_bytes(), Some("/home/user".as_ref())) {
            Ok(Line::Verb(verb)) => {
                let words = verb.words.iter().map(|word| word.to_string_lossy().into_owned());
                let pipe = verb.pipe.map(|pipe| format!("|{}", pipe.to_string_lossy()));
                [verb.name].into_iter().chain(words).chain(pipe).collect()
            }
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn words_are_separated_as_by_guestfish() {
        assert_eq!(words("ls /"), ["ls", "/"]);
        assert_eq!(words("  echo   a\tb "), ["echo", "a", "b"]);
        assert_eq!(words("echo \"a b\" 'c \\n d' \"\""), ["echo", "a b", "c \\n d", ""]);
        assert_eq!(words(r#"echo "\x41\101\t\"\\" x\n"#), ["echo", "AA\t\"\\", "x\\n"]);
        assert_eq!(words("cat ~/x ~ ~x"), ["cat", "/home/user/x", "/home/user", "~x"]);
        assert_eq!(words("hexdump /x | head -1"), ["hexdump", "/x", "| head -1"]);
        assert_eq!(words("echo a|b"), ["echo", "a|b"]);
        assert_eq!(words("sfdiskM /dev/sda ,"), ["sfdiskM", "/dev/sda", ","]);
        for text in ["", "   ", "# a", "  #"] {
            assert_eq!(line(text.as_bytes(), None), Ok(Line::Nothing));
        }
        assert_eq!(line(b"!ls -l | wc", None), Ok(Line::Host("ls -l | wc".into())));
        assert_eq!(line(b"<! echo ls /", None), Ok(Line::Inline(" echo ls /".into())));
        let Ok(Line::Verb(verb)) = line(b"- rm /x", None) else { panic!() };
        assert!(verb.may_fail && verb.name == "rm");
    }

    #[test]
    fn what_is_no_word_is_refused() {
        for (text, error) in [
            ("echo \"a", LexError::Open("double")),
            ("echo 'a", LexError::Open("single")),
            ("echo \"a\"b", LexError::Joined),
            ("echo 'a'b", LexError::Joined),
            (r#"echo "\x00""#, LexError::Escape),
            (r#"echo "\000""#, LexError::Escape),
            (r#"echo "\x""#, LexError::Escape),
            (r#"echo "\x+1""#, LexError::Escape),
            (r#"echo "\77""#, LexError::Escape),
            (r#"echo "\777""#, LexError::Escape),
            (r#"echo "\"#, LexError::Escape),
            (r#"echo "\\\""#, LexError::Open("double")),
        ] {
            assert_eq!(line(text.as_bytes(), None), Err(error), "{text}");
        }
    }

    #[test]
    fn any_word_can_be_quoted() {
        for word in [
            &b"/etc/passwd"[..],
            b"",
            b"a b",
            b"\"",
            b"'x",
            b"\\",
            b"\x1b[0m\n",
            b"\xff\xfe",
            "\u{85}ü".as_bytes(),
            b"~",
        ] {
            let text = format!("cat {}", quoted(word));
            assert!(!text.chars().any(char::is_control), "{text}");
            let Ok(Line::Verb(verb)) = line(text.as_bytes(), None) else { panic!("{text}") };
            assert_eq!(verb.words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>(), [word], "{text}");
        }
    }

    #[test]
    fn the_word_that_is_typed_is_found() {
        for (text, start, word, before) in [
            ("", 0, "", 0),
            ("l", 0, "l", 0),
            ("-l", 1, "l", 0),
            ("ls ", 3, "", 1),
            ("ls /et", 3, "/et", 1),
            ("ls \"/a b", 3, "/a b", 1),
            ("ls \"/a b\" /", 10, "/", 2),
            ("ls 'a b' \"\\x41", 9, "A", 2),
            ("ls a|", 3, "a|", 1),
        ] {
            let typed = typed(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!((typed.start, &*typed.text, typed.before.len()), (start, word.as_bytes(), before), "{text}");
        }
        for text in ["ls 'a", "ls / | he", "!ls ", "ls \"a\\x4"] {
            assert!(typed(text).is_none(), "{text}");
        }
    }
}
