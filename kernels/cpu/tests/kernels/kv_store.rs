use vitriol_kernels_cpu::{Cpu, KvCodec, KvError, KvShape, KvStore};

const SHAPE: KvShape = KvShape {
    n_layers: 2,
    n_kv_heads: 3,
    key_dim: 64,
    value_dim: 64,
    key_codec: KvCodec::F32,
    value_codec: KvCodec::F32,
    pages: 320,
};
const EXTENT: usize = 2 << 20;
/// Of a page of one tensor.
const PAGE_BYTES: usize = 3 * 64 * 64 * 4;

#[test]
fn memory_follows_the_watermark() {
    let mut kv = KvStore::new(SHAPE).unwrap();
    assert_eq!(kv.bytes_per_page(), 2 * 2 * 3 * 64 * 64 * 4);
    assert_eq!((kv.pages(), kv.bytes_committed()), (0, 0));
    kv.commit(1).unwrap();
    assert_eq!((kv.pages(), kv.bytes_committed()), (1, 4 * PAGE_BYTES));
    // 42 pages fit an extent with some left, the 43rd reaches into the next. The four tensors come to run 0,
    // 10, 21 and 31 pages ahead, and first extents grow page by page.
    for (pages, small, extents) in [
        (4, 4 + 4 + 5 + 6, 0),
        (24, 24 + 29 + 35 + 41, 0),
        (25, 25 + 31 + 37, 2),
        (42, 42, 6),
        (43, 0, 8),
    ] {
        kv.commit(pages).unwrap();
        let bytes = small * PAGE_BYTES + extents * EXTENT;
        assert_eq!(kv.bytes_committed(), bytes, "{pages} pages");
    }
    kv.commit(5).unwrap();
    assert_eq!(kv.pages(), 43, "committing less lowers nothing");
    kv.decommit(42).unwrap();
    // What the first tensor had of its second extent.
    assert_eq!((kv.pages(), kv.bytes_committed()), (42, 7 * EXTENT));
    kv.decommit(0).unwrap();
    assert_eq!((kv.pages(), kv.bytes_committed()), (0, 0));
    kv.commit(320).unwrap();
    assert_eq!(kv.pages(), 320);
}

#[test]
fn no_page_waits_for_an_extent_of_every_tensor() {
    let shape = KvShape {
        n_layers: 8,
        ..SHAPE
    };
    let mut kv = KvStore::new(shape).unwrap();
    kv.commit(1).unwrap();
    for page in 2..100 {
        let before = kv.bytes_committed();
        kv.commit(page).unwrap();
        // 16 tensors, 42.7 pages to an extent; the first extents fill twice as fast.
        let most = if page <= 43 { 3 } else { 1 };
        assert!(
            kv.bytes_committed() - before <= most * EXTENT,
            "page {page}"
        );
    }
}

#[test]
fn a_watermark_raised_part_by_part_is_the_one_raised_at_once() {
    let [mut parts, mut whole] = [(); 2].map(|()| KvStore::new(SHAPE).unwrap());
    for pages in [1, 2, 3, 40, 41, 320, 320] {
        whole.commit(pages).unwrap();
        let mut rounds = 1;
        while !parts.commit_part(pages).unwrap() {
            assert!(parts.pages() < pages);
            rounds += 1;
        }
        // Four tensors.
        assert!(rounds <= 4, "{rounds}");
        let of = |kv: &KvStore| (kv.pages(), kv.bytes_committed());
        assert_eq!(of(&parts), of(&whole));
    }
    assert!(parts.commit_part(321).is_err());
}

#[test]
fn a_watermark_raised_by_many_threads_is_the_one_raised_by_one() {
    let device = Cpu::new(3, None).unwrap();
    let [mut many, mut one] = [(); 2].map(|()| KvStore::new(SHAPE).unwrap());
    for pages in [1, 2, 40, 39, 320] {
        one.commit(pages).unwrap();
        many.commit_on(&device, pages).unwrap();
        let of = |kv: &KvStore| (kv.pages(), kv.bytes_committed());
        assert_eq!(of(&many), of(&one));
    }
    for page in 0..320 {
        many.zero_page(page);
    }
    assert!(matches!(
        many.commit_on(&device, 321),
        Err(KvError::Reserved { pages: 321, .. })
    ));
}

#[test]
fn sides_of_different_size_are_counted_apart() {
    let shape = KvShape {
        key_codec: KvCodec::Q8_0,
        value_codec: KvCodec::Q4_0,
        ..SHAPE
    };
    let mut kv = KvStore::new(shape).unwrap();
    // Two blocks a head: 68 and 36 bytes a token.
    assert_eq!(kv.bytes_per_page(), 2 * 64 * 3 * (68 + 36));
    for pages in [1, 160, 161, 303, 304, 320] {
        kv.commit(pages).unwrap();
        let committed = kv.bytes_committed();
        assert!(
            committed >= pages * kv.bytes_per_page(),
            "{pages}: {committed}"
        );
        assert!(
            committed <= shape.bytes_committed(pages) + 4 * EXTENT,
            "{pages}: {committed}"
        );
    }
    assert_eq!(kv.bytes_committed(), shape.bytes_committed(320));
}

