use super::{Cpu, Shared, Workspace};
use crate::generic::matmul::{DIRECT_TOKENS, OutView, PackedTokens, PanelView, pack_tile};
use crate::panel::PanelMatrix;
use crate::table::{Direct, Packed};

/// Weight bytes of an item with few tokens: long enough that a claim costs little beside the time
/// to stream them (≈ 2 µs), short enough that two threads end together.
const DIRECT_ITEM_BYTES: usize = 40 << 10;

/// Elements of x below which the caller packs it alone.
const PACK_ALONE_LEN: usize = 32 << 10;

/// One product of a [`Cpu::matmul_many`], with what an item needs to know of it.
struct Product {
    w: PanelView,
    out: Shared<f32>,
    panels: usize,
    /// Panels of an item.
    step: usize,
    /// Items before this product's.
    first_item: usize,
}

// SAFETY: the views point into borrowed matrices, which are Sync, and outputs whose parts are
// written by one item each.
unsafe impl Sync for Product {}

impl Cpu {
    /// Product of a weight matrix with n tokens: `out[t] = w·x[t]`.
    ///
    /// Shapes:   w (rows, cols); x (n, cols); out (n, rows)
    /// Cost:     w.bytes() + x + out moved; 2·n·rows·cols flops; no allocation once warm
    /// Numerics: per element one chain over ascending columns (crate docs)
    pub fn matmul(&self, w: &PanelMatrix, x: &[f32], n: usize, out: &mut [f32]) {
        self.matmul_many(&mut [(w, out)], x, n);
    }

    /// Several products of the same tokens (q, k and v; gate and up) in one dispatch.
    ///
    /// Shapes: as [`Cpu::matmul`], one `cols` for all
    pub fn matmul_many(&self, products: &mut [(&PanelMatrix, &mut [f32])], x: &[f32], n: usize) {
        let Some(cols) = products.first().map(|(w, _)| w.cols()) else {
            return;
        };
        assert_eq!(x.len(), n * cols, "x is (n {n}, cols {cols})");
        for (w, out) in products.iter() {
            assert_eq!(w.cols(), cols, "{w:?} beside a matrix of {cols} columns");
            assert_eq!(out.len(), n * w.rows(), "out is (n {n}, rows {})", w.rows());
        }
        if n == 0 {
            return;
        }
        if n <= DIRECT_TOKENS {
            self.matmul_direct(products, x, n);
        } else {
            self.matmul_packed(products, x, n);
        }
    }

    /// Few tokens: bound by the weight stream.
    fn matmul_direct(&self, products: &mut [(&PanelMatrix, &mut [f32])], x: &[f32], n: usize) {
        let step = |w: &PanelMatrix| {
            // Whole groups of four panels, the width of the single-token kernel.
            (DIRECT_ITEM_BYTES / w.panel_bytes())
                .next_multiple_of(4)
                .max(4)
        };
        let (products, items) = plan(products, step, 1);
        let x = Shared(x.as_ptr().cast_mut());
        self.pool.for_each(items, |item| {
            let product = find(&products, item);
            let first = (item - product.first_item) * product.step;
            let arguments = Direct {
                w: product.w,
                first,
                count: product.step.min(product.panels - first),
                x: x.get(),
                n,
                out: OutView {
                    base: product.out.get(),
                    rows: product.w.rows,
                },
            };
            // SAFETY: the table was chosen for this processor; lengths were checked; these panels'
            // rows of `out` are this item's.
            unsafe { (self.table.direct)(&arguments) };
        });
    }

    /// Many tokens: bound by the multipliers.
    fn matmul_packed(&self, products: &mut [(&PanelMatrix, &mut [f32])], x: &[f32], n: usize) {
        let mut workspace = self.workspace();
        let cols = products[0].0.cols();
        let tokens = self.pack_tokens(&mut workspace, x, n, cols);
        let tiles = n.div_ceil(tokens.width);
        let group = self.table.tile_panels;
        // Panel groups alone are enough items for few threads; more threads split the tokens too,
        // into spans of at least four tiles so that decoding a chunk stays cheap beside its use.
        let groups: usize = products
            .iter()
            .map(|(w, _)| w.panels().div_ceil(group))
            .sum();
        let wanted = 4 * self.threads();
        let spans = wanted.div_ceil(groups).min(tiles.div_ceil(4)).max(1);
        let span = tiles.div_ceil(spans);
        let spans = tiles.div_ceil(span);
        let (products, items) = plan(products, |_| group, spans);
        let tokens = SharedTokens(tokens);
        self.pool.for_each(items, |item| {
            let product = find(&products, item);
            let index = item - product.first_item;
            let first = index / spans * product.step;
            let tile = index % spans * span;
            let arguments = Packed {
                w: product.w,
                first,
                count: product.step.min(product.panels - first),
                x: tokens.get(),
                tiles: (tile, (tile + span).min(tiles)),
                out: OutView {
                    base: product.out.get(),
                    rows: product.w.rows,
                },
            };
            // SAFETY: the table was chosen for this processor; lengths were checked; these panels'
            // rows of these tokens are this item's.
            unsafe { (self.table.packed)(&arguments) };
        });
    }

    fn pack_tokens(
        &self,
        workspace: &mut Workspace,
        x: &[f32],
        n: usize,
        cols: usize,
    ) -> PackedTokens {
        let cols_padded = cols.next_multiple_of(16);
        let base = workspace
            .packed_tokens
            .at_least(n * cols_padded)
            .cast_const();
        let width = self.table.tile_columns;
        let tokens = PackedTokens {
            base,
            n,
            width,
            cols_padded,
        };
        let tiles = n.div_ceil(width);
        let shared = SharedTokens(tokens);
        // SAFETY: the workspace holds n·cols_padded f32 and is ours; each item writes its own tile.
        let pack = |tile: usize| unsafe { pack_tile(x.as_ptr(), cols, shared.get(), tile) };
        if x.len() < PACK_ALONE_LEN {
            (0..tiles).for_each(pack);
        } else {
            self.pool.for_each(tiles, pack);
        }
        tokens
    }
}

struct SharedTokens(PackedTokens);

// SAFETY: written tile by tile, one item each, then only read.
unsafe impl Sync for SharedTokens {}

impl SharedTokens {
    fn get(&self) -> PackedTokens {
        self.0
    }
}

/// Lays the items of all products one after the other: `step` panels × one of `spans` token spans.
fn plan(
    products: &mut [(&PanelMatrix, &mut [f32])],
    step: impl Fn(&PanelMatrix) -> usize,
    spans: usize,
) -> (Vec<Product>, usize) {
    let mut items = 0;
    let planned = products
        .iter_mut()
        .map(|(w, out)| {
            let (panels, step) = (w.panels(), step(w));
            let first_item = items;
            items += panels.div_ceil(step) * spans;
            Product {
                w: w.view(),
                out: Shared(out.as_mut_ptr()),
                panels,
                step,
                first_item,
            }
        })
        .collect();
    (planned, items)
}

fn find(products: &[Product], item: usize) -> &Product {
    let after = products.partition_point(|product| product.first_item <= item);
    &products[after - 1]
}
