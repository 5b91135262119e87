#!/usr/bin/env python3
"""Write the zoo: tiny llama models with seeded random weights, against which the engine's logits are checked.

    make_zoo.py --out DIR [NAME ...]     all models, or the named ones (llama.f32, llama.q8_0, ...)
    make_zoo.py --list                   names and what each exercises

A file that is already there with the right sha256 is left alone; a file that does not come out byte
for byte as its golden record (golden/NAME.golden.json) says is an error and is not left behind. Needs
numpy and the `gguf` package (requirements.txt beside this file); nothing is downloaded.

Rules
  * Shapes are written (out, in), numpy order; GGUF stores them reversed, ne = {in, out}.
  * Every tensor has its own random stream, seeded by its name, so adding one never changes another.
  * Matrices are N(0, gain^2 / fan_in): an input of RMS 1 gives an output of RMS ~gain.
    Norm weights are 1 + 0.2 N(0, 1).
"""

import argparse
import hashlib
import json
import math
import os
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import quants

SEED = "zoo/7.0"
VOCAB = 384
GOLDEN = Path(__file__).resolve().parent / "golden"

# ---------------------------------------------------------------------------------- tokenizer

CORPUS = """the quick brown fox jumps over the lazy dog. the cat sat on the mat and the dog ran to the
river in the morning. there are seven tokens in this test and the engine should return the same answer
each time it is started. when the window is small the attention should not see the first word. numbers
like 10 and 25 and 100 are here, and so is some code: for i in range(10): print(i). it is not the end;
there is another line, and then one more before the test stops. the engine reads the weights, the engine
writes the tokens, and the reader checks that the numbers agree within the noise of the machine."""

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
BOS, EOS = 0, 4  # places in SPECIALS


