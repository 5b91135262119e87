"""A model as named tensors and metadata, and the GGUF file of it."""

import hashlib
import math

import gguf
import numpy as np
from gguf import quants

from .vocabulary import VOCAB, add_tokenizer

SEED = 7
# Salts of the weight sets, found by search: no near tie in the choice of experts on the golden tokens, and
# greedy output that varies.
SALTS = {
    "deepseek2": 2,
    "gemma2": 5,
    "gemma4_moe": 8,
    "gpt_oss": 1,
    "granitemoe": 17,
    "llama4": 11,
    "llama_moe": 1,
    "olmoe": 29,
    "q_qwen3moe": 40,
    "qwen35": 1,
    "qwen35_d256": 1,
    "qwen35moe": 11,
    "qwen3moe": 27,
    "qwen3next": 25,
}

# Parts of names of tensors that stay f32 in every file.
KEPT_F32 = (
    "_norm",
    "ffn_gate_inp",
    "ssm_conv1d",
    "rope_f",
    "exp_probs_b",
    "attn_sinks",
    "layer_output_scale",
    "nextn.enorm",
    "nextn.hnorm",
)

# general.file_type of a file of one tensor type
FILE_TYPES = {
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "BF16": 32,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4": 38,
}


class Model:
    """Tensors and `<architecture>.*` metadata, in the order they are written.

    Every tensor has its own random stream, seeded by weight set and name, so adding one never changes
    another; models of one weight set share their weights (layouts that must give the same logits).
    Matrices are N(0, gain^2 / fan_in): an input of RMS 1 gives an output of RMS ~gain. Norm weights are
    1 + 0.2 N(0, 1), the "+1" of gemma and qwen3.5 already added.
    """

    def __init__(self, name, architecture, tokenizer, about, weight_set=None):
        self.name, self.architecture, self.tokenizer, self.about = name, architecture, tokenizer, about
        self.weight_set = weight_set or name
        self.metadata, self.tensors = {}, {}

    def put(self, **values):
        """Metadata; a dot in a key is written as two underscores."""
        for key, value in values.items():
            self.metadata[f"{self.architecture}.{key.replace('__', '.')}"] = value

    def stream(self, name):
        seed = f"zoo/{SEED}.{SALTS.get(self.weight_set, 0)}/{self.weight_set}/{name}"
        digest = hashlib.sha256(seed.encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))

    def draw(self, name, shape):
        return self.stream(name).standard_normal(shape, dtype=np.float32)

    def tensor(self, name, values):
        assert name not in self.tensors, name
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def matrix(self, name, *shape, gain=1.0):
        """A matrix (out, in), or a stack of them."""
        values = self.draw(name, shape) * np.float32(gain / math.sqrt(shape[-1]))
        self.tensor(f"{name}.weight", values)

    def norm(self, name, width, base=1.0):
        self.tensor(f"{name}.weight", base * (1 + 0.2 * self.draw(name, (width,))))

    def vector(self, name, *shape, std=0.1, mean=0.0):
        """A tensor whose full name is `name`."""
        self.tensor(name, mean + std * self.draw(name, shape))

    def write(self, path, stored=None):
        """Writes the file: f32, or every matrix in the type `stored` ("experts:TYPE": only the experts')."""
        w = gguf.GGUFWriter(str(path), self.architecture)
        w.add_name(f"zoo-{self.name}")
        w.add_description("random weights, for correctness tests only")
        w.add_file_type(FILE_TYPES.get(stored, 0))
        if stored is not None:
            w.add_quantization_version(2)
        for key, value in self.metadata.items():
            add_value(w, key, value)
        add_tokenizer(w, self.tokenizer)
        for name, values in self.tensors.items():
            tensor_type = type_of(name, values, stored)
            if tensor_type is None:
                w.add_tensor(name, values)
            else:
                w.add_tensor(name, quants.quantize(values, tensor_type), raw_dtype=tensor_type)
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()


def type_of(name, values, stored):
    """The type a tensor is stored in; none: f32, as are routers, convolutions, norms, biases, and rows that
    are no whole number of blocks."""
    if stored is None or values.ndim < 2 or not name.endswith(".weight") or any(part in name for part in KEPT_F32):
        return None
    experts_only, _, type_name = stored.rpartition(":")
    tensor_type = gguf.GGMLQuantizationType[type_name]
    if experts_only:
        return tensor_type if "_exps." in name else None
    block, _ = gguf.GGML_QUANT_SIZES[tensor_type]
    return tensor_type if values.shape[-1] % block == 0 else None


def add_value(writer, key, value):
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


# ------------------------------------------------------------------------------------- metadata


