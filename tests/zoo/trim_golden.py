#!/usr/bin/env python3
"""Cut the golden records of the whole zoo down to what the tests of this repository read.

    trim_golden.py ZOO        ZOO: the directory that holds out/ and variants/

Writes golden/NAME.golden.{json,bin} for every model that this repository can write or holds
(models.sha256 names all models, golden/ has those of the hybrids no record yet: no release runs them).
"""

import json
import sys
from pathlib import Path

from make_zoo import HERE, ZOO

STORED = ["llama.q4_k", "llama.q6_k", "llama.iq2_xs", "llama.iq1_m"]
LATER = ("qwen35", "qwen3next")

PLAIN = ["logits_batch", "logits_step", "l_out", "greedy", "greedy_gap"]
# llama.cpp's GELU is a table of f16 values: gemma is compared with the float64 reference instead.
GEMMA = ["ref_logits_batch", "logits_step", "l_out", "greedy", "greedy_gap"]
DEQUANTISED = ["deq_logits_batch", "deq_greedy", "deq_greedy_gap"]
KEPT_FIELDS = ["model", "sha256", "version", "tokens", "positions", "batch_positions", "tokenize"]
KEPT_NOISE = ["step", "f16kv", "vs_deq", "deq_step"]


def wanted(name, array):
    if array in ("moe_margin",) or array.startswith("moe_topk-"):
        return name.endswith(".f32")
    if not name.endswith(".f32"):
        return array in DEQUANTISED
    return array in (GEMMA if name.startswith("gemma") else PLAIN)


def trim(source, name):
    record = json.loads((source / f"{name}.golden.json").read_text())
    whole = (source / f"{name}.golden.bin").read_bytes()
    kept, arrays = bytearray(), {}
    for array, place in record["arrays"].items():
        if wanted(name, array):
            end = place["offset"] + place["nbytes"]
            arrays[array] = place | {"offset": len(kept)}
            kept += whole[place["offset"] : end]
    noise = {key: {k: record["noise"][key][k] for k in ("max_abs", "nmse")} for key in KEPT_NOISE if key in record["noise"]}
    fields = {key: record[key] for key in KEPT_FIELDS if key in record} | {"noise": noise, "arrays": arrays}
    return as_lines(fields), bytes(kept)


def as_lines(fields):
    """JSON with one line for each field, text and array."""
    lines = []
    for key, value in fields.items():
        if key == "tokenize":
            shown = "[\n" + ",\n".join(f"  {json.dumps(text, ensure_ascii=False)}" for text in value) + "\n ]"
        elif key == "arrays":
            shown = "{\n" + ",\n".join(f"  {json.dumps(n)}: {json.dumps(place)}" for n, place in value.items()) + "\n }"
        else:
            shown = json.dumps(value, ensure_ascii=False)
        lines.append(f" {json.dumps(key)}: {shown}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    zoo, total = Path(sys.argv[1]), 0
    for name in [*ZOO, *STORED]:
        if name.startswith(LATER):
            continue
        place = next(p for p in (zoo / "out", zoo / "variants") if (p / f"{name}.golden.json").is_file())
        text, binary = trim(place, name)
        (HERE / "golden" / f"{name}.golden.json").write_text(text)
        (HERE / "golden" / f"{name}.golden.bin").write_bytes(binary)
        total += len(text.encode()) + len(binary)
    print(f"{total / 2**20:.2f} MiB", file=sys.stderr)


if __name__ == "__main__":
    main()
