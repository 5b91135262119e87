//! The step thread with a tiny real model: company, cancellation, reuse, windows, queue, pages.

use crate::limits::limits;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};
use vitriol_chassis::Heartbeat;
use vitriol_engine::{
    engine::{Engine, EngineLimits},
    forward::KvStores,
    generate::{Generation, GenerationRequest},
    kv::{KvCodecs, PAGE_TOKENS, PagePlan, PromptBlocks},
    kv_ahead::KvAhead,
    load::{Repack, load},
    metrics::EngineMetrics,
    model::Model,
    sampler::Sampling,
    scheduler::{Ownership, Priority},
    sequence::{EndReason, EventKind},
    step::SubmitError,
};
use vitriol_testkit::{Seed, eventually, places};

const DEADLINE: Duration = Duration::from_secs(60);

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let model = MODEL.get_or_init(|| {
        let file = places::zoo_model("llama.f32").unwrap();
        load(&file, 2, None, &Repack::Ram, |_, _| 0, &mut |_| {})
            .unwrap()
            .model
    });
    Arc::clone(model)
}

fn engine(limits: EngineLimits) -> Engine {
    let model = model();
    Engine::start(
        model,
        None,
        limits,
        EngineMetrics::default(),
        Heartbeat::silent(),
        None,
    )
    .unwrap()
}

fn request(seed: u32, prompt_tokens: usize, tokens_max: usize) -> GenerationRequest {
    GenerationRequest {
        session_id: "".into(),
        prompt: (0..prompt_tokens as u32)
            .map(|i| 8 + (i * 31 + seed * 97 + i * i / 7) % 362)
            .collect(),
        tokens_max,
        sampling: Sampling {
            temperature: 0.8,
            seed: seed.into(),
            ..Sampling::GREEDY
        },
        ignore_eog: true,
        may_draft: true,
    }
}

fn no_page_is_held(engine: &Engine) {
    eventually(DEADLINE, "all pages given back", || {
        let snapshot = engine.step.snapshot();
        (snapshot.pool.held == 0 && snapshot.slots.is_empty()).then_some(())
    })
    .unwrap();
}

#[test]
fn company_changes_no_token() {
    let requests: Vec<_> = (0..40)
        .map(|i| request(i, 3 + 11 * i as usize % 200, 20))
        .collect();
    let alone = engine(limits(&[64]));
    let expected: Vec<_> = requests
        .iter()
        .map(|r| alone.generate(r.clone()).unwrap().finish())
        .collect();
    let together = engine(limits(&[200]));
    let running: Vec<Generation> = requests
        .iter()
        .map(|r| together.generate(r.clone()).unwrap())
        .collect();
    for (i, (running, expected)) in running.into_iter().zip(&expected).enumerate() {
        assert_eq!(&running.finish(), expected, "request {i}");
        assert_eq!(expected.1, Some(EndReason::Length));
    }
    no_page_is_held(&together);
}

#[test]
fn cancelled_at_random_points_leaks_nothing_and_disturbs_nobody() {
    let mut random = Seed::announce("cancelled_at_random_points");
    let engine = engine(limits(&[80]));
    let survivor = request(1000, 100, 60);
    let expected = engine.generate(survivor.clone()).unwrap().finish();
    for _ in 0..8 {
        let kept = engine.generate(survivor.clone()).unwrap();
        let mut doomed: Vec<_> = (0..12)
            .map(|i| {
                engine
                    .generate(request(i, 1 + random.below(300), 40))
                    .unwrap()
            })
            .collect();
        for running in &mut doomed {
            for _ in 0..random.below(12) {
                running.next();
            }
            running.control().cancel();
            engine.step.wake();
        }
        for running in doomed {
            // One that had just ended by itself stays that way.
            let (_, reason) = running.finish();
            assert!(matches!(
                reason,
                None | Some(EndReason::Cancelled | EndReason::Length)
            ));
        }
        assert_eq!(kept.finish(), expected);
        no_page_is_held(&engine);
    }
}

#[test]
fn a_dropped_reader_ends_its_sequence() {
    let engine = engine(limits(&[64]));
    let mut running = engine.generate(request(1, 50, 2000)).unwrap();
    while !matches!(running.next().unwrap().kind, EventKind::Token { .. }) {}
    drop(running);
    no_page_is_held(&engine);
}

#[test]
fn a_prompt_seen_before_is_not_computed_again() {
    let engine = engine(limits(&[64]));
    let first = engine.generate(request(5, 200, 30)).unwrap().finish();
    let mut again = engine.generate(request(5, 200, 30)).unwrap();
    let started = again.next().unwrap().kind;
    assert_eq!(started, EventKind::Started { tokens_cached: 199 });
    assert_eq!(again.finish(), first);

    // The next turn: prompt, answer and a new question. The answer is reused too.
    let mut turn = request(5, 200, 5);
    turn.prompt.extend(&first.0);
    turn.prompt.extend([9; 40]);
    let mut again = engine.generate(turn).unwrap();
    let started = again.next().unwrap().kind;
    // The last generated token was never computed.
    assert_eq!(started, EventKind::Started { tokens_cached: 229 });

    // Another answer to the same question: the block in which the two part is begun alike.
    let mut other = request(5, 200, 5);
    other.prompt.extend([9; 40]);
    let mut running = engine.generate(other.clone()).unwrap();
    let started = running.next().unwrap().kind;
    assert_eq!(started, EventKind::Started { tokens_cached: 200 });
    let fresh = self::engine(limits(&[64]));
    assert_eq!(fresh.generate(other).unwrap().finish(), running.finish());
}

