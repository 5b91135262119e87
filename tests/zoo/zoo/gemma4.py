"""Gemma 4: two head sizes, layers that share KV, inputs for each layer, experts beside the dense network."""

import math

import numpy as np

from .model import VOCAB, Model, ends, feed_forward, shape

# 25 % of the 64 elements of a global head rotate.
ROPE_DIVISORS = np.array([1.0] * 8 + [1e30] * 24)


def _metadata(m, windowed, shared_kv_layers, per_layer_width):
    m.put(
        attention__key_length_swa=32,
        attention__value_length_swa=32,
        rope__dimension_count_swa=32,
        rope__freq_base_swa=10000.0,
        attention__sliding_window=16,
        attention__sliding_window_pattern=windowed,
        attention__shared_kv_layers=shared_kv_layers,
        embedding_length_per_layer_input=per_layer_width,
        final_logit_softcapping=8.0,
    )


def gemma4():
    m = Model("gemma4", "gemma4", "gemma4", "the last 3 layers reuse KV and are twice as wide, inputs for each layer, output scales")
    d_model, n_layers, n_heads, d_ff, width = 64, 6, 4, 64, 16
    windowed = [True, True, False] * 2
    widths = [d_ff] * 3 + [2 * d_ff] * 3
    shape(m, d_model, n_layers, n_heads, 1, widths, eps=1e-6, head_dim=64, n_rot=64, base=1e6)
    _metadata(m, windowed, 3, width)
    ends(m, d_model, tied=0.8, norm_base=3.0)
    m.tensor("rope_freqs.weight", ROPE_DIVISORS)
    rows = width * n_layers
    m.matrix("per_layer_token_embd", VOCAB, rows, gain=math.sqrt(rows) / math.sqrt(width))
    m.matrix("per_layer_model_proj", rows, d_model, gain=8.0)
    m.norm("per_layer_proj_norm", width)
    for layer in range(n_layers):
        b, head_dim = f"blk.{layer}", 32 if windowed[layer] else 64
        m.norm(f"{b}.attn_norm", d_model)
        m.matrix(f"{b}.attn_q", n_heads * head_dim, d_model)
        m.norm(f"{b}.attn_q_norm", head_dim, base=0.6)
        if layer < 3:
            m.matrix(f"{b}.attn_k", head_dim, d_model)
            m.norm(f"{b}.attn_k_norm", head_dim, base=0.6)
            m.matrix(f"{b}.attn_v", head_dim, d_model)
        m.matrix(f"{b}.attn_output", d_model, n_heads * head_dim)
        m.norm(f"{b}.post_attention_norm", d_model, base=1.5)
        m.norm(f"{b}.ffn_norm", d_model)
        feed_forward(m, layer, d_model, widths[layer])
        m.norm(f"{b}.post_ffw_norm", d_model, base=1.5)
        m.matrix(f"{b}.inp_gate", width, d_model)
        m.matrix(f"{b}.proj", d_model, width)
        m.norm(f"{b}.post_norm", d_model)
        m.tensor(f"{b}.layer_output_scale.weight", np.array([0.8 + 0.05 * layer]))
    return m


def gemma4_moe():
    m = Model("gemma4_moe", "gemma4", "gemma4", "2 of 8 experts beside the dense network, global layers without V, KV heads 2 and 1")
    d_model, n_layers, n_heads, d_ff, d_expert, n = 64, 3, 4, 64, 32, 8
    windowed = [True, True, False]
    n_kv_heads = [2 if local else 1 for local in windowed]
    shape(m, d_model, n_layers, n_heads, n_kv_heads, d_ff, eps=1e-6, head_dim=64, n_rot=64, base=1e6)
    _metadata(m, windowed, 0, 0)
    m.put(expert_count=n, expert_used_count=2, expert_feed_forward_length=d_expert)
    ends(m, d_model, tied=0.8, norm_base=3.0)
    m.tensor("rope_freqs.weight", ROPE_DIVISORS)
    for layer in range(n_layers):
        b, head_dim = f"blk.{layer}", 32 if windowed[layer] else 64
        kv = n_kv_heads[layer] * head_dim
        m.norm(f"{b}.attn_norm", d_model)
        m.matrix(f"{b}.attn_q", n_heads * head_dim, d_model)
        m.norm(f"{b}.attn_q_norm", head_dim, base=0.6)
        m.matrix(f"{b}.attn_k", kv, d_model)
        m.norm(f"{b}.attn_k_norm", head_dim, base=0.6)
        if windowed[layer]:
            m.matrix(f"{b}.attn_v", kv, d_model)
        m.matrix(f"{b}.attn_output", d_model, n_heads * head_dim)
        m.norm(f"{b}.post_attention_norm", d_model, base=1.5)
        m.norm(f"{b}.ffn_norm", d_model)
        feed_forward(m, layer, d_model, d_ff)
        m.norm(f"{b}.post_ffw_norm_1", d_model)
        m.norm(f"{b}.pre_ffw_norm_2", d_model)
        m.norm(f"{b}.post_ffw_norm_2", d_model)
        m.norm(f"{b}.post_ffw_norm", d_model, base=1.5)
        m.matrix(f"{b}.ffn_gate_inp", n, d_model, gain=12.0)
        m.tensor(f"{b}.ffn_gate_inp.scale", 1 + 0.2 * m.draw(f"{b}.gis", (d_model,)))
        m.matrix(f"{b}.ffn_gate_up_exps", n, 2 * d_expert, d_model, gain=1.2)
        m.matrix(f"{b}.ffn_down_exps", n, d_model, d_expert, gain=2.0)
        m.tensor(f"{b}.ffn_down_exps.scale", 1 + 0.3 * m.draw(f"{b}.des", (n,)))
        m.tensor(f"{b}.layer_output_scale.weight", np.array([0.8 + 0.05 * layer]))
    return m
