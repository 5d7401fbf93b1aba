//! Credentials for registries, where docker and podman keep them.
//!
//! | order | file |
//! |---|---|
//! | 1 | `$REGISTRY_AUTH_FILE`; then no other is read |
//! | 2 | `$XDG_RUNTIME_DIR/containers/auth.json`, `~/.config/containers/auth.json` (containers-auth.json(5)) |
//! | 3 | `$DOCKER_CONFIG/config.json`, else `~/.docker/config.json` |
//!
//! In each file, the registry's own helper (`credHelpers`) comes first, then the helper for all registries (`credsStore`), then `auths`. Of several keys of
//! `auths` that match, the longest one counts. A helper is the program `docker-credential-NAME`, which gets the registry on its standard input.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64ct::{Base64, Encoding};
use serde::Deserialize;

use super::ImageName;
use super::error::plain;

/// The most bytes of such a file, and of what a helper prints.
const MOST: u64 = 1 << 20;
/// How long a helper may take. It may ask the user something.
const PATIENCE: Duration = Duration::from_secs(30);
/// The name of Docker's own registry in its files and for its helpers.
const USUAL_KEY: &str = "https://index.docker.io/v1/";

/// What authenticates this client to a registry.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    /// A name and a password, or what stands for one.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: String,
    },
    /// A token for the service that gives tokens (OAuth 2's refresh token).
    Identity(String),
}

/// Without what is secret.
impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credentials::Password { user, .. } => write!(f, "Password({user})"),
            Credentials::Identity(_) => f.write_str("Identity"),
        }
    }
}

/// What was found for a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The credentials; `None`: the registry is asked as anybody.
    pub credentials: Option<Credentials>,
    /// Why some could not be read, in one line. It matters only if the registry refuses.
    pub trouble: Option<String>,
}

/// A file of credentials. The rest of it is for others.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Auths {
    auths: BTreeMap<String, Auth>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "lowercase", default)]
struct Auth {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    identitytoken: Option<String>,
}

/// What a helper prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Helped {
    username: String,
    secret: String,
}

/// Looks for credentials for the registry of `name`. It may run a program, so no confined thread can call it.
pub fn find(name: &ImageName) -> Found {
    let mut trouble = None;
    for file in files() {
        let found = read(&file).and_then(|auths| auths.map_or(Ok(None), |auths| auths.find(name)));
        match found {
            Ok(None) => {}
            Ok(credentials) => return Found { credentials, trouble },
            Err(why) => {
                trouble.get_or_insert(format!("{}: {why}", plain(&file.to_string_lossy())));
            }
        }
    }
    Found { credentials: None, trouble }
}

/// The files that may have some, in the order in which they are read.
fn files() -> Vec<PathBuf> {
    let path = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(only) = path("REGISTRY_AUTH_FILE") {
        return vec![only];
    }
    let home = path("HOME");
    let of_home = |below: &str| home.as_ref().map(|home| home.join(below));
    let configuration = path("XDG_CONFIG_HOME").or_else(|| of_home(".config"));
    [
        path("XDG_RUNTIME_DIR").map(|directory| directory.join("containers/auth.json")),
        configuration.map(|directory| directory.join("containers/auth.json")),
        path("DOCKER_CONFIG").or_else(|| of_home(".docker")).map(|directory| directory.join("config.json")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A file, if it is there.
fn read(path: &Path) -> Result<Option<Auths>, String> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory].contains(&error.kind()) => {
            return Ok(None);
        }
        Err(error) => return Err(format!("cannot open it: {error}")),
    };
    let mut text = Vec::new();
    file.take(MOST + 1).read_to_end(&mut text).map_err(|error| format!("cannot read it: {error}"))?;
    if text.len() as u64 > MOST {
        return Err("it has more than 1 MiB".to_owned());
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| format!("it makes no sense: {error}"))
}

/// A key of `auths` as a registry, or a beginning of a repository's name.
fn normal(key: &str) -> &str {
    let key = ["https://", "http://"].iter().find_map(|scheme| key.strip_prefix(scheme)).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = ["/v1", "/v2"].iter().find_map(|end| key.strip_suffix(end)).unwrap_or(key);
    if ["index.docker.io", "registry-1.docker.io"].contains(&key) { "docker.io" } else { key }
}