#[test]
fn a_slow_reader_pauses_only_itself() {
    use tokio::sync::mpsc;
    use vitriol_engine::sequence::{EventSink, NewSequence, SequenceControl, SequenceId};
    let engine = engine(limits(&[64]));
    let (channel, mut events) = mpsc::channel(4);
    let control = Arc::<SequenceControl>::default();
    let slow = request(3, 20, 40);
    let expected = engine.generate(slow.clone()).unwrap().finish().0;
    engine
        .step
        .submit(NewSequence {
            id: SequenceId(u64::MAX),
            session_id: "slow".into(),
            ownership: Ownership::new("", "slow", 0, Priority::Interactive),
            blocks: PromptBlocks::new(&engine.model.identity, b"", &slow.prompt),
            prompt: slow.prompt,
            tokens_max: slow.tokens_max,
            sampling: slow.sampling,
            ignore_eog: true,
            may_draft: true,
            window_tokens: 4,
            control: Arc::clone(&control),
            sink: EventSink {
                id: u64::MAX,
                channel,
            },
            submitted_at: Instant::now(),
        })
        .unwrap();
    let mut tokens = Vec::new();
    let mut take = |tokens: &mut Vec<u32>, n: usize| {
        while tokens.len() < n {
            for event in events.blocking_recv().unwrap() {
                if let EventKind::Token { id } = event.kind {
                    tokens.push(id);
                }
            }
        }
    };
    take(&mut tokens, 4);
    // Others run to their end meanwhile; the slow one has not moved.
    engine.generate(request(4, 30, 50)).unwrap().finish();
    let slots = engine.step.snapshot().slots;
    let slot = slots.iter().find(|s| &*s.session_id == "slow").unwrap();
    assert_eq!(slot.tokens_generated, 4);
    control.take(36);
    engine.step.wake();
    take(&mut tokens, 40);
    assert_eq!(tokens, expected);
}

#[test]
fn a_full_queue_refuses_and_recovers() {
    let engine = engine(EngineLimits {
        sequences_max: 1,
        queue_max: 2,
        ..limits(&[64])
    });
    let mut running = engine.generate(request(1, 10, 1500)).unwrap();
    running.next().unwrap();
    let waiting = [
        engine.generate(request(2, 5, 3)).unwrap(),
        engine.generate(request(3, 5, 3)).unwrap(),
    ];
    let refused = engine.generate(request(4, 5, 3)).unwrap_err();
    assert!(
        matches!(refused, SubmitError::Busy { waiting: 2 }),
        "{refused}"
    );
    drop(running);
    engine.step.wake();
    for waiting in waiting {
        assert_eq!(waiting.finish().1, Some(EndReason::Length));
    }
    assert_eq!(
        engine.generate(request(4, 5, 3)).unwrap().finish().0.len(),
        3
    );
}

#[test]
fn more_work_than_pages_waits_and_finishes() {
    let engine = engine(limits(&[9]));
    let all: Vec<_> = (0..20)
        .map(|i| engine.generate(request(i, 100, 60)).unwrap())
        .collect();
    for running in all {
        assert_eq!(running.finish().1, Some(EndReason::Length));
    }
    no_page_is_held(&engine);
}

#[test]
fn who_gives_way_goes_on_with_the_same_bytes() {
    let requests: Vec<_> = (0..8)
        .map(|i| GenerationRequest {
            session_id: "".into(),
            sampling: match i % 2 {
                0 => Sampling::GREEDY,
                _ => request(i, 1, 1).sampling,
            },
            ..request(i, 20 + 13 * i as usize, 300)
        })
        .collect();
    let alone = engine(limits(&[64]));
    let expected: Vec<_> = requests
        .iter()
        .map(|r| alone.generate(r.clone()).unwrap().finish())
        .collect();
    assert_eq!(alone.metrics.preemptions.get(), 0);
    // Each starts with three or four pages and comes to six or seven.
    let crowded = engine(limits(&[14]));
    let running: Vec<_> = requests
        .iter()
        .map(|r| crowded.generate(r.clone()).unwrap())
        .collect();
    for (running, expected) in running.into_iter().zip(&expected) {
        assert_eq!(&running.finish(), expected);
    }
    assert!(crowded.metrics.preemptions.get() > 0, "pages ran out");
    no_page_is_held(&crowded);
}

