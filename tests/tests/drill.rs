//! The kill drill: conversations go on while engine, kvtier, persist and oom-shield are killed (SIGKILL) in
//! the middle of prefill, decode, spill, restore and mirror writes. Every answer is byte for byte that of a
//! house without a KV tier which nobody disturbs, and nothing that was stored is lost.
//!
//! 40 rounds of fixed seeds with full attention, and 10 in which engine and kvtier die with sliding windows; with
//! VITRIOL_TEST_FULL 25 times as many.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test fails by panicking, in its functions too, and says how far it is"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tonic::transport::Channel;
use vitriol_ipc::connect;
use vitriol_proto::{
    engine::v1::{ListSlotsRequest, SlotState, engine_client::EngineClient},
    kvtier::v1::{StatsRequest, kv_tier_client::KvTierClient},
    status::v1::{GetRequest, status_client::StatusClient},
};
use vitriol_testkit::{
    House, Seed, Setup, eventually,
    house::{ENGINE, KVTIER, OOM_SHIELD, PERSIST},
    http::Client,
    places::{self, wants_full_tests},
    process,
};

const SEED: u64 = 20_261_130;
const WAIT: Duration = Duration::from_secs(60);
/// From so many tokens on all of a conversation is kept.
const CONVERSATION_TOKENS: u64 = 1024;
/// A conversation begins anew after so many turns.
const TURNS: usize = 6;
/// Some more tokens: enough for a conversation that is kept.
const FIRST_WORDS: usize = 1000;
const TURN_WORDS: usize = 90;
const ANSWER_TOKENS: u32 = 24;

const HOUSE: &str = "[engine.main]\nkv_bytes_max = '120 MiB'\n[kvtier]\nenabled = true\n\
                     arena_bytes = '128 MiB'\nslot_bytes = '768 KiB'";
const UNDISTURBED: &str = "[kvtier]\nenabled = false";

/// Of one model.
struct Drill {
    model: PathBuf,
    seed: u64,
    /// Conversations that take turns: more than the engine has pages for.
    conversations: usize,
    victims: &'static [&'static str],
    rounds: usize,
    /// Least kills of each victim, and in each phase.
    per_victim: usize,
    per_phase: usize,
}

const WORDS: [&str; 24] = [
    "river", "stone", "lantern", "seven", "quiet", "harbour", "copper", "winter", "letter",
    "engine", "garden", "mirror", "thunder", "paper", "north", "salt", "bridge", "orchard",
    "violin", "ember", "falcon", "meadow", "glass", "anchor",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Prefill,
    Decode,
    Spill,
    Restore,
    MirrorWrite,
}

const PHASES: [Phase; 5] = [
    Phase::Prefill,
    Phase::Decode,
    Phase::Spill,
    Phase::Restore,
    Phase::MirrorWrite,
];
const VICTIMS: [&str; 4] = [ENGINE, KVTIER, PERSIST, OOM_SHIELD];

/// What the house is doing at a moment.
struct Eyes {
    runtime: Runtime,
    engine: EngineClient<Channel>,
    status: StatusClient<Channel>,
    kvtier: KvTierClient<Channel>,
}

impl Eyes {
    fn on(house: &House) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let channel = |name| {
            let socket = house.files_named(name).remove(0);
            runtime.block_on(async { connect(&socket) })
        };
        let engine = channel("engine/main.sock");
        Self {
            status: StatusClient::new(engine.clone()),
            engine: EngineClient::new(engine),
            kvtier: KvTierClient::new(channel("kvtier/kvtier.sock")),
            runtime,
        }
    }

    /// Whether the house is in this phase now; it is in none while a daemon that would know is away.
    fn see(&mut self, phase: Phase) -> bool {
        match phase {
            Phase::Prefill => self.slot_is(SlotState::Prefill) && self.gauge("restoring") == 0,
            Phase::Decode => self.slot_is(SlotState::Decode),
            Phase::Spill => self.gauge("pages_waiting") > 0,
            Phase::Restore => self.gauge("restoring") > 0,
            Phase::MirrorWrite => self.unmirrored() > 0,
        }
    }

    fn slot_is(&mut self, state: SlotState) -> bool {
        let slots = self.engine.list_slots(ListSlotsRequest {});
        let answer = self.runtime.block_on(within(slots));
        answer.is_some_and(|answer| answer.slots.iter().any(|slot| slot.state() == state))
    }

    /// A gauge of the engine's side of the tier; 0 while there is no engine.
    fn gauge(&mut self, name: &str) -> u64 {
        let answer = self
            .runtime
            .block_on(within(self.status.get(GetRequest {})));
        let metrics = answer.map(|answer| answer.metrics).unwrap_or_default();
        let name = format!("vitriol_engine_tier_{name} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    fn unmirrored(&mut self) -> u64 {
        let answer = self
            .runtime
            .block_on(within(self.kvtier.stats(StatsRequest {})));
        answer.map_or(0, |stats| stats.unmirrored)
    }

    /// Waits until the engine is attached to kvtier.
    fn until_attached(&mut self) {
        let attached = || (self.gauge("attached") == 1).then_some(());
        eventually(WAIT, "an attachment", attached).unwrap();
    }

    /// Waits until all that was computed is on the disk.
    fn until_stored(&mut self) {
        let stored = || (self.gauge("pages_waiting") + self.unmirrored() == 0).then_some(());
        eventually(WAIT, "all pages on the disk", stored).unwrap();
    }
}

