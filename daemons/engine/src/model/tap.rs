/// Listens in on a forward pass: for tests and tools that look for the first wrong layer.
pub trait Tap {
    /// The residual stream after a layer.
    ///
    /// Shapes: hidden (rows, d_model)
    fn layer_output(&mut self, layer: usize, hidden: &[f32], rows: usize) {
        let _ = (layer, hidden, rows);
    }

    /// The experts a layer's router chose for each row, best first.
    ///
    /// Shapes: chosen (rows, experts used)
    fn experts(&mut self, layer: usize, chosen: &[u32], rows: usize) {
        let _ = (layer, chosen, rows);
    }
}

/// Hears nothing.
impl Tap for () {}
