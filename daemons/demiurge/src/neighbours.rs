//! The daemons that serve no request, and yet have figures for the page: kvtier, persist, oom-shield.

use std::path::PathBuf;
use std::time::Duration;

use tonic::Request;
use tonic::transport::Channel;
use vitriol_ipc::connect;
use vitriol_proto::status::v1::GetRequest;
use vitriol_proto::status::v1::status_client::StatusClient;

/// Most bytes of one registry.
const REGISTRY_BYTES_MAX: usize = 1 << 20;

/// Connections to them, made when they are used.
#[derive(Clone, Debug)]
pub struct Neighbours {
    channels: Vec<Channel>,
    deadline: Duration,
}

impl Neighbours {
    /// Those behind these sockets; `deadline`: for each answer.
    pub fn new(sockets: &[PathBuf], deadline: Duration) -> Self {
        let channels = sockets.iter().map(|socket| connect(socket)).collect();
        Self { channels, deadline }
    }

    /// The registries of those that answer in time, as OpenMetrics text. A house need not have them all.
    pub async fn metrics(&self) -> Vec<String> {
        let asked: Vec<_> = self
            .channels
            .iter()
            .map(|channel| tokio::spawn(registry(channel.clone(), self.deadline)))
            .collect();
        let mut texts = Vec::with_capacity(asked.len());
        for asked in asked {
            texts.extend(asked.await.ok().flatten());
        }
        texts
    }
}

async fn registry(channel: Channel, deadline: Duration) -> Option<String> {
    let mut request = Request::new(GetRequest {});
    request.set_timeout(deadline);
    let answer = StatusClient::new(channel);
    let mut answer = answer.max_decoding_message_size(REGISTRY_BYTES_MAX);
    let answered = tokio::time::timeout(deadline, answer.get(request)).await;
    Some(answered.ok()?.ok()?.into_inner().metrics)
}
