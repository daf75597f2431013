//! Multipart requests with files (RFC 7578): their parts become the fields that JSON would have.

use crate::error::ApiError;
use crate::fields::{Field, Shape, clipped};
use crate::state::{Call, Room, State, fingerprint, is_kind};
use crate::supervise::Models;
use axum::body::{Body, Bytes};
use axum::http::{Request, header};
use multer::Multipart;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The type of such a request.
const KIND: &str = "multipart/form-data";
/// Parts of a body.
const MOST_PARTS: usize = 64;
/// Bytes of a part that is no file.
const MOST_TEXT: usize = 128 << 10;

/// The files of a body, by their fields.
pub type Files = BTreeMap<String, Bytes>;

impl State {
    /// Reads a multipart body, and holds its fields against the tables of its route, some of which are files;
    /// for the model that `served` gives.
    ///
    /// # Errors
    /// As [`State::read_for`]; 400 for what is no such body, and for fields that are given twice.
    pub async fn read_multipart<M>(
        &self,
        request: Request<Body>,
        tables: &[&[Field]],
        served: fn(&Models) -> Result<Arc<M>, ApiError>,
    ) -> Result<(Call<M>, Files), ApiError> {
        let origin = self.origin(&request)?;
        let kind = request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        let kind = kind.unwrap_or_default().to_owned();
        if !is_kind(&kind, KIND) {
            let got = if kind.is_empty() { "missing".into() } else { clipped(&kind) };
            return Err(ApiError::content_type(&got, KIND));
        }
        let boundary = multer::parse_boundary(&kind).map_err(malformed)?;
        let (bytes, body) = self.body(request).await?;
        let (given, files) = parts(&bytes, boundary, tables).await?;
        // Not of the body as it came: clients choose another boundary every time.
        let fields = Value::Object(given.clone()).to_string();
        let content = files.iter().flat_map(|(name, file)| [name.as_bytes(), file]);
        let all: Vec<&[u8]> = [fields.as_bytes()].into_iter().chain(content).collect();
        let call =
            self.call(given, tables, origin, fingerprint(&all), Room { body, _values: None }, served)?;
        Ok((call, files))
    }
}

fn malformed(error: multer::Error) -> ApiError {
    ApiError::bad(format!("the multipart body cannot be read: {error}"))
}

/// The fields of a body, and its files.
async fn parts(
    bytes: &Bytes,
    boundary: String,
    tables: &[&[Field]],
) -> Result<(Map<String, Value>, Files), ApiError> {
    let mut body = Multipart::new(Body::from(bytes.clone()).into_data_stream(), boundary);
    let (mut given, mut files) = (Map::new(), Files::new());
    for count in 0.. {
        let Some(part) = body.next_field().await.map_err(malformed)? else { break };
        if count == MOST_PARTS {
            return Err(ApiError::bad(format!("the body has more than {MOST_PARTS} parts")));
        }
        // Lists are named so by clients.
        let name = part.name().unwrap_or_default();
        let name = name.strip_suffix("[]").unwrap_or(name).to_owned();
        let bytes = part.bytes().await.map_err(malformed)?;
        let shape =
            tables.iter().copied().flatten().find(|field| field.name == name).map(|field| field.shape);
        if shape == Some(Shape::File) {
            if files.contains_key(&name) {
                return Err(ApiError::field(&name, "is given twice"));
            }
            files.insert(name, bytes);
            continue;
        }
        if bytes.len() > MOST_TEXT {
            return Err(ApiError::field(
                &clipped(&name),
                format!("has {} bytes; allowed: {MOST_TEXT}", bytes.len()),
            ));
        }
        let text = String::from_utf8(bytes.into())
            .map_err(|_| ApiError::field(&clipped(&name), "is no text in UTF-8"))?;
        add(&mut given, name, value(shape, text), shape == Some(Shape::List))?;
    }
    Ok((given, files))
}

fn add(given: &mut Map<String, Value>, name: String, value: Value, list: bool) -> Result<(), ApiError> {
    match (given.get_mut(&name), list) {
        (Some(Value::Array(all)), true) => all.push(value),
        (Some(_), _) => return Err(ApiError::field(&clipped(&name), "is given twice")),
        (None, true) => drop(given.insert(name, Value::Array(vec![value]))),
        (None, false) => drop(given.insert(name, value)),
    }
    Ok(())
}

/// A part as JSON would have it; what is no number or truth value stays a text, and is refused as such.
fn value(shape: Option<Shape>, text: String) -> Value {
    let typed = match shape {
        Some(Shape::Bool | Shape::Whole(..) | Shape::Number(..)) => serde_json::from_str(text.trim()).ok(),
        _ => None,
    };
    typed.filter(|value: &Value| value.is_boolean() || value.is_number()).unwrap_or(Value::String(text))
}
