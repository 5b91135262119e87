//! What the engine counts. Names come out as `vitriol_engine_<name>`.

use crate::{kv::PoolUse, step::Taken};
use prometheus_client::metrics::{
    counter::Counter, family::Family, gauge::Gauge, histogram::Histogram, info::Info,
};
use std::{sync::atomic::AtomicU64, time::Duration};
use vitriol_chassis::Registry;
use vitriol_kernels_cpu::Isa;

/// Handles to the engine's metrics; clones share them.
#[derive(Clone, Debug)]
pub struct EngineMetrics {
    pub steps: Counter,
    pub step_seconds: Histogram,
    pub tokens_computed: Counter,
    pub tokens_generated: Counter,
    pub tokens_drafted: Counter,
    pub tokens_accepted: Counter,
    pub prompt_tokens: Counter,
    pub prompt_tokens_cached: Counter,
    pub prefill_seconds: Counter<f64, AtomicU64>,
    pub decode_seconds: Counter<f64, AtomicU64>,
    pub sequences_not_finite: Counter,
    pub decode_stall_seconds: Histogram,
    pub decode_stalls_over_bound: Counter,
    pub preemptions: Counter,
    pub requests_shed: Counter,
    pub prompts_diverged: Counter,
    pub sequences_running: Gauge,
    pub sequences_waiting: Gauge,
    pub pages_held: Gauge,
    pub pages_cached: Gauge,
    pub pages_all: Gauge,
    pub kv_committed: Gauge,
    pub tier: TierMetrics,
}

impl Default for EngineMetrics {
    fn default() -> Self {
        let step_bounds = [
            0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0,
        ];
        let stall_bounds = [
            0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0,
        ];
        Self {
            steps: Counter::default(),
            step_seconds: Histogram::new(step_bounds),
            tokens_computed: Counter::default(),
            tokens_generated: Counter::default(),
            tokens_drafted: Counter::default(),
            tokens_accepted: Counter::default(),
            prompt_tokens: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            prefill_seconds: Counter::default(),
            decode_seconds: Counter::default(),
            sequences_not_finite: Counter::default(),
            decode_stall_seconds: Histogram::new(stall_bounds),
            decode_stalls_over_bound: Counter::default(),
            preemptions: Counter::default(),
            requests_shed: Counter::default(),
            prompts_diverged: Counter::default(),
            sequences_running: Gauge::default(),
            sequences_waiting: Gauge::default(),
            pages_held: Gauge::default(),
            pages_cached: Gauge::default(),
            pages_all: Gauge::default(),
            kv_committed: Gauge::default(),
            tier: TierMetrics::default(),
        }
    }
}

/// What came of the KV tier; names come out as `vitriol_engine_tier_<name>`.
#[derive(Clone, Debug, Default)]
pub struct TierMetrics {
    pub attached: Gauge,
    pub pages_waiting: Gauge,
    pub restoring: Gauge,
    pub pages_spilled: Counter,
    pub bytes_spilled: Counter,
    pub spill_seconds: Counter<f64, AtomicU64>,
    pub pages_dropped: Counter,
    pub pages_loaded: Counter,
    pub bytes_loaded: Counter,
    pub fill_seconds: Counter<f64, AtomicU64>,
    pub pages_refused: Counter,
    pub lookups: Counter,
    pub lookups_late: Counter,
    pub lookup_seconds: Counter<f64, AtomicU64>,
    pub tokens_arena: Counter,
    pub tokens_mirror: Counter,
    pub turns_told: Counter,
    pub turns_dropped: Counter,
    pub alarms: Counter,
}

impl TierMetrics {
    pub fn register(&self, to: &mut Registry) {
        to.register(
            "tier_attached",
            "Whether kvtier is there",
            self.attached.clone(),
        );
        to.register(
            "tier_pages_waiting",
            "Full KV pages that are to be stored in kvtier and are not yet",
            self.pages_waiting.clone(),
        );
        to.register(
            "tier_restoring",
            "Sequences that wait for kvtier to say what is stored of them, or for their pages",
            self.restoring.clone(),
        );
        let counters = [
            (
                "pages_spilled",
                "KV pages stored in kvtier",
                &self.pages_spilled,
            ),
            (
                "spilled_bytes",
                "Bytes of KV stored in kvtier",
                &self.bytes_spilled,
            ),
            (
                "pages_dropped",
                "Full KV pages never stored: kvtier declined them, or they were given up before it could",
                &self.pages_dropped,
            ),
            (
                "pages_loaded",
                "KV pages filled from kvtier",
                &self.pages_loaded,
            ),
            (
                "loaded_bytes",
                "Bytes of KV filled from kvtier",
                &self.bytes_loaded,
            ),
            (
                "pages_refused",
                "KV pages of kvtier that were not what had been stored, and were computed instead",
                &self.pages_refused,
            ),
            (
                "lookups",
                "Prompts that kvtier was asked about",
                &self.lookups,
            ),
            (
                "lookups_late",
                "Prompts that were computed because kvtier did not answer in time",
                &self.lookups_late,
            ),
            (
                "arena_tokens",
                "Prompt tokens whose KV came from kvtier's memory",
                &self.tokens_arena,
            ),
            (
                "mirror_tokens",
                "Prompt tokens whose KV came from kvtier's disk",
                &self.tokens_mirror,
            ),
            (
                "turns_told",
                "Turns of named conversations that kvtier's catalogue was told of",
                &self.turns_told,
            ),
            (
                "turns_dropped",
                "Turns of named conversations that it was not: it failed, or too many waited",
                &self.turns_dropped,
            ),
            (
                "alarms",
                "Hours in which KV was stored and asked for, and none of it was found",
                &self.alarms,
            ),
        ];
        for (name, what, counter) in counters {
            to.register(format!("tier_{name}"), what, counter.clone());
        }
        let times = [
            (
                "spill_seconds",
                "Time spent on storing KV in kvtier",
                &self.spill_seconds,
            ),
            (
                "fill_seconds",
                "Time spent on filling KV pages from kvtier",
                &self.fill_seconds,
            ),
            (
                "lookup_seconds",
                "Time spent on asking kvtier about prompts and bringing KV from its disk",
                &self.lookup_seconds,
            ),
        ];
        for (name, what, seconds) in times {
            to.register(format!("tier_{name}"), what, seconds.clone());
        }
    }
}

