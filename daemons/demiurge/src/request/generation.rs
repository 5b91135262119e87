//! The parameters that chat and text completions share: sampling, length, stop strings, streaming.

use serde::Deserialize;
use serde_json::Value;
use vitriol_proto::engine::v1::Sampling;

use crate::api_error::ApiError;

use super::fields::Fields;

/// Most stop strings a request may give; the engine's bound.
const STOP_STRINGS_MAX: usize = 16;

/// How to generate, checked. Defaults are OpenAI's: temperature 1, nucleus off.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    pub temperature: f32,
    pub top_p: f32,
    pub min_p: f32,
    /// 0 = off.
    pub top_k: u32,
    /// None = a fresh one for this request.
    pub seed: Option<u64>,
    /// Tokens to generate at most; None = to the end of the context window.
    pub max_tokens: Option<u32>,
    pub stop: Vec<String>,
    pub ignore_eog: bool,
    pub stream: bool,
    /// A streamed answer ends with a usage chunk.
    pub include_usage: bool,
}

#[derive(Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Generation {
    /// Takes the shared parameters out of `fields`.
    ///
    /// Errors: 400 naming the parameter that is out of range, of the wrong type, or not supported
    /// yet.
    pub fn take(fields: &mut Fields) -> Result<Generation, ApiError> {
        refuse_unsupported(fields)?;
        let stream_options =
            fields.typed::<StreamOptions>("stream_options", "an object with 'include_usage'")?;
        Ok(Generation {
            temperature: fields.number("temperature", 0.0..=2.0)?.unwrap_or(1.0) as f32,
            top_p: fields.number("top_p", 0.0..=1.0)?.unwrap_or(1.0) as f32,
            min_p: fields.number("min_p", 0.0..=1.0)?.unwrap_or(0.0) as f32,
            // Other servers use -1 for "off".
            top_k: fields
                .integer("top_k", -1..=i32::MAX as i128)?
                .unwrap_or(0)
                .max(0) as u32,
            seed: take_seed(fields)?,
            max_tokens: take_max_tokens(fields)?,
            stop: take_stop(fields)?,
            ignore_eog: fields.boolean("ignore_eos")?.unwrap_or(false),
            stream: fields.boolean("stream")?.unwrap_or(false),
            include_usage: stream_options
                .and_then(|o| o.include_usage)
                .unwrap_or(false),
        })
    }

    /// The engine's form, with `fresh_seed` where the client gave none.
    pub fn sampling(&self, fresh_seed: u64) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed.unwrap_or(fresh_seed),
        }
    }
}

/// Refuses what would change the answer if it were ignored.
fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    let number_is = |wanted: f64| move |value: &Value| value.as_f64() == Some(wanted);
    let empty_object = |value: &Value| value.as_object().is_some_and(|map| map.is_empty());
    let empty_list = |value: &Value| value.as_array().is_some_and(|list| list.is_empty());
    fields.refuse_unless(
        "n",
        number_is(1.0),
        "only 'n': 1 is supported; send more requests",
    )?;
    // llama-server's samplers, and the values at which they do nothing.
    for (name, off) in [
        ("repeat_penalty", 1.0),
        ("typical_p", 1.0),
        ("mirostat", 0.0),
        ("dry_multiplier", 0.0),
        ("xtc_probability", 0.0),
        ("dynatemp_range", 0.0),
        ("top_n_sigma", -1.0),
    ] {
        let message = format!("'{name}' other than {off} is not supported yet");
        fields.refuse_unless(name, number_is(off), &message)?;
    }
    fields.refuse_unless(
        "samplers",
        empty_list,
        "'samplers' is not supported yet; the order is temperature, top_k, top_p, min_p",
    )?;
    for name in ["frequency_penalty", "presence_penalty"] {
        let message = format!("'{name}' other than 0 is not supported yet");
        fields.refuse_unless(name, number_is(0.0), &message)?;
    }
    fields.refuse_unless(
        "logit_bias",
        |value| empty_object(value) || empty_list(value),
        "'logit_bias' is not supported yet",
    )?;
    fields.refuse_unless(
        "top_logprobs",
        number_is(0.0),
        "'top_logprobs' is not supported yet",
    )?;
    fields.refuse_unless(
        "response_format",
        |value| value["type"] == "text",
        "only 'response_format': {\"type\": \"text\"} is supported yet",
    )?;
    for name in ["grammar", "json_schema"] {
        let message = format!("'{name}' is not supported yet");
        fields.refuse_unless(name, |value| value == "" || empty_object(value), &message)?;
    }
    Ok(())
}