async fn within<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Option<T> {
    let answer = tokio::time::timeout(Duration::from_millis(500), call).await;
    answer.ok()?.ok().map(tonic::Response::into_inner)
}

/// One conversation, as its client has it.
#[derive(Clone, Debug)]
struct Conversation {
    name: String,
    messages: Vec<Value>,
}

impl Conversation {
    fn new(number: usize) -> Self {
        Self {
            name: format!("drill-{number}"),
            messages: Vec::new(),
        }
    }

    fn turns(&self) -> usize {
        self.messages.len() / 2
    }

    /// The next thing its user says.
    fn say(&mut self, seed: &mut Seed) {
        let words = match self.turns() {
            0 => FIRST_WORDS,
            _ => TURN_WORDS,
        };
        let words: Vec<&str> = (0..words).map(|_| *seed.choose(&WORDS)).collect();
        let text = format!("{} What comes to mind?", words.join(" "));
        self.messages.push(json!({"role": "user", "content": text}));
    }

    fn hear(&mut self, answer: &str) {
        self.messages
            .push(json!({"role": "assistant", "content": answer}));
    }

    fn body(&self, stream: bool) -> Value {
        json!({
            "messages": self.messages,
            "max_tokens": ANSWER_TOKENS,
            "temperature": 0,
            "stream": stream,
        })
    }

    fn client(&self, house: &House) -> Client {
        house.client().with_header("X-Session-Id", &self.name)
    }

    /// The answer, in a house that nobody disturbs.
    fn ask(&self, house: &House) -> Value {
        let answer = self
            .client(house)
            .post("/v1/chat/completions", &self.body(false));
        answer.unwrap().ok_json().unwrap()
    }
}

fn text_of(answer: &Value) -> String {
    let content = &answer["choices"][0]["message"]["content"];
    content.as_str().unwrap().to_owned()
}

/// What a client got that asks again when its stream is cut.
struct Patient {
    text: String,
    cuts: usize,
}

fn ask_until_answered(client: &Client, body: &Value) -> Patient {
    for cuts in 0..5 {
        if let Some(text) = read_stream(client, body) {
            return Patient { text, cuts };
        }
    }
    panic!("cut five times");
}

/// The whole answer; `None` where the stream was cut, be it before its first byte.
fn read_stream(client: &Client, body: &Value) -> Option<String> {
    let mut stream = client
        .post_stream("/v1/chat/completions", body)
        .expect("a request that comes while the engine restarts is held");
    let mut text = String::new();
    while let Some(chunk) = stream.next_chunk().ok()? {
        if chunk.get("error").is_some() {
            return None;
        }
        let content = &chunk["choices"][0]["delta"]["content"];
        text.push_str(content.as_str().unwrap_or_default());
    }
    Some(text)
}

