use super::{Cpu, Shared};
use crate::generic::matmul::{DIRECT_TOKENS, OutView, PackedTokens, PanelView, pack_tile};
use crate::panel::PanelMatrix;
use crate::table::{Direct, Packed};

/// Weight bytes of an item with few tokens: long enough that a claim costs little beside the time
/// to stream them (≈ 2 µs), short enough that two threads end together.
const DIRECT_ITEM_BYTES: usize = 40 << 10;

/// Elements of x below which the caller packs it alone.
const PACK_ALONE_LEN: usize = 32 << 10;

/// One product of a [`Cpu::matmul_each`]: `out[t] = w·x[t]` for n tokens.
///
/// Shapes: w (rows, cols); x (n, cols); out (n, rows)
pub struct ExpertProduct<'a> {
    /// Weights.
    pub w: &'a PanelMatrix,
    /// Tokens.
    pub x: &'a [f32],
    /// Results.
    pub out: &'a mut [f32],
}

/// One product with what an item needs to know of it.
struct Product {
    w: PanelView,
    x: *const f32,
    n: usize,
    out: Shared<f32>,
    panels: usize,
    panel_bytes: usize,
    /// The tokens as the kernel for many of them wants them; `None`: few, row-major as they are.
    packed: Option<PackedTokens>,
    /// Panels of an item.
    step: usize,
    /// Tiles of an item, and how many such spans there are; of few tokens all are one span.
    span: usize,
    spans: usize,
    /// Items before this product's.
    first_item: usize,
}

// SAFETY: the views point into borrowed matrices and tokens, which are Sync, packed tokens that are
// only read by then, and outputs whose parts are written by one item each.
unsafe impl Sync for Product {}

impl Product {
    fn new(w: &PanelMatrix, x: &[f32], n: usize, out: &mut [f32]) -> Self {
        assert_eq!(x.len(), n * w.cols(), "x is (n {n}, cols {})", w.cols());
        assert_eq!(out.len(), n * w.rows(), "out is (n {n}, rows {})", w.rows());
        Self {
            w: w.view(),
            x: x.as_ptr(),
            n,
            out: Shared(out.as_mut_ptr()),
            panels: w.panels(),
            panel_bytes: w.panel_bytes(),
            packed: None,
            step: 1,
            span: 1,
            spans: 1,
            first_item: 0,
        }
    }

    fn is_direct(&self) -> bool {
        self.n <= DIRECT_TOKENS
    }
}

impl Cpu {
    /// Product of a weight matrix with n tokens: `out[t] = w·x[t]`.
    ///
    /// Shapes:   w (rows, cols); x (n, cols); out (n, rows)
    /// Cost:     w.bytes() + x + out moved; 2·n·rows·cols flops; no allocation once warm but of the
    ///           list of products
    /// Numerics: per element one chain over ascending columns (crate docs)
    pub fn matmul(&self, w: &PanelMatrix, x: &[f32], n: usize, out: &mut [f32]) {
        self.run_products(vec![Product::new(w, x, n, out)]);
    }

    /// Several products of the same tokens (q, k and v; gate and up) in one dispatch.
    ///
    /// Shapes: as [`Cpu::matmul`], one `cols` for all
    pub fn matmul_many(&self, products: &mut [(&PanelMatrix, &mut [f32])], x: &[f32], n: usize) {
        let product = |(w, out): &mut (&PanelMatrix, &mut [f32])| Product::new(w, x, n, out);
        self.run_products(products.iter_mut().map(product).collect());
    }

    /// Products of different matrices with different tokens in one dispatch: the experts of a layer,
    /// each with the tokens routed to it. The threads share all of it, so that an expert with one
    /// token does not cost a barrier. Products of the same tokens should follow each other.
    ///
    /// A token's row has the same bits whatever other tokens go with it, and as in [`Cpu::matmul`].
    pub fn matmul_each(&self, products: &mut [ExpertProduct<'_>]) {
        let product = |p: &mut ExpertProduct<'_>| {
            let n = p.x.len() / p.w.cols();
            Product::new(p.w, p.x, n, p.out)
        };
        self.run_products(products.iter_mut().map(product).collect());
    }

