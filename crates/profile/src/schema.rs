//! The settings themselves. Each is declared once; its parser, its default, its range and its line
//! in the field reference all come from that declaration.

use std::{net::SocketAddr, path::PathBuf};

use vitriol_kernels_core::KvCodec;
use vitriol_units::Bytes;

use crate::{
    ValueError,
    setting::{Isa, LogFormat, ProcessNames, Raw, Repack, Setting, Share, Speculation},
};

/// What the field reference knows of a setting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub name: &'static str,
    pub kind: &'static str,
    /// Unit of the number, empty where the type says it.
    pub unit: &'static str,
    /// Doc lines, one after the other, each with its leading space.
    pub doc: &'static str,
}

/// A table of settings.
pub(crate) trait Section: Default {
    const FIELDS: &'static [Field];

    /// Sets `field`; `None` when there is no such field.
    fn set(&mut self, field: &str, raw: Raw<'_>) -> Option<Result<(), ValueError>>;

    /// `field` as TOML source; `None` when there is no such field.
    fn get(&self, field: &str) -> Option<String>;
}

macro_rules! section {
    (
        $(#[$doc:meta])*
        $name:ident {
            $(
                $(#[doc = $field_doc:literal])+
                $field:ident: $ty:ty = $default:expr, $unit:literal $(, $low:literal..=$high:literal)?;
            )*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[doc = $field_doc])+ pub $field: $ty,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl Section for $name {
            const FIELDS: &'static [Field] = &[$(Field {
                name: stringify!($field),
                kind: <$ty as Setting>::TYPE,
                unit: $unit,
                doc: concat!($($field_doc),+),
            }),*];

            fn set(&mut self, field: &str, raw: Raw<'_>) -> Option<Result<(), ValueError>> {
                match field {
                    $(stringify!($field) => Some((|| {
                        let value = <$ty as Setting>::read(raw)?;
                        $(check_range(&value, $low, $high)?;)?
                        self.$field = value;
                        Ok(())
                    })()),)*
                    _ => None,
                }
            }

            fn get(&self, field: &str) -> Option<String> {
                match field {
                    $(stringify!($field) => Some(self.$field.write()),)*
                    _ => None,
                }
            }
        }
    };
}

fn check_range<S: Setting>(value: &S, low: i128, high: i128) -> Result<(), ValueError> {
    match value.magnitude() {
        Some(value) if !(low..=high).contains(&value) => {
            Err(ValueError::Range { value, low, high })
        }
        _ => Ok(()),
    }
}

section! {
    /// `[house]`: what every daemon shares.
    House {
        /// Address of the one TCP port; port 0 takes a free one. Loopback only in this release.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8265)), "";
        /// How the daemons write their logs.
        log_format: LogFormat = LogFormat::Text, "";
        /// Size at which a daemon's log under `vitriol up` is put aside as NAME.log.1 and begun anew.
        log_bytes_max: Bytes = Bytes::mib(8), "", 4096..=1_099_511_627_776;
    }
}