impl Auths {
    /// What this file has for an image's registry.
    fn find(&self, name: &ImageName) -> Result<Option<Credentials>, String> {
        let registry = name.registry();
        let of_registry = self.cred_helpers.iter().find(|(key, _)| normal(key) == registry).map(|(_, helper)| helper);
        if let Some(helper) = of_registry.or(self.creds_store.as_ref()).filter(|helper| !helper.is_empty()) {
            let server = if registry == "docker.io" { USUAL_KEY } else { registry };
            let helped =
                ask(helper, server, PATIENCE).map_err(|why| format!("docker-credential-{}: {why}", plain(helper)))?;
            // A file may have what its helper has not.
            if helped.is_some() || of_registry.is_some() {
                return Ok(helped);
            }
        }
        let full = format!("{registry}/{}", name.repository());
        let is_of = |key: &str| full == key || full.strip_prefix(key).is_some_and(|rest| rest.starts_with('/'));
        let fitting = self.auths.iter().filter(|(key, _)| is_of(normal(key)));
        let Some((key, auth)) = fitting.max_by_key(|(key, _)| normal(key).len()) else { return Ok(None) };
        auth.credentials().map_err(|why| format!("auths, {}: {why}", plain(key)))
    }
}

impl Auth {
    fn credentials(&self) -> Result<Option<Credentials>, String> {
        let is_there = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        if let Some(token) = is_there(&self.identitytoken) {
            return Ok(Some(Credentials::Identity(token)));
        }
        if let Some(auth) = is_there(&self.auth) {
            let bytes = Base64::decode_vec(auth.trim()).map_err(|_| "'auth' is not in base64")?;
            let text = String::from_utf8(bytes).map_err(|_| "'auth' is not in UTF-8")?;
            let (user, password) = text.split_once(':').ok_or("'auth' has no ':' between name and password")?;
            // Docker has ended passwords by NUL.
            let (user, password) = (user.to_owned(), password.trim_end_matches('\0').to_owned());
            return Ok(Some(Credentials::Password { user, password }));
        }
        Ok(is_there(&self.username)
            .zip(is_there(&self.password))
            .map(|(user, password)| Credentials::Password { user, password }))
    }
}

/// Asks a helper (github.com/docker/docker-credential-helpers); `None`: it has none.
fn ask(helper: &str, server: &str, patience: Duration) -> Result<Option<Credentials>, String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !helper.bytes().all(is_plain) {
        return Err("this is no name of a helper".to_owned());
    }
    let program = format!("docker-credential-{helper}");
    let mut command = Command::new(&program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "there is no such program".to_owned(),
        _ => format!("cannot be started: {error}"),
    })?;
    let output = talk(&mut child, server, patience);
    if output.is_err() {
        // It may have ended by itself.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let output = output?;
    if !status.success() {
        let said = plain(&String::from_utf8_lossy(&output));
        // Every helper says so in these words (credentials.errCredentialsNotFoundMessage).
        return if said.contains("credentials not found") { Ok(None) } else { Err(said) };
    }
    let Helped { username, secret } =
        serde_json::from_slice(&output).map_err(|error| format!("its answer makes no sense: {error}"))?;
    Ok(match &username[..] {
        "" => None,
        "<token>" => Some(Credentials::Identity(secret)),
        _ => Some(Credentials::Password { user: username, password: secret }),
    })
}

