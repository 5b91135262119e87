//! Refusals and failures as clients see them: one value, rendered in the dialect of the route.

use std::borrow::Cow;

use axum::body::Body;
use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde_json::{Map, Value, json};
use vitriol_proto::engine::v1::{Failed, FailureKind};

/// Whose wording an error body follows.
///
/// OpenAI's routes give a string (or null) in `code` and name the `param`; llama-server's routes
/// give the HTTP status as an integer in `code`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    LlamaServer,
}

impl Dialect {
    /// The dialect a path belongs to, also when no route answers there.
    pub fn of_path(path: &str) -> Dialect {
        if path.starts_with("/v1/") && path != "/v1/health" {
            Dialect::OpenAi
        } else {
            Dialect::LlamaServer
        }
    }
}

/// The `type` of an error body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    InvalidRequest,
    ContextOverflow,
    Permission,
    NotFound,
    Timeout,
    TooLarge,
    RateLimit,
    Server,
    NotSupported,
    Unavailable,
}

impl ErrorKind {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            ErrorKind::InvalidRequest => "invalid_request_error",
            ErrorKind::ContextOverflow => "exceed_context_size_error",
            ErrorKind::Permission => "permission_error",
            ErrorKind::NotFound => "not_found_error",
            ErrorKind::Timeout => "timeout_error",
            ErrorKind::TooLarge => "request_too_large",
            ErrorKind::RateLimit => "rate_limit_error",
            ErrorKind::Server => "server_error",
            ErrorKind::NotSupported => "not_supported_error",
            ErrorKind::Unavailable => "unavailable_error",
        }
    }
}

/// Sizes that did not fit, tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Overflow {
    prompt_tokens: u32,
    context_tokens: u32,
}

/// An answer that is an error: HTTP status, type, string code, the parameter at fault, and a
/// message that says what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    kind: ErrorKind,
    code: Option<&'static str>,
    param: Option<Cow<'static, str>>,
    message: String,
    retry_after_s: Option<u32>,
    overflow: Option<Overflow>,
}

