//! `vitriol up`: the house in the foreground.
//!
//! The decisions are `supervise`'s; here are the processes, the signals, the status calls and the
//! screen around them.

mod child;
mod fd_store;
mod lock;
mod log;
mod plan;
mod screen;
mod supervise;
mod units;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc,
};
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_ipc::connect;
use vitriol_proto::status::v1::{GetResponse, Health};
use vitriol_sysfs::Sysfs;

use self::{
    child::{Report, Run},
    fd_store::FdStore,
    plan::Plan,
    supervise::{Action, DaemonId, Ending, Event, Supervisor},
};
use crate::{
    cli::UpArgs,
    house,
    http::Api,
    term::{self, LiveLines, Paint},
};

/// How often a daemon that is not ready yet is asked; often enough for a moving bar.
const ASK_STARTING: Duration = Duration::from_millis(100);
/// How often a ready one is.
const ASK_READY: Duration = Duration::from_millis(500);

/// How often the door is tried, and how long one try may take.
const TRY_DOOR: Duration = Duration::from_millis(50);
const TRY_DOOR_TIMEOUT: Duration = Duration::from_secs(2);

const SIGTERM: i32 = Signal::TERM.as_raw();

/// Everything the loop hears.
enum Heard {
    Report(Report),
    Status(DaemonId, Option<GetResponse>),
    /// Demiurge answers clients, so the engine computes for it.
    DoorOpen(SocketAddr),
    /// ctrl-C; the second one asks for a kill.
    Interrupt,
    /// SIGTERM, or the terminal has gone: an end is wanted, nobody is impatient.
    Stop,
    Wake,
    /// A daemon told its service manager something.
    Notified,
}

pub async fn run(args: &UpArgs, environment: &Environment) -> Result<(), Failure> {
    let plan = Plan::make(args, environment)?;
    let _lock = lock::HouseLock::take(&plan.dirs, plan.listen.port() == 0)?;
    lock::check_port(plan.listen, &Sysfs::host())?;
    plan.check_files()?;
    plan.write_files()?;
    House::new(plan, environment)?.live().await
}

/// `vitriol check-port`: what systemd asks before it takes the port, because it cannot say who holds
/// it.
///
/// Errors: 69, naming the unit or the process that holds `listen`.
pub fn check_port(listen: SocketAddr) -> Result<(), Failure> {
    lock::check_port(listen, &Sysfs::host())
}

