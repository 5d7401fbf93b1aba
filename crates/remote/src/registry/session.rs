//! [`Session`]: the requests to one repository of a registry. All here runs in the registry's own thread.

use std::time::Duration;

use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, RANGE, WWW_AUTHENTICATE};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, RequestBuilder, Response, StatusCode, Url};
use tokio::sync::{Mutex, OnceCell, mpsc};

use super::authorities::{self, Authority};
use super::challenge::{Challenge, challenge, message, token_of};
use super::credentials::{Credentials, Found};
use super::error::plain;
use super::name::is_loopback;
use super::{Answer, ImageName, MOST_DOCUMENT, RegistryError};
use crate::{Limits, WrongLength};

/// How many redirections are followed: a registry sends a client to the store that has the bytes, and that perhaps to another.
const REDIRECTIONS: usize = 5;

/// The most bytes of an answer that is not asked for its bytes: a token, what is wrong.
const MOST_SMALL: u64 = 64 << 10;

/// How long the first repetition of a request waits; each further one twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// See the module's page.
pub(super) struct Session {
    name: ImageName,
    found: Found,
    authorities: Vec<Authority>,
    /// Whether something will be put.
    puts: bool,
    pub(super) limits: Limits,
    base: OnceCell<Base>,
    permit: Mutex<Option<Permit>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// How the registry is reached.
#[derive(Debug)]
pub(super) struct Base {
    pub client: Client,
    /// The root of the protocol's paths, without a slash at its end.
    pub url: String,
}

impl Base {
    /// Whether an address is the registry's own: an answer may come from where it has redirected to.
    pub fn has(&self, address: &Url) -> bool {
        Url::parse(&self.url).is_ok_and(|own| own.origin() == address.origin())
    }
}

/// What goes with each request once the registry has asked for it.
#[derive(Clone)]
enum Permit {
    Token(String),
    Basic { user: String, password: String },
}

/// Which connections may be without TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plain {
    /// None.
    Never,
    /// Those to this machine.
    Loopback,
    /// All: the user says so.
    Always,
}

impl Plain {
    fn permits(self, url: &Url) -> bool {
        match (url.scheme(), self) {
            ("https", _) | ("http", Plain::Always) => true,
            ("http", Plain::Loopback) => url.host_str().is_some_and(is_loopback),
            _ => false,
        }
    }
}

impl Session {
    /// Reads the authorities of the registry, which the thread that speaks with it may not.
    pub fn new(name: &ImageName, found: Found, puts: bool, limits: Limits) -> Session {
        let (name, authorities) = (name.clone(), authorities::find(name));
        Session { name, found, authorities, puts, limits, base: OnceCell::new(), permit: Mutex::new(None) }
    }

    fn plain(&self) -> Plain {
        match (self.name.is_plain(), self.name.is_loopback()) {
            (true, _) => Plain::Always,
            (_, true) => Plain::Loopback,
            _ => Plain::Never,
        }
    }