impl ApiError {
    fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            kind,
            code: None,
            param: None,
            message: message.into(),
            retry_after_s: None,
            overflow: None,
        }
    }

    fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }

    /// Names the request parameter at fault.
    pub fn param(mut self, param: impl Into<Cow<'static, str>>) -> ApiError {
        self.param = Some(param.into());
        self
    }

    fn retry_after_s(mut self, seconds: u32) -> ApiError {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    /// 400: the body is not JSON; `message` has line and column.
    pub fn bad_json(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("invalid_json")
    }

    /// 400: a parameter has the wrong type or is out of range.
    pub fn invalid(param: impl Into<Cow<'static, str>>, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("invalid_value")
            .param(param)
    }

    /// 400: the engine found a value it cannot use; its words.
    pub fn bad_value(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("invalid_value")
    }

    /// 400: a required parameter is absent.
    pub fn missing(param: &'static str) -> ApiError {
        let message = format!("missing required parameter '{param}'");
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("missing_required_parameter")
            .param(param)
    }

    /// 400: a real parameter that this release cannot honour; ignoring it would change the answer.
    pub fn unsupported(
        param: impl Into<Cow<'static, str>>,
        message: impl Into<String>,
    ) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("unsupported_parameter")
            .param(param)
    }

    /// 400: a request header that cannot be honoured.
    pub fn bad_header(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("invalid_header")
    }

    /// 400: prompt does not fit the context window (tokens); `is_least`: it has that many or more.
    pub fn context_overflow(prompt_tokens: u32, is_least: bool, context_tokens: u32) -> ApiError {
        let at_least = if is_least { "at least " } else { "" };
        // Agents look for either phrase, so both are in the message.
        let message = format!(
            "the request has {at_least}{prompt_tokens} prompt tokens, which exceeds the available context \
             size of {context_tokens} tokens (context_length_exceeded); shorten the conversation"
        );
        let mut error = ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::ContextOverflow, message)
            .code("context_length_exceeded");
        error.overflow = Some(Overflow {
            prompt_tokens,
            context_tokens,
        });
        error
    }

    /// 403: the request comes from a page or name that is not this machine's.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, ErrorKind::Permission, message).code(code)
    }

    /// 404: no such path.
    pub fn no_route(path: &str) -> ApiError {
        let message = format!("no route '{path}'");
        ApiError::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message).code("route_not_found")
    }

    /// 404: no such model; names the one there is.
    pub fn no_model(asked: &str, available: &str) -> ApiError {
        // A name of any length may be asked for; the answer quotes its beginning only.
        let quoted: String = asked.chars().take(100).collect();
        let message = format!("no model '{quoted}'; this server has '{available}'");
        ApiError::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
            .code("model_not_found")
            .param("model")
    }

    /// 404: no slot has this number; there are `count`.
    pub fn no_such_slot(id: u32, count: usize) -> ApiError {
        let message = format!("no slot {id}; there are {count}, from 0 on");
        ApiError::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message).code("slot_not_found")
    }

    /// 400: a slot that stands for no conversation, and none was named.
    pub fn slot_without_session(id: u32) -> ApiError {
        let message = format!(
            "slot {id} has no session: its last request named none; send X-Session-Id with each request of a \
             conversation, or name the session here"
        );
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("missing_required_parameter")
            .param("session_id")
    }

    /// 404: nothing is stored of a conversation.
    pub fn no_conversation(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message).code("session_not_found")
    }

    /// 405: the path exists, the method does not.
    pub fn bad_method(method: &str, path: &str) -> ApiError {
        let message = format!("method {method} is not allowed for '{path}'");
        ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            ErrorKind::InvalidRequest,
            message,
        )
        .code("method_not_allowed")
    }

    /// 408: the body did not arrive in time.
    pub fn body_timeout(timeout_ms: u64) -> ApiError {
        let message = format!("the request body did not arrive within {timeout_ms} ms");
        ApiError::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::Timeout, message)
            .code("request_timeout")
    }

    /// 400: the body broke off or is not well-formed HTTP.
    pub fn broken_body() -> ApiError {
        let message = "the request body broke off before its end";
        ApiError::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
            .code("incomplete_body")
    }

    /// 413: more body bytes than the profile allows.
    pub fn too_large(bytes_max: u64) -> ApiError {
        let message = format!(
            "the request body is larger than {bytes_max} bytes; send less, or raise \
             'body_bytes_max' in [demiurge]"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, message)
            .code("request_too_large")
    }

    /// 415: a body in a Content-Encoding; `encoding` as the client named it.
    pub fn unsupported_encoding(encoding: &str) -> ApiError {
        let quoted: String = encoding.chars().take(100).collect();
        let message = format!(
            "Content-Encoding '{quoted}' is not read here; send the body as it is, without \
             Content-Encoding"
        );
        ApiError::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            ErrorKind::InvalidRequest,
            message,
        )
        .code("unsupported_encoding")
    }

    /// 413: a parameter holds more than this route takes; `bound` in the client's words.
    pub fn param_too_large(param: &'static str, bound: &str) -> ApiError {
        let message = format!("'{param}' is longer than {bound}; send it in parts");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, message)
            .code("request_too_large")
            .param(param)
    }

    /// 413: a request that would be a larger message than the engine reads.
    pub fn prompt_too_large(bytes: usize) -> ApiError {
        let message = format!(
            "the prompt is {bytes} bytes in the engine's terms, more than it reads; send less"
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, message)
            .code("request_too_large")
    }

    /// 413: what a short question asks for is larger than the engine may answer.
    pub fn answer_too_large() -> ApiError {
        let message = "the answer would be too large; send the request in parts";
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, message)
            .code("request_too_large")
    }

    /// 429: the engine's queue, or Demiurge's own bound, is full.
    pub fn busy(message: impl Into<String>, retry_after_s: u32) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, ErrorKind::RateLimit, message)
            .code("queue_full")
            .retry_after_s(retry_after_s)
    }

    /// 503: cannot serve now, can later.
    pub fn unavailable(
        code: &'static str,
        message: impl Into<String>,
        retry_after_s: u32,
    ) -> ApiError {
        ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorKind::Unavailable,
            message,
        )
        .code(code)
        .retry_after_s(retry_after_s)
    }

    /// 502: the engine's stream broke while it worked on the request, which so many engines got.
    pub fn engine_lost(engines: u32) -> ApiError {
        let message = match engines {
            0 | 1 => {
                "the engine died in the middle of this answer; send the request again".to_owned()
            }
            _ => format!(
                "the engine died {engines} times while it worked on this request; see why before you send \
                 it again: 'vitriol logs --unit engine'"
            ),
        };
        ApiError::new(StatusCode::BAD_GATEWAY, ErrorKind::Server, message).code("engine_lost")
    }

    /// 500: a fault of the house's own.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            ErrorKind::Server,
            message,
        )
        .code("internal_error")
    }

    /// 501: the profile does not have it; the message names the setting.
    pub fn not_supported(message: impl Into<String>) -> ApiError {
        ApiError::new(
            StatusCode::NOT_IMPLEMENTED,
            ErrorKind::NotSupported,
            message,
        )
        .code("not_supported")
    }

    /// 501: there is no KV tier.
    pub fn no_kvtier() -> ApiError {
        ApiError::not_supported(
            "this server keeps no conversations; set enabled = true in [kvtier] and start it again",
        )
    }

    /// 504: kvtier did not answer in time.
    pub fn kvtier_timeout() -> ApiError {
        let message = "kvtier did not answer in time; send the request again";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Timeout, message)
            .code("kvtier_timeout")
    }

    /// 504: the engine did not answer a short question in time.
    pub fn engine_timeout() -> ApiError {
        let message = "the engine did not answer in time; send the request again";
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Timeout, message)
            .code("engine_timeout")
    }

    /// A request the engine refused or failed; `prompt_param` names where its prompt came from.
    pub fn from_failed(failed: Failed, prompt_param: &'static str) -> ApiError {
        match failed.kind() {
            FailureKind::Invalid => ApiError::bad_value(failed.message),
            FailureKind::Template => ApiError::new(
                StatusCode::BAD_REQUEST,
                ErrorKind::InvalidRequest,
                failed.message,
            )
            .code("template_error")
            .param(prompt_param),
            FailureKind::ContextOverflow => {
                let is_least = failed.prompt_tokens_is_least;
                ApiError::context_overflow(failed.prompt_tokens, is_least, failed.context_tokens)
                    .param(prompt_param)
            }
            FailureKind::Busy => ApiError::busy(
                "the engine takes nothing more now; send the request again later",
                failed.retry_after_ms.div_ceil(1000),
            ),
            FailureKind::Draining => {
                ApiError::unavailable("engine_draining", "the engine is shutting down", 5)
            }
            FailureKind::Internal | FailureKind::Unspecified => ApiError::internal(format!(
                "the engine failed on this request: {}",
                failed.message
            )),
        }
    }

    /// HTTP status of the answer.
    #[cfg(test)]
    pub fn status(&self) -> StatusCode {
        self.status
    }

    /// A bounded word for metrics and the decision log.
    pub fn label(&self) -> &'static str {
        self.code.unwrap_or(self.kind.as_str())
    }

    /// The message as clients read it. It may quote the client's own words, so it never goes to a
    /// log.
    #[cfg(test)]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The body: `{"error":{…}}`.
    pub fn body(&self, dialect: Dialect) -> Value {
        let mut error = Map::new();
        match dialect {
            Dialect::OpenAi => {
                error.insert("message".into(), json!(self.message));
                error.insert("type".into(), json!(self.kind.as_str()));
                error.insert("param".into(), json!(self.param));
                error.insert("code".into(), json!(self.code));
            }
            Dialect::LlamaServer => {
                error.insert("code".into(), json!(self.status.as_u16()));
                error.insert("message".into(), json!(self.message));
                error.insert("type".into(), json!(self.kind.as_str()));
            }
        }
        if let Some(overflow) = self.overflow {
            error.insert("n_prompt_tokens".into(), json!(overflow.prompt_tokens));
            error.insert("n_ctx".into(), json!(overflow.context_tokens));
        }
        json!({ "error": error })
    }

    /// The whole HTTP answer, with Retry-After where there is one.
    pub fn response(&self, dialect: Dialect) -> Response {
        let mut response = Response::new(Body::from(self.body(dialect).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overflow_has_both_phrases_and_both_numbers() {
        let error = ApiError::context_overflow(9000, false, 8192).param("messages");
        let body = error.body(Dialect::OpenAi);
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("exceeds the available context size"));
        assert!(message.contains("context_length_exceeded"));
        assert_eq!(body["error"]["type"], "exceed_context_size_error");
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        assert_eq!(body["error"]["n_prompt_tokens"], 9000);
        assert_eq!(body["error"]["n_ctx"], 8192);
        let uncounted = ApiError::context_overflow(9000, true, 8192).body(Dialect::OpenAi);
        let message = uncounted["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("has at least 9000 prompt tokens"),
            "{message}"
        );
    }

    #[test]
    fn llama_server_routes_give_the_status_as_code() {
        assert_eq!(Dialect::of_path("/v1/chat/completions"), Dialect::OpenAi);
        assert_eq!(Dialect::of_path("/v1/health"), Dialect::LlamaServer);
        assert_eq!(Dialect::of_path("/tokenize"), Dialect::LlamaServer);
        let body = ApiError::no_route("/x").body(Dialect::LlamaServer);
        assert_eq!(body["error"]["code"], 404);
    }

    #[test]
    fn busy_gives_whole_seconds_and_never_zero() {
        let failed = Failed {
            kind: FailureKind::Busy as i32,
            retry_after_ms: 1200,
            ..Default::default()
        };
        let response = ApiError::from_failed(failed, "messages").response(Dialect::OpenAi);
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
        let response = ApiError::busy("x", 0).response(Dialect::OpenAi);
        assert_eq!(response.headers()[header::RETRY_AFTER], "1");
    }
}
