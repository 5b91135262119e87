use super::token_rows::{Source, TokenRows};
use super::{Cpu, Shared};
use crate::generic::matmul::{DIRECT_TOKENS, OutView, PackedTokens, PanelView, pack_row};
use crate::generic::rows;
use crate::generic::tokens::{QuantTokens, QuantiseRows};
use crate::panel::PanelMatrix;
use crate::table::{Direct, Dot, Packed};

/// Most weight bytes of an item with few tokens: long enough that a claim costs little beside the time
/// to stream them (≈ 2 µs), short enough that threads of unlike speed end together.
const DIRECT_ITEM_BYTES: usize = 40 << 10;

/// Weight bytes that stay in L2 beside the tiles of quantised tokens running over them.
const DOT_ITEM_BYTES: usize = 128 << 10;

/// Rows that are made at once: as many as are quantised side by side.
const MADE_ROWS: usize = 4;

/// Elements of x below which the caller prepares it alone.
const PREPARE_ALONE_LEN: usize = 8 << 10;

/// One product of a [`Cpu::matmul_each`]: `out[t] = w·x[t]` for n tokens.
///
/// Shapes: w (rows, cols); x rows of cols; out (n, rows)
pub struct ExpertProduct<'a> {
    /// Weights.
    pub w: &'a PanelMatrix,
    /// Tokens.
    pub x: TokenRows<'a>,
    /// Results.
    pub out: &'a mut [f32],
}

/// How the kernels want a product's tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TokenForm {
    /// Few, for plain weights: row-major as they are.
    Rows,
    /// Many, for plain weights: in tiles.
    Packed,
    /// As bytes with scales.
    Quantised,
}

/// A product's tokens, ready for the kernels.
#[derive(Clone, Copy)]
enum Tokens {
    Rows(*const f32),
    Packed(PackedTokens),
    Quantised(QuantTokens),
}

impl Tokens {
    /// Tiles of them; one span where they are few.
    fn tiles(&self) -> usize {
        match self {
            Tokens::Rows(_) => 1,
            Tokens::Packed(tokens) => tokens.n.div_ceil(tokens.width),
            Tokens::Quantised(tokens) => tokens.tiles(),
        }
    }
}

/// One product with what an item needs to know of it.
struct Product {
    w: PanelView,
    x: Source,
    n: usize,
    out: Shared<f32>,
    panels: usize,
    tokens: Tokens,
    /// Panels of an item.
    step: usize,
    /// Tiles of an item, and how many such spans there are.
    span: usize,
    spans: usize,
    /// Items before this product's.
    first_item: usize,
}

// SAFETY: the views point into borrowed matrices and tokens, which are Sync, prepared tokens that are
// only read by then, and outputs whose parts are written by one item each.
unsafe impl Sync for Product {}

impl Product {
    fn new(w: &PanelMatrix, x: &TokenRows<'_>, n: usize, out: &mut [f32]) -> Self {
        let x = x.source(n, w.cols());
        assert_eq!(out.len(), n * w.rows(), "out is (n {n}, rows {})", w.rows());
        Self {
            w: w.view(),
            x,
            n,
            out: Shared(out.as_mut_ptr()),
            panels: w.panels(),
            tokens: Tokens::Rows(x.stored().unwrap_or(std::ptr::null())),
            step: 1,
            span: 1,
            spans: 1,
            first_item: 0,
        }
    }

    fn token_form(&self) -> TokenForm {
        match self.w.format.is_quantised() {
            true => TokenForm::Quantised,
            false if self.n <= DIRECT_TOKENS => TokenForm::Rows,
            false => TokenForm::Packed,
        }
    }

    /// Whether its tokens are not as the kernels want them.
    fn wants_preparation(&self) -> bool {
        self.token_form() != TokenForm::Rows || self.x.stored().is_none()
    }
}

