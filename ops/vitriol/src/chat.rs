//! `vitriol chat`: a conversation in the terminal, over the HTTP API like any other client's.

mod conversation;
mod input;

use std::{
    hash::{BuildHasher, RandomState},
    io::IsTerminal,
    time::{Duration, Instant},
};

use tokio::signal::unix::{Signal, SignalKind, signal};
use vitriol_chassis::{Environment, Exit, Failure, OrExit};
use vitriol_profile::Overrides;

use self::{
    conversation::{Conversation, Figures, Sampling, Stats, read_piece},
    input::{Entry, Lines, read_entry},
};
use crate::{
    cli::ChatArgs,
    http::{Api, HttpError},
    term::{self, Paint},
};

/// Two ctrl-C at the prompt within this time leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// How long a house that is still loading is asked again.
const WAIT_READY: Duration = Duration::from_secs(120);

const HELP: &str = "\
/reset   forget the conversation
/stats   tokens, cache and speed of the last answer and of all
/help    this
/exit    leave (as ctrl-D does)
A line that ends in \\ goes on in the next. Ctrl-C stops an answer.
";

pub async fn run(args: &ChatArgs, environment: &Environment) -> Result<(), Failure> {
    let listen = args.settings.load(Overrides::new())?.house.listen;
    let url = args
        .url
        .clone()
        .unwrap_or_else(|| format!("http://{listen}"));
    let chat = Chat {
        api: Api::new(&url).or_exit(Exit::Usage)?,
        session_id: new_session_id(),
        conversation: Conversation::new(args.system.clone()),
        sampling: Sampling {
            model: args.model.clone(),
            temperature: args.temperature,
            top_p: args.top_p,
            seed: args.seed,
            max_tokens: args.max_tokens,
        },
        stats: Stats::default(),
        interrupts: signal(SignalKind::interrupt()).or_exit(Exit::Internal)?,
        // A dialogue needs both ends; a pipe gets the answers and nothing else.
        dialogue: std::io::stdin().is_terminal() && std::io::stdout().is_terminal(),
        paint: Paint(environment.color && std::io::stdout().is_terminal()),
    };
    chat.converse().await
}

/// Names this conversation to the house; random, so that two chats never share one.
fn new_session_id() -> String {
    let random = || RandomState::new().hash_one(std::process::id());
    format!("chat-{:016x}{:016x}", random(), random())
}

struct Chat {
    api: Api,
    session_id: String,
    conversation: Conversation,
    sampling: Sampling,
    stats: Stats,
    interrupts: Signal,
    dialogue: bool,
    paint: Paint,
}

/// How an answer ended.
enum Answered {
    Whole,
    Stopped,
}

impl Chat {
    async fn converse(mut self) -> Result<(), Failure> {
        let mut lines = Lines::from_stdin().or_exit(Exit::Internal)?;
        if self.dialogue {
            term::print(self.paint.dim("/help for the commands, ctrl-D leaves\n"))?;
        }
        loop {
            match self.next_entry(&mut lines).await? {
                Entry::End | Entry::Exit => return Ok(()),
                Entry::Nothing => {}
                Entry::Help => term::print(HELP)?,
                Entry::Stats => term::print(format_args!("{}\n", self.stats.describe()))?,
                Entry::Reset => {
                    let turns = self.conversation.turns();
                    self.conversation.reset();
                    term::print(self.paint.dim(&format!("{turns} turns forgotten\n")))?;
                }
                Entry::Unknown(command) => {
                    term::note(format_args!("{command}: no such command; /help lists them"));
                }
                Entry::Message(question) => self.ask(question).await?,
            }
        }
    }

