use std::{path::Path, sync::Mutex};

use tonic::{Response, Status, Streaming, codegen::BoxStream, service::Routes};
use vitriol_chassis::{Notifier, RpcServer, StatusBoard};
use vitriol_ipc::{Listener, connect};
use vitriol_proto::{
    engine::v1::{
        DetokenizeRequest, DetokenizeResponse, GetModelRequest, GetModelResponse, ListSlotsRequest,
        ListSlotsResponse, SessionRequest, ShedResponse, StepEvents, TokenizeRequest,
        TokenizeResponse,
        engine_server::{Engine, EngineServer},
    },
    kvtier::v1::{
        AttachRequest, AttachResponse, CopySessionRequest, CopySessionResponse, DestroyRequest,
        DestroyResponse, Event, EventsRequest, ExportSessionRequest, ImportSessionRequest,
        ListSessionsRequest, LoadRequest, LoadResponse, LookupRequest, LookupResponse,
        PutSessionRequest, PutSessionResponse, ReleaseRequest, ReleaseResponse,
        RemoveSessionRequest, RemoveSessionResponse, ReserveRequest, ReserveResponse,
        RestoreSessionRequest, RestoreSessionResponse, SealRequest, SealResponse, SessionInfo,
        StatsRequest, StatsResponse, SyncSessionRequest, SyncSessionResponse, TransferEvent,
        TrimResponse,
        kv_tier_server::{KvTier, KvTierServer},
    },
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
    tokio::spawn(ask_engine(
        Arc::clone(&messages),
        connect(socket),
        how,
        metrics.clone(),
    ));
    (messages, metrics)
}

/// A tier that is only asked for memory, and gives half of it.
#[derive(Default)]
struct Trimmed {
    asked: Arc<Mutex<Vec<TrimRequest>>>,
}

#[tonic::async_trait]
impl KvTier for Trimmed {
    type EventsStream = BoxStream<Event>;

    async fn events(
        &self,
        _: Request<EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        not_asked()
    }

    async fn attach(&self, _: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        not_asked()
    }

    async fn reserve(
        &self,
        _: Request<ReserveRequest>,
    ) -> Result<Response<ReserveResponse>, Status> {
        not_asked()
    }

    async fn seal(&self, _: Request<SealRequest>) -> Result<Response<SealResponse>, Status> {
        not_asked()
    }

    async fn lookup(&self, _: Request<LookupRequest>) -> Result<Response<LookupResponse>, Status> {
        not_asked()
    }

    async fn load(&self, _: Request<LoadRequest>) -> Result<Response<LoadResponse>, Status> {
        not_asked()
    }

    async fn release(
        &self,
        _: Request<ReleaseRequest>,
    ) -> Result<Response<ReleaseResponse>, Status> {
        not_asked()
    }

    async fn trim(&self, request: Request<TrimRequest>) -> Result<Response<TrimResponse>, Status> {
        let asked = request.into_inner();
        self.asked.lock().unwrap().push(asked);
        Ok(Response::new(TrimResponse {
            bytes: asked.bytes / 2,
        }))
    }

    async fn destroy(
        &self,
        _: Request<DestroyRequest>,
    ) -> Result<Response<DestroyResponse>, Status> {
        not_asked()
    }

    async fn put_session(
        &self,
        _: Request<PutSessionRequest>,
    ) -> Result<Response<PutSessionResponse>, Status> {
        not_asked()
    }

    type ListSessionsStream = BoxStream<SessionInfo>;

    async fn list_sessions(
        &self,
        _: Request<ListSessionsRequest>,
    ) -> Result<Response<Self::ListSessionsStream>, Status> {
        not_asked()
    }

    async fn sync_session(
        &self,
        _: Request<SyncSessionRequest>,
    ) -> Result<Response<SyncSessionResponse>, Status> {
        not_asked()
    }

    async fn copy_session(
        &self,
        _: Request<CopySessionRequest>,
    ) -> Result<Response<CopySessionResponse>, Status> {
        not_asked()
    }

    async fn restore_session(
        &self,
        _: Request<RestoreSessionRequest>,
    ) -> Result<Response<RestoreSessionResponse>, Status> {
        not_asked()
    }

    type ExportSessionStream = BoxStream<TransferEvent>;

    async fn export_session(
        &self,
        _: Request<ExportSessionRequest>,
    ) -> Result<Response<Self::ExportSessionStream>, Status> {
        not_asked()
    }

    type ImportSessionStream = BoxStream<TransferEvent>;

    async fn import_session(
        &self,
        _: Request<ImportSessionRequest>,
    ) -> Result<Response<Self::ImportSessionStream>, Status> {
        not_asked()
    }

    async fn remove_session(
        &self,
        _: Request<RemoveSessionRequest>,
    ) -> Result<Response<RemoveSessionResponse>, Status> {
        not_asked()
    }

    async fn stats(&self, _: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        not_asked()
    }
}

#[tokio::test]
async fn the_tier_hears_what_the_guard_asks_also_when_it_comes_later() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("house/kvtier.sock");
    let (messages, metrics) = (Arc::new(Messages::default()), Metrics::default());
    let how = Trimming {
        bytes: 1000,
        hold: Duration::from_millis(7000),
        deadline: DEADLINE,
    };
    let asking = ask_kvtier(
        Arc::clone(&messages),
        connect(&socket),
        how,
        metrics.clone(),
    );
    tokio::spawn(asking);
    messages.trim();
    until("nobody there is counted", || {
        metrics.trim_failures.get() == 1
    })
    .await;

    let tier = Trimmed::default();
    let asked = Arc::clone(&tier.asked);
    let board = StatusBoard::new("test", "0", Notifier::default());
    let routes = Routes::new(KvTierServer::new(tier));
    let server = RpcServer::spawn(Listener::bind(&socket).unwrap(), routes, board);
    messages.trim();
    until("the tier gave memory back", || {
        metrics.trimmed_bytes.get() == 500
    })
    .await;
    let wanted = TrimRequest {
        bytes: 1000,
        hold_ms: 7000,
    };
    assert_eq!(*asked.lock().unwrap(), [wanted]);
    assert_eq!(metrics.trim_failures.get(), 1);
    server.stop().await.unwrap();
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