#[test]
fn what_is_kept_for_a_tenant_is_there_when_it_comes() {
    let engine = engine(EngineLimits {
        kv_shares: BTreeMap::from([("a".to_owned(), 0.5)]),
        ..limits(&[16])
    });
    let owner = |tenant| Ownership::new(tenant, "", 0, Priority::Interactive);
    assert_eq!(engine.context_tokens(&owner("a")), 16 * PAGE_TOKENS);
    assert_eq!(engine.context_tokens(&owner("b")), 8 * PAGE_TOKENS);
    // Others fill what they may have, and would like more.
    let mut others: Vec<_> = (0..6)
        .map(|i| engine.generate(request(i, 100, 400)).unwrap())
        .collect();
    while !matches!(others[0].next().unwrap().kind, EventKind::Token { .. }) {}
    let mine = engine.generate_for(owner("a"), request(9, 400, 100));
    let (tokens, reason) = mine.unwrap().finish();
    assert_eq!((tokens.len(), reason), (100, Some(EndReason::Length)));
    let queued = engine.step.snapshot();
    assert!(
        queued.waiting > 0,
        "it waited for none of the others: {queued:?}"
    );
    for other in others {
        assert_eq!(other.finish().1, Some(EndReason::Length));
    }
    no_page_is_held(&engine);
}

#[test]
fn a_short_prompt_does_not_wait_for_a_long_one() {
    let engine = engine(limits(&[200]));
    let mut long = engine.generate(request(1, 3000, 4)).unwrap();
    assert!(matches!(
        long.next().unwrap().kind,
        EventKind::Started { .. }
    ));
    let short = engine.generate(request(2, 20, 4)).unwrap();
    let short_done = short.last().unwrap().at;
    let long_done = long.last().unwrap().at;
    assert!(short_done < long_done);
}

#[test]
fn a_tokenizer_with_more_tokens_than_the_embedding_has_rows_is_refused() {
    let other = load(
        &places::default_model().unwrap(),
        1,
        None,
        &Repack::Ram,
        |_, _| 0,
        &mut |_| {},
    )
    .unwrap();
    let error = Engine::start(
        model(),
        other.language,
        limits(&[8]),
        EngineMetrics::default(),
        Heartbeat::silent(),
        None,
    )
    .unwrap_err();
    assert!(error.to_string().contains("only 384 rows"), "{error}");
}

#[test]
fn a_stopped_engine_ends_what_runs() {
    let engine = engine(limits(&[64]));
    let mut running = engine.generate(request(1, 50, 3000)).unwrap();
    running.next().unwrap();
    drop(engine);
    assert_eq!(running.finish().1, None);
}

#[test]
fn an_idle_engine_finds_memory_before_anybody_needs_it() {
    let [used, idle] = [(); 2].map(|()| engine(limits(&[3])));
    let request = request(1, 130, 20);
    let expected = used.generate(request.clone()).unwrap().finish();
    let all_three = used.metrics.kv_committed.get();
    eventually(DEADLINE, "memory of all pages", || {
        (idle.metrics.kv_committed.get() == all_three).then_some(())
    })
    .unwrap();
    assert_eq!(idle.generate(request).unwrap().finish(), expected);
    assert_eq!(idle.metrics.kv_committed.get(), all_three);
}

#[test]
fn memory_found_ahead_is_that_of_the_same_pages_prepared_one_by_one() {
    let model = model();
    let [mut ahead, mut by_page] =
        [(); 2].map(|()| KvStores::new(&model.kv_groups, KvCodecs::F32, &[400]).unwrap());
    for first in [0, 3, 250, 250] {
        while ahead.commit_part(&[first]) {}
        for page in 0..first as u32 {
            by_page.prepare_page(0, page).unwrap();
        }
        assert_eq!(ahead.bytes_committed(), by_page.bytes_committed());
    }
    ahead.commit_on(&model.device, 0, 399).unwrap();
    for page in 0..400 {
        ahead.prepare_page(0, page).unwrap();
        by_page.prepare_page(0, page).unwrap();
    }
    assert_eq!(ahead.bytes_committed(), by_page.bytes_committed());
}

#[test]
fn an_engine_that_gets_its_kv_from_the_load_answers_as_any() {
    let model = model();
    let plan = PagePlan {
        codecs: KvCodecs::F32,
        kv_bytes: 64 << 20,
        context_tokens: 2048,
        sequences_max: 16,
        step_tokens: 128,
    };
    let limits = || limits(&plan.pages(&model.kv_groups));
    let ahead = KvAhead::begin(&model.kv_groups, &plan).unwrap();
    let (metrics, heartbeat) = (EngineMetrics::default(), Heartbeat::silent());
    let loaded = Engine::start(
        Arc::clone(&model),
        None,
        limits(),
        metrics,
        heartbeat,
        Some(ahead),
    )
    .unwrap();
    let request = request(1, 130, 20);
    let expected = engine(limits()).generate(request.clone()).unwrap().finish();
    assert_eq!(loaded.generate(request).unwrap().finish(), expected);
}
