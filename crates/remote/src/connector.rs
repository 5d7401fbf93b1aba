//! [`Connector`]: makes the HTTP clients of stores. They follow redirections only where that gives another host no credentials.

use std::fmt::Display;

use object_store::client::{ClientConfigKey, ClientOptions, HttpClient, HttpConnector};
use reqwest::Client;
use reqwest::redirect::Policy;

use crate::Limits;

/// How many redirections of a web server are followed.
const REDIRECTIONS: usize = 5;

/// Makes the clients of one store.
#[derive(Debug)]
pub(crate) struct Connector {
    limits: Limits,
    redirects: Redirects,
}

/// Which redirections are followed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Redirects {
    /// None. Requests to a bucket are signed or carry tokens, which another host must not get.
    Never,
    /// Those of a web server, which gets no credentials: a few, and none from TLS to plain HTTP.
    Few,
}

impl Connector {
    pub fn new(limits: &Limits, redirects: Redirects) -> Connector {
        Connector { limits: *limits, redirects }
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The clients that ask a cloud's service for credentials have options of their own.
        let allows_plain = options.get_config_value(&ClientConfigKey::AllowHttp).is_some_and(|value| value == "true");
        let policy = match self.redirects {
            Redirects::Never => Policy::none(),
            Redirects::Few => Policy::custom(|attempt| {
                let was_encrypted = attempt.previous().iter().any(|url| url.scheme() == "https");
                if attempt.previous().len() > REDIRECTIONS {
                    return attempt.error(format!("it redirects more than {REDIRECTIONS} times"));
                }
                if was_encrypted && attempt.url().scheme() != "https" {
                    return attempt.error("it redirects to an address without TLS");
                }
                attempt.follow()
            }),
        };
        let client = Client::builder()
            .user_agent(concat!("inarch/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(self.limits.connect)
            .read_timeout(self.limits.silence)
            .https_only(!allows_plain)
            .redirect(policy)
            // The query of an Azure URL can be a signature.
            .referer(false)
            .build();
        client.map(HttpClient::new).map_err(|error| failed(&error))
    }
}

fn failed(error: &dyn Display) -> object_store::Error {
    object_store::Error::Generic { store: "HTTP", source: error.to_string().into() }
}
