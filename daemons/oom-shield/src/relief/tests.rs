use std::{path::Path, sync::Mutex};

use tonic::{Response, Status, Streaming, codegen::BoxStream, service::Routes};
use vitriol_chassis::{Notifier, RpcServer, StatusBoard};
use vitriol_ipc::{Listener, connect};
use vitriol_proto::engine::v1::{
    DetokenizeRequest, DetokenizeResponse, GetModelRequest, GetModelResponse, ListSlotsRequest,
    ListSlotsResponse, SessionRequest, ShedResponse, StepEvents, TokenizeRequest, TokenizeResponse,
    engine_server::{Engine, EngineServer},
};

use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

/// An engine that is only asked to shed; it answers late when told to.
#[derive(Default)]
struct Asked {
    durations_ms: Arc<Mutex<Vec<u32>>>,
    hangs: bool,
}

fn not_asked<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("the shield does not call it"))
}

#[tonic::async_trait]
impl Engine for Asked {
    type SessionStream = BoxStream<StepEvents>;

    async fn session(
        &self,
        _: Request<Streaming<SessionRequest>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        not_asked()
    }

    async fn get_model(
        &self,
        _: Request<GetModelRequest>,
    ) -> Result<Response<GetModelResponse>, Status> {
        not_asked()
    }

    async fn list_slots(
        &self,
        _: Request<ListSlotsRequest>,
    ) -> Result<Response<ListSlotsResponse>, Status> {
        not_asked()
    }

    async fn tokenize(
        &self,
        _: Request<TokenizeRequest>,
    ) -> Result<Response<TokenizeResponse>, Status> {
        not_asked()
    }

    async fn detokenize(
        &self,
        _: Request<DetokenizeRequest>,
    ) -> Result<Response<DetokenizeResponse>, Status> {
        not_asked()
    }

    async fn shed(&self, request: Request<ShedRequest>) -> Result<Response<ShedResponse>, Status> {
        let asked = request.into_inner().duration_ms;
        self.durations_ms.lock().unwrap().push(asked);
        if self.hangs {
            std::future::pending::<()>().await;
        }
        Ok(Response::new(ShedResponse {}))
    }
}

fn serve(engine: Asked, at: &Path) -> RpcServer {
    let board = StatusBoard::new("test", "0", Notifier::default());
    let routes = Routes::new(EngineServer::new(engine));
    RpcServer::spawn(Listener::bind(at).unwrap(), routes, board)
}

/// What passes messages on to the engine at `socket`.
fn passing_on(socket: &Path, deadline: Duration) -> (Arc<Messages>, Metrics) {
    let (messages, metrics) = (Arc::new(Messages::default()), Metrics::default());
    let how = Shedding {
        duration: Duration::from_millis(7000),
        deadline,
    };
    tokio::spawn(pass_on(
        Arc::clone(&messages),
        connect(socket),
        how,
        metrics.clone(),
    ));
    (messages, metrics)
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let waited = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waited)
        .await
        .unwrap_or_else(|_| panic!("{what}"));
}

#[tokio::test]
async fn the_engine_hears_what_the_guard_asks() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("house/main.sock");
    let asked = Asked::default();
    let durations = Arc::clone(&asked.durations_ms);
    let server = serve(asked, &socket);
    let (messages, metrics) = passing_on(&socket, DEADLINE);
    for times in 1..=2 {
        messages.shed();
        until("the engine is asked", || {
            durations.lock().unwrap().len() == times
        })
        .await;
    }
    assert_eq!(*durations.lock().unwrap(), [7000, 7000]);
    assert_eq!(metrics.shed_failures.get(), 0);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn an_engine_that_is_gone_or_hangs_costs_a_deadline_and_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("house/main.sock");
    let (messages, metrics) = passing_on(&socket, Duration::from_millis(50));
    messages.shed();
    until("nobody there is counted", || {
        metrics.shed_failures.get() == 1
    })
    .await;

    let hanging = Asked {
        hangs: true,
        ..Asked::default()
    };
    let durations = Arc::clone(&hanging.durations_ms);
    let _server = serve(hanging, &socket);
    // One call at a time, and no queue of them, however often the guard asks meanwhile.
    let before = metrics.shed_failures.get();
    for _ in 0..100 {
        messages.shed();
    }
    until("a hang is counted", || metrics.shed_failures.get() > before).await;
    until("it was asked", || !durations.lock().unwrap().is_empty()).await;
    assert!(durations.lock().unwrap().len() <= 2);
}
