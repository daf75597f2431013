//! What all handlers share, and how a request is read.

use crate::admission::{Admission, Permit};
use crate::browser::Guard;
use crate::config::ServerConfig;
use crate::drain::{Life, Phase};
use crate::error::ApiError;
use crate::fields::{Field, Fields, clipped};
use crate::listen::Address;
use crate::metrics::{Load, Metrics};
use crate::patience::Connection;
use crate::supervise::{Models, Served};
use crate::weight;
use axum::body::{Body, Bytes, to_bytes};
use axum::http::{Request, StatusCode, header};
use engraft::engraft_core::config::unique;
use engraft::{Caller, CancelToken};
use serde_json::{Map, Value};
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const KIB: usize = 1 << 10;
/// Bytes of all bodies that are in the server at once, if one is not larger.
const BODIES: usize = 256 << 20;
/// Bytes of all bodies that are parsed and not read yet, by the most that they may take; one may be larger.
const VALUES: usize = 256 << 20;
/// Those of a body that needs no such room: connections times this are bounded, too.
const FEW_VALUES: usize = 256 << 10;
/// Bytes of all texts whose tokens are an answer, if one is not larger.
const TOKENIZING: usize = 8 << 20;
/// Bytes of all sounds that are decoded at once, if one is not larger.
#[cfg(feature = "speech")]
const SOUNDS: usize = 1 << 30;
/// Calls of the engine that have a thread at once: other requests need some of those threads, too.
const CALLS: usize = 32;
/// The same of transcriptions.
#[cfg(feature = "speech")]
const TRANSCRIPTIONS: usize = 32;

/// A server's parts.
#[derive(Debug)]
pub struct State {
    /// Its settings.
    pub config: ServerConfig,
    /// The model.
    pub models: Arc<Models>,
    /// How much is in the server.
    pub admission: Arc<Admission>,
    /// What happened.
    pub metrics: Arc<Metrics>,
    /// Its phase.
    pub life: Life,
    /// Which requests of browsers are taken.
    pub guard: Guard,
    /// Names that requests may call the model by.
    pub names: Vec<String>,
    /// Room for bodies of requests, in KiB.
    bodies: Arc<Semaphore>,
    /// Room for parsed bodies, in KiB: these take many times as much.
    values: Arc<Semaphore>,
    /// Room for texts whose tokens are an answer, in KiB: these take a hundred times as much.
    tokenizing: Arc<Semaphore>,
    /// Transcriptions at once: each has a thread that waits for the engine.
    #[cfg(feature = "speech")]
    pub transcriptions: Arc<Semaphore>,
    /// Room for sounds while they are decoded, in KiB.
    #[cfg(feature = "speech")]
    pub decoding: Arc<Semaphore>,
    /// The turn of a request for pictures: a pipeline has one run at a time.
    #[cfg(feature = "images")]
    pub making: Arc<Semaphore>,
    /// Calls at once that have a thread which waits for the engine.
    pub calls: Arc<Semaphore>,
    /// Room for answers that are not sent yet.
    pub unsent: Arc<Semaphore>,
    /// When it was started, in seconds since 1970.
    pub created: u64,
}

/// The name of a request's key.
#[derive(Debug, Clone)]
pub struct KeyName(pub String);

/// What is known of a request before its fields are read.
#[derive(Debug)]
pub struct Origin {
    /// The name of its key.
    pub key: String,
    /// The connection that it came by.
    pub connection: Connection,
}

/// A request that was read.
#[derive(Debug)]
pub struct Call<M = Served> {
    /// Its fields, all of them known.
    pub fields: Fields,
    /// The name of its key.
    pub key: String,
    /// Equal for requests with equal bodies.
    pub fingerprint: u64,
    /// The model.
    pub served: Arc<M>,
    /// The name that the request calls it by.
    pub model: String,
    /// What it came by.
    pub connection: Connection,
    /// The room of its body, and of its fields.
    room: Option<Room>,
}

/// What a body takes while it is in the server.
#[derive(Debug)]
pub struct Room {
    /// Of its bytes.
    pub body: OwnedSemaphorePermit,
    /// Of its values, where those are many.
    pub _values: Option<OwnedSemaphorePermit>,
}

impl<M> Call<M> {
    /// Frees the room of its body, which is gone.
    #[cfg(feature = "speech")]
    pub fn body_is_gone(&mut self) {
        self.room = None;
    }

