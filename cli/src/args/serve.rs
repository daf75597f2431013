//! Flags of `engraft serve`, which a file may hold, too.

use super::super::failure::Failure;
use super::super::input;
use super::super::values::{bytes, positive};
#[cfg(feature = "image")]
use super::super::values::{lora, pixels};
use super::ModelArgs;
use clap::Args as ClapArgs;
use clap::builder::NonEmptyStringValueParser;
use engraft::engraft_core::file;
#[cfg(feature = "image")]
use engraft::engraft_diffusion::Lora;
use engraft_server::{ApiKey, ServerConfig};
use std::path::PathBuf;
use std::time::Duration;

/// Bytes of a file of keys or a template.
const MOST: u64 = 4 << 20;

/// What stands below the flags of `serve`.
const EXAMPLES: &str = "Examples:\n  engraft serve
  engraft serve path/to/model --port 8000 --api-key-file keys.txt
  engraft serve --settings engraft.toml";

#[derive(Debug, ClapArgs)]
#[command(after_help = EXAMPLES)]
pub struct ServeArgs {
    /// The model, as with --model
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub path: Option<String>,
    /// Take flags from this TOML file, by their names without dashes in front: port = 8080; the command
    /// line counts before it
    #[arg(long, value_name = "FILE")]
    pub settings: Option<PathBuf>,
    /// Of a pipeline: a LoRA file to add to the weights, and how much of it, FILE@0.6; default: all (can be
    /// given several times)
    #[cfg(feature = "image")]
    #[arg(long, value_name = "FILE[@SCALE]", value_parser = lora)]
    pub lora: Vec<Lora>,
    #[command(flatten)]
    pub http: HttpArgs,
    #[command(flatten)]
    pub limits: LimitArgs,
    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "HTTP")]
pub struct HttpArgs {
    /// Address to listen on; 0.0.0.0 is all of them
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 8000)]
    pub port: u16,
    /// Listen on this Unix socket instead
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub uds: Option<PathBuf>,
    /// Certificate chain, PEM, in builds with the cargo feature `tls`
    #[arg(long, value_name = "FILE", requires = "ssl_keyfile")]
    pub ssl_certfile: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_keyfile: Option<PathBuf>,
    /// Names that requests may call the model by (can be given several times); default: as it was named,
    /// and the last part of that
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub served_model_name: Vec<String>,
    /// Keys of clients, a line each: name:key; a pipe will do
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// A key of clients (can be given several times); other users of the machine can see it: prefer a file
    #[arg(long, value_name = "KEY")]
    pub api_key: Vec<String>,
    /// A name by which browsers may ask a server without keys that listens for its own machine (a proxy's,
    /// say), and whose pages may ask any server without keys (can be given several times); localhost and
    /// addresses need none
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub allowed_host: Vec<String>,
    /// Who is served first: requests of a smaller `priority`, or (fcfs) those that came first, which refuses
    /// that field
    #[arg(long, value_name = "POLICY", default_value = "priority", value_parser = ["priority", "fcfs"])]
    pub scheduling_policy: String,
    /// Chat template, Jinja, in the place of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
    /// Never take what a user writes for control tokens, even where it spells them (`<|im_end|>`)
    #[arg(long)]
    pub no_special_in_user_text: bool,
    /// Drop fields of requests that are not known, with a warning, instead of refusing them
    #[arg(long)]
    pub allow_unknown_fields: bool,
    /// Whose requests find the beginnings of each other's prompts in the prefix cache: those of one key, or
    /// all
    #[arg(long, value_name = "SCOPE", default_value = "key", value_parser = ["key", "all"],
        conflicts_with = "no_prefix_cache")]
    pub prefix_cache_scope: String,
}

