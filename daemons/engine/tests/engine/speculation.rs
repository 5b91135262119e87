//! Answers with drafted tokens have the bytes of those without: alone and in company, greedy and drawn,
//! over windows, at every length, after cancellations and preemptions, and through the prefix cache.

use crate::limits::{limits, steady_ms};
use std::time::Duration;
use vitriol_chassis::Heartbeat;
use vitriol_engine::{
    engine::{Engine, EngineLimits},
    generate::{Generation, GenerationRequest},
    kv::{KvCodecs, PAGE_TOKENS},
    load::{Repack, load},
    metrics::EngineMetrics,
    sampler::Sampling,
    scheduler::StepBounds,
    sequence::{EndReason, EventKind},
};
use vitriol_kernels_core::KvCodec;
use vitriol_profile::Speculation;
use vitriol_testkit::{Seed, eventually, places};

const STEP_TOKENS: usize = 64;

fn engine_of(model: &str, codec: KvCodec, pages: &[usize], speculation: Speculation) -> Engine {
    let file = places::zoo_model(model).unwrap();
    let loaded = load(&file, 2, None, &Repack::Ram, |_, _| 0, &mut |_| {}).unwrap();
    let limits = EngineLimits {
        codecs: KvCodecs {
            keys: codec,
            values: codec,
        },
        speculation,
        bounds: StepBounds {
            tokens_max: STEP_TOKENS,
            decode_stall_ms_max: 1e3,
            admission_ms_max: 1e3,
        },
        step_ms: steady_ms,
        ..limits(pages)
    };
    let (metrics, heartbeat) = (EngineMetrics::default(), Heartbeat::silent());
    Engine::start(loaded.model, None, limits, metrics, heartbeat, None).unwrap()
}

/// The same engine without drafts and with them.
fn off_and_on(model: &str, codec: KvCodec, pages: &[usize]) -> [Engine; 2] {
    [Speculation::Off, Speculation::PromptLookup].map(|how| engine_of(model, codec, pages, how))
}

/// Greedy answers of the tiny models run in circles, which is easy to guess; drawn ones hardly repeat.
fn request(seed: u32, prompt_tokens: usize, tokens_max: usize) -> GenerationRequest {
    let temperature = [0.0, 0.05, 0.3, 0.8][seed as usize % 4];
    GenerationRequest {
        session_id: "".into(),
        prompt: (0..prompt_tokens as u32)
            .map(|i| 8 + (i % 23 * 31 + seed * 97) % 362)
            .collect(),
        tokens_max,
        sampling: Sampling {
            temperature,
            seed: seed.into(),
            ..Sampling::GREEDY
        },
        ignore_eog: true,
        may_draft: true,
    }
}

type Answer = (Vec<u32>, Option<EndReason>);

fn alone(engine: &Engine, requests: &[GenerationRequest]) -> Vec<Answer> {
    let each = requests.iter();
    each.map(|r| engine.generate(r.clone()).unwrap().finish())
        .collect()
}

fn together(engine: &Engine, requests: &[GenerationRequest]) -> Vec<Answer> {
    let running = requests.iter().map(|r| engine.generate(r.clone()).unwrap());
    let running: Vec<Generation> = running.collect();
    running.into_iter().map(Generation::finish).collect()
}

/// Drafts were made, and some of them were right and some wrong: else a test has tested nothing.
fn has_speculated(engine: &Engine) {
    let (drafted, accepted) = (
        &engine.metrics.tokens_drafted,
        &engine.metrics.tokens_accepted,
    );
    assert!(accepted.get() > 0, "none of {} accepted", drafted.get());
    assert!(drafted.get() > accepted.get(), "none rejected");
}

fn no_page_is_held(engine: &Engine) {
    eventually(Duration::from_secs(60), "all pages given back", || {
        (engine.step.snapshot().pool.held == 0).then_some(())
    })
    .unwrap();
}

#[test]
fn drafts_change_no_byte_alone_or_in_company() {
    let [off, on] = off_and_on("llama.f32", KvCodec::F32, &[200]);
    let requests: Vec<_> = (0..24)
        .map(|i| request(i, 3 + 11 * i as usize % 90, 120))
        .collect();
    let expected = alone(&off, &requests);
    assert_eq!(off.metrics.tokens_drafted.get(), 0);
    assert_eq!(alone(&on, &requests), expected);
    has_speculated(&on);
    assert_eq!(together(&on, &requests), expected);
    // Two at once draft side by side.
    for pair in 0..6 {
        let two = 2 * pair..2 * pair + 2;
        assert_eq!(together(&on, &requests[two.clone()]), expected[two]);
    }
    let generated = 120 * (24 + 24 + 12);
    assert_eq!(on.metrics.tokens_generated.get(), generated);
    no_page_is_held(&on);
}