/// How often each process was killed, and how often in each phase.
#[derive(Default)]
struct Counts {
    of: BTreeMap<(&'static str, Phase), usize>,
    /// A phase that was not seen before the answer was whole.
    missed: BTreeMap<(&'static str, Phase), usize>,
    cuts: usize,
}

impl Counts {
    fn of_victim(&self, victim: &str) -> usize {
        let of = self.of.iter().filter(|((of, _), _)| *of == victim);
        of.map(|(_, count)| count).sum()
    }

    fn of_phase(&self, phase: Phase) -> usize {
        let of = self.of.iter().filter(|((_, of), _)| *of == phase);
        of.map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<20}", "killed in")?;
        for phase in PHASES {
            write!(f, "{:>13}", format!("{phase:?}"))?;
        }
        writeln!(f, "{:>7}", "all")?;
        let killed: BTreeSet<_> = self.of.keys().map(|(victim, _)| *victim).collect();
        for victim in killed {
            write!(f, "{victim:<20}")?;
            for phase in PHASES {
                let count = |of: &BTreeMap<_, _>| of.get(&(victim, phase)).copied().unwrap_or(0);
                let (killed, missed) = (count(&self.of), count(&self.missed));
                let cell = match missed {
                    0 => format!("{killed}"),
                    _ => format!("{killed} (-{missed})"),
                };
                write!(f, "{cell:>13}")?;
            }
            writeln!(f, "{:>7}", self.of_victim(victim))?;
        }
        write!(f, "{:<20}", "all")?;
        for phase in PHASES {
            write!(f, "{:>13}", self.of_phase(phase))?;
        }
        write!(f, "\n{} answers were cut and asked for again", self.cuts)
    }
}

/// Who is killed when, round by round: each in turn, so that it has worked for a moment before it dies again, and in
/// phases in random order.
fn plan(
    victims: &'static [&'static str],
    rounds: usize,
    seed: &mut Seed,
) -> Vec<(&'static str, Phase)> {
    let of_each = rounds / victims.len();
    let phases = victims.iter().map(|_| {
        let mut phases: Vec<_> = PHASES.into_iter().cycle().take(of_each).collect();
        seed.shuffle(&mut phases);
        phases
    });
    let phases: Vec<_> = phases.collect();
    let round = |at: usize| {
        let of_victims = victims.iter().zip(&phases);
        of_victims.map(move |(victim, of)| (*victim, of[at]))
    };
    (0..of_each).flat_map(round).collect()
}

#[test]
fn whoever_is_killed_when_conversations_go_on_as_if_nobody_had_been() {
    let times = if wants_full_tests() { 25 } else { 1 };
    run(Drill {
        model: places::default_model().unwrap(),
        seed: SEED,
        // The engine's pages hold about two of them, the arena about three.
        conversations: 6,
        victims: &VICTIMS,
        rounds: 40 * times,
        per_victim: if times > 1 { 150 } else { 8 },
        per_phase: if times > 1 { 100 } else { 5 },
    });
    // Pages that a window has passed are gone from the engine while the conversation runs. The window of one
    // conversation takes half of the engine's pages for windows.
    run(Drill {
        model: places::gemma().unwrap(),
        seed: SEED + 2,
        conversations: 3,
        victims: &[ENGINE, KVTIER],
        rounds: 10 * times,
        per_victim: 4 * times,
        per_phase: times,
    });
}

