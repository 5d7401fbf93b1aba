//! The text of LVM metadata: sections in braces, and names with numbers, strings and lists (lvm2's libdm/libdm-config.c).

use std::borrow::Cow;
use std::collections::HashMap;

/// The most sections within each other. A volume group has four.
const DEEPEST: usize = 8;

/// What a name stands for.
#[derive(Debug, PartialEq)]
pub enum Value<'a> {
    /// A whole number.
    Number(i64),
    /// A string, or a word that is no whole number.
    Text(Cow<'a, str>),
    /// Several of them; never a list.
    List(Vec<Value<'a>>),
}

impl Value<'_> {
    /// A number that is not negative.
    pub fn number(&self) -> Option<u64> {
        if let Value::Number(number) = self { u64::try_from(*number).ok() } else { None }
    }

    /// A string.
    pub fn text(&self) -> Option<&str> {
        if let Value::Text(text) = self { Some(text) } else { None }
    }
}

/// The names and sections between two braces.
#[derive(Debug, Default)]
pub struct Section<'a> {
    values: HashMap<&'a str, Value<'a>>,
    /// By their order.
    pub sections: Vec<(&'a str, Section<'a>)>,
}

impl<'a> Section<'a> {
    /// A number that is not negative.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.values.get(name)?.number()
    }

    /// A string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name)?.text()
    }

    /// A list; one value is a list, too.
    pub fn list(&self, name: &str) -> &[Value<'a>] {
        match self.values.get(name) {
            Some(Value::List(list)) => list,
            Some(value) => std::slice::from_ref(value),
            None => &[],
        }
    }

    /// Whether a list of strings has this one.
    pub fn lists(&self, name: &str, word: &str) -> bool {
        self.list(name).iter().any(|value| value.text() == Some(word))
    }

    /// The section of this name.
    pub fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|(other, _)| *other == name).map(|(_, section)| section)
    }
}

/// Where a text cannot be understood, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("byte {at}: {what}")]
pub struct TextError {
    /// Bytes from its start.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

/// Reads a text.
///
/// # Errors
/// It is not of the form that LVM writes, or its sections are too deep.
pub fn parse(text: &str) -> Result<Section<'_>, TextError> {
    let mut reader = Reader { text, at: 0 };
    // Those that are open: each with its name, the outermost without one.
    let mut open = vec![("", Section::default())];
    loop {
        reader.skip_blanks();
        let Some(next) = reader.peek() else { break };
        if reader.takes(b'}') {
            let (name, closed) = open.pop().ok_or_else(|| reader.fails("a brace too many"))?;
            let (_, outer) = open.last_mut().ok_or_else(|| reader.fails("a brace too many"))?;
            outer.sections.push((name, closed));
            continue;
        }
        if is_mark(next) {
            return Err(reader.fails("no name"));
        }
        let name = reader.word();
        reader.skip_blanks();
        if reader.takes(b'{') {
            if open.len() > DEEPEST {
                return Err(reader.fails("sections are nested too deep"));
            }
            open.push((name, Section::default()));
        } else if reader.takes(b'=') {
            let value = reader.value()?;
            if let Some((_, section)) = open.last_mut() {
                section.values.entry(name).or_insert(value);
            }
        } else {
            return Err(reader.fails("neither a value nor a section follows a name"));
        }
    }
    match open.pop() {
        Some((_, whole)) if open.is_empty() => Ok(whole),
        _ => Err(reader.fails("it ends within a section")),
    }
}

/// Whether a byte has a meaning of its own.
fn is_mark(byte: u8) -> bool {
    matches!(byte, b'{' | b'}' | b'[' | b']' | b'=' | b',' | b'"' | b'#')
}

struct Reader<'a> {
    text: &'a str,
    /// Always between two characters.
    at: usize,
}

