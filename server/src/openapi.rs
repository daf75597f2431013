//! The OpenAPI document, made of the same tables that requests are held against.

use crate::fields::{Field, Rule, Shape};
use crate::openai::tables::{CHAT, COMPLETIONS, EMBEDDINGS, GENERATION};
use crate::{pooling, tokens};
use serde_json::{Map, Value, json};

/// A path, what it is for, the tables of its fields, and those that it needs.
type Route = (&'static str, &'static str, Vec<&'static [Field]>, &'static [&'static str]);

/// The routes that take a body: path, what they do, tables, required fields.
fn routes() -> Vec<Route> {
    let [score, rerank] = pooling::TABLES;
    let [tokenize, detokenize] = tokens::TABLES;
    let routes: Vec<Route> = vec![
        ("/v1/chat/completions", "Answer a conversation", vec![GENERATION, CHAT], &["messages"]),
        ("/v1/completions", "Continue prompts", vec![GENERATION, COMPLETIONS], &["prompt"]),
        ("/v1/embeddings", "Turn texts into vectors", vec![EMBEDDINGS], &["input"]),
        ("/v1/score", "Score pairs of texts", vec![score], &["text_1", "text_2"]),
        ("/v1/rerank", "Order documents for a query", vec![rerank], &["query", "documents"]),
        ("/tokenize", "Token ids of a text", vec![tokenize], &[]),
        ("/detokenize", "The text of token ids", vec![detokenize], &["tokens"]),
    ];
    #[cfg(feature = "speech")]
    let routes = {
        let [transcribe, translate] = crate::audio::TABLES.map(<[&[Field]]>::to_vec);
        let transcribe: Route =
            ("/v1/audio/transcriptions", "Write down what is said", transcribe, &["file"]);
        let translate: Route =
            ("/v1/audio/translations", "Write down what is said, in English", translate, &["file"]);
        [routes, vec![transcribe, translate]].concat()
    };
    #[cfg(feature = "images")]
    let routes = {
        use crate::images::tables::{EDITED, GENERATIONS};
        use crate::pictures::{OF_PICTURES, OF_TEXTS};
        let made: Route = (OF_TEXTS, "Make pictures of a text", GENERATIONS.to_vec(), &["prompt"]);
        let edited: Route =
            (OF_PICTURES, "Make pictures of a text and a picture", EDITED.to_vec(), &["image", "prompt"]);
        [routes, vec![made, edited]].concat()
    };
    routes
}

fn schema(shape: Shape) -> Value {
    let token = json!({"type": "integer", "minimum": 0, "maximum": u32::MAX});
    let tokens = json!({"type": "array", "items": token});
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    match shape {
        Shape::Text => text,
        Shape::File => json!({"type": "string", "format": "binary"}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Whole(least, most) => json!({"type": "integer", "minimum": least, "maximum": most}),
        Shape::Number(least, most) => json!({"type": "number", "minimum": least, "maximum": most}),
        Shape::Texts => json!({"anyOf": [text, texts]}),
        Shape::Prompt => json!({"anyOf": [text, texts, tokens, {"type": "array", "items": tokens}]}),
        Shape::Ids => tokens,
        Shape::Messages => json!({"type": "array", "minItems": 1, "items": {
            "type": "object",
            "properties": {
                "role": {"type": "string"},
                "content": {"anyOf": [text, {"type": "array", "items": {"type": "object"}}]},
                "name": text,
            },
            "required": ["role", "content"],
        }}),
        Shape::List => json!({"type": "array"}),
        Shape::Object => json!({"type": "object"}),
        Shape::OneOf(values) => json!({"type": "string", "enum": values}),
        Shape::Any => json!({}),
    }
}

fn body(tables: &[&[Field]], required: &[&str]) -> Value {
    let mut properties = Map::new();
    for field in tables.iter().copied().flatten() {
        let (text, shape) = match field.rule {
            Rule::Honoured => ("Honoured.".to_owned(), schema(field.shape)),
            Rule::Template => {
                let text = "Given to the chat template; without effect where that does not read it.";
                (text.to_owned(), schema(field.shape))
            }
            Rule::NoEffect => ("Accepted without effect.".to_owned(), schema(field.shape)),
            Rule::Only(_, why) => (format!("Neutral values alone: {why}."), schema(field.shape)),
            Rule::Refused(why) => (format!("Refused: {why}."), json!({"type": "null"})),
        };
        let mut property = json!({"anyOf": [shape, {"type": "null"}]});
        property["description"] = text.into();
        properties.insert(field.name.into(), property);
    }
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false,
    })
}

/// The responses that a route may give; its results may be of these `kinds`, too.
fn responses(statuses: &[u16], kinds: &[&str]) -> Value {
    let mut all = Map::new();
    let mut good = json!({"description": "Done.", "content": {"application/json": {"schema": {}}}});
    for kind in kinds {
        good["content"][kind] = json!({"schema": {"type": "string"}});
    }
    all.insert("200".into(), good);
    let error = json!({"schema": {"$ref": "#/components/schemas/Error"}});
    for status in statuses {
        let response = json!({"description": "See the message.", "content": {"application/json": error}});
        all.insert(status.to_string(), response);
    }
    Value::Object(all)
}

/// The document.
pub fn document() -> Value {
    let mut paths = Map::new();
    for (path, summary, tables, required) in routes() {
        let has = |named: fn(&Field) -> bool| tables.iter().copied().flatten().any(named);
        let kind = match has(|field| field.shape == Shape::File) {
            true => "multipart/form-data",
            false => "application/json",
        };
        let mut kinds = Vec::new();
        if has(|field| field.name == "stream" && matches!(field.rule, Rule::Honoured)) {
            kinds.push("text/event-stream");
        }
        if has(|field| matches!(field.shape, Shape::OneOf(all) if all.contains(&"vtt"))) {
            kinds.extend(["text/plain", "text/vtt"]);
        }
        paths.insert(
            path.into(),
            json!({"post": {
                "summary": summary,
                "requestBody": {"required": true, "content": {kind: {"schema": body(&tables, required)}}},
                "responses": responses(&[400, 401, 403, 404, 408, 413, 415, 429, 500, 503], &kinds),
            }}),
        );
    }
    for (path, summary) in
        [("/v1/models", "Models"), ("/version", "Version"), ("/load", "Requests in the server")]
    {
        paths.insert(
            path.into(),
            json!({"get": {"summary": summary, "responses": responses(&[401, 403, 503], &[])}}),
        );
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Engraft", "version": env!("CARGO_PKG_VERSION")},
        "paths": paths,
        "components": {"schemas": {"Error": {
            "type": "object",
            "properties": {"error": {"type": "object", "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            }, "required": ["message", "type", "param", "code"]}},
            "required": ["error"],
        }}},
    })
}