    /// Makes the client, and finds out whether a registry of this machine has TLS: docker tries that first, too.
    pub(super) async fn base(&self) -> Result<&Base, RegistryError> {
        let open = async || {
            // A program that embeds this may have installed another one.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let plain_allowed = self.plain();
            let follow = Policy::custom(move |attempt| {
                if attempt.previous().len() > REDIRECTIONS {
                    return attempt.error(format!("it redirects more than {REDIRECTIONS} times"));
                }
                if !plain_allowed.permits(attempt.url()) {
                    return attempt.error("it redirects to an address without TLS");
                }
                attempt.follow()
            });
            let mut builder = Client::builder()
                .user_agent(concat!("inarch/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(self.limits.connect)
                .read_timeout(self.limits.silence)
                // A store's address can be a permit by itself.
                .referer(false)
                .redirect(follow);
            for Authority { path, pem } in &self.authorities {
                let wrong = |error| RegistryError::Authority(plain(&format!("{}: {error}", path.display())));
                builder = builder.tls_certs_merge(Certificate::from_pem_bundle(pem).map_err(wrong)?);
            }
            if plain_allowed == Plain::Loopback {
                // No program asks a proxy for what is on its own machine.
                builder = builder.no_proxy();
            }
            let client = builder.build().map_err(|error| RegistryError::of_http(&error))?;
            let at = |scheme: &str| format!("{scheme}://{}", self.name.host());
            let url = match plain_allowed {
                Plain::Never => at("https"),
                Plain::Always => at("http"),
                Plain::Loopback => match client.get(format!("{}/v2/", at("https"))).send().await {
                    // It has TLS, by a certificate that is not trusted: without TLS it would answer nothing of use.
                    Err(error) if error.is_connect() => match RegistryError::of_http(&error) {
                        RegistryError::Unreachable(why) if why.contains("certificate") => {
                            return Err(RegistryError::Unreachable(why));
                        }
                        _ => at("http"),
                    },
                    _ => at("https"),
                },
            };
            Ok(Base { client, url })
        };
        self.base.get_or_try_init(open).await
    }

    /// An address of the repository.
    fn address(&self, base: &Base, below: &str) -> String {
        format!("{}/v2/{}/{below}", base.url, self.name.repository())
    }

    /// An address that the registry names, relative to that of its answer.
    pub(super) fn named(&self, answer: &Response, location: &str) -> Result<Url, RegistryError> {
        let wrong = || RegistryError::Nonsense(format!("it names the address '{}'", plain(location)));
        let url = answer.url().join(location).map_err(|_| wrong())?;
        if self.plain().permits(&url) { Ok(url) } else { Err(wrong()) }
    }

    /// Adds what permits a request, if the registry has asked for it.
    pub(super) async fn permitted(&self, request: RequestBuilder) -> RequestBuilder {
        match &*self.permit.lock().await {
            None => request,
            Some(Permit::Token(token)) => request.bearer_auth(token),
            Some(Permit::Basic { user, password }) => request.basic_auth(user, Some(password)),
        }
    }

    /// Sends a request below the repository's address until it is answered: again where the registry is in trouble, and once more with what it asks for.
    pub(super) async fn send(
        &self,
        below: &str,
        make: impl Fn(&Client, &str) -> RequestBuilder,
    ) -> Result<Response, RegistryError> {
        let base = self.base().await?;
        let address = self.address(base, below);
        let (mut failures, mut has_asked) = (0, false);
        loop {
            let sent = self.permitted(make(&base.client, &address)).await.send().await;
            let error = match sent {
                Ok(answer) if answer.status().is_success() => return Ok(answer),
                // The credentials are for the token service that the registry names, not for one that a store of its names.
                Ok(answer) if answer.status() == StatusCode::UNAUTHORIZED && !has_asked && base.has(answer.url()) => {
                    has_asked = true;
                    if self.ask(base, answer.headers()).await? {
                        continue;
                    }
                    self.refused(answer).await
                }
                Ok(answer) => self.refused(answer).await,
                Err(error) => RegistryError::of_http(&error),
            };
            if !error.may_pass() || failures >= self.limits.retries {
                return Err(error);
            }
            tokio::time::sleep(PAUSE * 2u32.saturating_pow(failures as u32)).await;
            failures += 1;
        }
    }

    /// Gets the permit that the registry asks for. Returns whether there is one that the registry has not had yet.
    async fn ask(&self, base: &Base, headers: &HeaderMap) -> Result<bool, RegistryError> {
        let all: Vec<&str> = headers.get_all(WWW_AUTHENTICATE).iter().filter_map(|value| value.to_str().ok()).collect();
        let Some(challenge) = challenge(&all.join(", ")) else { return Ok(false) };
        let permit = match (challenge, &self.found.credentials) {
            (Challenge::Basic, Some(Credentials::Password { user, password })) => {
                Permit::Basic { user: user.clone(), password: password.clone() }
            }
            (Challenge::Basic, _) => return Ok(false),
            (Challenge::Bearer { realm, service, mut scope }, credentials) => {
                if self.puts {
                    // Some registries say no more than 403 to a token that permits to pull.
                    scope = Some(format!("repository:{}:pull,push", self.name.repository()));
                }
                Permit::Token(self.token(base, (&realm, service, scope), credentials.as_ref()).await?)
            }
        };
        *self.permit.lock().await = Some(permit);
        Ok(true)
    }

    /// Asks the service that the registry names for a token.
    async fn token(
        &self,
        base: &Base,
        (realm, service, scope): (&str, Option<String>, Option<String>),
        credentials: Option<&Credentials>,
    ) -> Result<String, RegistryError> {
        let wrong = || RegistryError::Nonsense(format!("its tokens are at '{}'", plain(realm)));
        let mut url = Url::parse(realm).map_err(|_| wrong())?;
        if !self.plain().permits(&url) {
            return Err(wrong());
        }
        let words = [("service", service), ("scope", scope)];
        let words: Vec<(&str, String)> = words.into_iter().filter_map(|(key, value)| Some((key, value?))).collect();
        let request = match credentials {
            Some(Credentials::Identity(token)) => {
                // The words of a form are written like those of a query.
                let mut form = url.clone();
                form.query_pairs_mut().clear().extend_pairs(&words).extend_pairs([
                    ("grant_type", "refresh_token"),
                    ("client_id", "inarch"),
                    ("refresh_token", token),
                ]);
                let body = form.query().unwrap_or_default().to_owned();
                base.client.post(url).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(body)
            }
            other => {
                url.query_pairs_mut().extend_pairs(&words);
                let request = base.client.get(url);
                match other {
                    Some(Credentials::Password { user, password }) => request.basic_auth(user, Some(password)),
                    _ => request,
                }
            }
        };
        let answer = request.send().await.map_err(|error| RegistryError::of_http(&error))?;
        if !answer.status().is_success() {
            return Err(self.refused(answer).await);
        }
        token_of(&all_of(answer, MOST_SMALL).await?).map_err(|why| RegistryError::Nonsense(plain(&why)))
    }

    /// The error that an answer stands for.
    pub(super) async fn refused(&self, answer: Response) -> RegistryError {
        let status = answer.status();
        let body = first_of(answer, MOST_SMALL).await;
        let mut said = plain(&message(&body));
        if said.is_empty() {
            said = status.canonical_reason().unwrap_or("no reason").to_lowercase();
        }
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => RegistryError::Denied { said, advice: self.advice() },
            StatusCode::NOT_FOUND => RegistryError::Missing(said),
            _ => RegistryError::Trouble { status: status.as_u16(), said },
        }
    }

    /// Advice for a user whom the registry refuses.
    fn advice(&self) -> String {
        let registry = self.name.registry();
        match &self.found {
            Found { trouble: Some(trouble), .. } => format!("no credentials were found ({trouble})"),
            Found { credentials: None, .. } => {
                format!("if the name is right, log in ('docker login {registry}' or 'podman login {registry}')")
            }
            Found { credentials: Some(Credentials::Password { user, .. }), .. } => {
                format!("the credentials of '{}' do not suffice", plain(user))
            }
            Found { .. } => "the token that docker or podman has does not suffice".to_owned(),
        }
    }

    pub async fn digest(&self, reference: &str, accept: &str) -> Result<Option<String>, RegistryError> {
        let make = |client: &Client, address: &str| client.head(address).header(ACCEPT, accept);
        let answer = self.send(&format!("manifests/{reference}"), make).await?;
        let digest = answer.headers().get("docker-content-digest").and_then(|value| value.to_str().ok());
        Ok(digest.map(str::to_owned))
    }

    pub async fn document(&self, reference: &str, accept: &str) -> Result<Answer, RegistryError> {
        let make = |client: &Client, address: &str| client.get(address).header(ACCEPT, accept);
        let answer = self.send(&format!("manifests/{reference}"), make).await?;
        let media_type = answer.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().to_owned();
        Ok(Answer { bytes: all_of(answer, MOST_DOCUMENT).await?, media_type })
    }

    /// Sends a blob to `pieces`. Where a connection breaks, the next one goes on where it ended.
    pub async fn blob(&self, digest: &str, size: u64, pieces: &mpsc::Sender<Bytes>) -> Result<(), RegistryError> {
        let (mut got, mut failures) = (0, 0);
        loop {
            let before = got;
            match self.rest_of_blob(digest, size, &mut got, pieces).await {
                // What is not answered at all was asked for several times already.
                Err(error) if error.may_pass() && got > before && failures < self.limits.retries => {
                    tokio::time::sleep(PAUSE * 2u32.saturating_pow(failures as u32)).await;
                    failures += 1;
                }
                other => return other,
            }
        }
    }

    async fn rest_of_blob(
        &self,
        digest: &str,
        size: u64,
        got: &mut u64,
        pieces: &mpsc::Sender<Bytes>,
    ) -> Result<(), RegistryError> {
        let from = *got;
        let make = |client: &Client, address: &str| {
            let request = client.get(address);
            if from > 0 { request.header(RANGE, format!("bytes={from}-")) } else { request }
        };
        let mut answer = self.send(&format!("blobs/{digest}"), make).await?;
        // A server may send all instead of a range.
        let mut skip = if answer.status() == StatusCode::PARTIAL_CONTENT { 0 } else { from };
        let range = answer.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
        if from > 0 && skip == 0 && !range.is_some_and(|range| range.starts_with(&format!("bytes {from}-"))) {
            return Err(RegistryError::Nonsense("it sends another range than was asked for".to_owned()));
        }
        loop {
            let piece = answer.chunk().await.map_err(|error| RegistryError::of_http(&error))?;
            let Some(mut piece) = piece else { break };
            let skipped = skip.min(piece.len() as u64);
            skip -= skipped;
            let piece = piece.split_off(skipped as usize);
            if piece.len() as u64 > size - *got {
                return Err(WrongLength::TooLong { most: size }.into());
            }
            *got += piece.len() as u64;
            if !piece.is_empty() && pieces.send(piece).await.is_err() {
                return Err(RegistryError::Ended);
            }
        }
        if *got < size {
            return Err(WrongLength::TooShort { got: *got, wanted: size }.into());
        }
        Ok(())
    }
}

/// An answer of at most `most` bytes. What a server says of its length is not believed.
async fn all_of(mut answer: Response, most: u64) -> Result<Vec<u8>, RegistryError> {
    let mut bytes = Vec::new();
    while let Some(piece) = answer.chunk().await.map_err(|error| RegistryError::of_http(&error))? {
        if (bytes.len() + piece.len()) as u64 > most {
            return Err(WrongLength::TooLong { most }.into());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

/// The beginning of an answer, as far as it comes.
async fn first_of(mut answer: Response, most: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Ok(Some(piece)) = answer.chunk().await {
        let left = (most as usize).saturating_sub(bytes.len());
        bytes.extend_from_slice(piece.get(..left.min(piece.len())).unwrap_or_default());
        if bytes.len() as u64 >= most {
            break;
        }
    }
    bytes
}