/// The seed: any 64-bit whole number; -1 is llama-server's word for "a fresh one".
fn take_seed(fields: &mut Fields) -> Result<Option<u64>, ApiError> {
    let seed = fields.integer("seed", i64::MIN as i128..=u64::MAX as i128)?;
    Ok(seed.filter(|seed| *seed != -1).map(|seed| seed as u64))
}

/// `max_completion_tokens`, else its older name, else llama-server's `n_predict`; -1 is llama-server's word for "no bound".
fn take_max_tokens(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let mut bound = |name| -> Result<Option<u32>, ApiError> {
        match fields.integer(name, -1..=u32::MAX as i128)? {
            None | Some(-1) => Ok(None),
            Some(0) => Err(ApiError::invalid(
                name,
                format!("'{name}' must be at least 1"),
            )),
            Some(tokens) => Ok(Some(tokens as u32)),
        }
    };
    let names = ["max_completion_tokens", "max_tokens", "n_predict"];
    let [newest, older, llama_server] = names.map(&mut bound);
    Ok(newest?.or(older?).or(llama_server?))
}

fn take_stop(fields: &mut Fields) -> Result<Vec<String>, ApiError> {
    let stop = match fields.typed("stop", "a string or an array of strings")? {
        None => return Ok(Vec::new()),
        Some(Stop::One(text)) => vec![text],
        Some(Stop::Many(texts)) => texts,
    };
    if stop.len() > STOP_STRINGS_MAX {
        let message = format!("'stop' may hold at most {STOP_STRINGS_MAX} strings");
        return Err(ApiError::invalid("stop", message));
    }
    if stop.iter().any(String::is_empty) {
        return Err(ApiError::invalid(
            "stop",
            "'stop' strings must not be empty",
        ));
    }
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn take(body: &str) -> Result<Generation, ApiError> {
        Generation::take(&mut Fields::parse(body.as_bytes()).unwrap())
    }

    fn refused(body: &str) -> Value {
        match take(body) {
            Ok(generation) => panic!("{body} was read as {generation:?}"),
            Err(error) => error.body(crate::api_error::Dialect::OpenAi)["error"].clone(),
        }
    }

    #[test]
    fn defaults_are_openais() {
        let generation = take("{}").unwrap();
        assert_eq!((generation.temperature, generation.top_p), (1.0, 1.0));
        assert_eq!((generation.top_k, generation.min_p), (0, 0.0));
        assert_eq!((generation.seed, generation.max_tokens), (None, None));
        assert!(generation.stop.is_empty());
        assert!(!generation.stream && !generation.include_usage);
    }

    #[test]
    fn everything_given_is_taken() {
        let generation = take(
            r#"{"temperature": 0, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "seed": 7,
                "max_completion_tokens": 5, "max_tokens": 9, "stop": "END", "stream": true,
                "stream_options": {"include_usage": true}, "ignore_eos": true}"#,
        )
        .unwrap();
        let sampling = generation.sampling(99);
        assert_eq!(
            (sampling.temperature, sampling.top_k, sampling.seed),
            (0.0, 40, 7)
        );
        assert_eq!(generation.max_tokens, Some(5));
        assert_eq!(generation.stop, ["END"]);
        assert!(generation.stream && generation.include_usage && generation.ignore_eog);
        assert_eq!(take("{}").unwrap().sampling(99).seed, 99);
    }

    #[test]
    fn other_servers_words_for_off() {
        let generation = take(r#"{"top_k": -1, "max_tokens": -1, "seed": -1}"#).unwrap();
        assert_eq!(generation.top_k, 0);
        assert_eq!((generation.max_tokens, generation.seed), (None, None));
    }

    #[test]
    fn out_of_range_names_the_parameter() {
        for (body, param) in [
            (r#"{"temperature": 2.1}"#, "temperature"),
            (r#"{"temperature": "hot"}"#, "temperature"),
            (r#"{"temperature": 1e400}"#, "temperature"),
            (r#"{"top_p": -0.1}"#, "top_p"),
            (r#"{"min_p": 1.5}"#, "min_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"top_k": 1.5}"#, "top_k"),
            (r#"{"seed": "x"}"#, "seed"),
            (r#"{"max_tokens": 0}"#, "max_tokens"),
            (r#"{"max_completion_tokens": -2}"#, "max_completion_tokens"),
            (r#"{"n_predict": 0}"#, "n_predict"),
            (r#"{"stop": ""}"#, "stop"),
            (r#"{"stop": [1]}"#, "stop"),
            (r#"{"stop": ["a", ""]}"#, "stop"),
            (r#"{"stream": "yes"}"#, "stream"),
            (r#"{"stream_options": 1}"#, "stream_options"),
        ] {
            let error = refused(body);
            assert_eq!(error["param"], param, "{body}");
            assert_eq!(error["code"], "invalid_value", "{body}");
        }
        let many = serde_json::json!({ "stop": vec!["a"; 17] }).to_string();
        assert_eq!(refused(&many)["param"], "stop");
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_its_harmless_value_is_not() {
        for (refused_body, harmless) in [
            (r#"{"n": 2}"#, r#"{"n": 1}"#),
            (
                r#"{"frequency_penalty": 0.5}"#,
                r#"{"frequency_penalty": 0}"#,
            ),
            (
                r#"{"presence_penalty": -1}"#,
                r#"{"presence_penalty": 0.0}"#,
            ),
            (r#"{"repeat_penalty": 1.1}"#, r#"{"repeat_penalty": 1}"#),
            (r#"{"mirostat": 2}"#, r#"{"mirostat": 0}"#),
            (r#"{"samplers": ["top_k"]}"#, r#"{"samplers": []}"#),
            (r#"{"logit_bias": {"1": 5}}"#, r#"{"logit_bias": {}}"#),
            (r#"{"top_logprobs": 3}"#, r#"{"top_logprobs": 0}"#),
            (
                r#"{"response_format": {"type": "json_object"}}"#,
                r#"{"response_format": {"type": "text"}}"#,
            ),
            (r#"{"grammar": "root ::= x"}"#, r#"{"grammar": null}"#),
        ] {
            assert_eq!(
                refused(refused_body)["code"],
                "unsupported_parameter",
                "{refused_body}"
            );
            take(harmless).unwrap();
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_in_range(
            temperature in -1.0..3.0f64,
            top_p in -0.5..1.5f64,
            top_k in -5..100i64,
            max_tokens in -5..100i64,
            seed: i64,
        ) {
            let body = serde_json::json!({
                "temperature": temperature, "top_p": top_p, "top_k": top_k,
                "max_tokens": max_tokens, "seed": seed,
            });
            match take(&body.to_string()) {
                Ok(read) => {
                    prop_assert!((0.0..=2.0).contains(&read.temperature));
                    prop_assert!((0.0..=1.0).contains(&read.top_p));
                    prop_assert_ne!(read.max_tokens, Some(0));
                    prop_assert_eq!(read.seed.is_none(), seed == -1);
                }
                Err(_) => prop_assert!(
                    !(0.0..=2.0).contains(&temperature)
                        || !(0.0..=1.0).contains(&top_p)
                        || top_k < -1
                        || max_tokens < -1
                        || max_tokens == 0
                ),
            }
        }
    }
}
