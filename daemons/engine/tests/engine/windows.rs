//! The step thread with models whose layers form two KV groups, one of them windowed.

use crate::limits::limits;
use std::time::Duration;
use vitriol_chassis::Heartbeat;
use vitriol_engine::{
    engine::{Engine, EngineLimits},
    generate::GenerationRequest,
    kv::{KvCodecs, PagePlan},
    load::{Repack, load},
    metrics::EngineMetrics,
    sampler::Sampling,
    scheduler::StepBounds,
    sequence::{EndReason, EventKind},
};
use vitriol_kernels_core::KvCodec;
use vitriol_testkit::{eventually, places};

const STEP_TOKENS: usize = 64;

/// An engine over gemma3, whose windows are of 16 tokens, with so many pages in each group.
fn engine(pages: impl FnOnce(&vitriol_engine::model::Model) -> Vec<usize>) -> Engine {
    engine_of("gemma3.f32", KvCodecs::F32, pages)
}

fn engine_of(
    file: &str,
    codecs: KvCodecs,
    pages: impl FnOnce(&vitriol_engine::model::Model) -> Vec<usize>,
) -> Engine {
    let file = places::zoo_model(file).unwrap();
    let loaded = load(&file, 2, None, &Repack::Ram, |_, _| 0, &mut |_| {}).unwrap();
    let defaults = limits(&pages(&loaded.model));
    let limits = EngineLimits {
        codecs,
        bounds: StepBounds {
            tokens_max: STEP_TOKENS,
            ..defaults.bounds
        },
        ..defaults
    };
    let (metrics, heartbeat) = (EngineMetrics::default(), Heartbeat::silent());
    Engine::start(loaded.model, None, limits, metrics, heartbeat, None).unwrap()
}

fn request(seed: u32, prompt: u32, tokens_max: usize) -> GenerationRequest {
    GenerationRequest {
        session_id: "".into(),
        prompt: (0..prompt).map(|i| (i * 7 + seed * 31) % 384).collect(),
        tokens_max,
        sampling: Sampling::GREEDY,
        ignore_eog: true,
        may_draft: true,
    }
}

/// The tokens of a request, and how many of its prompt were reused.
fn run(engine: &Engine, request: GenerationRequest) -> (Vec<u32>, usize) {
    let (mut tokens, mut cached) = (Vec::new(), 0);
    for event in engine.generate(request).unwrap() {
        match event.kind {
            EventKind::Started { tokens_cached } => cached = tokens_cached,
            EventKind::Token { id } => tokens.push(id),
            EventKind::Ended { reason } => assert_eq!(reason, EndReason::Length),
            EventKind::Brought { .. } | EventKind::Prefilled { .. } | EventKind::Drafted { .. } => {
            }
        }
    }
    (tokens, cached)
}

#[test]
fn a_windowed_sequence_holds_few_pages_however_long_it_is() {
    // Window 16, steps of 64 tokens: never more than 3 pages at once.
    let engine = engine(|_| vec![40, 3]);
    let (tokens, _) = run(&engine, request(1, 2000, 100));
    assert_eq!(tokens.len(), 100);
    eventually(Duration::from_secs(60), "all pages given back", || {
        (engine.step.snapshot().pool.held == 0).then_some(())
    })
    .unwrap();
}

#[test]
fn windows_in_company_give_the_bytes_they_give_alone() {
    let alone = engine(|_| vec![64, 16]);
    let requests = || (0..12).map(|i| request(i % 3, 70 + 40 * i, 40));
    let expected: Vec<_> = requests().map(|r| run(&alone, r).0).collect();
    // Fewer pages than they all want: some wait.
    let together = engine(|_| vec![40, 16]);
    let running: Vec<_> = requests().map(|r| together.generate(r).unwrap()).collect();
    for (running, expected) in running.into_iter().zip(expected) {
        let (tokens, reason) = running.finish();
        assert_eq!(reason, Some(EndReason::Length));
        assert_eq!(tokens, expected);
    }
    eventually(Duration::from_secs(60), "all pages given back", || {
        (together.step.snapshot().pool.held == 0).then_some(())
    })
    .unwrap();
}

/// Reuse is exact in every codec: what is read back is what was written, whoever wrote it.
#[test]
fn the_next_turn_goes_on_where_the_last_one_ended() {
    let of_both = |codec| KvCodecs {
        keys: codec,
        values: codec,
    };
    let gemma3 = KvCodec::ALL.map(|codec| ("gemma3.f32", of_both(codec)));
    // Groups of unlike heads, and layers that read the KV of others.
    let gemma4 = ["gemma4.f32", "gemma4_moe.f32"].map(|file| (file, of_both(KvCodec::Q4_0)));
    for (file, codecs) in gemma3.into_iter().chain(gemma4) {
        check_next_turn(file, codecs);
    }
}

fn check_next_turn(file: &str, codecs: KvCodecs) {
    let engine = engine_of(file, codecs, |_| vec![64, 16]);
    let first = request(5, 400, 60);
    let (answer, cached) = run(&engine, first.clone());
    assert_eq!(cached, 0);
    let mut second = first;
    second.prompt.extend(&answer);
    second.prompt.extend([3, 1, 4, 1, 5]);
    let (reused, cached) = run(&engine, second.clone());
    // The last generated token was never computed.
    assert_eq!(cached, 459, "{file}: all that the first turn computed");
    let fresh = engine_of(file, codecs, |_| vec![64, 16]);
    assert_eq!(run(&fresh, second).0, reused, "{file}, {codecs:?}");
}

#[test]
fn the_memory_of_a_plan_stays_within_its_bound() {
    let engine = engine(|model| {
        let plan = PagePlan {
            codecs: KvCodecs::F32,
            kv_bytes: 64 << 20,
            context_tokens: model.hyper.context_tokens_trained,
            sequences_max: 16,
            step_tokens: STEP_TOKENS,
        };
        let pages = plan.pages(&model.kv_groups);
        assert_eq!(pages.len(), 2);
        assert!(pages[0] > pages[1] && pages[1] >= 3, "{pages:?}");
        pages
    });
    run(&engine, request(2, 3000, 10));
    let committed = engine.metrics.kv_committed.get();
    assert!(committed > 0 && committed <= 64 << 20, "{committed}");
}
