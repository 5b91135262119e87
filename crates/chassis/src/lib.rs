//! What every daemon of the house has in common: its exit codes, its log, its status, its sockets'
//! standard services and the way it starts, announces itself and drains. With it a daemon's
//! `main.rs` is one screen:
//!
//! ```no_run
//! use vitriol_chassis as chassis;
//! # #[derive(clap::Parser)] struct Args {}
//! fn main() -> std::process::ExitCode {
//!     chassis::main("vitriol-example", |environment| {
//!         let _args: Args = chassis::parse_args(std::env::args_os())?;
//!         let setup = chassis::Setup::new("example", env!("CARGO_PKG_VERSION"));
//!         chassis::run(setup, &environment, async |daemon| {
//!             // build and bind, then:
//!             daemon.board.ready("serving");
//!             daemon.shutdown.cancelled().await;
//!             daemon.drain(std::time::Duration::from_secs(10), async {}).await;
//!             Ok(())
//!         })
//!     })
//! }
//! ```

mod args;
mod board;
mod daemon;
mod environment;
pub mod event;
mod exit;
mod fingerprint;
mod notify;
mod rpc;
mod shutdown;
mod trace;

pub use args::{HouseArgs, parse_args};
pub use board::{Health, StatusBoard};
pub use daemon::{Daemon, Drained, Setup, blocking, main, run};
pub use environment::{Environment, SUPERVISED};
pub use exit::{Exit, Failure, OrExit};
pub use fingerprint::{Difference, Fingerprint, ParseError as FingerprintError};
pub use notify::{Heartbeat, IDLE_MAX, Notifier};
pub use rpc::{RpcServer, serve_uds};
pub use trace::init as init_trace;
pub use vitriol_ipc::Inherited;
// Daemons name these types when they register metrics, wait for the end or add services.
pub use prometheus_client::registry::Registry;
pub use tokio_util::sync::CancellationToken;
