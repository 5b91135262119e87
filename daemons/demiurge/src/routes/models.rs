//! GET /v1/models and /v1/models/{id}.

use std::path::Path;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path as PathParam, State};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use vitriol_profile::catalog;
use vitriol_proto::engine::v1::GetModelResponse;

use crate::api_error::{ApiError, Dialect};
use crate::app::{App, loading};

use super::json;

/// Whether a client's word for a model means this one: its alias, its file's name with or without
/// the ending, the name that `vitriol model list` has for that file, or nothing at all.
pub fn is_named(model: &GetModelResponse, asked: &str) -> bool {
    let file = Path::new(&model.file);
    let names = [file.file_name(), file.file_stem()];
    let in_catalog = || {
        file.file_name()
            .and_then(|name| catalog::by_file(name.to_str()?))
    };
    asked.is_empty()
        || asked == model.alias
        || names.contains(&Some(asked.as_ref()))
        || in_catalog().is_some_and(|known| known.name.eq_ignore_ascii_case(asked))
}

/// GET /v1/models.
pub async fn list(State(app): State<Arc<App>>) -> Response {
    match app.link.state().model() {
        None => loading().response(Dialect::OpenAi),
        Some(model) => json(
            StatusCode::OK,
            &json!({
                "object": "list",
                "data": [entry(model)],
                // Some clients read their catalogue from here, in a form of their own; an empty one
                // makes them keep what they know instead of failing.
                "models": [],
            }),
        ),
    }
}

/// GET /v1/models/{id}.
pub async fn one(
    State(app): State<Arc<App>>,
    id: Result<PathParam<String>, PathRejection>,
) -> Response {
    // Percent escapes that are no UTF-8 name nothing that we have.
    let id = id.map_or_else(|_| "\u{fffd}".to_owned(), |PathParam(id)| id);
    match app.link.state().model() {
        None => loading().response(Dialect::OpenAi),
        Some(model) if is_named(model, &id) => json(StatusCode::OK, &entry(model)),
        Some(model) => ApiError::no_model(&id, &model.alias).response(Dialect::OpenAi),
    }
}

fn entry(model: &GetModelResponse) -> Value {
    json!({
        "id": model.alias,
        "object": "model",
        "created": model.ready_at,
        "owned_by": "vitriol",
        "meta": {
            "architecture": model.architecture,
            "n_ctx_train": model.context_tokens_trained,
            // What one request may use, which is what clients need to know.
            "n_ctx": model.context_tokens,
            "n_embd": model.d_model,
            "n_layer": model.n_layers,
            "n_vocab": model.vocab,
            "n_params": model.parameters,
            "size": model.file_bytes,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alias_file_and_stem_are_names_of_the_model() {
        let model = GetModelResponse {
            alias: "smol".into(),
            file: "/models/SmolLM2-135M.Q4_1.gguf".into(),
            ..GetModelResponse::default()
        };
        for name in ["", "smol", "SmolLM2-135M.Q4_1", "SmolLM2-135M.Q4_1.gguf"] {
            assert!(is_named(&model, name), "{name}");
        }
        for name in [
            "Smol",
            "SmolLM2-135M",
            "gpt-5",
            "/models/SmolLM2-135M.Q4_1.gguf",
        ] {
            assert!(!is_named(&model, name), "{name}");
        }
    }

    #[test]
    fn names_of_the_catalog_are_names_of_its_files() {
        for known in catalog::KNOWN {
            let model = GetModelResponse {
                alias: "mine".into(),
                file: format!("/models/{}", known.file),
                ..GetModelResponse::default()
            };
            for name in [known.name, "mine", known.file] {
                assert!(is_named(&model, name), "{name}");
            }
            let others = catalog::KNOWN
                .iter()
                .filter(|other| other.name != known.name);
            for other in others {
                assert!(!is_named(&model, other.name), "{}", other.name);
            }
        }
    }
}