fn run(drill: Drill) {
    let mut seed = Seed::from(drill.seed);
    let mut plan = plan(drill.victims, drill.rounds, &mut seed);
    // Some phases are over before they are seen: those rounds are made again, within reason.
    let mut again = drill.rounds / 2;

    let setup = Setup::default().model(drill.model);
    let undisturbed = House::start(&setup.clone().profile(UNDISTURBED)).unwrap();
    let house = House::start(&setup.profile(HOUSE)).unwrap();
    let mut eyes = Eyes::on(&house);
    eyes.until_attached();
    let mut conversations: Vec<_> = (0..drill.conversations).map(Conversation::new).collect();
    let (mut counts, mut next, mut begun) = (Counts::default(), 0, drill.conversations);

    while let Some((victim, phase)) = plan.pop() {
        let conversation = &mut conversations[next];
        next = (next + 1) % drill.conversations;
        if conversation.turns() == TURNS {
            *conversation = Conversation::new(begun);
            begun += 1;
        }
        conversation.say(&mut seed);
        let expected = text_of(&conversation.ask(&undisturbed));
        let old = eventually(WAIT, victim, || house.daemon_pid(victim).ok()).unwrap();

        let (client, body) = (conversation.client(&house), conversation.body(true));
        let jitter = Duration::from_micros(seed.below(4000) as u64);
        let (patient, is_killed) = thread::scope(|scope| {
            let asked = scope.spawn(move || ask_until_answered(&client, &body));
            let is_killed = kill_in(&mut eyes, phase, jitter, old, &|| asked.is_finished());
            (asked.join().unwrap(), is_killed)
        });
        assert_eq!(
            patient.text,
            expected,
            "{victim} killed in {phase:?} (it was: {is_killed}), turn {} of {}",
            conversation.turns(),
            conversation.name
        );
        if victim != ENGINE {
            assert_eq!(patient.cuts, 0, "{victim} killed in {phase:?}");
        }
        conversation.hear(&patient.text);
        let done = if is_killed { "killed" } else { "not killed" };
        let (name, turn, left) = (&conversation.name, conversation.turns(), plan.len());
        eprintln!("{name}, turn {turn}: {victim} {done} in {phase:?}; {left} rounds are left");
        counts.cuts += patient.cuts;
        let counted = match is_killed {
            true => &mut counts.of,
            false => &mut counts.missed,
        };
        *counted.entry((victim, phase)).or_default() += 1;
        if is_killed {
            let back = || house.daemon_pid(victim).ok().filter(|pid| *pid != old);
            eventually(WAIT, "its successor", back).unwrap();
            eyes.until_attached();
        } else if again > 0 {
            again -= 1;
            plan.insert(0, (victim, phase));
        }
    }
    eprintln!("{counts}");
    for &victim in drill.victims {
        let killed = counts.of_victim(victim);
        assert!(killed >= drill.per_victim, "{victim}: {counts}");
    }
    for phase in PHASES {
        assert!(
            counts.of_phase(phase) >= drill.per_phase,
            "{phase:?}: {counts}"
        );
    }
    nothing_is_lost(&house, &undisturbed, &mut eyes, conversations);
}

/// Kills process `pid` while the house is in `phase`, a moment after it was first seen in it. False: the answer
/// was whole before, and the process lives.
fn kill_in(
    eyes: &mut Eyes,
    phase: Phase,
    jitter: Duration,
    pid: u32,
    is_answered: &dyn Fn() -> bool,
) -> bool {
    // The disk lags behind the answer.
    let lag = match phase {
        Phase::MirrorWrite => Duration::from_secs(1),
        _ => Duration::ZERO,
    };
    let mut answered_at = None;
    loop {
        if eyes.see(phase) {
            thread::sleep(jitter);
            if eyes.see(phase) {
                process::signal(pid, Signal::KILL).unwrap();
                return true;
            }
        }
        if is_answered() && answered_at.get_or_insert_with(Instant::now).elapsed() >= lag {
            return false;
        }
    }
}

/// Every conversation is still there when the engine dies once more: its next turn computes what is new.
fn nothing_is_lost(
    house: &House,
    undisturbed: &House,
    eyes: &mut Eyes,
    mut conversations: Vec<Conversation>,
) {
    let mut seed = Seed::from(SEED + 1);
    conversations.retain(|conversation| conversation.turns() > 0);
    // Whoever was killed right after an answer had not stored its last blocks. Now they are.
    for conversation in &mut conversations {
        conversation.say(&mut seed);
        let expected = text_of(&conversation.ask(undisturbed));
        let answer = conversation.ask(house);
        assert_eq!(text_of(&answer), expected);
        conversation.hear(&expected);
        // A shorter one would be kept only where that is expected to pay.
        let tokens = answer["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!(tokens >= CONVERSATION_TOKENS, "{tokens}");
    }
    eyes.until_stored();
    let engine = house.daemon_pid(ENGINE).unwrap();
    process::signal(engine, Signal::KILL).unwrap();
    process::gone(engine, WAIT).unwrap();
    eyes.until_attached();
    for mut conversation in conversations {
        conversation.say(&mut seed);
        let expected = conversation.ask(undisturbed);
        let answer = conversation.ask(house);
        let name = &conversation.name;
        assert_eq!(text_of(&answer), text_of(&expected), "{name}");
        let reused = answer["timings"]["cache_n"].as_u64().unwrap();
        let reusable = expected["timings"]["cache_n"].as_u64().unwrap() / 64 * 64;
        assert!(
            reused * 100 >= reusable * 99,
            "{name}: {reused} tokens reused of {reusable}: {answer}"
        );
    }
}