    /// The next entry; two interrupts in a row stand for its end.
    async fn next_entry(&mut self, lines: &mut Lines) -> Result<Entry, Failure> {
        let mut interrupted: Option<Instant> = None;
        if self.dialogue {
            term::print(self.paint.bold("> "))?;
        }
        loop {
            tokio::select! {
                entry = read_entry(lines) => {
                    let entry = entry.or_exit(Exit::Internal)?;
                    if self.dialogue && matches!(entry, Entry::End) {
                        term::print("\n")?;
                    }
                    return Ok(entry);
                }
                _ = self.interrupts.recv() => {
                    let again = interrupted.is_some_and(|at| at.elapsed() < LEAVE_WITHIN);
                    if again || !self.dialogue {
                        term::print("\n")?;
                        return Ok(Entry::End);
                    }
                    interrupted = Some(Instant::now());
                    term::print(format_args!("\n(ctrl-C again leaves)\n{}", self.paint.bold("> ")))?;
                }
            }
        }
    }

    /// Asks, shows the answer as it comes, and keeps both. A failure that may pass leaves the
    /// conversation as it was; in a pipe it ends the command.
    async fn ask(&mut self, question: String) -> Result<(), Failure> {
        let began = Instant::now();
        let mut answer = Answer::default();
        let outcome = self.stream_answer(&question, began, &mut answer).await;
        if !answer.text.is_empty() && !answer.text.ends_with('\n') {
            term::print("\n")?;
        }
        let stopped = matches!(outcome, Ok(Answered::Stopped));
        match outcome {
            Ok(Answered::Whole) if answer.finish_reason.as_deref() == Some("length") => {
                term::note(
                    self.paint
                        .dim("(cut: max_tokens or the context window is used up)"),
                );
            }
            Ok(Answered::Whole) => {}
            Ok(Answered::Stopped) => term::note(self.paint.dim("(stopped)")),
            Err(Asking::Output(failure)) => return Err(failure),
            Err(Asking::Server(failure)) if self.dialogue => {
                term::note(self.paint.red(&failure.message));
                return Ok(());
            }
            Err(Asking::Server(failure)) => return Err(failure),
        }
        if let Some(figures) = answer.figures {
            self.stats.add(figures, answer.first_text, began.elapsed());
        }
        if is_said(stopped, &answer.text) {
            self.conversation.keep(question, answer.text);
        }
        Ok(())
    }

    async fn stream_answer(
        &mut self,
        question: &str,
        began: Instant,
        answer: &mut Answer,
    ) -> Result<Answered, Asking> {
        let body = self.conversation.request(question, &self.sampling);
        let headers = [("x-session-id", self.session_id.as_str())];
        let mut waiting_said = false;
        let mut stream = loop {
            let posted = tokio::select! {
                posted = self.api.post_stream("/v1/chat/completions", &headers, &body) => posted,
                _ = self.interrupts.recv() => return Ok(Answered::Stopped),
            };
            match posted {
                Ok(stream) => break stream,
                Err(error) => {
                    let pause =
                        retry_pause(&error, began.elapsed()).ok_or_else(|| server(error))?;
                    if !std::mem::replace(&mut waiting_said, true) {
                        term::note(self.paint.dim("(the house is not ready yet; waiting)"));
                    }
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        _ = self.interrupts.recv() => return Ok(Answered::Stopped),
                    }
                }
            }
        };
        loop {
            let event = tokio::select! {
                event = stream.next() => event.map_err(server)?,
                // Dropping the stream closes the connection, which stops the generation.
                _ = self.interrupts.recv() => return Ok(Answered::Stopped),
            };
            match event.as_deref() {
                Some("[DONE]") => return Ok(Answered::Whole),
                Some(data) => answer.take(data, began)?,
                None => return Err(broken("the answer broke off before its end")),
            }
        }
    }
}

/// Whether an answer belongs to the conversation: not one that was stopped before its first text.
fn is_said(stopped: bool, text: &str) -> bool {
    !(stopped && text.is_empty())
}

/// An answer as far as it came.
#[derive(Debug, Default)]
struct Answer {
    text: String,
    finish_reason: Option<String>,
    figures: Option<Figures>,
    first_text: Option<Duration>,
}