def byte_characters():
    """GPT-2's table: each byte as one printable character."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(rest)}


def learn_merges(words, limit):
    """Byte-pair training on tuples of symbols; ties fall to the smallest pair, so it is deterministic."""
    words, merges = [list(w) for w in words], []
    while len(merges) < limit:
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        best = max(sorted(counts), key=lambda pair: counts[pair])
        merges.append(best)
        for word in words:
            i = 0
            while i + 1 < len(word):
                if (word[i], word[i + 1]) == best:
                    word[i : i + 2] = [word[i] + word[i + 1]]
                else:
                    i += 1
    return merges


def vocabulary():
    """256 byte tokens, then merged pieces, then the special tokens."""
    table = byte_characters()
    words = [tuple(table[b] for b in ((" " if i else "") + w).encode()) for i, w in enumerate(CORPUS.split())]
    tokens, merges = [table[b] for b in range(256)], []
    known = set(tokens)
    for a, b in learn_merges(words, 400):
        if len(tokens) + len(SPECIALS) == VOCAB:
            break
        merges.append(f"{a} {b}")
        if a + b not in known:
            known.add(a + b)
            tokens.append(a + b)
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * len(SPECIALS)
    return tokens + SPECIALS, types, merges


def add_tokenizer(writer):
    tokens, types, merges = vocabulary()
    assert len(tokens) == VOCAB
    first_special = VOCAB - len(SPECIALS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(first_special + BOS)
    writer.add_eos_token_id(first_special + EOS)
    writer.add_add_bos_token(True)


# -------------------------------------------------------------------------------------- model


class Model:
    """Named tensors and `llama.*` metadata, in the order they are written."""

    def __init__(self, weight_set, d_model, d_ff, n_layers, n_heads, n_kv_heads, head_dim, rope_base):
        self.weight_set, self.tensors = weight_set, {}
        self.metadata = {
            "context_length": 4096,
            "embedding_length": d_model,
            "block_count": n_layers,
            "attention.head_count": n_heads,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "vocab_size": VOCAB,
            "attention.head_count_kv": n_kv_heads,
            "feed_forward_length": d_ff,
            "rope.dimension_count": head_dim,
            "rope.freq_base": float(rope_base),
        }

    def draw(self, name, shape):
        seed = hashlib.sha256(f"{SEED}/{self.weight_set}/{name}".encode()).digest()
        stream = np.random.Generator(np.random.PCG64(int.from_bytes(seed[:16], "little")))
        return stream.standard_normal(shape, dtype=np.float32)

    def tensor(self, name, values):
        assert name not in self.tensors, name
        self.tensors[name] = np.ascontiguousarray(values, dtype=np.float32)

    def matrix(self, name, d_out, d_in, gain=1.0):
        self.tensor(f"{name}.weight", self.draw(name, (d_out, d_in)) * np.float32(gain / math.sqrt(d_in)))

    def norm(self, name, width, scale=1.0):
        self.tensor(f"{name}.weight", scale * (1 + 0.2 * self.draw(name, (width,))))

    def block(self, layer, d_model, d_ff, n_heads, n_kv_heads, head_dim):
        b = f"blk.{layer}"
        self.norm(f"{b}.attn_norm", d_model)
        self.matrix(f"{b}.attn_q", n_heads * head_dim, d_model, gain=1.4)
        self.matrix(f"{b}.attn_k", n_kv_heads * head_dim, d_model, gain=1.4)
        self.matrix(f"{b}.attn_v", n_kv_heads * head_dim, d_model)
        self.matrix(f"{b}.attn_output", d_model, n_heads * head_dim)
        self.norm(f"{b}.ffn_norm", d_model)
        self.matrix(f"{b}.ffn_gate", d_ff, d_model, gain=1.4)
        self.matrix(f"{b}.ffn_up", d_ff, d_model)
        self.matrix(f"{b}.ffn_down", d_model, d_ff, gain=1.5)


def llama():
    """4 query heads on 2 KV heads, llama-3 rope_freqs divisors, output matrix of its own."""
    shape = dict(d_model=128, d_ff=192, n_heads=4, n_kv_heads=2, head_dim=32)
    m = Model("llama", n_layers=2, rope_base=500000.0, **shape)
    m.tensor("token_embd.weight", m.draw("token_embd", (VOCAB, 128)))
    m.norm("output_norm", 128)
    m.matrix("output", VOCAB, 128, gain=2.5)
    m.tensor("rope_freqs.weight", llama3_rope_divisors(head_dim=32, base=500000.0, factor=8.0, trained=64))
    for layer in range(2):
        m.block(layer, **shape)
    return m


def llama_wide():
    """Rows of whole 256-element blocks for the quantised types: 4 query heads on 1 KV head, tied output."""
    shape = dict(d_model=256, d_ff=512, n_heads=4, n_kv_heads=1, head_dim=64)
    m = Model("q_llama", n_layers=2, rope_base=10000.0, **shape)
    m.matrix("token_embd", VOCAB, 256)
    # Tied: embeddings are small, so that the blocks dominate the residual stream; a larger final norm
    # brings the logits back to a useful range.
    m.norm("output_norm", 256, scale=2.0)
    for layer in range(2):
        m.block(layer, **shape)
    return m


def llama3_rope_divisors(head_dim, base, factor, trained):
    """1 where a wave is short against the trained context, `factor` where it is long, a ramp between."""
    wave = 2 * math.pi / base ** (-2 * np.arange(head_dim // 2) / head_dim)
    low, high = 1.0, 4.0
    s = np.clip((trained / wave - low) / (high - low), 0, 1)
    return 1 / ((1 - s) / factor + s)


# ------------------------------------------------------------------------------------ writing

# name: (model, its name in the file, tensor type of the matrices, general.file_type)
ZOO = {
    "llama.f32": (llama, "llama", None, 0),
    "llama.f16": (llama, "llama", gguf.GGMLQuantizationType.F16, 1),
    "llama.bf16": (llama, "llama", gguf.GGMLQuantizationType.BF16, 32),
    "llama.q8_0": (llama_wide, "q_llama", gguf.GGMLQuantizationType.Q8_0, 7),
    "llama.q4_1": (llama_wide, "q_llama", gguf.GGMLQuantizationType.Q4_1, 3),
}


def add_metadata(writer, metadata):
    adders = {int: writer.add_uint32, float: writer.add_float32}
    for key, value in metadata.items():
        adders[type(value)](f"llama.{key}", value)


def write(path, model, label, tensor_type, file_type):
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_name(f"zoo-{label}")
    w.add_description("random weights, for correctness tests only")
    w.add_file_type(file_type)
    if tensor_type is not None:
        w.add_quantization_version(2)
    add_metadata(w, model.metadata)
    add_tokenizer(w)
    for name, values in model.tensors.items():
        if tensor_type is None or values.ndim < 2:
            w.add_tensor(name, values)
        else:
            w.add_tensor(name, quants.quantize(values, tensor_type), raw_dtype=tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(name, out):
    """Returns what was done, in a word; raises where the bytes are not those of the golden record."""
    expected = json.loads((GOLDEN / f"{name}.golden.json").read_text())["sha256"]
    path = out / f"{name}.gguf"
    if path.is_file() and sha256(path) == expected:
        return "kept"
    model, label, tensor_type, file_type = ZOO[name]
    part = out / f"{name}.gguf.{os.getpid()}.part"
    try:
        write(part, model(), label, tensor_type, file_type)
        if (got := sha256(part)) != expected:
            raise SystemExit(
                f"make_zoo: {name}: sha256 {got}, not {expected}; "
                f"numpy {np.__version__} may draw or round otherwise than the versions in requirements.txt"
            )
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return "written"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.list:
        for name, (model, *_) in ZOO.items():
            print(f"{name:12s} {model.__doc__}")
        return
    if args.out is None:
        parser.error("--out DIR is needed")
    if unknown := [n for n in args.names if n not in ZOO]:
        parser.error(f"unknown model {unknown[0]!r}; there are {', '.join(ZOO)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.names or ZOO:
        print(f"{name:12s} {make(name, args.out)}", file=sys.stderr)


if __name__ == "__main__":
    main()