#[test]
fn impossible_sizes_are_refused() {
    for shape in [
        KvShape {
            n_layers: 0,
            ..SHAPE
        },
        KvShape {
            n_kv_heads: 0,
            ..SHAPE
        },
        KvShape {
            key_dim: 0,
            ..SHAPE
        },
        KvShape {
            value_dim: 577,
            ..SHAPE
        },
        KvShape { pages: 0, ..SHAPE },
        KvShape {
            pages: usize::MAX,
            ..SHAPE
        },
    ] {
        assert!(
            matches!(KvStore::new(shape), Err(KvError::Shape(_))),
            "{shape:?}"
        );
    }
    let mut kv = KvStore::new(SHAPE).unwrap();
    let error = kv.commit(321).unwrap_err();
    assert!(
        matches!(
            error,
            KvError::Reserved {
                pages: 321,
                reserved: 320
            }
        ),
        "{error}"
    );
    assert_eq!(kv.pages(), 0);
}

#[test]
#[should_panic(expected = "KV page 1 of 1 committed")]
fn a_page_above_the_watermark_is_not_zeroed() {
    let mut kv = KvStore::new(SHAPE).unwrap();
    kv.commit(1).unwrap();
    kv.zero_page(1);
}

/// Writes a page's number and each byte's place into it.
fn fill(kv: &mut KvStore, page: u32) {
    let mut fill = kv.lend_to_fill(page);
    let len = fill.page_len();
    let mut bytes = (0..len).map(|at| (at * 7 + page as usize) as u8);
    for piece in fill.pieces_mut(0..len) {
        piece
            .iter_mut()
            .zip(&mut bytes)
            .for_each(|(to, from)| *to = from);
    }
}

fn content(kv: &mut KvStore, page: u32) -> Vec<u8> {
    let read = kv.lend(page);
    read.pieces(0..read.page_len()).collect::<Vec<_>>().concat()
}

#[test]
fn a_page_that_was_filled_is_read_whole_and_in_parts() {
    let mut kv = KvStore::new(SHAPE).unwrap();
    kv.commit(3).unwrap();
    for page in 0..3 {
        fill(&mut kv, page);
    }
    kv.copy_page(2, 0);
    let all = content(&mut kv, 0);
    assert_eq!(all.len(), kv.bytes_per_page());
    assert_eq!(all, content(&mut kv, 2));
    assert!(
        all.iter()
            .enumerate()
            .all(|(at, &byte)| byte == (at * 7 + 2) as u8)
    );
    let read = kv.lend(2);
    for (from, to) in [
        (0, 1),
        (PAGE_BYTES - 1, PAGE_BYTES + 1),
        (PAGE_BYTES / 2, 3 * PAGE_BYTES + 5),
        (9, 9),
    ] {
        let part: Vec<&[u8]> = read.pieces(from..to).collect();
        assert_eq!(part.concat(), all[from..to], "{from}..{to}");
    }
}

#[test]
fn a_loan_outlives_its_store_and_says_when_it_is_over() {
    let mut kv = KvStore::new(SHAPE).unwrap();
    kv.commit(2).unwrap();
    fill(&mut kv, 1);
    let expected = content(&mut kv, 1);
    let reads = [kv.lend(1), kv.lend(1)];
    assert!(kv.is_lent(1) && !kv.is_lent(0));
    let [first, last] = reads;
    drop(first);
    assert!(kv.is_lent(1));
    drop(last);
    assert!(!kv.is_lent(1));
    let last = kv.lend(1);
    drop(kv);
    let reading = std::thread::spawn(move || {
        let pieces: Vec<&[u8]> = last.pieces(0..last.page_len()).collect();
        pieces.concat()
    });
    assert_eq!(reading.join().unwrap(), expected);
}

#[test]
fn a_page_that_is_lent_is_nobody_elses() {
    type Use = fn(&mut KvStore);
    let refused = |lend: Use, then: Use| {
        let mut kv = KvStore::new(SHAPE).unwrap();
        kv.commit(2).unwrap();
        lend(&mut kv);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| then(&mut kv)));
        panicked.is_err()
    };
    let read: Use = |kv| std::mem::forget(kv.lend(1));
    let filled: Use = |kv| std::mem::forget(kv.lend_to_fill(1));
    let writes: [Use; 4] = [
        |kv| kv.zero_page(1),
        |kv| kv.copy_page(0, 1),
        |kv| kv.decommit(1).unwrap(),
        |kv| drop(kv.lend_to_fill(1)),
    ];
    let reads: [Use; 2] = [|kv| kv.copy_page(1, 0), |kv| drop(kv.lend(1))];
    for then in writes {
        assert!(refused(read, then) && refused(filled, then));
        assert!(!refused(|_| {}, then));
    }
    for then in reads {
        assert!(refused(filled, then) && !refused(read, then));
    }
}
