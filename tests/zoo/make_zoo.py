#!/usr/bin/env python3
"""Write the zoo: tiny models with seeded random weights, against which the engine's logits are checked.

    make_zoo.py --out DIR [NAME ...]     all models, or the named ones (llama.f32, qwen3moe.q8_0, ...)
    make_zoo.py --list                   names and what each exercises

A file that is already there with the right sha256 is left alone; a file that does not come out byte for
byte as models.sha256 says is an error and is not left behind. Needs numpy and the `gguf` package
(requirements.txt beside this file); nothing is downloaded. `sha256sum` reads models.sha256 too.
"""

import argparse
import concurrent.futures
import hashlib
import os
import sys
from pathlib import Path

import numpy as np

from zoo import dense, gemma4, hybrid, mixture

HERE = Path(__file__).resolve().parent

MODELS = {
    name: getattr(module, name)
    for module, names in {
        dense: "llama llama_yarn mistral3 qwen2 qwen3 gemma2 gemma3 phi3 phi3_long",
        mixture: "llama_moe qwen3moe olmoe granitemoe gpt_oss llama4 deepseek2 deepseek2_kvb",
        gemma4: "gemma4 gemma4_moe",
        hybrid: "qwen35 qwen35_d256 qwen35moe qwen35moe_merged qwen3next qwen3next_legacy",
    }.items()
    for name in names.split()
}
# The 16-bit files hold the f32 model's weights; the others need longer rows.
WIDE = {"llama": dense.llama_wide, "qwen3moe": mixture.qwen3moe_wide}
WIDE_TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4"]

# file: (model, type of its matrices)
ZOO = {f"{name}.f32": (model, None) for name, model in MODELS.items()}
for base, wide in WIDE.items():
    ZOO |= {f"{base}.{stored.lower()}": (MODELS[base], stored) for stored in ("F16", "BF16")}
    ZOO |= {f"{base}.{stored.lower()}": (wide, stored) for stored in WIDE_TYPES}
ZOO |= {f"{name}.q8_0": (MODELS[name], "Q8_0") for name in "gemma3 deepseek2 qwen35 qwen35moe qwen3next".split()}
ZOO["gpt_oss.exps-mxfp4"] = (mixture.gpt_oss, "experts:MXFP4")


def recorded_digests():
    lines = (HERE / "models.sha256").read_text().splitlines()
    return {name.removesuffix(".gguf"): digest for digest, name in (line.split() for line in lines)}


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make(name, out, expected):
    """Returns what was done, in a word; raises where the bytes are not those recorded."""
    path = out / f"{name}.gguf"
    if path.is_file() and sha256(path) == expected:
        return "kept"
    model, stored = ZOO[name]
    part = out / f"{name}.gguf.{os.getpid()}.part"
    try:
        model().write(part, stored)
        if (got := sha256(part)) != expected:
            raise ValueError(
                f"{name}: sha256 {got}, not {expected}; "
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
        for name, (model, stored) in ZOO.items():
            print(f"{name:20s} {model().about}")
        return
    if args.out is None:
        parser.error("--out DIR is needed")
    if unknown := [name for name in args.names if name not in ZOO]:
        parser.error(f"unknown model {unknown[0]!r}; there are {', '.join(ZOO)}")
    args.out.mkdir(parents=True, exist_ok=True)
    digests, wrong = recorded_digests(), []
    # Processes, not threads: drawing and packing hold the interpreter's lock.
    with concurrent.futures.ProcessPoolExecutor() as pool:
        jobs = {name: pool.submit(make, name, args.out, digests[name]) for name in args.names or ZOO}
        for name, job in jobs.items():
            try:
                print(f"{name:20s} {job.result()}", file=sys.stderr)
            except ValueError as error:
                wrong.append(str(error))
    if wrong:
        raise SystemExit("make_zoo: " + "\nmake_zoo: ".join(wrong))


if __name__ == "__main__":
    main()