section! {
    /// `[engine.NAME]`: one engine; `main` is the one there is by default.
    Engine {
        /// Model file (GGUF) or a name of `vitriol model list`; empty = the default model in the cache
        /// directory. A relative path starts at the directory of the profile, `~/` at the user's home.
        model: PathBuf = PathBuf::new(), "";
        /// Name that clients call the model by; empty = the one `vitriol model list` has for the file, else
        /// the file's name without `.gguf`.
        alias: String = String::new(), "";
        /// Compute threads; 0 = one for each core this process may use.
        threads: u32 = 0, "threads", 0..=1024;
        /// Instruction set of the kernels; `auto` = the best this CPU has.
        isa: Isa = Isa::Auto, "";
        /// Weights are repacked for the kernels: `file` = once, and kept in the cache directory (about the bytes
        /// of the model there); `ram` = at every start.
        repack: Repack = Repack::File, "";
        /// Context window of a request; 0 = what the model was trained for.
        context_tokens: u32 = 0, "tokens";
        /// Most memory for the KV pages of all sequences together.
        kv_bytes_max: Bytes = Bytes::gib(1), "", 1_048_576..=1_125_899_906_842_624;
        /// Encoding of keys in the KV pages: `f32` as computed, `f16` half of that, `q8_0` a quarter, `q4_0`
        /// an eighth.
        kv_keys: KvCodec = KvCodec::F16, "";
        /// Encoding of values in the KV pages, as `kv_keys`; keys suffer more from q4_0 than values.
        kv_values: KvCodec = KvCodec::F16, "";
        /// Sequences computed at once.
        sequences_max: u32 = 16, "sequences", 1..=1024;
        /// Requests that wait for a place; one more is refused with 429.
        queue_max: u32 = 64, "requests", 0..=65536;
        /// Most tokens computed in one step, all sequences together.
        step_tokens_max: u32 = 512, "tokens", 1..=65536;
        /// Longest that a running answer waits for its next token while others' prompts are computed, as
        /// far as the engine can tell beforehand; prompts get what is left of it in each step.
        decode_stall_ms_max: u32 = 60, "ms", 1..=60000;
        /// Longest step of a prompt that has the engine to itself, but for the 64 tokens that it may always
        /// have: a request that comes waits for its end.
        admission_ms_max: u32 = 120, "ms", 1..=60000;
        /// Tokens drafted ahead and verified in one step, which changes no answer: `prompt-lookup` proposes what
        /// followed the same words earlier in prompt and answer, as long as that saves time; `off` drafts none.
        speculation: Speculation = Speculation::PromptLookup, "";
        /// Reuse the KV of a prompt's beginning whichever session computed it.
        share_prefixes: bool = true, "";
        /// Tokens a request may be ahead of its reader before it pauses.
        window_tokens: u32 = 256, "tokens", 1..=1_048_576;
        /// Time that running answers get to finish when the engine stops.
        drain_ms: u64 = 10_000, "ms", 0..=3_600_000;
    }
}

section! {
    /// `[engine.NAME.tenants.TENANT]`: what an engine keeps for the tenant of this X-Tenant-Id.
    Tenant {
        /// Share of the KV pages that other tenants cannot take, used or not; all tenants together have 1 at
        /// most, and what is left bounds the context of everybody else.
        kv_share: Share = Share::default(), "";
    }
}

section! {
    /// `[demiurge]`: the HTTP door.
    Demiurge {
        /// Largest request body, 128 MiB at most: what is made of it goes to the engine in one message
        /// of 256 MiB. A larger body is refused with 413.
        body_bytes_max: Bytes = Bytes::mib(32), "", 1024..=134_217_728;
        /// Requests in flight; one more is refused with 429.
        requests_max: u32 = 128, "requests", 1..=65536;
        /// Open client connections; one more waits in the kernel's queue.
        connections_max: u32 = 512, "connections", 1..=65536;
        /// Time a client has to send a request's head; a kept connection may be idle as long.
        request_head_timeout_ms: u64 = 10_000, "ms", 1..=3_600_000;
        /// Time a client has to send a request's body.
        request_body_timeout_ms: u64 = 60_000, "ms", 1..=3_600_000;
        /// Time a client may leave an answer unread before its connection is closed.
        reader_stall_timeout_ms: u64 = 300_000, "ms", 1000..=86_400_000;
        /// Deadline of control calls to the engine (status, slots, model). While it sends nothing it is
        /// asked at ten times this interval, and counts as hung after five calls without an answer.
        engine_deadline_ms: u64 = 200, "ms", 1..=60_000;
        /// Time a request is held while the engine restarts, also one that the engine had and of whose answer
        /// nothing was sent.
        engine_wait_ms: u64 = 10_000, "ms", 0..=600_000;
        /// Silence after which a streaming answer gets a comment line, so that no hop gives up on it.
        ping_interval_ms: u64 = 5_000, "ms", 100..=600_000;
        /// Size at which decisions.jsonl is put aside as decisions.jsonl.1 and begun anew.
        decisions_bytes_max: Bytes = Bytes::mib(64), "", 4096..=1_099_511_627_776;
        /// Time that running answers get to finish when Demiurge stops.
        drain_ms: u64 = 10_000, "ms", 0..=3_600_000;
    }
}