    /// The room of its body, for whoever keeps parts of it.
    #[cfg(feature = "images")]
    pub fn take_room(&mut self) -> Option<OwnedSemaphorePermit> {
        self.room.take().map(|room| room.body)
    }

    /// Drops the fields, all of which are read, but for who it is for; their room is free.
    pub fn is_read(&mut self) {
        self.fields = std::mem::take(&mut self.fields).only("priority");
        self.room = None;
    }

    /// Who it is for: keys share what there is.
    ///
    /// # Errors
    /// Those of [`Fields::priority`].
    pub fn caller(&self) -> Result<Caller, ApiError> {
        Ok(Caller { tenant: self.key.clone(), priority: self.fields.priority()? })
    }
}

impl State {
    /// The parts of a server of `models` at `address`.
    ///
    /// # Errors
    /// `Internal` for metrics that cannot be registered.
    pub fn new(mut config: ServerConfig, models: Arc<Models>, address: &Address) -> engraft::Result<Self> {
        let loaded = models.loaded().map_err(|e| engraft::Error::Internal { what: e.message })?;
        let (path, stats) = (loaded.name().to_owned(), loaded.stats());
        if stats.is_none() {
            // Pictures are made one request after the other.
            config.max_num_seqs = 1;
        }
        let names = match config.served_model_name.is_empty() {
            true => {
                vec![Path::new(&path).file_name().map_or(path.clone(), |f| f.to_string_lossy().into_owned())]
            }
            false => config.served_model_name.clone(),
        };
        Ok(Self {
            metrics: Arc::new(Metrics::new(&names[0], stats)?),
            admission: Admission::new(&config),
            life: Life::default(),
            guard: Guard::new(&config, address),
            values: Arc::new(Semaphore::new(VALUES / KIB + 1)),
            bodies: Arc::new(Semaphore::new(BODIES.max(config.max_body_bytes) / KIB + 1)),
            tokenizing: Arc::new(Semaphore::new(TOKENIZING.max(config.max_body_bytes) / KIB + 1)),
            #[cfg(feature = "speech")]
            transcriptions: Arc::new(Semaphore::new(config.max_num_seqs.clamp(1, TRANSCRIPTIONS))),
            #[cfg(feature = "images")]
            making: Arc::new(Semaphore::new(1)),
            calls: Arc::new(Semaphore::new(CALLS)),
            unsent: Arc::new(Semaphore::new(crate::answer::kib(config.max_unsent_bytes) as usize)),
            #[cfg(feature = "speech")]
            decoding: Arc::new(Semaphore::new(SOUNDS.max(config.most_sound_bytes()) / KIB + 1)),
            created: now(),
            models,
            names,
            config,
        })
    }

    /// Reads the body of a request, and holds its fields against the tables of its route.
    ///
    /// # Errors
    /// 503 while the server ends or the model is loaded anew, 415, 413, 408, 400, 404.
    pub async fn read(&self, request: Request<Body>, tables: &[&[Field]]) -> Result<Call, ApiError> {
        self.read_for(request, tables, Models::text).await
    }

    /// As [`State::read`], for the model that `served` gives.
    ///
    /// # Errors
    /// As [`State::read`], and those of `served`.
    pub async fn read_for<M>(
        &self,
        request: Request<Body>,
        tables: &[&[Field]],
        served: fn(&Models) -> Result<Arc<M>, ApiError>,
    ) -> Result<Call<M>, ApiError> {
        let origin = self.origin(&request)?;
        // A page of another site sends no JSON that is named so; without a name it sends what it likes.
        let kind = request.headers().get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
        if !kind.is_some_and(|kind| is_kind(kind, "application/json")) {
            let got = kind.map_or("missing".into(), clipped);
            return Err(ApiError::content_type(&got, "application/json"));
        }
        let (bytes, body) = self.body(request).await?;
        let values = self.room_for_values(&bytes).await?;
        let given = match unique::from_slice(&bytes) {
            Ok(Value::Object(given)) => given,
            Ok(_) => return Err(ApiError::bad("the body is JSON, but no object")),
            Err(error) if error.is_data() => {
                return Err(ApiError::bad(format!("the body cannot be taken: {error}")));
            }
            Err(error) => return Err(ApiError::bad(format!("the body is no JSON: {error}"))),
        };
        self.call(given, tables, origin, fingerprint(&[&bytes]), Room { body, _values: values }, served)
    }