    fn run_products(&self, mut products: Vec<Product>) {
        products.retain(|product| product.n > 0);
        let mut workspace = self.workspace();
        let packed_len = products
            .iter()
            .map(|p| p.n * p.w.cols.next_multiple_of(16))
            .sum();
        let has_many = products.iter().any(|product| !product.is_direct());
        let base = match has_many {
            true => workspace.packed_tokens.at_least(packed_len),
            false => std::ptr::null_mut(),
        };
        self.pack_tokens(&mut products, base);
        let items = self.plan(&mut products);
        self.pool.for_each(items, |item| {
            let after = products.partition_point(|product| product.first_item <= item);
            let product = &products[after - 1];
            let index = item - product.first_item;
            let first = index / product.spans * product.step;
            let count = product.step.min(product.panels - first);
            let out = OutView {
                base: product.out.get(),
                rows: product.w.rows,
            };
            if let Some(x) = product.packed {
                let tile = index % product.spans * product.span;
                let tiles = (tile, (tile + product.span).min(x.n.div_ceil(x.width)));
                let arguments = Packed {
                    w: product.w,
                    first,
                    count,
                    x,
                    tiles,
                    out,
                };
                // SAFETY: the table was chosen for this processor; lengths were checked; these
                // panels' rows of these tokens are this item's.
                unsafe { (self.table.packed)(&arguments) };
            } else {
                let arguments = Direct {
                    w: product.w,
                    first,
                    count,
                    x: product.x,
                    n: product.n,
                    out,
                };
                // SAFETY: as above.
                unsafe { (self.table.direct)(&arguments) };
            }
        });
    }

    /// Packs the tokens of products that have many, once where several follow with the same.
    fn pack_tokens(&self, products: &mut [Product], base: *mut f32) {
        let width = self.table.tile_columns;
        let mut packs: Vec<Pack> = Vec::new();
        let (mut used, mut tiles) = (0, 0);
        for product in products.iter_mut().filter(|product| !product.is_direct()) {
            let same = packs.last().filter(|pack| {
                (pack.x, pack.cols, pack.tokens.n) == (product.x, product.w.cols, product.n)
            });
            if let Some(pack) = same {
                product.packed = Some(pack.tokens);
                continue;
            }
            let cols_padded = product.w.cols.next_multiple_of(16);
            let tokens = PackedTokens {
                base: base.wrapping_add(used).cast_const(),
                n: product.n,
                width,
                cols_padded,
            };
            packs.push(Pack {
                x: product.x,
                cols: product.w.cols,
                tokens,
                first_tile: tiles,
            });
            used += product.n * cols_padded;
            tiles += product.n.div_ceil(width);
            product.packed = Some(tokens);
        }
        let packs = &packs;
        let pack_one = |tile: usize| {
            let after = packs.partition_point(|pack| pack.first_tile <= tile);
            let pack = &packs[after - 1];
            // SAFETY: the workspace holds all packed tokens and is ours; each item writes its own
            // tile; x was checked to be (n, cols).
            unsafe { pack_tile(pack.x, pack.cols, pack.tokens, tile - pack.first_tile) };
        };
        if used < PACK_ALONE_LEN {
            (0..tiles).for_each(pack_one);
        } else {
            self.pool.for_each(tiles, pack_one);
        }
    }

    /// Cuts the products into items, laid one after the other, and counts them.
    fn plan(&self, products: &mut [Product]) -> usize {
        let group = self.table.tile_panels;
        // Panel groups alone are enough items for few threads; more threads split the tokens too,
        // into spans of at least four tiles so that decoding a chunk stays cheap beside its use.
        let groups: usize = products
            .iter()
            .filter(|product| !product.is_direct())
            .map(|product| product.panels.div_ceil(group))
            .sum();
        let wanted = (4 * self.threads()).div_ceil(groups.max(1));
        let mut items = 0;
        for product in products {
            product.first_item = items;
            if product.is_direct() {
                // Whole groups of four panels, the width of the single-token kernel.
                product.step = (DIRECT_ITEM_BYTES / product.panel_bytes)
                    .next_multiple_of(4)
                    .max(4);
            } else {
                let tiles = product.n.div_ceil(self.table.tile_columns);
                let spans = wanted.min(tiles.div_ceil(4)).max(1);
                product.step = group;
                product.span = tiles.div_ceil(spans);
                product.spans = tiles.div_ceil(product.span);
            }
            items += product.panels.div_ceil(product.step) * product.spans;
        }
        items
    }
}

/// Tokens to pack.
struct Pack {
    x: *const f32,
    cols: usize,
    tokens: PackedTokens,
    /// Tiles of the packs before.
    first_tile: usize,
}

// SAFETY: tokens are borrowed and only read; packed places are written tile by tile, one item each.
unsafe impl Sync for Pack {}
