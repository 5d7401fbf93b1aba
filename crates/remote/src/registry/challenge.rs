//! What a registry asks for before it answers: the header `WWW-Authenticate` (RFC 9110, 11.6.1), and the answer of the service that gives tokens (the
//! distribution project's "token authentication").

use serde::Deserialize;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    /// A token of this service.
    Bearer {
        /// Its URL.
        realm: String,
        /// The registry's name there.
        service: Option<String>,
        /// What the token is to permit.
        scope: Option<String>,
    },
    /// A name and a password.
    Basic,
}

/// The longest value of a parameter, in bytes.
const LONGEST: usize = 4096;

/// The first challenge of a header that this program can meet; a token goes before a password.
pub fn challenge(header: &str) -> Option<Challenge> {
    let all = challenges(header);
    let of = |scheme: &str| all.iter().find(|(name, _)| name.eq_ignore_ascii_case(scheme));
    if let Some((_, parameters)) = of("bearer") {
        let value =
            |key: &str| parameters.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)).map(|(_, v)| v.clone());
        if let Some(realm) = value("realm") {
            return Some(Challenge::Bearer { realm, service: value("service"), scope: value("scope") });
        }
    }
    of("basic").map(|_| Challenge::Basic)
}

/// A scheme with its parameters.
type One = (String, Vec<(String, String)>);

/// The challenges of a header. What makes no sense ends the list.
fn challenges(header: &str) -> Vec<One> {
    let mut all: Vec<One> = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let word = token(rest);
        if word.is_empty() {
            return all;
        }
        rest = rest.get(word.len()..).unwrap_or_default();
        let behind = rest.trim_start_matches([' ', '\t']);
        // A word with '=' behind it is a parameter, any other begins a challenge.
        let Some(value) = behind.strip_prefix('=') else {
            all.push((word.to_owned(), Vec::new()));
            continue;
        };
        let Some((value, left)) = value_of(value.trim_start_matches([' ', '\t'])) else { return all };
        rest = left;
        match all.last_mut() {
            Some((_, parameters)) => parameters.push((word.to_owned(), value)),
            None => return all,
        }
    }
}

/// The token at the beginning of a text (RFC 9110, 5.6.2).
fn token(text: &str) -> &str {
    let is_of_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    let end = text.find(|c| !is_of_token(c)).unwrap_or(text.len());
    text.get(..end).unwrap_or_default()
}

/// A value, and what follows it.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let word = token(text);
        return Some((word.to_owned(), text.get(word.len()..)?));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, quoted.get(at + 1..)?)),
            '\\' => value.push(characters.next()?.1),
            c => value.push(c),
        }
        if value.len() > LONGEST {
            return None;
        }
    }
    None
}

/// What a service of tokens answers.
#[derive(Deserialize)]
struct Tokens {
    token: Option<String>,
    access_token: Option<String>,
}

/// The token in the answer of such a service, if it can be sent in a header.
///
/// # Errors
/// There is none.
pub fn token_of(answer: &[u8]) -> Result<String, String> {
    let tokens: Tokens =
        serde_json::from_slice(answer).map_err(|error| format!("its token makes no sense: {error}"))?;
    let token = tokens.token.or(tokens.access_token).unwrap_or_default();
    match !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(token),
        false => Err("its service for tokens gives none".to_owned()),
    }
}

/// What a registry says is wrong: the messages of its answer (the specification's "error codes"), or the beginning of a text.
pub fn message(answer: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Errors {
        errors: Vec<Error>,
    }
    #[derive(Deserialize)]
    struct Error {
        #[serde(default)]
        code: String,
        #[serde(default)]
        message: String,
    }
    match serde_json::from_slice::<Errors>(answer) {
        Ok(Errors { errors }) => {
            let of = |error: &Error| match (&error.code[..], &error.message[..]) {
                (code, "") => code.to_lowercase(),
                (_, message) => message.to_owned(),
            };
            errors.iter().take(3).map(of).collect::<Vec<_>>().join("; ")
        }
        // A page for people has tags.
        Err(_) if answer.trim_ascii_start().starts_with(b"<") => String::new(),
        Err(_) => String::from_utf8_lossy(answer).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Some(Challenge::Bearer { realm: realm.to_owned(), service: owned(service), scope: owned(scope) })
    }

    #[test]
    fn challenges_are_found_among_others() {
        let usual = r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let found =
            bearer("https://auth.docker.io/token", Some("registry.docker.io"), Some("repository:a/b:pull,push"));
        assert_eq!(challenge(usual), found);
        assert_eq!(challenge(r#"Basic realm="x y""#), Some(Challenge::Basic));
        assert_eq!(challenge("Negotiate, basic"), Some(Challenge::Basic));
        assert_eq!(challenge(r#"BASIC realm=x , bearer Realm = "a\"b""#), bearer("a\"b", None, None));
        for none in ["", "Bearer", "Bearer service=x", "Bearer realm=\"x", "=", "Digest realm=x", "\u{e4}", "realm=x"] {
            assert_eq!(challenge(none), None, "{none}");
        }
    }

    #[test]
    fn a_token_can_be_sent_in_a_header() {
        assert_eq!(token_of(br#"{"token":"a.b"}"#).unwrap(), "a.b");
        assert_eq!(token_of(br#"{"access_token":"c","expires_in":3}"#).unwrap(), "c");
        for wrong in ["", "{}", "[]", r#"{"token":""}"#, r#"{"token":"a\nX: y"}"#, r#"{"token":7}"#] {
            assert!(token_of(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_in_the_registrys_words() {
        let answer =
            br#"{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown","detail":{}},{"code":"DENIED"}]}"#;
        assert_eq!(message(answer), "manifest unknown; denied");
        assert_eq!(message(b"plain"), "plain");
        assert_eq!(message(b"<html>"), "");
    }
}
