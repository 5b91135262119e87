"""Architectures whose feed-forward networks are mixtures of experts."""

import math

import numpy as np

from .model import Model, attention, ends, experts, feed_forward, shape, shared_expert, yarn


def llama_moe():
    m = Model("llama_moe", "llama", "spm", "Mixtral: softmax, 2 of 4 experts, renormalised; linear rope scaling x2")
    shape(m, 64, 2, 4, 2, 64, n_rot=16, base=10000.0)
    m.put(expert_count=4, expert_used_count=2, rope__scaling__type="linear", rope__scaling__factor=2.0)
    ends(m, 64)
    for layer in range(2):
        m.norm(f"blk.{layer}.attn_norm", 64)
        attention(m, layer, 64, 4, 2, 16)
        m.norm(f"blk.{layer}.ffn_norm", 64)
        experts(m, layer, 64, 64, 4)
    return m


def qwen3moe():
    m = Model("qwen3moe", "qwen3moe", "qwen2", "softmax, 2 of 8 experts in all layers, renormalised, q/k norms")
    shape(m, 64, 2, 4, 2, 128, eps=1e-6, head_dim=32, base=1e6)
    m.put(expert_count=8, expert_used_count=2, expert_feed_forward_length=32)
    ends(m, 64)
    for layer in range(2):
        m.norm(f"blk.{layer}.attn_norm", 64)
        attention(m, layer, 64, 4, 2, 32, qk_norm=1.4)
        m.norm(f"blk.{layer}.ffn_norm", 64)
        experts(m, layer, 64, 32, 8)
    return m


def qwen3moe_wide():
    """Rows of whole 256-element blocks, for the quantised files."""
    m = Model("q_qwen3moe", "qwen3moe", "qwen2", "2 of 4 experts, d_model 256, one layer, 4/1, tied")
    shape(m, 256, 1, 4, 1, 512, eps=1e-6, head_dim=64, base=1e6)
    m.put(expert_count=4, expert_used_count=2, expert_feed_forward_length=256)
    ends(m, 256, tied=0.7)
    m.norm("blk.0.attn_norm", 256)
    attention(m, 0, 256, 4, 1, 64, qk_norm=1.4)
    m.norm("blk.0.ffn_norm", 256)
    experts(m, 0, 256, 256, 4, router=3.0)
    return m


def olmoe():
    m = Model("olmoe", "olmoe", "olmo", "q/k norms over all heads at once, 2 of 8 experts, not renormalised")
    shape(m, 64, 2, 4, 4, 32, base=10000.0)
    m.put(expert_count=8, expert_used_count=2)
    ends(m, 64)
    for layer in range(2):
        b = f"blk.{layer}"
        m.norm(f"{b}.attn_norm", 64)
        attention(m, layer, 64, 4, 4, 16)
        m.norm(f"{b}.attn_q_norm", 64, base=1.4)
        m.norm(f"{b}.attn_k_norm", 64, base=1.4)
        m.norm(f"{b}.ffn_norm", 64)
        experts(m, layer, 64, 32, 8, down=4.0)
    return m


def granitemoe():
    m = Model("granitemoe", "granitemoe", "granite", "scales on embedding, residual, scores and logits; 2 of 8 and a shared expert")
    shape(m, 64, 2, 4, 2, 32, n_rot=16, base=10000.0)
    m.put(
        expert_count=8,
        expert_used_count=2,
        expert_shared_feed_forward_length=48,
        logit_scale=1.7,
        residual_scale=0.6,
        embedding_scale=2.0,
        attention__scale=0.3,
    )
    ends(m, 64, tied=1.2, norm_base=3.0)
    for layer in range(2):
        m.norm(f"blk.{layer}.attn_norm", 64)
        attention(m, layer, 64, 4, 2, 16, output_gain=2.0)
        m.norm(f"blk.{layer}.ffn_norm", 64)
        experts(m, layer, 64, 32, 8, down=4.0)
        shared_expert(m, layer, 64, 48)
    return m


def gpt_oss():
    m = Model("gpt_oss", "gpt-oss", "gptoss", "sinks, biases everywhere, window 16 on even layers, YaRN x4, clamped swiglu, 2 of 4")
    d_model, d_ff, n = 64, 64, 4
    shape(m, d_model, 4, 4, 2, d_ff, head_dim=64, n_rot=64, base=150000.0)
    yarn(m, 4.0, 32)
    m.put(attention__sliding_window=16, expert_count=n, expert_used_count=2, expert_feed_forward_length=d_ff)
    ends(m, d_model)
    for layer in range(4):
        b = f"blk.{layer}"
        m.norm(f"{b}.attn_norm", d_model)
        attention(m, layer, d_model, 4, 2, 64, bias=True, output_bias=True)
        m.vector(f"{b}.attn_sinks.weight", 4, std=1.0, mean=1.0)
        m.norm(f"{b}.post_attention_norm", d_model)
        m.matrix(f"{b}.ffn_gate_inp", n, d_model, gain=1.5)
        m.vector(f"{b}.ffn_gate_inp.bias", n, std=0.3)
        m.matrix(f"{b}.ffn_gate_exps", n, d_ff, d_model, gain=4.0)  # large: reaches the clamp at 7
        m.vector(f"{b}.ffn_gate_exps.bias", n, d_ff, std=0.5)
        m.matrix(f"{b}.ffn_up_exps", n, d_ff, d_model, gain=4.0)
        m.vector(f"{b}.ffn_up_exps.bias", n, d_ff, std=0.5)
        m.matrix(f"{b}.ffn_down_exps", n, d_model, d_ff, gain=0.15)
        m.vector(f"{b}.ffn_down_exps.bias", n, d_model, std=0.2)
    return m