impl Answer {
    fn take(&mut self, data: &str, began: Instant) -> Result<(), Asking> {
        let piece = read_piece(data).map_err(|words| broken(&words))?;
        if !piece.text.is_empty() {
            self.first_text.get_or_insert_with(|| began.elapsed());
            term::print(term::printable(&piece.text)).map_err(Asking::Output)?;
            self.text.push_str(&piece.text);
        }
        self.finish_reason = piece.finish_reason.or(self.finish_reason.take());
        self.figures = piece.figures.or(self.figures);
        Ok(())
    }
}

/// Why asking failed: the server, after which the conversation may go on, or our own output.
enum Asking {
    Server(Failure),
    Output(Failure),
}

fn server(error: HttpError) -> Asking {
    let exit = match error {
        HttpError::Refused { status, .. } if status.is_client_error() => Exit::Usage,
        _ => Exit::Dependency,
    };
    Asking::Server(Failure::of(exit, error))
}

fn broken(words: &str) -> Asking {
    Asking::Server(Failure::new(Exit::Dependency, words))
}

/// How long to wait before asking again: while the house loads, restarts or is full, as it says
/// itself, for two minutes in all. Any other refusal is for the user to read.
fn retry_pause(error: &HttpError, so_far: Duration) -> Option<Duration> {
    let HttpError::Refused {
        code, retry_after, ..
    } = error
    else {
        return None;
    };
    let passing = ["engine_loading", "engine_restarting", "queue_full"];
    let is_passing = code.as_deref().is_some_and(|code| passing.contains(&code));
    (is_passing && so_far < WAIT_READY)
        .then(|| Duration::from_secs(retry_after.unwrap_or(1).clamp(1, 10)))
}

#[cfg(test)]
mod tests {
    use hyper::StatusCode;

    use super::*;

    #[test]
    fn only_a_passing_refusal_is_tried_again_and_not_for_ever() {
        let refused = |code: &str, retry_after| HttpError::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            message: String::new(),
            code: Some(code.to_owned()),
            retry_after,
        };
        let soon = Duration::from_secs(3);
        assert_eq!(
            retry_pause(&refused("engine_loading", Some(2)), soon),
            Some(Duration::from_secs(2))
        );
        assert_eq!(
            retry_pause(&refused("queue_full", None), soon),
            Some(Duration::from_secs(1))
        );
        assert_eq!(
            retry_pause(&refused("engine_restarting", Some(9999)), soon),
            Some(Duration::from_secs(10))
        );
        for lasting in [
            "engine_failed",
            "engine_draining",
            "draining",
            "invalid_value",
        ] {
            assert_eq!(
                retry_pause(&refused(lasting, Some(2)), soon),
                None,
                "{lasting}"
            );
        }
        let loading = refused("engine_loading", Some(2));
        assert_eq!(retry_pause(&loading, WAIT_READY), None);
    }

    #[test]
    fn an_answer_stopped_before_its_first_text_is_no_turn() {
        assert!(!is_said(true, ""));
        assert!(is_said(true, "Once") && is_said(false, ""));
    }

    #[test]
    fn every_chat_is_its_own_session() {
        let id = new_session_id();
        assert_eq!(id.len(), "chat-".len() + 32);
        assert_ne!(id, new_session_id());
    }

    #[test]
    fn an_answer_is_put_together_from_its_pieces() {
        let mut answer = Answer::default();
        let began = Instant::now();
        for data in [
            r#"{"choices":[{"delta":{"role":"assistant"},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"content":""},"finish_reason":"stop"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        ] {
            assert!(answer.take(data, began).is_ok());
        }
        assert_eq!(answer.finish_reason.as_deref(), Some("stop"));
        assert_eq!(
            answer.figures.map(|figures| figures.completion_tokens),
            Some(2)
        );
        assert_eq!(answer.first_text, None, "an empty delta is no text");
        assert!(
            answer
                .take(r#"{"error":{"message":"gone"}}"#, began)
                .is_err()
        );
    }
}
