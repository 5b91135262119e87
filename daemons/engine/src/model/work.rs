//! What one token costs: bytes read and multiplications done, for rates to be judged by.

use super::{Model, decoder::DecoderLayer};
use crate::kv::{KvCodecs, PAGE_TOKENS};
use vitriol_kernels_cpu::PanelMatrix;

/// What the model's size alone says of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Work {
    /// Weights that a step reads which computes one token, its logits included. Of experts only those
    /// that compute a token; of a table of embeddings that gives no logits, nothing.
    pub weights_bytes: u64,
    /// Multiply-accumulates of a token with the layers' matrices, attention and logits apart; vectors
    /// (norms, biases) are counted among them, which are well below 1%. `None` where blocks of the file
    /// are not computed.
    pub layer_macs: Option<u64>,
    /// Multiply-accumulates of a token's logits.
    pub logits_macs: u64,
    /// (window, bytes of a token's KV) of each KV group.
    pub kv: Vec<(Option<u32>, u64)>,
}

impl Work {
    /// KV bytes that a query reads which is preceded by `depth` tokens.
    pub fn kv_bytes(&self, depth: u64) -> u64 {
        let seen = |window: Option<u32>| window.map_or(depth, |window| depth.min(window.into()));
        let groups = self.kv.iter();
        groups.map(|&(window, bytes)| seen(window) * bytes).sum()
    }
}

impl Model {
    /// What a token costs with its KV in `codecs`.
    pub fn work(&self, codecs: KvCodecs) -> Work {
        let elements = |matrix: &PanelMatrix| (matrix.rows() * matrix.cols()) as u64;
        let tables = [
            self.output.as_ref().map(|_| &self.token_embd),
            self.layer_inputs.as_ref().map(|inputs| inputs.table()),
        ];
        let tables: Vec<&PanelMatrix> = tables.into_iter().flatten().collect();
        let layers = self.stages.iter().flat_map(|stage| &stage.layers);
        let idle: Vec<(u64, u64)> = layers.map(DecoderLayer::idle_experts).collect();
        let idle_bytes: u64 = idle.iter().map(|idle| idle.0).sum();
        let idle_weights: u64 = idle.iter().map(|idle| idle.1).sum();
        let table_bytes: u64 = tables.iter().map(|table| table.bytes() as u64).sum();
        let table_weights: u64 = tables.iter().map(|table| elements(table)).sum();
        let logits_macs = elements(self.output_matrix());
        let computed = self.totals.parameters - table_weights - idle_weights - logits_macs;
        let kv = self.kv_groups.iter().map(|group| {
            let page = group.shape(codecs, 1).bytes_per_page();
            (group.window, (page / PAGE_TOKENS) as u64)
        });
        Work {
            weights_bytes: self.totals.weights_bytes - table_bytes - idle_bytes,
            layer_macs: (self.hyper.n_next_layers == 0).then_some(computed),
            logits_macs,
            kv: kv.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use vitriol_gguf::Gguf;
    use vitriol_kernels_cpu::Cpu;
    use vitriol_testkit::places::zoo_model;

    fn model(name: &str) -> Model {
        let gguf = Gguf::open(&zoo_model(name).unwrap()).unwrap();
        let device = Arc::new(Cpu::new(1, None).unwrap());
        Model::load(&gguf, device, |_, _| 0, &mut |_| {}).unwrap()
    }

    #[test]
    fn of_experts_only_the_chosen_are_read() {
        let model = model("qwen3moe.f32");
        let experts = model.hyper.experts.unwrap();
        let work = model.work(KvCodecs::F32);
        let one = 3 * experts.d_ff * model.hyper.d_model;
        let idle = (model.hyper.layers.len() * (experts.count - experts.used) * one) as u64;
        let table = match model.output.is_some() {
            true => (model.hyper.vocab * model.hyper.d_model) as u64,
            false => 0,
        };
        let read = model.totals.parameters - idle - table;
        assert_eq!(work.layer_macs, Some(read - work.logits_macs));
        // Panels are 16 rows high: a matrix may take a little more than its weights.
        assert!(work.weights_bytes >= 4 * read && work.weights_bytes < 5 * read);
    }

    #[test]
    fn a_window_bounds_the_keys_that_are_read() {
        let model = model("gemma3.f32");
        let work = model.work(KvCodecs::F32);
        let window = model.kv_groups.iter().find_map(|group| group.window);
        let window = u64::from(window.expect("gemma 3 has windows"));
        let per_token: u64 = work.kv.iter().map(|group| group.1).sum();
        assert_eq!(work.kv_bytes(1), per_token);
        assert_eq!(per_token as usize, model.kv_bytes_per_token(KvCodecs::F32));
        let full: u64 = work.kv.iter().filter(|g| g.0.is_none()).map(|g| g.1).sum();
        let grown = work.kv_bytes(window + 10) - work.kv_bytes(window);
        assert_eq!(grown, 10 * full);
    }
}