/// Ends when `wake` is reached; without one, never.
async fn reached(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Ends when a daemon told the store something; without a store, never.
async fn notified(store: Option<&FdStore>) {
    match store {
        Some(store) => store.readable().await,
        None => std::future::pending().await,
    }
}

/// Says once when the house at `address` answers that it is well.
async fn await_door(address: SocketAddr, door: mpsc::Sender<SocketAddr>) {
    let Ok(api) = Api::new(&format!("http://{address}")) else {
        return;
    };
    while !tokio::time::timeout(TRY_DOOR_TIMEOUT, api.is_ok("/health"))
        .await
        .unwrap_or(false)
    {
        if door.is_closed() {
            return;
        }
        tokio::time::sleep(TRY_DOOR).await;
    }
    // Closed when the house has ended meanwhile.
    let _ = door.send(address).await;
}

struct House {
    plan: Plan,
    began: Instant,
    supervisor: Supervisor,
    runs: Vec<Option<Run>>,
    statuses: Vec<Option<GetResponse>>,
    lines: LiveLines,
    paint: Paint,
    /// The address Demiurge bound first; it gets the same one after a restart.
    bound: Option<SocketAddr>,
    last_failure: Option<String>,
    /// How a daemon has just ended, until the supervisor has decided what that means.
    obituary: Option<String>,
    /// Of the daemon whose memory outlives it, where there is one.
    store: Option<FdStore>,
    reports: mpsc::Sender<Report>,
    reported: mpsc::Receiver<Report>,
    door: mpsc::Sender<SocketAddr>,
    door_open: mpsc::Receiver<SocketAddr>,
}

impl House {
    /// Errors: what is to be kept of a daemon could not be told (69).
    fn new(plan: Plan, environment: &Environment) -> Result<Self, Failure> {
        let daemons = plan.daemons.len();
        let keeps = plan.daemons.iter().any(|daemon| daemon.keeps_memory);
        let store = keeps.then(|| FdStore::bind(&plan.dirs.up_notify()));
        let (reports, reported) = mpsc::channel(64);
        let (door, door_open) = mpsc::channel(1);
        Ok(Self {
            began: Instant::now(),
            supervisor: Supervisor::new(plan.daemons.iter().map(|daemon| daemon.stop_deadline)),
            runs: (0..daemons).map(|_| None).collect(),
            statuses: vec![None; daemons],
            lines: LiveLines::on_stderr(),
            paint: Paint(environment.color),
            bound: None,
            last_failure: None,
            obituary: None,
            store: store.transpose()?,
            plan,
            reports,
            reported,
            door,
            door_open,
        })
    }

    async fn live(mut self) -> Result<(), Failure> {
        let mut interrupt = signal(SignalKind::interrupt()).or_exit(Exit::Internal)?;
        let mut terminate = signal(SignalKind::terminate()).or_exit(Exit::Internal)?;
        let mut hangup = signal(SignalKind::hangup()).or_exit(Exit::Internal)?;
        let mut statuses = self.ask_statuses();
        let mut events = VecDeque::from([Event::Tick]);
        loop {
            while let Some(event) = events.pop_front() {
                let actions = self.supervisor.step(event, self.began.elapsed());
                if let Some(obituary) = self.obituary.take() {
                    // When it ends the first start, it is said with the exit code, at the end.
                    if !self.supervisor.is_giving_up() {
                        self.lines.message(&obituary);
                    }
                }
                for action in actions {
                    if let Action::Finish(exit) = action {
                        return self.finish(exit);
                    }
                    events.extend(self.act(action));
                }
            }
            self.draw();
            let wake = self.supervisor.next_wake().map(|at| self.began + at);
            let heard = tokio::select! {
                Some(report) = self.reported.recv() => Heard::Report(report),
                Some((id, status)) = statuses.recv() => Heard::Status(id, status),
                Some(address) = self.door_open.recv() => Heard::DoorOpen(address),
                _ = interrupt.recv() => Heard::Interrupt,
                _ = terminate.recv() => Heard::Stop,
                _ = hangup.recv() => Heard::Stop,
                () = reached(wake) => Heard::Wake,
                () = notified(self.store.as_ref()) => Heard::Notified,
            };
            events.extend(self.note(heard));
        }
    }

    /// Carries out an action; what follows from it at once comes back as an event.
    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Start(id) => self.start(id),
            Action::Terminate(id) => self.signal(id, Signal::TERM),
            Action::Kill(id) => self.signal(id, Signal::KILL),
            Action::Finish(_) => None,
        }
    }

    fn start(&mut self, id: DaemonId) -> Option<Event> {
        self.statuses[id] = None;
        let mut launch = self.plan.launch(id, self.bound);
        if let Some(store) = &mut self.store
            && self.plan.daemons[id].keeps_memory
        {
            // What the run before said last may not have been read yet.
            store.read_all();
            launch.kept = Some(store.kept());
        }
        match Run::start(id, &launch, self.reports.clone()) {
            Ok(run) => {
                self.runs[id] = Some(run);
                None
            }
            Err(error) => {
                let message = format!("{}: cannot be started: {error}", launch.binary.display());
                self.obituary = Some(self.paint.red(&message));
                self.last_failure = Some(message);
                Some(Event::Exited(
                    id,
                    Ending::Code(Exit::Internal.code().into()),
                ))
            }
        }
    }

    fn signal(&self, id: DaemonId, signal: Signal) -> Option<Event> {
        if let Some(run) = &self.runs[id] {
            run.signal(signal);
        }
        None
    }

    fn note(&mut self, heard: Heard) -> Option<Event> {
        match heard {
            Heard::Wake => Some(Event::Tick),
            Heard::Notified => {
                self.store.iter_mut().for_each(FdStore::read_all);
                None
            }
            Heard::Interrupt if self.supervisor.is_stopping() => Some(Event::KillAsked),
            Heard::Stop if self.supervisor.is_stopping() => None,
            Heard::Interrupt | Heard::Stop => {
                self.lines
                    .message("stopping: running answers may finish; ctrl-C again kills");
                Some(Event::StopAsked)
            }
            Heard::Report(Report::Said(id, text)) => {
                let name = self.plan.daemons[id].name;
                let text = term::printable(&text);
                self.lines
                    .message(&self.paint.red(&format!("{name}: {text}")));
                None
            }
            Heard::Report(Report::Exited(id, ending, last_line)) => {
                self.note_exit(id, ending, &last_line);
                Some(Event::Exited(id, ending))
            }
            Heard::Status(id, status) => {
                let status = status.filter(|status| self.is_current(id, status));
                let ready = status
                    .as_ref()
                    .is_some_and(|status| status.health() == Health::Ready);
                // A daemon too busy for one answer keeps the line it had.
                if status.is_some() {
                    self.statuses[id] = status;
                }
                ready.then(|| {
                    self.note_ready(id);
                    Event::Ready(id)
                })
            }
            Heard::DoorOpen(address) => {
                self.welcome(address);
                None
            }
        }
    }

    /// Whether a status is of the process that runs now, not of one before.
    fn is_current(&self, id: DaemonId, status: &GetResponse) -> bool {
        self.runs[id]
            .as_ref()
            .is_some_and(|run| run.pid == status.pid)
    }

    /// Once Demiurge has bound its port, that is the house's address for good; it is announced as
    /// soon as a client would be served there.
    fn note_ready(&mut self, id: DaemonId) {
        if id == self.plan.demiurge && self.bound.is_none() {
            self.bound = house::bound_address(&self.plan.dirs);
            if let Some(address) = self.bound {
                tokio::spawn(await_door(address, self.door.clone()));
            }
        }
    }

    /// Should nobody be able to read it (a closed pipe, a full disk), the house is for its clients
    /// all the same.
    fn welcome(&mut self, address: SocketAddr) {
        if self.supervisor.is_stopping() {
            return;
        }
        self.draw();
        let url = format!("http://{address}");
        let text = screen::welcome(&url, &self.plan.chat_command(address));
        let said = self.lines.above(|| term::print(text));
        if let Err(failure) = said
            && failure.exit != Exit::Ok
        {
            self.lines.message(&self.paint.red(&failure.message));
        }
    }

    fn note_exit(&mut self, id: DaemonId, ending: Ending, last_line: &str) {
        self.runs[id] = None;
        self.statuses[id] = None;
        let daemon = &self.plan.daemons[id];
        let asked = matches!(self.supervisor.phase(id), supervise::Phase::Stopping { .. });
        // A daemon asked to end before it could listen for that dies of the signal.
        if asked && matches!(ending, Ending::Code(0) | Ending::Signal(SIGTERM)) {
            return;
        }
        let how = match ending {
            Ending::Code(code) => format!("ended with code {code}"),
            Ending::Signal(signal) => format!("was ended by signal {signal}"),
        };
        let own_words = last_line.strip_prefix(&format!("vitriol-{}: ", daemon.name));
        let cause = match own_words {
            Some(words) => term::printable(words),
            None => format!("see {}", daemon.log.display()),
        };
        self.obituary = Some(self.paint.red(&format!("{} {how}: {cause}", daemon.name)));
        if !asked {
            self.last_failure = Some(format!("{}: {cause}", daemon.name));
        }
    }

    fn finish(mut self, exit: Exit) -> Result<(), Failure> {
        self.draw();
        match exit {
            Exit::Ok => Ok(()),
            exit => Err(Failure::new(exit, self.last_failure.unwrap_or_default())),
        }
    }

    fn draw(&mut self) {
        let now = self.began.elapsed();
        let line = |(id, daemon): (DaemonId, &plan::Daemon)| {
            let phase = self.supervisor.phase(id);
            screen::line(
                daemon.name,
                phase,
                self.statuses[id].as_ref(),
                now,
                self.paint,
            )
        };
        let lines = self.plan.daemons.iter().enumerate().map(line).collect();
        self.lines.show(lines);
    }

    /// Asks every daemon for its status for as long as the house lives.
    fn ask_statuses(&self) -> mpsc::Receiver<(DaemonId, Option<GetResponse>)> {
        let (answers, answered) = mpsc::channel(8);
        for (id, daemon) in self.plan.daemons.iter().enumerate() {
            let channel = connect(&daemon.status_socket);
            let answers = answers.clone();
            tokio::spawn(async move {
                loop {
                    let status = house::ask_status(channel.clone()).await;
                    let ready = status.as_ref().is_some_and(|s| s.health() == Health::Ready);
                    if answers.send((id, status)).await.is_err() {
                        return;
                    }
                    tokio::time::sleep(if ready { ASK_READY } else { ASK_STARTING }).await;
                }
            });
        }
        answered
    }
}
