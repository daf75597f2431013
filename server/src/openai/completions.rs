//! `/v1/completions`.

use super::tables::{COMPLETIONS, GENERATION};
use super::{Generation, Input, Kind};
use crate::error::ApiError;
use crate::run::{Prompts, run};
use crate::state::{Call, State, blocking};
use crate::supervise::Served;
use axum::body::Body;
use axum::extract;
use axum::http::{Request, Response};
use std::sync::Arc;

/// Bytes of prompts above which they are tokenized on a thread of their own.
const INLINE: usize = 16 << 10;

/// Continues prompts.
///
/// # Errors
/// As OpenAI's.
pub async fn create(
    extract::State(state): extract::State<Arc<State>>,
    request: Request<Body>,
) -> Result<Response<Body>, ApiError> {
    let call = state.read(request, &[GENERATION, COMPLETIONS]).await?;
    let generation = Generation::of(&call.fields, &call.served, &state.config, &call.key)?;
    if let Some(best_of) = call.fields.whole("best_of", 1..=1024)?
        && best_of != generation.n as i64
    {
        let why =
            format!("is {best_of}; allowed: the value of `n`, {}, all of which are returned", generation.n);
        return Err(ApiError::field("best_of", why));
    }
    let inputs = Input::of(&call.fields, "prompt")?;
    if inputs.len() * generation.n > state.config.max_n {
        let (found, most) = (inputs.len(), state.config.max_n);
        let why = format!(
            "has {found} texts for {} continuations each; this server allows {most} in all",
            generation.n
        );
        return Err(ApiError::field("prompt", why));
    }
    let echo = call.fields.flag("echo", false)?;
    if echo && call.served.generator.info().encoder_layers > 0 {
        let why =
            "is true: the text does not continue the prompt, which this model's encoder reads".to_string();
        return Err(ApiError::field("echo", why));
    }
    let (decoder, shield) = (decoder_prompt(&call)?, state.config.no_special_in_user_text);
    let bytes: usize = inputs.iter().map(|i| if let Input::Text(text) = i { text.len() } else { 0 }).sum();
    let mut prompts = match bytes > INLINE {
        false => prompts_of(&call.served, &generation, &inputs, echo, shield)?,
        true => {
            let (served, of) = (call.served.clone(), generation.clone());
            blocking(move || prompts_of(&served, &of, &inputs, echo, shield)).await?
        }
    };
    prompts.decoder = decoder;
    run(&state, call, generation, prompts, Kind::Text).await
}

/// What the decoder of a model with an encoder begins with; empty where the request does not say.
fn decoder_prompt(call: &Call) -> Result<Vec<u32>, ApiError> {
    const FIELD: &str = "decoder_prompt";
    if call.fields.get(FIELD).is_none() {
        return Ok(Vec::new());
    }
    let info = call.served.generator.info();
    if info.encoder_layers == 0 {
        let why = "is there, but the model has no encoder next to a decoder; `prompt` is what it continues";
        return Err(ApiError::field(FIELD, why));
    }
    match &Input::of(&call.fields, FIELD)?[..] {
        // It is there to spell tokens: the code of a language, say.
        [one] => Ok(one.tokens(&call.served, false, info.max_context, false)?),
        _ => Err(ApiError::field(FIELD, "has to be one text, or the token ids of one")),
    }
}

fn prompts_of(
    served: &Served,
    generation: &Generation,
    inputs: &[Input],
    echo: bool,
    shield: bool,
) -> Result<Prompts, ApiError> {
    let most = generation.most_prompt(served);
    let special = generation.add_special.unwrap_or(true);
    let mut prompts = Prompts { continues: true, ..Prompts::default() };
    for input in inputs {
        let ids = generation.truncated(input.tokens(served, special, most, shield)?);
        if echo {
            prompts.echoes.push(match input {
                Input::Text(text) if generation.truncate.is_none() => text.clone(),
                _ => served.generator.tokenizer().decode(&ids, true)?,
            });
        }
        prompts.ids.push(ids);
    }
    Ok(prompts)
}