    /// A place among the requests that run. Who has one before the server drains is waited for: the phase is
    /// asked behind it, so that none comes in between.
    ///
    /// # Errors
    /// Those of [`Admission::enter`]; 503 while the server ends.
    pub fn enter(&self, key: &str, sequences: usize, tokens: usize) -> Result<Permit, ApiError> {
        let permit = self.admission.enter(key, sequences, tokens)?;
        match self.life.phase() {
            Phase::Serving => Ok(permit),
            _ => Err(ApiError::unavailable("the server ends", 1)),
        }
    }

    /// Where a request comes from.
    ///
    /// # Errors
    /// 503 while the server ends.
    pub fn origin(&self, request: &Request<Body>) -> Result<Origin, ApiError> {
        match self.life.phase() {
            Phase::Serving => {
                let extensions = request.extensions();
                let key = extensions.get::<KeyName>().map_or(String::new(), |key| key.0.clone());
                Ok(Origin { key, connection: extensions.get::<Connection>().cloned().unwrap_or_default() })
            }
            _ => Err(ApiError::unavailable("the server ends", 1)),
        }
    }

    /// A request of these fields.
    ///
    /// # Errors
    /// As [`State::read_for`].
    pub fn call<M>(
        &self,
        given: Map<String, Value>,
        tables: &[&[Field]],
        origin: Origin,
        fingerprint: u64,
        room: Room,
        served: fn(&Models) -> Result<Arc<M>, ApiError>,
    ) -> Result<Call<M>, ApiError> {
        let model = self.model(&given)?;
        let fields = Fields::check(given, tables, self.config.allow_unknown_fields)?;
        if !self.config.priorities && fields.priority()? != 0 {
            let why = "requests are served in their order, as --scheduling-policy fcfs says";
            return Err(ApiError::unsupported("priority", why));
        }
        self.models.suspects.admit(fingerprint)?;
        let (Origin { key, connection }, served) = (origin, served(&self.models)?);
        Ok(Call { fields, key, fingerprint, served, model, connection, room: Some(room) })
    }

    /// Room for the values of a body; first come, first served. None where they are few.
    ///
    /// # Errors
    /// 429 where others have it for too long.
    async fn room_for_values(&self, body: &[u8]) -> Result<Option<OwnedSemaphorePermit>, ApiError> {
        let bytes = weight::parsed(body);
        if bytes <= FEW_VALUES {
            return Ok(None);
        }
        let most = u32::try_from(bytes.min(VALUES) / KIB + 1).unwrap_or(u32::MAX);
        let room = self.values.clone().acquire_many_owned(most);
        match tokio::time::timeout(self.config.body_timeout, room).await {
            Ok(Ok(room)) => Ok(Some(room)),
            _ => Err(ApiError::too_many("the values of other requests' bodies take all the room", 1)),
        }
    }

    /// Room to make an answer of the tokens of a body that has so much room; first come, first served.
    ///
    /// # Errors
    /// 500 where there is none any more.
    pub async fn room_for_tokens<M>(&self, call: &Call<M>) -> Result<OwnedSemaphorePermit, ApiError> {
        let body = call.room.as_ref().map_or(1, |room| room.body.num_permits());
        let room = self.tokenizing.clone().acquire_many_owned(u32::try_from(body).unwrap_or(u32::MAX)).await;
        room.map_err(|_| ApiError::internal("no text can be tokenized any more"))
    }