impl Cpu {
    /// Product of a weight matrix with n tokens: `out[t] = w·x[t]`.
    ///
    /// Shapes:   w (rows, cols); x (n, cols); out (n, rows)
    /// Cost:     w.bytes() + x + out moved; 2·n·rows·cols flops; no allocation once warm but of the
    ///           list of products
    /// Numerics: plain weights: per element one chain over ascending columns; quantised ones: tokens
    ///           rounded to bytes, exact sums over 32 columns, one chain over these (crate docs)
    pub fn matmul(&self, w: &PanelMatrix, x: &[f32], n: usize, out: &mut [f32]) {
        self.matmul_of(w, &TokenRows::Stored(x), n, out);
    }

    /// As [`Cpu::matmul`], of rows that are made of others where they are wanted.
    pub fn matmul_of(&self, w: &PanelMatrix, x: &TokenRows<'_>, n: usize, out: &mut [f32]) {
        self.run_products(vec![Product::new(w, x, n, out)]);
    }

    /// Several products of the same tokens (q, k and v; gate and up) in one dispatch.
    ///
    /// Shapes: as [`Cpu::matmul`], one `cols` for all
    pub fn matmul_many(
        &self,
        products: &mut [(&PanelMatrix, &mut [f32])],
        x: &TokenRows<'_>,
        n: usize,
    ) {
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
            Product::new(p.w, &p.x, n, p.out)
        };
        self.run_products(products.iter_mut().map(product).collect());
    }

    /// Rows of a matrix as f32: the embeddings of tokens.
    ///
    /// Shapes:   w (vocab, cols); rows (n) below vocab; out (n, cols)
    /// Numerics: the values of `vitriol_kernels_core::dequantise_row`
    ///
    /// # Panics
    /// If a row is not one of the matrix.
    pub fn embed(&self, w: &PanelMatrix, rows: &[u32], out: &mut [f32]) {
        let cols = w.cols();
        assert_eq!(out.len(), rows.len() * cols, "out is (n, cols {cols})");
        for &row in rows {
            assert!((row as usize) < w.rows(), "row {row} of {}", w.rows());
        }
        let decode_row = match w.is_quantised() {
            true => self.table.quant(w.view().format).decode_row,
            false => rows::convert_row,
        };
        self.for_rows(out, cols, |first, out| {
            for (out, &row) in out.chunks_exact_mut(cols).zip(&rows[first..]) {
                // SAFETY: the table was chosen for this processor; row and length were checked.
                unsafe { decode_row(w.view(), row as usize, out) };
            }
        });
    }

    fn run_products(&self, mut products: Vec<Product>) {
        products.retain(|product| product.n > 0);
        let mut workspace = self.workspace();
        self.prepare_tokens(&mut products, &mut workspace);
        let items = self.plan(&mut products);
        self.pool.for_each(items, |item| {
            let after = products.partition_point(|product| product.first_item <= item);
            let product = &products[after - 1];
            self.run_item(product, item - product.first_item);
        });
    }

    fn run_item(&self, product: &Product, index: usize) {
        let first = index / product.spans * product.step;
        let count = product.step.min(product.panels - first);
        let tile = index % product.spans * product.span;
        let tiles = (tile, (tile + product.span).min(product.tokens.tiles()));
        let (w, n) = (product.w, product.n);
        let out = OutView {
            base: product.out.get(),
            rows: w.rows,
        };
        // SAFETY: the table was chosen for this processor; lengths were checked and tokens prepared;
        // these panels' rows of these tokens are this item's.
        unsafe {
            match product.tokens {
                Tokens::Rows(x) => (self.table.direct)(&Direct {
                    w,
                    first,
                    count,
                    x,
                    n,
                    out,
                }),
                Tokens::Packed(x) => (self.table.packed)(&Packed {
                    w,
                    first,
                    count,
                    x,
                    tiles,
                    out,
                }),
                Tokens::Quantised(x) => (self.table.quant(w.format).dot)(&Dot {
                    w,
                    panels: (first, count),
                    x,
                    tiles,
                    out,
                }),
            }
        }
    }

    /// Makes, packs or quantises the tokens of the products that want it, once where several follow with
    /// the same.
    fn prepare_tokens(&self, products: &mut [Product], workspace: &mut super::Workspace) {
        let mut preparations: Vec<Preparation> = Vec::new();
        let (mut len, mut tiles, mut elements, mut made_len) = (0, 0, 0, 0);
        for product in products.iter().filter(|p| p.wants_preparation()) {
            if preparations.last().is_some_and(|last| last.is_of(product)) {
                continue;
            }
            let preparation = Preparation {
                x: product.x,
                cols: product.w.cols,
                n: product.n,
                form: product.token_form(),
                at: len,
                first_tile: tiles,
            };
            len += self.prepared_len(&preparation).next_multiple_of(16);
            tiles += preparation.n.div_ceil(self.tile_width(preparation.form));
            elements += preparation.n * preparation.cols;
            if preparation.x.stored().is_none() {
                made_len = made_len.max(MADE_ROWS * preparation.cols.next_multiple_of(16));
            }
            preparations.push(preparation);
        }
        if preparations.is_empty() {
            return;
        }
        let base = Shared(workspace.tokens.at_least(len));
        let made = Shared(workspace.made.at_least(made_len * self.threads()));
        let tokens_of = |preparation: &Preparation| self.prepared(preparation, base.get());
        let mut preparation = preparations.iter().peekable();
        for product in products.iter_mut().filter(|p| p.wants_preparation()) {
            while let Some(next) = preparation.peek()
                && !next.is_of(product)
            {
                preparation.next();
            }
            if let Some(of_product) = preparation.peek() {
                product.tokens = tokens_of(of_product);
            }
        }
        let prepare_one = |thread: usize, tile: usize| {
            let after = preparations.partition_point(|p| p.first_tile <= tile);
            let preparation = &preparations[after - 1];
            let tile = tile - preparation.first_tile;
            let made = made.get().wrapping_add(thread * made_len);
            // SAFETY: the workspace holds all prepared tokens, and rows made for each thread, and is ours;
            // each item writes its own tile; x was checked to be n rows of cols.
            unsafe { self.prepare_tile(preparation, tokens_of(preparation), tile, made) };
        };
        if elements < PREPARE_ALONE_LEN {
            (0..tiles).for_each(|tile| prepare_one(0, tile));
        } else {
            self.pool.for_each_on(tiles, prepare_one);
        }
    }

    /// Prepares one tile, a few rows at a time, which stay in L1 where they are made for it.
    ///
    /// # Safety
    /// `tokens` has room for the tile, and nobody else touches that, nor `made`, which has room for
    /// [`MADE_ROWS`] rows; the source's rows are readable.
    unsafe fn prepare_tile(
        &self,
        preparation: &Preparation,
        tokens: Tokens,
        tile: usize,
        made: *mut f32,
    ) {
        let &Preparation {
            x, cols, n, form, ..
        } = preparation;
        let width = self.tile_width(form);
        let first = tile * width;
        let end = (first + width).min(n);
        let step = match x.stored() {
            Some(_) => end - first,
            None => MADE_ROWS,
        };
        for from in (first..end).step_by(step) {
            let count = step.min(end - from);
            let rows = match (tokens, x.stored()) {
                (_, Some(x)) => x.wrapping_add(from * cols),
                (Tokens::Rows(x), None) => x.wrapping_add(from * cols),
                (_, None) => made,
            };
            // SAFETY: the caller's promise; tables were chosen for this processor.
            unsafe {
                if x.stored().is_none() {
                    for row in 0..count {
                        let to = rows.cast_mut().wrapping_add(row * cols);
                        let to = std::slice::from_raw_parts_mut(to, cols);
                        x.make(self.table, from + row, to);
                    }
                }
                match tokens {
                    Tokens::Rows(_) => {}
                    Tokens::Packed(tokens) => {
                        for row in 0..count {
                            pack_row(rows.wrapping_add(row * cols), cols, tokens, from + row);
                        }
                    }
                    Tokens::Quantised(tokens) => (self.table.quantise)(&QuantiseRows {
                        x: rows,
                        tokens,
                        tile,
                        columns: (from - first, count),
                    }),
                }
            }
        }
    }

    /// Tokens of a tile.
    fn tile_width(&self, form: TokenForm) -> usize {
        match form {
            TokenForm::Quantised => self.table.dot_columns,
            TokenForm::Packed => self.table.tile_columns,
            TokenForm::Rows => DIRECT_TOKENS,
        }
    }

    /// f32 of workspace that prepared tokens take.
    fn prepared_len(&self, preparation: &Preparation) -> usize {
        let Preparation { cols, n, form, .. } = *preparation;
        match form {
            TokenForm::Quantised => {
                QuantTokens::bytes(n, self.tile_width(form), cols / 32).div_ceil(4)
            }
            TokenForm::Packed => n * cols.next_multiple_of(16),
            TokenForm::Rows => n * cols,
        }
    }

    /// Prepared tokens, given the workspace they lie in.
    fn prepared(&self, preparation: &Preparation, workspace: *mut f32) -> Tokens {
        let &Preparation {
            cols, n, form, at, ..
        } = preparation;
        let (base, width) = (workspace.wrapping_add(at), self.tile_width(form));
        match form {
            TokenForm::Quantised => Tokens::Quantised(QuantTokens {
                base: base.cast(),
                n,
                width,
                blocks: cols / 32,
            }),
            TokenForm::Rows => Tokens::Rows(base),
            TokenForm::Packed => Tokens::Packed(PackedTokens {
                base: base.cast_const(),
                n,
                width,
                cols_padded: cols.next_multiple_of(16),
            }),
        }
    }

    /// Cuts the products into items, laid one after the other, and counts them.
    fn plan(&self, products: &mut [Product]) -> usize {
        let threads = self.threads();
        let mut items = 0;
        let mut groups = 0;
        // Single tiles are as long as streaming their weights takes: as many items for every thread.
        let single = products.iter().filter(|p| p.tokens.tiles() == 1);
        let bytes: usize = single.map(|p| p.panels * p.w.panel_bytes).sum();
        let rounds = bytes.div_ceil(DIRECT_ITEM_BYTES * threads).max(1);
        let item_bytes = bytes.div_ceil(rounds * threads);
        for product in products.iter_mut() {
            let tiles = product.tokens.tiles();
            product.step = match product.tokens {
                // Whole groups of four panels, the width of the single-token kernel.
                Tokens::Rows(_) => (DIRECT_ITEM_BYTES / product.w.panel_bytes)
                    .next_multiple_of(4)
                    .max(4),
                Tokens::Packed(_) => self.table.tile_panels,
                Tokens::Quantised(_) if tiles == 1 => {
                    item_bytes.div_ceil(product.w.panel_bytes).max(1)
                }
                Tokens::Quantised(_) => (DOT_ITEM_BYTES / product.w.panel_bytes)
                    .min(product.panels / (8 * threads))
                    .max(1),
            };
            if tiles > 1 {
                groups += product.panels.div_ceil(product.step);
            }
        }
        // Panel groups alone are enough items for few threads; more threads split the tokens too,
        // into spans of at least four tiles so that decoding a chunk stays cheap beside its use.
        let wanted = (4 * threads).div_ceil(groups.max(1));
        for product in products {
            let tiles = product.tokens.tiles();
            let spans = wanted.min(tiles.div_ceil(4)).max(1);
            product.first_item = items;
            product.span = tiles.div_ceil(spans);
            product.spans = tiles.div_ceil(product.span);
            items += product.panels.div_ceil(product.step) * product.spans;
        }
        items
    }
}

/// Tokens to make, to pack or to quantise.
struct Preparation {
    x: Source,
    cols: usize,
    n: usize,
    form: TokenForm,
    /// Where they go, f32 from the workspace's beginning.
    at: usize,
    /// Tiles of the preparations before.
    first_tile: usize,
}

impl Preparation {
    fn is_of(&self, product: &Product) -> bool {
        (self.x, self.cols, self.n, self.form)
            == (product.x, product.w.cols, product.n, product.token_form())
    }
}

// SAFETY: tokens are borrowed and only read; prepared places are written tile by tile, one item each.
unsafe impl Sync for Preparation {}
