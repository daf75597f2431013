//! What a server is set up with.

use crate::auth::ApiKey;
use engraft::{Error, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Settings of a server; the names are those of `engraft serve`'s flags.
///
/// ```
/// use engraft_server::ServerConfig;
///
/// let config = ServerConfig { port: 0, ..ServerConfig::default() };
/// assert_eq!((config.host.as_str(), config.max_body_bytes), ("127.0.0.1", 8 << 20));
/// ```
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address to listen on.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Unix socket to listen on instead.
    pub uds: Option<PathBuf>,
    /// Certificate chain and private key, PEM.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Names that requests may call the model by; the first one is that of answers.
    pub served_model_name: Vec<String>,
    /// Keys, one of which every request but those for health needs; none: no key is needed.
    pub api_keys: Vec<ApiKey>,
    /// Names by which browsers may ask a server without keys that listens for its own machine, and whose
    /// pages may ask any server without keys; `localhost` and addresses need none.
    pub allowed_hosts: Vec<String>,
    /// Whether requests may have a `priority`; otherwise one but 0 is refused.
    pub priorities: bool,
    /// Jinja source in the place of the model's own chat template.
    pub chat_template: Option<String>,
    /// No text of a conversation or a prompt becomes a control token; roles are those of OpenAI's API.
    pub no_special_in_user_text: bool,
    /// Fields of a request that the server does not know are warned of and dropped instead of refused.
    pub allow_unknown_fields: bool,
    /// Whether keys share the prefix cache; otherwise a prompt's beginning is found by requests of its own
    /// key alone.
    pub share_prefixes: bool,
    /// Sequences that run at once, as the engine was opened.
    pub max_num_seqs: usize,
    /// Sequences that may wait beyond those that run; more are answered with 429.
    pub max_queued: usize,
    /// Prompt tokens of all sequences that are in the server.
    pub max_queued_tokens: usize,
    /// Requests of one key at once; none: no limit but the queue's.
    pub max_per_key: Option<usize>,
    /// Continuations of one request.
    pub max_n: usize,
    /// Stop strings of one request.
    pub max_stop: usize,
    /// Tokens that a request may ask for; none: the context's.
    pub max_output_tokens: Option<usize>,
    /// Bytes of a request's body.
    pub max_body_bytes: usize,
    /// Seconds of a sound that is transcribed.
    pub max_audio_seconds: usize,
    /// Pixels of a picture; so many together are made at once.
    pub max_image_pixels: usize,
    /// Steps of a picture.
    pub max_image_steps: usize,
    /// Bytes of answers that are made and not sent, but for small ones; a request whose answer may take more
    /// than is left waits, so that clients that read slowly fill no memory. One answer may be larger.
    pub max_unsent_bytes: usize,
    /// Connections at once.
    pub max_connections: usize,
    /// Time for a request's head, and between requests of a connection.
    pub header_timeout: Duration,
    /// Time for a request's body.
    pub body_timeout: Duration,
    /// Time that a client may take no byte of an answer; one that is behind for twice that time, and a second
    /// more for each 4 KiB that it takes, is ended, too.
    pub write_timeout: Duration,
    /// Time between comments that keep an idle stream open.
    pub keep_alive: Duration,
    /// Time of a whole request; none: no limit.
    pub request_timeout: Option<Duration>,
    /// Time that running requests have when the server ends.
    pub drain_timeout: Duration,
    /// The first wait before a failed engine is loaded again; it doubles at each failure.
    pub restart_backoff: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            host: "127.0.0.1".into(),
            port: 8000,
            uds: None,
            tls: None,
            served_model_name: Vec::new(),
            api_keys: Vec::new(),
            allowed_hosts: Vec::new(),
            priorities: true,
            chat_template: None,
            no_special_in_user_text: false,
            allow_unknown_fields: false,
            share_prefixes: false,
            max_num_seqs: 8,
            max_queued: 256,
            max_queued_tokens: 1 << 20,
            max_per_key: None,
            max_n: 128,
            max_stop: 16,
            max_output_tokens: None,
            max_body_bytes: 8 << 20,
            max_audio_seconds: 1800,
            max_image_pixels: 4 << 20,
            max_image_steps: 200,
            max_unsent_bytes: 256 << 20,
            max_connections: 1024,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            keep_alive: Duration::from_secs(15),
            request_timeout: None,
            drain_timeout: Duration::from_secs(30),
            restart_backoff: Duration::from_millis(200),
        }
    }
}

impl ServerConfig {
    /// Refuses settings with which no request could be served.
    pub(crate) fn check(&self) -> Result<()> {
        if self.max_body_bytes == 0 {
            return Err(Error::config("max-body-bytes", 0, "1 or more: every request but GET has a body"));
        }
        ApiKey::check(&self.api_keys, "api-key")?;
        match self.served_model_name.iter().any(|name| name.trim().is_empty()) {
            true => Err(Error::config("served-model-name", "an empty name", "names that requests can write")),
            false => Ok(()),
        }
    }
}

/// Samples that a second of a file may have on the mean: those of studios.
#[cfg(feature = "speech")]
const SAMPLES_PER_SECOND: usize = 48_000;

#[cfg(feature = "speech")]
impl ServerConfig {
    /// Samples that a file may be decoded to.
    pub(crate) fn most_samples(&self) -> usize {
        self.max_audio_seconds.saturating_mul(SAMPLES_PER_SECOND)
    }

    /// Bytes that a sound takes at most while it is decoded: it grows by doubling.
    pub(crate) fn most_sound_bytes(&self) -> usize {
        self.most_samples().saturating_mul(2 * size_of::<f32>())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_no_request_fits_are_refused() {
        let plain = ServerConfig::default();
        plain.check().unwrap();
        let key = |name: &str| ApiKey::new(name, "sk-1");
        for (config, said) in [
            (ServerConfig { max_body_bytes: 0, ..plain.clone() }, "`max-body-bytes` is 0"),
            (
                ServerConfig { served_model_name: vec!["a".into(), " ".into()], ..plain.clone() },
                "an empty name",
            ),
            (ServerConfig { api_keys: vec![key("a"), key("b")], ..plain.clone() }, "two names, a and b"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