def shape(m, d_model, n_layers, n_heads, n_kv_heads, d_ff, eps=1e-5, context=4096, head_dim=None, n_rot=None, base=None):
    """The metadata every architecture has; head_dim only where it is not d_model / n_heads."""
    m.put(
        context_length=context,
        embedding_length=d_model,
        block_count=n_layers,
        attention__head_count=n_heads,
        attention__layer_norm_rms_epsilon=eps,
        vocab_size=VOCAB,
        attention__head_count_kv=n_kv_heads,
        feed_forward_length=d_ff,
    )
    if head_dim is not None:
        m.put(attention__key_length=head_dim, attention__value_length=head_dim)
    if n_rot is not None:
        m.put(rope__dimension_count=n_rot)
    if base is not None:
        m.put(rope__freq_base=float(base))


def yarn(m, factor, trained, log_multiplier=None, **more):
    m.put(
        rope__scaling__type="yarn",
        rope__scaling__factor=float(factor),
        rope__scaling__original_context_length=trained,
    )
    if log_multiplier is not None:
        m.put(rope__scaling__yarn_log_multiplier=float(log_multiplier))
    m.put(**more)


# -------------------------------------------------------------------------------------- tensors


def ends(m, d_model, tied=None, norm_base=2.0):
    """Token embedding, final norm, and an output matrix unless it is tied.

    Tied (the value is the embedding's gain): embeddings are small, so that the blocks dominate the residual
    stream and the model does not just repeat its input; a larger final norm brings the logits back to a
    useful range.
    """
    if tied is None:
        m.tensor("token_embd.weight", m.draw("token_embd", (VOCAB, d_model)))
        m.norm("output_norm", d_model)
        m.matrix("output", VOCAB, d_model, gain=2.5)
    else:
        m.matrix("token_embd", VOCAB, d_model, gain=tied)
        m.norm("output_norm", d_model, base=norm_base)


def attention(
    m,
    layer,
    d_model,
    n_heads,
    n_kv_heads,
    head_dim,
    bias=False,
    output_bias=False,
    qk_norm=None,
    q_rows=1,
    gain=1.4,
    output_gain=1.0,
    fused=False,
):
    """Projections of attention. fused: one matrix with the rows of q, k, v; qk_norm: base of the heads' norms;
    q_rows: rows of q for each of a head's elements (2 where a gate lies beside it)."""
    b, q, kv = f"blk.{layer}", n_heads * head_dim, n_kv_heads * head_dim
    if fused:
        m.matrix(f"{b}.attn_qkv", q + 2 * kv, d_model, gain=gain)
    else:
        m.matrix(f"{b}.attn_q", q * q_rows, d_model, gain=gain)
        m.matrix(f"{b}.attn_k", kv, d_model, gain=gain)
        m.matrix(f"{b}.attn_v", kv, d_model)
    m.matrix(f"{b}.attn_output", d_model, q, gain=output_gain)
    if bias:
        m.vector(f"{b}.attn_q.bias", q, std=0.5)
        m.vector(f"{b}.attn_k.bias", kv, std=0.5)
        m.vector(f"{b}.attn_v.bias", kv, std=0.3)
    if output_bias:
        m.vector(f"{b}.attn_output.bias", d_model, std=0.2)
    if qk_norm is not None:
        m.norm(f"{b}.attn_q_norm", head_dim, base=qk_norm)
        m.norm(f"{b}.attn_k_norm", head_dim, base=qk_norm)


def feed_forward(m, layer, d_model, d_ff, kind="", down=1.5):
    """A gated feed-forward network; kind "_shexp": the expert that all tokens share."""
    b = f"blk.{layer}"
    m.matrix(f"{b}.ffn_gate{kind}", d_ff, d_model, gain=1.4)
    m.matrix(f"{b}.ffn_up{kind}", d_ff, d_model)
    m.matrix(f"{b}.ffn_down{kind}", d_model, d_ff, gain=down)


def experts(m, layer, d_model, d_ff, n, down=2.0, router=1.5, merged=False):
    """Router and n experts; merged: the rows of gate, then those of up, in one tensor."""
    b = f"blk.{layer}"
    m.matrix(f"{b}.ffn_gate_inp", n, d_model, gain=router)
    gate = m.draw(f"{b}.ffn_gate_exps", (n, d_ff, d_model)) * (1.4 / math.sqrt(d_model))
    up = m.draw(f"{b}.ffn_up_exps", (n, d_ff, d_model)) / math.sqrt(d_model)
    if merged:
        m.tensor(f"{b}.ffn_gate_up_exps.weight", np.concatenate([gate, up], axis=1))
    else:
        m.tensor(f"{b}.ffn_gate_exps.weight", gate)
        m.tensor(f"{b}.ffn_up_exps.weight", up)
    m.matrix(f"{b}.ffn_down_exps", n, d_model, d_ff, gain=down)


def shared_expert(m, layer, d_model, d_ff, gated=False):
    """The expert every token goes through; gated: by one value a token, a tensor (d_model)."""
    feed_forward(m, layer, d_model, d_ff, kind="_shexp", down=1.0)
    if gated:
        name = f"blk.{layer}.ffn_gate_inp_shexp"
        m.tensor(f"{name}.weight", m.draw(name, (d_model,)) * (1.5 / math.sqrt(d_model)))
