"""Architectures with a dense feed-forward network in every block."""

import math

import numpy as np

from .model import Model, attention, ends, feed_forward, shape, yarn


def blocks(m, n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, **more):
    """Plain blocks: norm, attention, norm, feed-forward."""
    for layer in range(n_layers):
        m.norm(f"blk.{layer}.attn_norm", d_model)
        attention(m, layer, d_model, n_heads, n_kv_heads, head_dim, **more)
        m.norm(f"blk.{layer}.ffn_norm", d_model)
        feed_forward(m, layer, d_model, d_ff)


def sandwich_blocks(m, n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, **more):
    """Gemma's: what a block adds is normed too."""
    for layer in range(n_layers):
        b = f"blk.{layer}"
        m.norm(f"{b}.attn_norm", d_model)
        attention(m, layer, d_model, n_heads, n_kv_heads, head_dim, **more)
        m.norm(f"{b}.post_attention_norm", d_model, base=1.5)
        m.norm(f"{b}.ffn_norm", d_model)
        feed_forward(m, layer, d_model, d_ff)
        m.norm(f"{b}.post_ffw_norm", d_model, base=1.5)


def llama3_rope_divisors(head_dim, base, factor, trained):
    """1 where a wave is short against the trained context, `factor` where it is long, a ramp between."""
    wave = 2 * math.pi / base ** (-2 * np.arange(head_dim // 2) / head_dim)
    low, high = 1.0, 4.0
    s = np.clip((trained / wave - low) / (high - low), 0, 1)
    return 1 / ((1 - s) / factor + s)


def llama():
    m = Model("llama", "llama", "llama3", "GQA 4/2, adjacent-pair rope with llama 3 divisors, output of its own")
    shape(m, 128, 2, 4, 2, 192, n_rot=32, base=500000.0)
    ends(m, 128)
    m.tensor("rope_freqs.weight", llama3_rope_divisors(head_dim=32, base=500000.0, factor=8.0, trained=64))
    blocks(m, 2, 128, 4, 2, 32, 192)
    return m


def llama_wide():
    """Rows of whole 256-element blocks, for the quantised files."""
    m = Model("q_llama", "llama", "llama3", "GQA 4/1, d_model 256, tied")
    shape(m, 256, 2, 4, 1, 512, n_rot=64, base=10000.0)
    ends(m, 256, tied=1.0)
    blocks(m, 2, 256, 4, 1, 64, 512)
    return m


def llama_yarn():
    m = Model("llama_yarn", "llama", "spm", "SentencePiece, head_dim 32 != d_model / n_heads, YaRN x4 from 32, tied, 4/1")
    shape(m, 64, 3, 4, 1, 128, head_dim=32, n_rot=32, base=10000.0)
    yarn(m, 4.0, 32)
    ends(m, 64, tied=1.0)
    blocks(m, 3, 64, 4, 1, 32, 128)
    return m


def mistral3():
    m = Model("mistral3", "mistral3", "tekken", "YaRN x4 from 32, q scaled by position from 32 on, head_dim 32 != 16")
    shape(m, 64, 3, 4, 2, 128, head_dim=32, n_rot=32, base=1e6)
    yarn(
        m,
        4.0,
        32,
        log_multiplier=1.0,
        rope__scaling__yarn_beta_fast=32.0,
        rope__scaling__yarn_beta_slow=1.0,
        attention__temperature_scale=0.3,
    )
    ends(m, 64)
    blocks(m, 3, 64, 4, 2, 32, 128)
    return m


def qwen2():
    m = Model("qwen2", "qwen2", "qwen2", "biases on q, k and v, rope in halves, tied")
    shape(m, 128, 2, 4, 2, 192, eps=1e-6, base=1e6)
    ends(m, 128, tied=1.0)
    blocks(m, 2, 128, 4, 2, 32, 192, bias=True)
    return m


def qwen3():
    m = Model("qwen3", "qwen3", "qwen2", "norm on each head of q and k before rope, head_dim 32 != 16, tied")
    shape(m, 64, 3, 4, 2, 128, eps=1e-6, head_dim=32, base=1e6)
    ends(m, 64, tied=1.0)
    blocks(m, 3, 64, 4, 2, 32, 128, qk_norm=1.4)
    return m


def gemma2():
    m = Model("gemma2", "gemma2", "gemma", "softcap 4 on scores, 10 on logits, window 16 on every other layer, tied")
    shape(m, 64, 4, 4, 2, 128, eps=1e-6, head_dim=32, base=10000.0)
    m.put(attention__sliding_window=16, attn_logit_softcapping=4.0, final_logit_softcapping=10.0)
    ends(m, 64, tied=0.8, norm_base=3.0)
    sandwich_blocks(m, 4, 64, 4, 2, 32, 128, gain=2.0)
    return m


def gemma3():
    m = Model("gemma3", "gemma3", "gemma", "window 16 on five of six layers with a rope of their own, q/k norms, softcap 8, tied")
    shape(m, 64, 7, 4, 2, 96, eps=1e-6, head_dim=32, base=1e6)
    m.put(
        attention__sliding_window=16,
        rope__freq_base_swa=10000.0,
        rope__scaling__type="linear",
        rope__scaling__factor=8.0,
        final_logit_softcapping=8.0,
    )
    ends(m, 64, tied=0.8, norm_base=3.0)
    sandwich_blocks(m, 7, 64, 4, 2, 32, 96, qk_norm=1.4)
    return m


def _phi3(name, trained, about):
    m = Model(name, "phi3", "phi3", f"fused qkv and gate|up, rope on 24 of 32, {about}", weight_set="phi3")
    d_model, d_ff = 128, 160
    shape(m, d_model, 2, 4, 2, d_ff, n_rot=24, base=10000.0, context=8192)
    m.put(rope__scaling__original_context_length=trained, rope__scaling__attn_factor=1.19)
    ends(m, d_model)
    m.tensor("rope_factors_long.weight", 1 + 3 * m.stream("rope_long").random(12))
    m.tensor("rope_factors_short.weight", 1 + 0.3 * m.stream("rope_short").random(12))
    for layer in range(2):
        b = f"blk.{layer}"
        m.norm(f"{b}.attn_norm", d_model)
        attention(m, layer, d_model, 4, 2, 32, fused=True)
        m.norm(f"{b}.ffn_norm", d_model)
        m.matrix(f"{b}.ffn_up", 2 * d_ff, d_model, gain=1.2)
        m.matrix(f"{b}.ffn_down", d_model, d_ff, gain=1.5)
    return m


def phi3():
    return _phi3("phi3", 4096, "short rope factors (trained for 4096)")


def phi3_long():
    return _phi3("phi3_long", 64, "long rope factors (trained for 64)")
