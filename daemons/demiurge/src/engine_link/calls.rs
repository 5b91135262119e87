//! Short questions to the engine: answered from its snapshots or its tokenizer, each with a
//! deadline.

use std::time::Duration;

use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use vitriol_proto::engine::v1::engine_client::EngineClient;
use vitriol_proto::engine::v1::{
    DetokenizeRequest, GetModelRequest, GetModelResponse, ListSlotsRequest, ListSlotsResponse,
    TokenizeRequest,
};
use vitriol_proto::status::v1::status_client::StatusClient;
use vitriol_proto::status::v1::{GetRequest, GetResponse};

use super::{ANSWER_BYTES_MAX, EngineLink};

/// Deadline of tokenising: the longest text takes the tokenizer a second or two, and several may
/// wait for it.
const TOKENIZE_DEADLINE: Duration = Duration::from_secs(30);

/// Why a question got no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No engine, or one that is not ready.
    #[error("{call}: the engine is not ready")]
    NotReady { call: &'static str },
    #[error("{call}: the engine did not answer within {deadline_ms} ms")]
    Deadline {
        call: &'static str,
        deadline_ms: u128,
    },
    /// The engine refused what was asked; its words.
    #[error("{call}: {message}")]
    Invalid { call: &'static str, message: String },
    /// More than the largest answer; the transport's own refusal, the engine never says so.
    #[error("{call}: the answer is too large")]
    TooLarge { call: &'static str },
    #[error("{call}: the engine answered {code:?}")]
    Failed { call: &'static str, code: Code },
}

impl EngineLink {
    /// The model the engine has.
    pub async fn get_model(&self) -> Result<GetModelResponse, CallError> {
        let mut client = EngineClient::new(self.channel.clone());
        let deadline = self.config.control_deadline;
        ask(
            "get model",
            deadline,
            client.get_model(timed(GetModelRequest {}, deadline)),
        )
        .await
    }

    /// What runs in the engine now.
    pub async fn list_slots(&self) -> Result<ListSlotsResponse, CallError> {
        let mut client = EngineClient::new(self.channel.clone());
        let deadline = self.config.control_deadline;
        ask(
            "list slots",
            deadline,
            client.list_slots(timed(ListSlotsRequest {}, deadline)),
        )
        .await
    }

    /// What the engine says about itself, its metrics among it.
    pub async fn status(&self) -> Result<GetResponse, CallError> {
        get_status(self.channel.clone(), self.config.control_deadline).await
    }

    /// Token ids of a text, and each one's bytes where asked.
    pub async fn tokenize(
        &self,
        request: TokenizeRequest,
    ) -> Result<(Vec<u32>, Vec<Vec<u8>>), CallError> {
        let mut client =
            EngineClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        let call = client.tokenize(timed(request, TOKENIZE_DEADLINE));
        let response = ask("tokenize", TOKENIZE_DEADLINE, call).await?;
        Ok((response.ids, response.pieces))
    }

    /// The text of token ids.
    pub async fn detokenize(&self, ids: Vec<u32>) -> Result<String, CallError> {
        let mut client =
            EngineClient::new(self.channel.clone()).max_decoding_message_size(ANSWER_BYTES_MAX);
        let call = client.detokenize(timed(DetokenizeRequest { ids }, TOKENIZE_DEADLINE));
        Ok(ask("detokenize", TOKENIZE_DEADLINE, call).await?.text)
    }
}

/// What the daemon behind a channel says about itself.
pub async fn get_status(channel: Channel, deadline: Duration) -> Result<GetResponse, CallError> {
    let mut client = StatusClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = client.get(timed(GetRequest {}, deadline));
    ask("get status", deadline, answer).await
}

/// A request that tells the engine its deadline, so that it stops working on it too.
fn timed<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

async fn ask<T>(
    call: &'static str,
    deadline: Duration,
    answer: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CallError> {
    let late = CallError::Deadline {
        call,
        deadline_ms: deadline.as_millis(),
    };
    match tokio::time::timeout(deadline, answer).await {
        Err(_) => Err(late),
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(match status.code() {
            // Unknown: the connection broke under the call.
            Code::Unavailable | Code::Unimplemented | Code::Unknown => CallError::NotReady { call },
            Code::DeadlineExceeded | Code::Cancelled => late,
            Code::OutOfRange => CallError::TooLarge { call },
            Code::InvalidArgument => CallError::Invalid {
                call,
                message: status.message().to_owned(),
            },
            code => CallError::Failed { call, code },
        }),
    }
}
