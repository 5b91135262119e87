//! The standard services over a real socket, seen from a client of the house.

use std::{path::Path, time::Duration};

use tonic::{Code, service::Routes, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use vitriol_chassis::{Health, Notifier, RpcServer, StatusBoard};
use vitriol_ipc::{Listener, connect};
use vitriol_proto::status::v1::{GetRequest, status_client::StatusClient};

const DEADLINE: Duration = Duration::from_secs(20);

fn serve(path: &Path) -> (StatusBoard, RpcServer) {
    let board = StatusBoard::new("test", "0.1.0", Notifier::default());
    let listener = Listener::bind(path).expect("a fresh path can be bound");
    let server = RpcServer::spawn(listener, Routes::default(), board.clone());
    (board, server)
}

async fn serving_status(channel: &Channel) -> ServingStatus {
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let reply = HealthClient::new(channel.clone())
        .check(request)
        .await
        .expect("the health service answers");
    reply.into_inner().status()
}

#[tokio::test]
async fn status_and_health_follow_the_board() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("main.sock");
    let (board, server) = serve(&path);
    let channel = connect(&path);

    let mut status = StatusClient::new(channel.clone());
    let reply = status.get(GetRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (reply.daemon.as_str(), reply.health()),
        ("test", Health::Starting)
    );
    assert_eq!(serving_status(&channel).await, ServingStatus::NotServing);

    board.ready("serving");
    let turned = async {
        while serving_status(&channel).await != ServingStatus::Serving {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, turned)
        .await
        .expect("health must follow the board");

    tokio::time::timeout(DEADLINE, server.stop())
        .await
        .unwrap()
        .unwrap();
    assert!(!path.exists(), "a stopped server removes its socket");
}

#[tokio::test]
async fn a_channel_outlives_the_daemon_it_talks_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("main.sock");
    let channel = connect(&path);
    let mut status = StatusClient::new(channel);

    let refused = status
        .get(GetRequest {})
        .await
        .expect_err("nobody listens yet");
    assert_eq!(refused.code(), Code::Unavailable);

    for round in 0..3 {
        let (board, server) = serve(&path);
        board.detail(format!("round {round}"));
        let answered = async {
            loop {
                if let Ok(reply) = status.get(GetRequest {}).await {
                    break reply.into_inner().detail;
                }
                tokio::task::yield_now().await;
            }
        };
        let detail = tokio::time::timeout(DEADLINE, answered)
            .await
            .expect("must reconnect");
        assert_eq!(detail, format!("round {round}"));
        tokio::time::timeout(DEADLINE, server.stop())
            .await
            .unwrap()
            .unwrap();
    }
}