#[test]
fn an_answer_ends_at_its_length_wherever_a_draft_would_go() {
    let [off, on] = off_and_on("llama.f32", KvCodec::F32, &[64]);
    let expected = alone(&off, &[request(0, 40, 200)]).remove(0).0;
    for tokens_max in (1..=60).chain([199, 200]) {
        let (tokens, reason) = alone(&on, &[request(0, 40, tokens_max)]).remove(0);
        assert_eq!(tokens, expected[..tokens_max]);
        assert_eq!(reason, Some(EndReason::Length));
    }
    assert!(on.metrics.tokens_accepted.get() > 0);
}

#[test]
fn the_last_page_can_be_filled_to_its_last_row() {
    let [off, on] = off_and_on("llama.f32", KvCodec::F32, &[4]);
    assert_eq!(on.limits.context_tokens, 4 * PAGE_TOKENS);
    let requests = [request(0, 56, 200), request(4, 100, 156)];
    assert_eq!(alone(&on, &requests), alone(&off, &requests));
    assert!(on.metrics.tokens_accepted.get() > 0);
}

#[test]
fn windows_do_not_pass_what_an_accepted_token_still_sees() {
    for codec in [KvCodec::F32, KvCodec::Q8_0, KvCodec::Q4_0] {
        let [off, on] = off_and_on("gemma3.f32", codec, &[64, 16]);
        let requests: Vec<_> = (0..6)
            .map(|i| request(i, 50 + 30 * i as usize, 150))
            .collect();
        let expected = alone(&off, &requests);
        assert_eq!(alone(&on, &requests), expected, "{codec:?}");
        has_speculated(&on);
        assert_eq!(together(&on, &requests), expected, "{codec:?}");
        no_page_is_held(&on);
    }
}

#[test]
fn who_gives_way_with_a_draft_goes_on_with_the_same_bytes() {
    let requests: Vec<_> = (0..4)
        .map(|i| request(4 * i + i % 2, 20 + 13 * i as usize, 300))
        .collect();
    let [off, on] = off_and_on("llama.f32", KvCodec::F32, &[12]);
    let expected = alone(&off, &requests);
    assert_eq!(together(&on, &requests), expected);
    assert!(on.metrics.preemptions.get() > 0, "pages ran out");
    assert!(on.metrics.tokens_accepted.get() > 0);
    no_page_is_held(&on);
}

#[test]
fn nothing_rejected_is_reused() {
    for (model, pages) in [("llama.f32", vec![64]), ("gemma3.f32", vec![64, 32])] {
        let [off, on] = off_and_on(model, KvCodec::F32, &pages);
        for seed in 0..8 {
            let first = request(seed, 100, 200);
            let (answer, _) = alone(&on, std::slice::from_ref(&first)).remove(0);
            let mut second = request(seed + 1, 5, 60);
            second.prompt = [first.prompt, answer, vec![9; 30]].concat();
            let mut events = on.generate(second.clone()).unwrap();
            let started = events.next().unwrap().kind;
            // The last generated token was never computed.
            assert_eq!(started, EventKind::Started { tokens_cached: 299 });
            assert_eq!(events.finish(), alone(&off, &[second]).remove(0), "{model}");
        }
        has_speculated(&on);
    }
}

#[test]
fn cancelled_amid_drafts_leaks_nothing_and_disturbs_nobody() {
    let mut random = Seed::announce("cancelled_amid_drafts");
    let [off, on] = off_and_on("llama.f32", KvCodec::F32, &[80]);
    let survivor = request(0, 100, 80);
    let expected = alone(&off, std::slice::from_ref(&survivor)).remove(0);
    for _ in 0..8 {
        let kept = on.generate(survivor.clone()).unwrap();
        let mut doomed = on.generate(request(4, 1 + random.below(60), 300)).unwrap();
        for _ in 0..random.below(60) {
            doomed.next();
        }
        drop(doomed);
        on.step.wake();
        assert_eq!(kept.finish(), expected);
        no_page_is_held(&on);
    }
    assert!(on.metrics.tokens_accepted.get() > 0);
}