#[derive(Debug, ClapArgs)]
#[command(next_help_heading = "Limits")]
pub struct LimitArgs {
    /// Sequences that run at once
    #[arg(long, alias = "max-seqs", value_name = "N", default_value_t = 8, value_parser = positive)]
    pub max_num_seqs: usize,
    /// Sequences that may wait beyond those; more are answered with 429
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub max_queued: usize,
    /// Prompt tokens of all sequences that run or wait
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    pub max_queued_tokens: usize,
    /// Requests of one key at once
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_per_key: Option<usize>,
    /// Tokens that a request may ask for
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_output_tokens: Option<usize>,
    /// Bytes of a request's body
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20, value_parser = bytes)]
    pub max_body_bytes: usize,
    /// Seconds of a sound that is transcribed; default: 1800
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub max_audio_seconds: Option<usize>,
    /// Pixels of a picture; pictures of a request that have so many together are made at once; default:
    /// 4194304
    #[cfg(feature = "image")]
    #[arg(long, value_name = "N", value_parser = pixels)]
    pub max_image_pixels: Option<usize>,
    /// Steps of a picture; default: 200
    #[cfg(feature = "image")]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_image_steps: Option<usize>,
    /// Bytes of large answers that are not read yet; beyond, requests for more of them wait
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20, value_parser = bytes)]
    pub max_unsent_bytes: usize,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = positive)]
    pub max_connections: usize,
    /// Seconds of a whole request; longer ones end with an error
    #[arg(long, value_name = "SECONDS", value_parser = positive)]
    pub request_timeout: Option<usize>,
    /// Seconds for a request's head, and between requests of a connection
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = positive)]
    pub header_timeout: usize,
    /// Seconds for a request's body
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = positive)]
    pub body_timeout: usize,
    /// Seconds that a client may take no byte of an answer; one that is behind for twice that time, and a
    /// second more for each 4 KiB that it takes, is ended, too
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = positive)]
    pub write_timeout: usize,
    /// Seconds that running requests have after SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain_timeout: usize,
}

fn seconds(seconds: usize) -> Duration {
    Duration::from_secs(seconds as u64)
}

impl LimitArgs {
    /// Limits that were given, of models that read sound, or else of those that make pictures.
    pub fn of(&self, sound: bool) -> Vec<&'static str> {
        let mut flags = vec![("--max-audio-seconds", true, self.max_audio_seconds)];
        #[cfg(feature = "image")]
        flags.extend([
            ("--max-image-pixels", false, self.max_image_pixels),
            ("--max-image-steps", false, self.max_image_steps),
        ]);
        let given = flags.into_iter().filter(|(_, of, given)| *of == sound && given.is_some());
        given.map(|(flag, ..)| flag).collect()
    }
}

impl ServeArgs {
    /// The model as it was named.
    pub fn name(&self) -> Option<&str> {
        self.path.as_deref().or(self.model.model.as_deref())
    }

    /// Settings of the server.
    pub fn config(&self) -> Result<ServerConfig, Failure> {
        let (http, limits) = (&self.http, &self.limits);
        let mut api_keys = match &http.api_key_file {
            Some(path) => ApiKey::parse(&input::text(path, MOST)?)?,
            None => Vec::new(),
        };
        for (number, key) in http.api_key.iter().enumerate() {
            if key.is_empty() {
                return Err(Failure::Usage("--api-key is empty".into()));
            }
            api_keys.push(ApiKey::new(format!("--api-key {}", number + 1), key));
        }
        let usual = ServerConfig::default();
        Ok(ServerConfig {
            host: http.host.clone(),
            port: http.port,
            uds: http.uds.clone(),
            tls: http.ssl_certfile.clone().zip(http.ssl_keyfile.clone()),
            served_model_name: http.served_model_name.clone(),
            api_keys,
            allowed_hosts: http.allowed_host.clone(),
            priorities: http.scheduling_policy == "priority",
            chat_template: http.chat_template.as_ref().map(|path| file::text(path, MOST)).transpose()?,
            no_special_in_user_text: http.no_special_in_user_text,
            allow_unknown_fields: http.allow_unknown_fields,
            share_prefixes: http.prefix_cache_scope == "all",
            max_num_seqs: limits.max_num_seqs,
            max_queued: limits.max_queued,
            max_queued_tokens: limits.max_queued_tokens,
            max_per_key: limits.max_per_key,
            max_output_tokens: limits.max_output_tokens,
            max_body_bytes: limits.max_body_bytes,
            max_audio_seconds: limits.max_audio_seconds.unwrap_or(usual.max_audio_seconds),
            #[cfg(feature = "image")]
            max_image_pixels: limits.max_image_pixels.unwrap_or(usual.max_image_pixels),
            #[cfg(feature = "image")]
            max_image_steps: limits.max_image_steps.unwrap_or(usual.max_image_steps),
            max_unsent_bytes: limits.max_unsent_bytes,
            max_connections: limits.max_connections,
            request_timeout: limits.request_timeout.map(seconds),
            header_timeout: seconds(limits.header_timeout),
            body_timeout: seconds(limits.body_timeout),
            write_timeout: seconds(limits.write_timeout),
            drain_timeout: seconds(limits.drain_timeout),
            ..usual
        })
    }
}