impl<'a> Reader<'a> {
    fn fails(&self, what: &'static str) -> TextError {
        TextError { at: self.at, what }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<u8> {
        self.rest().bytes().next()
    }

    /// Passes a mark, if it is next.
    fn takes(&mut self, mark: u8) -> bool {
        let is_next = self.peek() == Some(mark);
        self.at += usize::from(is_next);
        is_next
    }

    /// Passes blanks, and comments up to the end of their line.
    fn skip_blanks(&mut self) {
        loop {
            let rest = self.rest();
            let word = rest.trim_ascii_start();
            self.at += rest.len() - word.len();
            if !word.starts_with('#') {
                return;
            }
            self.at += word.find('\n').unwrap_or(word.len());
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = self.rest();
        let end = rest.bytes().position(|byte| is_mark(byte) || byte.is_ascii_whitespace()).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn value(&mut self) -> Result<Value<'a>, TextError> {
        self.skip_blanks();
        if !self.takes(b'[') {
            return self.scalar();
        }
        let mut list = Vec::new();
        loop {
            self.skip_blanks();
            if self.takes(b']') {
                return Ok(Value::List(list));
            }
            list.push(self.scalar()?);
            self.skip_blanks();
            if !self.takes(b',') && self.peek() != Some(b']') {
                return Err(self.fails("a list has no end"));
            }
        }
    }

    fn scalar(&mut self) -> Result<Value<'a>, TextError> {
        if self.takes(b'"') {
            return self.string().map(Value::Text);
        }
        let word = self.word();
        if word.is_empty() {
            return Err(self.fails("no value"));
        }
        Ok(word.parse().map_or(Value::Text(word.into()), Value::Number))
    }

    /// The text up to the next quote. A backslash escapes a quote or a backslash.
    fn string(&mut self) -> Result<Cow<'a, str>, TextError> {
        let rest = self.rest();
        let mut escapes = false;
        let mut is_escaped = false;
        for (end, byte) in rest.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => (escapes, is_escaped) = (true, true),
                b'"' => {
                    self.at += end + 1;
                    let text = rest.get(..end).unwrap_or_default();
                    return Ok(if escapes { unescaped(text).into() } else { text.into() });
                }
                _ => {}
            }
        }
        Err(self.fails("a string has no end"))
    }
}

fn unescaped(text: &str) -> String {
    let (mut plain, mut is_escaped) = (String::with_capacity(text.len()), false);
    for c in text.chars() {
        if c == '\\' && !is_escaped {
            is_escaped = true;
            continue;
        }
        if is_escaped && !matches!(c, '\\' | '"') {
            plain.push('\\');
        }
        plain.push(c);
        is_escaped = false;
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_read_as_lvm_writes_it() {
        let text = "vg { # a comment {\n id = \"a\\\"b\\\\c\"\n seqno = 7\n tags = []\n status=[\"READ\", \"WRITE\"]\n\
            lvs {\n lv+1.x-y {\n n = -1\n }\n }\n}\nversion = 1.5\n";
        let whole = parse(text).unwrap();
        let group = whole.section("vg").unwrap();
        assert_eq!((group.text("id"), group.number("seqno")), (Some("a\"b\\c"), Some(7)));
        assert!(group.list("tags").is_empty() && group.lists("status", "WRITE") && !group.lists("status", "VISIBLE"));
        assert_eq!(group.section("lvs").unwrap().section("lv+1.x-y").unwrap().number("n"), None);
        assert_eq!(whole.text("version"), Some("1.5"));
    }

    #[test]
    fn other_texts_are_refused() {
        let deep = "a {".repeat(100_000);
        let wrong = ["}", "a {", "a = ", "a = [1", "a = \"x", "a = [[1]]", "= 1", "a { } }", "a b", "a = \"\\", &deep];
        for text in wrong {
            assert!(parse(text).is_err(), "{text:.20}");
        }
        assert_eq!(parse(&deep).unwrap_err().what, "sections are nested too deep");
    }
}