/// Gives a helper the registry, and takes what it prints.
fn talk(child: &mut Child, server: &str, patience: Duration) -> Result<Vec<u8>, String> {
    let started = Instant::now();
    if let Some(mut input) = child.stdin.take() {
        // A helper that does not read has its answer ready.
        let _ = input.write_all(server.as_bytes());
    }
    let Some(output) = child.stdout.take() else { return Err("it has no output".to_owned()) };
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(MOST + 1).read_to_end(&mut bytes).map(|_| bytes);
        // Nobody waits any longer if it took too long.
        let _ = sender.send(read);
    });
    let read =
        receiver.recv_timeout(patience).map_err(|_| format!("no answer within {} seconds", patience.as_secs()))?;
    let bytes = read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MOST {
        return Err("it prints more than 1 MiB".to_owned());
    }
    // It has closed its output, and may go on for ever nevertheless.
    while started.elapsed() < patience {
        match child.try_wait() {
            Ok(Some(_)) => return Ok(bytes),
            Ok(None) => thread::sleep(Duration::from_millis(2)),
            Err(error) => return Err(error.to_string()),
        }
    }
    Err(format!("does not end within {} seconds", patience.as_secs()))
}

/// Reads a file of credentials for an image. For fuzz targets: any bytes are safe.
///
/// # Errors
/// It makes no sense, or what it has for the image does not.
pub fn read_file(bytes: &[u8], name: &ImageName) -> Result<bool, String> {
    let mut auths: Auths = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    // Nothing is run.
    auths.cred_helpers.clear();
    auths.creds_store = None;
    Ok(auths.find(name)?.is_some())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn name(text: &str) -> ImageName {
        ImageName::parse(text).unwrap()
    }

    fn found(text: &str, image: &str) -> Result<Option<Credentials>, String> {
        serde_json::from_str::<Auths>(text).unwrap().find(&name(image))
    }

    fn password(user: &str, password: &str) -> Option<Credentials> {
        Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() })
    }

    #[test]
    fn the_key_that_names_most_of_an_image_counts() {
        // printf a:b:c | base64
        let text = r#"{ "auths": {
            "https://index.docker.io/v1/": { "auth": "YTpiOmM=" }, "localhost:5000": { "username": "u", "password": "p" },
            "localhost:5000/team": { "auth": "eDp5" }, "ghcr.io": {}, "quay.io": { "identitytoken": "t" }, "bad.io": { "auth": "?" }
        }, "HttpHeaders": {} }"#;
        assert_eq!(found(text, "docker://debian").unwrap(), password("a", "b:c"));
        assert_eq!(found(text, "docker://localhost:5000/x").unwrap(), password("u", "p"));
        assert_eq!(found(text, "docker://localhost:5000/team/x").unwrap(), password("x", "y"));
        assert_eq!(found(text, "docker://localhost:5000/teamwork").unwrap(), password("u", "p"));
        assert_eq!(found(text, "docker://quay.io/x").unwrap(), Some(Credentials::Identity("t".to_owned())));
        assert_eq!(found(text, "docker://ghcr.io/x").unwrap(), None);
        assert_eq!(found(text, "docker://other.io/x").unwrap(), None);
        assert_eq!(found(text, "docker://bad.io/x").unwrap_err(), "auths, bad.io: 'auth' is not in base64");
        assert!(!format!("{:?}", password("u", "secret")).contains("secret"));
    }

    /// A helper of this name in a directory of its own, which is given by its path.
    fn helped(script: &str, patience: Duration) -> Result<Vec<u8>, String> {
        let place = tempfile::tempdir().unwrap();
        let program = place.path().join("helper");
        fs::write(&program, format!("#!/bin/sh\n{script}")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
        let mut child = Command::new("sh").arg(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let output = talk(&mut child, "localhost:5000", patience);
        let _ = child.kill();
        child.wait().unwrap();
        output
    }

    #[test]
    fn a_helper_is_given_the_registry_and_a_limit() {
        let long = Duration::from_secs(60);
        assert_eq!(helped("cat", long).unwrap(), b"localhost:5000");
        assert!(helped("yes", long).unwrap_err().contains("more than 1 MiB"));
        assert!(helped("exec sleep 600", Duration::from_millis(50)).unwrap_err().contains("no answer"));
        assert!(
            helped("exec >&-; exec sleep 600", Duration::from_millis(50)).unwrap_err().contains("within 0 seconds")
        );
        assert!(ask("../x", "y", long).is_err());
        assert!(ask("no-such-helper-of-inarch", "y", long).unwrap_err().contains("no such program"));
    }
}