def llama4():
    m = Model("llama4", "llama4", "llama4", "no rope on every 4th layer, q/k norms without weight after rope, 1 of 4 on odd layers")
    shape(m, 64, 4, 4, 2, 96, n_rot=16, base=500000.0)
    m.put(expert_count=4, expert_used_count=1, expert_feed_forward_length=32, interleave_moe_layer_step=2)
    ends(m, 64)
    for layer in range(4):
        m.norm(f"blk.{layer}.attn_norm", 64)
        attention(m, layer, 64, 4, 2, 16, gain=1.5)
        m.norm(f"blk.{layer}.ffn_norm", 64)
        if layer % 2:
            experts(m, layer, 64, 32, 4, down=2.5)
            shared_expert(m, layer, 64, 32)
        else:
            feed_forward(m, layer, 64, 96)
    return m


def _deepseek2(name, absorbed, about):
    """Latent attention: one KV head of 48 latent and 16 rotated elements, read by 4 heads."""
    m = Model(name, "deepseek2", "deepseek", about, weight_set="deepseek2")
    d_model, n_layers, n_heads, q_rank, kv_rank, nope, rope, v_dim = 64, 3, 4, 48, 48, 24, 16, 32
    d_ff, n, d_expert = 128, 8, 32
    shape(m, d_model, n_layers, n_heads, 1 if absorbed else n_heads, d_ff, eps=1e-6, n_rot=rope, base=10000.0)
    if absorbed:
        m.put(
            attention__key_length=kv_rank + rope,
            attention__value_length=kv_rank,
            attention__key_length_mla=nope + rope,
            attention__value_length_mla=v_dim,
        )
    else:
        m.put(attention__key_length=nope + rope, attention__value_length=v_dim)
    m.put(
        attention__q_lora_rank=q_rank,
        attention__kv_lora_rank=kv_rank,
        leading_dense_block_count=1,
        expert_count=n,
        expert_used_count=3,
        expert_shared_count=1,
        expert_feed_forward_length=d_expert,
        expert_weights_scale=2.5,
        expert_weights_norm=True,
        expert_gating_func=2,
        expert_group_count=4,
        expert_group_used_count=2,
    )
    yarn(m, 4.0, 32, log_multiplier=0.1)
    ends(m, d_model)
    for layer in range(n_layers):
        b = f"blk.{layer}"
        m.norm(f"{b}.attn_norm", d_model)
        m.matrix(f"{b}.attn_q_a", q_rank, d_model)
        m.norm(f"{b}.attn_q_a_norm", q_rank)
        m.matrix(f"{b}.attn_q_b", n_heads * (nope + rope), q_rank, gain=1.4)
        m.matrix(f"{b}.attn_kv_a_mqa", kv_rank + rope, d_model)
        m.norm(f"{b}.attn_kv_a_norm", kv_rank)
        k = m.draw(f"{b}.attn_k_b", (n_heads, nope, kv_rank)) * (1.4 / math.sqrt(kv_rank))
        v = m.draw(f"{b}.attn_v_b", (n_heads, v_dim, kv_rank)) / math.sqrt(kv_rank)
        if absorbed:
            m.tensor(f"{b}.attn_k_b.weight", k.transpose(0, 2, 1))
            m.tensor(f"{b}.attn_v_b.weight", v)
        else:
            m.tensor(f"{b}.attn_kv_b.weight", np.concatenate([k, v], axis=1).reshape(-1, kv_rank))
        m.matrix(f"{b}.attn_output", d_model, n_heads * v_dim)
        m.norm(f"{b}.ffn_norm", d_model)
        if layer == 0:
            feed_forward(m, layer, d_model, d_ff)
        else:
            experts(m, layer, d_model, d_expert, n, down=1.5)
            m.vector(f"{b}.exp_probs_b.bias", n, std=0.2)
            shared_expert(m, layer, d_model, d_expert)
    return m


def deepseek2():
    about = "latent attention, absorbed; sigmoid + bias, 2 of 4 groups, 3 of 8 experts x2.5 and a shared one"
    return _deepseek2("deepseek2", True, about)


def deepseek2_kvb():
    return _deepseek2("deepseek2_kvb", False, "= deepseek2 with the legacy attn_kv_b")
