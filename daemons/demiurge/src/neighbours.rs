//! The daemons that serve no request, and yet have figures for the page: kvtier, persist, oom-shield.

use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::Channel;
use vitriol_ipc::connect;

use crate::engine_link::get_status;

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
            .map(|channel| tokio::spawn(get_status(channel.clone(), self.deadline)))
            .collect();
        let mut texts = Vec::with_capacity(asked.len());
        for asked in asked {
            texts.extend(
                asked
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .map(|status| status.metrics),
            );
        }
        texts
    }
}
