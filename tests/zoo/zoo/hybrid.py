"""Hybrids of gated delta nets and gated attention, with a block that predicts the token after the next."""

import math

import numpy as np

from .model import Model, attention, ends, experts, feed_forward, shape, shared_expert

D_MODEL = 64


def _delta_parameters(m, layer, n_k, n_v, width):
    b = f"blk.{layer}"
    m.tensor(f"{b}.ssm_conv1d.weight", m.draw(f"{b}.ssm_conv1d", (2 * n_k * width + n_v * width, 4)) * 0.5)
    m.tensor(f"{b}.ssm_dt.bias", m.stream(f"{b}.ssm_dt").uniform(-4, 0, n_v))
    # -exp(A_log), as files hold it
    m.tensor(f"{b}.ssm_a", -np.exp(m.stream(f"{b}.ssm_a").uniform(math.log(0.3), math.log(4.0), n_v)))
    m.norm(f"{b}.ssm_norm", width)
    m.matrix(f"{b}.ssm_out", D_MODEL, n_v * width)


def _tiled_delta_net(m, layer, n_k, n_v, width):
    """qwen3.5: value head h uses key head h % n_k."""
    b = f"blk.{layer}"
    m.matrix(f"{b}.attn_qkv", 2 * n_k * width + n_v * width, D_MODEL, gain=1.2)
    m.matrix(f"{b}.attn_gate", n_v * width, D_MODEL, gain=1.5)
    m.matrix(f"{b}.ssm_beta", n_v, D_MODEL, gain=1.5)
    m.matrix(f"{b}.ssm_alpha", n_v, D_MODEL, gain=0.7)
    _delta_parameters(m, layer, n_k, n_v, width)


def _grouped_delta_net(m, layer, n_k, n_v, width, packed):
    """qwen3-next: value head h uses key head h // (n_v / n_k). packed: one ssm_in with the rows q, k, v, z of each
    key head, as older files have it."""
    b, group = f"blk.{layer}", n_v // n_k
    qkv = m.draw(f"{b}.attn_qkv", (2 * n_k * width + n_v * width, D_MODEL)) * (1.2 / math.sqrt(D_MODEL))
    z = m.draw(f"{b}.attn_gate", (n_v * width, D_MODEL)) * (1.5 / math.sqrt(D_MODEL))
    if packed:
        q, k, v = np.split(qkv, [n_k * width, 2 * n_k * width])
        heads = [part.reshape(n_k, -1, D_MODEL) for part in (q, k, v, z)]
        m.tensor(f"{b}.ssm_in.weight", np.concatenate(heads, axis=1).reshape(-1, D_MODEL))
    else:
        m.tensor(f"{b}.attn_qkv.weight", qkv)
        m.tensor(f"{b}.attn_gate.weight", z)
    beta = m.draw(f"{b}.ssm_beta", (n_k, group, D_MODEL)) * (1.5 / math.sqrt(D_MODEL))
    alpha = m.draw(f"{b}.ssm_alpha", (n_k, group, D_MODEL)) * (0.7 / math.sqrt(D_MODEL))
    m.tensor(f"{b}.ssm_ba.weight", np.concatenate([beta, alpha], axis=1).reshape(2 * n_v, D_MODEL))
    _delta_parameters(m, layer, n_k, n_v, width)


def _next_token_block(m, layer):
    """What a block that predicts one token further has beside a block of full attention."""
    b = f"blk.{layer}.nextn"
    m.matrix(f"{b}.eh_proj", D_MODEL, 2 * D_MODEL, gain=1.4)
    m.norm(f"{b}.enorm", D_MODEL)
    m.norm(f"{b}.hnorm", D_MODEL)
    m.norm(f"{b}.shared_head_norm", D_MODEL)


def _hybrid(
    m,
    n_layers,
    interval,
    mtp=1,
    heads=(4, 2, 32),
    n_rot=16,
    width=32,
    sections=True,
    grouped=False,
    packed=False,
    moe=True,
    merged=False,
    tied=None,
):
    """n_layers, of which every `interval`th is gated attention (heads: q, kv, head_dim), and mtp more blocks."""
    (n_heads, n_kv_heads, head_dim), n_k, n_v, d_ff, d_expert = heads, 2, 4, 64, 16
    shape(m, D_MODEL, n_layers + mtp, n_heads, n_kv_heads, d_ff, eps=1e-6, head_dim=head_dim, n_rot=n_rot, base=1e7)
    m.put(
        ssm__conv_kernel=4,
        ssm__state_size=width,
        ssm__group_count=n_k,
        ssm__time_step_rank=n_v,
        ssm__inner_size=n_v * width,
        full_attention_interval=interval,
    )
    if sections:
        pairs = n_rot // 2
        m.put(rope__dimension_sections=[pairs - 2 * (pairs // 3), pairs // 3, pairs // 3, 0])
    if mtp:
        m.put(nextn_predict_layers=mtp)
    if moe:
        m.put(
            expert_count=8,
            expert_used_count=2,
            expert_feed_forward_length=d_expert,
            expert_shared_feed_forward_length=d_expert,
        )
    ends(m, D_MODEL, tied)
    for layer in range(n_layers + mtp):
        m.norm(f"blk.{layer}.attn_norm", D_MODEL)
        if layer >= n_layers or (layer + 1) % interval == 0:
            attention(m, layer, D_MODEL, n_heads, n_kv_heads, head_dim, qk_norm=1.4, q_rows=2)
        elif grouped:
            _grouped_delta_net(m, layer, n_k, n_v, width, packed)
        else:
            _tiled_delta_net(m, layer, n_k, n_v, width)
        m.norm(f"blk.{layer}.post_attention_norm", D_MODEL)
        if moe:
            experts(m, layer, D_MODEL, d_expert, 8, merged=merged)
            shared_expert(m, layer, D_MODEL, d_expert, gated=True)
        else:
            feed_forward(m, layer, D_MODEL, d_ff)
        if layer >= n_layers:
            _next_token_block(m, layer)
    return m


def qwen35():
    m = Model("qwen35", "qwen35", "qwen35", "8 layers, attention at 3 and 7, tiled value heads, dense")
    return _hybrid(m, 8, 4, moe=False)


def qwen35_d256():
    m = Model("qwen35_d256", "qwen35", "qwen35", "head sizes of the real model: 256 and 128; tied, no block for the next token")
    return _hybrid(m, 2, 2, mtp=0, heads=(2, 1, 256), n_rot=64, width=128, moe=False, tied=1.0)


def qwen35moe():
    m = Model("qwen35moe", "qwen35moe", "qwen35", "4 layers, 2 of 8 experts and a gated shared one")
    return _hybrid(m, 4, 2)


def qwen35moe_merged():
    m = Model("qwen35moe_merged", "qwen35moe", "qwen35", "= qwen35moe with gate and up in one tensor", weight_set="qwen35moe")
    return _hybrid(m, 4, 2, merged=True)


def qwen3next():
    m = Model("qwen3next", "qwen3next", "qwen2", "grouped value heads, 2 of 8 experts and a gated shared one")
    return _hybrid(m, 4, 2, grouped=True, sections=False)


def qwen3next_legacy():
    m = Model("qwen3next_legacy", "qwen3next", "qwen2", "= qwen3next with the packed ssm_in", weight_set="qwen3next")
    return _hybrid(m, 4, 2, grouped=True, sections=False, packed=True)
