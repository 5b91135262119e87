use vitriol_kernels_cpu::{KvCodec, KvError, KvShape, KvStore};

const SHAPE: KvShape = KvShape {
    n_layers: 2,
    n_kv_heads: 3,
    key_dim: 64,
    value_dim: 64,
    key_codec: KvCodec::F32,
    value_codec: KvCodec::F32,
    pages: 1000,
};
const EXTENT: usize = 2 << 20;

#[test]
fn memory_follows_the_watermark() {
    let mut kv = KvStore::new(SHAPE).unwrap();
    assert_eq!(kv.bytes_per_page(), 2 * 2 * 3 * 64 * 64 * 4);
    assert_eq!((kv.pages(), kv.bytes_committed()), (0, 0));
    kv.commit(1).unwrap();
    assert_eq!((kv.pages(), kv.bytes_committed()), (1, 4 * EXTENT));
    // 48 KiB a page: 42 fit an extent with some left, the 43rd reaches into the next.
    kv.commit(42).unwrap();
    assert_eq!(kv.bytes_committed(), 4 * EXTENT);
    kv.commit(43).unwrap();
    assert_eq!(kv.bytes_committed(), 8 * EXTENT);
    kv.commit(5).unwrap();
    assert_eq!(kv.pages(), 43, "committing less lowers nothing");
    kv.decommit(42).unwrap();
    assert_eq!((kv.pages(), kv.bytes_committed()), (42, 4 * EXTENT));
    kv.decommit(0).unwrap();
    assert_eq!((kv.pages(), kv.bytes_committed()), (0, 0));
    kv.commit(1000).unwrap();
    assert_eq!(kv.pages(), 1000);
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
    for pages in [1, 160, 161, 303, 304, 1000] {
        kv.commit(pages).unwrap();
        assert_eq!(
            kv.bytes_committed(),
            shape.bytes_committed(pages),
            "{pages}"
        );
    }
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
    let error = kv.commit(1001).unwrap_err();
    assert!(
        matches!(
            error,
            KvError::Reserved {
                pages: 1001,
                reserved: 1000
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