section! {
    /// `[shield]`: what the kernel's OOM killer is offered instead of the house.
    Shield {
        /// oom_score_adj that large processes of others are raised to, so that the kernel kills them before
        /// the house; 0 = none is raised.
        raise_to: u32 = 300, "", 0..=1000;
        /// Resident memory from which on a process is raised.
        resident_bytes_min: Bytes = Bytes::mib(300), "", 1_048_576..=1_125_899_906_842_624;
        /// Names of processes that are never raised, beside those every machine needs, separated by commas; a
        /// name is what `ps -o comm` shows.
        extra: ProcessNames = ProcessNames::default(), "";
        /// Time between two looks at the processes.
        scan_interval_ms: u64 = 5_000, "ms", 100..=3_600_000;
        /// Time in 2 s that some task waits for memory from which on the house gives memory back.
        pressure_some_ms: u32 = 300, "ms", 1..=2000;
        /// Time in 2 s that all tasks at once wait for memory from which on the engine takes nothing new.
        pressure_full_ms: u32 = 100, "ms", 1..=2000;
        /// Time that the engine then refuses new requests for.
        shed_ms: u32 = 10_000, "ms", 100..=600_000;
        /// Deadline of the calls that ask the engine for it and the KV tier for memory.
        shed_deadline_ms: u64 = 200, "ms", 1..=60_000;
    }
}

section! {
    /// `[persist]`: the watch over the daemons.
    Persist {
        /// Time between two looks at each daemon.
        poll_interval_ms: u64 = 5_000, "ms", 100..=600_000;
        /// Deadline of a look; a daemon that says nothing until then has not moved.
        poll_deadline_ms: u64 = 1_000, "ms", 10..=5_000;
        /// Looks in a row in which nothing of a daemon has moved, after which it is ended, for its supervisor to
        /// start it again; as many more as it takes to make these 3 s, for a daemon without work moves once a second.
        hang_polls: u32 = 6, "looks", 2..=1000;
        /// Least time between the first time that a daemon is ended and the second; doubles with each further one.
        restart_pause_ms: u64 = 60_000, "ms", 1000..=3_600_000;
        /// Most that this time becomes; after four times as long without a hang it begins anew.
        restart_pause_max_ms: u64 = 1_800_000, "ms", 1000..=86_400_000;
        /// Available memory of the machine below which the log warns; 0 = never.
        memory_warn_bytes: Bytes = Bytes::mib(500), "", 0..=1_125_899_906_842_624;
        /// Available memory below which, if it stays so, the engine `main` is restarted, as its memory starts small
        /// again: it refuses new requests, finishes its answers, gives the KV tier what it has and ends; 0 = never.
        memory_bounce_bytes: Bytes = Bytes::mib(250), "", 0..=1_125_899_906_842_624;
        /// Time for which memory must have been that short.
        memory_short_ms: u64 = 120_000, "ms", 0..=3_600_000;
        /// Least time between two such restarts.
        memory_cooldown_ms: u64 = 600_000, "ms", 1000..=86_400_000;
        /// Longest that running answers get to finish before the engine's own `drain_ms` begins.
        memory_finish_ms: u64 = 30_000, "ms", 0..=590_000;
        /// Most bytes that a KV tier which starts without its memory gets back from its disk, the conversations
        /// of the latest turns first; 0 = half of `kvtier.arena_bytes`.
        warmup_bytes: Bytes = Bytes(0), "", 0..=1_125_899_906_842_624;
        /// Longest that this may take; 0 = nothing is brought.
        warmup_ms: u64 = 20_000, "ms", 0..=600_000;
    }
}

section! {
    /// `[kvtier]`: KV in host memory and on disk, which outlives the process that computed it.
    KvTier {
        /// Whether vitriol-kvtier may run, and engines keep in it what they computed.
        enabled: bool = false, "";
        /// Longest that a request waits to hear what is stored of its prompt; then it is computed.
        lookup_ms_max: u64 = 200, "ms", 1..=60_000;
        /// Memory for KV blocks, all of it taken at the start.
        arena_bytes: Bytes = Bytes::gib(1), "", 4_194_304..=1_125_899_906_842_624;
        /// Room for one record in that memory, a multiple of 4 KiB; an engine splits what is longer.
        slot_bytes: Bytes = Bytes::mib(2), "", 4096..=1_073_741_824;
        /// Keep records on disk too, where they outlive the machine's being switched off; they tell as
        /// much as the prompts they were computed from.
        mirror: bool = true, "";
        /// Directory of the records on disk, an absolute path, used for nothing else and closed to others;
        /// empty = mirror in the state directory. The unit of a machine's house needs ReadWritePaths= for another.
        mirror_dir: PathBuf = PathBuf::new(), "";
        /// Most bytes of records on disk; 0 = eight times `arena_bytes`.
        mirror_bytes_max: Bytes = Bytes(0), "", 0..=9_007_199_254_740_992;
        /// Time to write to disk what only memory has when kvtier stops.
        drain_ms: u64 = 10_000, "ms", 0..=3_600_000;
    }
}