    /// The bytes of a body, and the room that they take.
    ///
    /// # Errors
    /// 415 for a body that is compressed, 413, 408, 429, 400.
    pub async fn body(&self, request: Request<Body>) -> Result<(Bytes, OwnedSemaphorePermit), ApiError> {
        let headers = request.headers();
        let codings = headers.get_all(header::CONTENT_ENCODING).iter().map(|value| value.to_str());
        if let Some(other) = codings.map(Result::unwrap_or_default).find(|name| !is_kind(name, "identity")) {
            let message = format!("Content-Encoding is {}; allowed: none, or identity", clipped(other));
            return Err(ApiError::protocol(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
        }
        let most = self.config.max_body_bytes;
        let too_large = || {
            let message = format!("the body has more than {most} bytes");
            ApiError::protocol(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        let length = headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
        if length.is_some_and(|length| length > most as u64) {
            return Err(too_large());
        }
        let expected = length.map_or(most, |length| length as usize) / KIB + 1;
        let room = self.bodies.clone().try_acquire_many_owned(u32::try_from(expected).unwrap_or(u32::MAX));
        let mut room =
            room.map_err(|_| ApiError::too_many("the bodies of other requests take all the room", 1))?;
        match tokio::time::timeout(self.config.body_timeout, to_bytes(request.into_body(), most)).await {
            Err(_) => {
                let message = format!("the body did not come within {:?}", self.config.body_timeout);
                Err(ApiError::protocol(StatusCode::REQUEST_TIMEOUT, message))
            }
            Ok(Err(error)) => match std::error::Error::source(&error) {
                Some(source) if source.is::<http_body_util::LengthLimitError>() => Err(too_large()),
                _ => Err(ApiError::bad(format!("the body cannot be read: {error}"))),
            },
            Ok(Ok(bytes)) => {
                // Without a length, room was taken for the largest body.
                let spare = room.num_permits().saturating_sub(bytes.len() / KIB + 1);
                drop(room.split(spare));
                Ok((bytes, room))
            }
        }
    }

    /// What the model does at the moment.
    ///
    /// # Errors
    /// 503 while it is being loaded again.
    pub fn load(&self) -> Result<Load, ApiError> {
        let engine = self.models.loaded()?.stats();
        #[cfg(feature = "images")]
        if engine.is_none() {
            let running = 1 - self.making.available_permits();
            return Ok(Load { running, waiting: self.admission.requests().saturating_sub(running), engine });
        }
        let (running, waiting) = engine.map_or((0, 0), |stats| (stats.running, stats.waiting));
        Ok(Load { running, waiting, engine })
    }

    fn model(&self, given: &Map<String, Value>) -> Result<String, ApiError> {
        match given.get("model") {
            None | Some(Value::Null) => Ok(self.names[0].clone()),
            Some(Value::String(name)) if self.names.contains(name) => Ok(name.clone()),
            Some(Value::String(name)) => Err(ApiError::no_model(&clipped(name), &self.names)),
            Some(_) => Err(ApiError::field("model", "is no string")),
        }
    }
}

/// A number that is equal for equal parts.
pub fn fingerprint(parts: &[&[u8]]) -> u64 {
    let mut hasher = DefaultHasher::new();
    parts.iter().for_each(|part| hasher.write(part));
    hasher.finish()
}

/// Whether a `Content-Type` is this one.
pub fn is_kind(given: &str, kind: &str) -> bool {
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(kind)
}

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A number that comes only once, as text.
pub fn fresh_id() -> String {
    // The standard library keys every hasher anew from the system's random bits.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// Cancels calls of the engine when it is dropped.
#[derive(Debug, Default)]
pub struct Waits(pub CancelToken);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// As [`blocking`], for work that waits for calls of the engine: those that end by this token do so once the
/// client is gone.
///
/// # Errors
/// As [`blocking`].
pub async fn waiting<T: Send + 'static>(
    cancel: CancelToken,
    work: impl FnOnce(&CancelToken) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    blocking(move || match cancel.is_cancelled() {
        true => Err(ApiError::bad("the client is gone")),
        false => work(&cancel),
    })
    .await
}

/// Runs work that takes long on a thread of its own.
///
/// # Errors
/// Those of the work; 500 where it panicked.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ApiError::panicked()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::model::Model;

    /// A body of small values takes many times its bytes.
    #[test]
    fn values_of_bodies_have_room_together() {
        let config =
            ServerConfig { body_timeout: std::time::Duration::from_millis(50), ..Default::default() };
        let load = || engraft::demo().map(Model::from);
        let models = Arc::new(Models::open(Box::new(load), &config).unwrap());
        let state = State::new(config, models, &Address::Unix("none".into())).unwrap();
        let body = format!("{{\"prompt\": [{}0]}}", "0,".repeat(2 << 20)).into_bytes();
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_time().start_paused(true).build().unwrap().block_on(async {
            let first = state.room_for_values(&body).await.unwrap();
            assert!(first.is_some());
            assert_eq!(state.room_for_values(&body).await.unwrap_err().status, 429);
            // Few values, and those of long texts, are not in their way.
            let text = format!("{{\"prompt\": \"{}\"}}", "x".repeat(4 << 20)).into_bytes();
            assert!(state.room_for_values(b"{\"prompt\": \"x\"}").await.unwrap().is_none());
            assert!(state.room_for_values(&text).await.is_ok());
            drop(first);
            // One that would take more than there is has it alone.
            let most = "{\"a\":0},".repeat(1 << 20).into_bytes();
            assert!(state.room_for_values(&most).await.unwrap().is_some());
        });
    }
}
