//! Errors as OpenAI's clients read them: a status, and an object with message, type, param and code.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use engraft::Error;
use serde_json::{Value, json};

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    /// The status of HTTP.
    pub status: StatusCode,
    /// OpenAI's class of the error, `type` in the object.
    pub kind: &'static str,
    /// What is wrong, with the value found and what is allowed.
    pub message: String,
    /// The field concerned.
    pub param: Option<String>,
    /// OpenAI's name of the error, where it has one.
    pub code: Option<&'static str>,
    /// Seconds after which another attempt makes sense.
    pub retry_after: Option<u64>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None, retry_after: None }
    }

    /// 400, without a field.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 because of a field.
    pub fn field(name: &str, message: impl std::fmt::Display) -> Self {
        Self { param: Some(name.into()), ..Self::bad(format!("`{name}` {message}")) }
    }

    /// 400 because of a field that the server knows and does not honour.
    pub fn unsupported(name: &str, why: &str) -> Self {
        Self { code: Some("unsupported_parameter"), ..Self::field(name, format!("is not supported: {why}")) }
    }

    /// 400 because of a field that the server does not know.
    pub fn unknown(name: &str) -> Self {
        let code = Some("unknown_parameter");
        Self { code, ..Self::field(name, "is not a field of this request") }
    }

    /// 401.
    pub fn unauthorized(message: &str) -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
        }
    }

    /// 403.
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    /// 404 because of a model that is not served.
    pub fn no_model(name: &str, served: &[String]) -> Self {
        let message = format!("the model `{name}` does not exist; served here: {}", served.join(", "));
        Self {
            code: Some("model_not_found"),
            param: Some("model".into()),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// 400 because a prompt leaves no room in the context.
    pub fn too_long(param: &str, message: impl Into<String>) -> Self {
        Self { code: Some("context_length_exceeded"), param: Some(param.into()), ..Self::bad(message) }
    }

    /// 404, 405, 408, 413, 415: what the protocol itself has a status for.
    pub fn protocol(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    /// 415.
    pub fn content_type(got: &str, allowed: &str) -> Self {
        let message = format!("Content-Type is {got}; allowed: {allowed}");
        Self::protocol(StatusCode::UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// 408: a request that took longer than the server allows.
    pub fn timed_out(what: &str, limit: std::time::Duration) -> Self {
        let message = format!("the request {what} for longer than {limit:?}, the server's limit");
        Self::protocol(StatusCode::REQUEST_TIMEOUT, message)
    }

    /// 429.
    pub fn too_many(message: impl Into<String>, retry_after: u64) -> Self {
        Self {
            code: Some("rate_limit_exceeded"),
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// 503.
    pub fn unavailable(message: impl Into<String>, retry_after: u64) -> Self {
        Self {
            retry_after: Some(retry_after),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable_error", message)
        }
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// 500 because of a panic.
    pub fn panicked() -> Self {
        Self::internal("a part of the server panicked at this request")
    }

    /// The same of a field, where a fault of the request names none.
    pub fn of(mut self, param: &str) -> Self {
        if self.status == StatusCode::BAD_REQUEST && self.param.is_none() {
            self.param = Some(param.into());
        }
        self
    }

    /// The object that clients read.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message, "type": self.kind, "param": self.param, "code": self.code,
        }})
    }
}

impl From<Error> for ApiError {
    /// Whose fault an error of the library is.
    fn from(error: Error) -> Self {
        match error {
            Error::Config { ref field, .. } => {
                Self { param: Some(field.clone()), ..Self::bad(error.to_string()) }
            }
            Error::TextTooLong { .. } => Self::too_long("prompt", error.to_string()),
            Error::Request { what, .. } => Self::bad(what),
            Error::KvFull { .. }
            | Error::Text { .. }
            | Error::Architecture { .. }
            | Error::Unsupported { .. } => Self::bad(error.to_string()),
            Error::DeviceLost { .. } | Error::Comm { .. } | Error::Internal { .. } => {
                Self::unavailable(format!("the engine has failed and starts anew: {error}"), 1)
            }
            _ => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response<Body> {
        let mut response = json_response(self.status, &self.body());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        // Clients repeat every 408, 409, 429 and 5xx on their own; this is what tells them otherwise.
        if self.retry_after.is_none()
            && (self.status.is_server_error() || self.status == StatusCode::REQUEST_TIMEOUT)
        {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A response of JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(Body::from(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