impl EngineMetrics {
    /// What computes, known once the model is loaded.
    pub fn register_kernels(to: &mut Registry, isa: Isa, threads: usize) {
        let labels = vec![("isa", isa.to_string()), ("threads", threads.to_string())];
        to.register("kernels", "What computes", Info::new(labels));
    }

    /// `parts`: of the house's memory as the profile plans it, bytes.
    pub fn register_budget(to: &mut Registry, parts: Vec<(&'static str, u64)>) {
        let budget = Family::<Vec<(&str, &str)>, Gauge>::default();
        for (part, bytes) in parts {
            budget
                .get_or_create(&vec![("part", part)])
                .set(bytes as i64);
        }
        to.register(
            "memory_budget_bytes",
            "Memory that the house may take",
            budget,
        );
    }

    pub fn register(&self, to: &mut Registry) {
        to.register("steps", "Steps computed", self.steps.clone());
        to.register("step_seconds", "Time of a step", self.step_seconds.clone());
        let all = self.tokens_computed.clone();
        to.register(
            "tokens_computed",
            "Prompt, generated and drafted tokens computed",
            all,
        );
        to.register(
            "tokens_generated",
            "Tokens sampled",
            self.tokens_generated.clone(),
        );
        to.register(
            "tokens_drafted",
            "Tokens proposed and verified ahead of sampling",
            self.tokens_drafted.clone(),
        );
        to.register(
            "tokens_accepted",
            "Drafted tokens that sampling chose as well",
            self.tokens_accepted.clone(),
        );
        to.register(
            "prompt_tokens",
            "Prompt tokens of requests taken",
            self.prompt_tokens.clone(),
        );
        let cached = self.prompt_tokens_cached.clone();
        to.register(
            "prompt_tokens_cached",
            "Prompt tokens whose KV was reused",
            cached,
        );
        let prefill = self.prefill_seconds.clone();
        to.register(
            "prefill_seconds",
            "Time from start to first token, summed over requests",
            prefill,
        );
        let decode = self.decode_seconds.clone();
        to.register(
            "decode_seconds",
            "Time from first to last token, summed over requests",
            decode,
        );
        to.register(
            "sequences_not_finite",
            "Sequences ended because their logits were not finite numbers",
            self.sequences_not_finite.clone(),
        );
        to.register(
            "decode_stall_seconds",
            "Time between two tokens of a sequence whose reader kept up",
            self.decode_stall_seconds.clone(),
        );
        to.register(
            "decode_stalls_over_bound",
            "Times between two tokens beyond decode_stall_ms_max",
            self.decode_stalls_over_bound.clone(),
        );
        to.register(
            "preemptions",
            "Sequences that gave their pages to others and were computed anew",
            self.preemptions.clone(),
        );
        to.register(
            "requests_shed",
            "Requests refused while the machine was short of memory",
            self.requests_shed.clone(),
        );
        to.register(
            "prompts_diverged",
            "Prompts of which less was reused because they are not as in their conversation's last request",
            self.prompts_diverged.clone(),
        );
        to.register(
            "sequences_running",
            "Sequences with a slot",
            self.sequences_running.clone(),
        );
        to.register(
            "sequences_waiting",
            "Requests waiting for a slot",
            self.sequences_waiting.clone(),
        );
        to.register(
            "kv_pages_held",
            "KV pages held by sequences, all KV groups together",
            self.pages_held.clone(),
        );
        to.register(
            "kv_pages_cached",
            "KV pages kept for reuse, all KV groups together",
            self.pages_cached.clone(),
        );
        let pages = "KV pages, all KV groups together";
        to.register("kv_pages", pages, self.pages_all.clone());
        to.register(
            "kv_committed_bytes",
            "Memory the KV pool has taken",
            self.kv_committed.clone(),
        );
    }

    /// A step computed `tokens` tokens.
    pub fn observe_step(&self, took: Duration, tokens: usize) {
        self.steps.inc();
        self.step_seconds.observe(took.as_secs_f64());
        self.tokens_computed.inc_by(tokens as u64);
    }

    /// What a step brought a sequence; `bound_ms`: how long its next token may be waited for.
    pub fn observe_taken(&self, taken: &Taken, bound_ms: f64) {
        self.tokens_generated.inc_by(taken.tokens as u64);
        self.tokens_drafted.inc_by(taken.drafted as u64);
        self.tokens_accepted.inc_by(taken.accepted as u64);
        if taken.error.is_some() {
            self.sequences_not_finite.inc();
        }
        if let Some(waited) = taken.waited {
            self.decode_stall_seconds.observe(waited.as_secs_f64());
            if waited.as_secs_f64() * 1e3 > bound_ms {
                self.decode_stalls_over_bound.inc();
            }
        }
    }

    pub fn observe_pool(&self, usage: PoolUse, committed_bytes: usize) {
        self.pages_held.set(usage.held as i64);
        self.pages_cached.set(usage.cached as i64);
        self.pages_all.set(usage.all as i64);
        self.kv_committed.set(committed_bytes as i64);
    }
}
