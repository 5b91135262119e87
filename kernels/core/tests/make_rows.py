#!/usr/bin/env python3
"""Trim the zoo's dequant.bin to data/TYPE.rows (data/README.md).

    make_rows.py ZOO/out data/
"""

import json
import sys
from pathlib import Path

COLS = 128  # weights of a record; a type with larger blocks gets one block
RECORDS = [  # row, first weight
    (0, 0),  # Gaussian
    (5, 0),  # zeros
    (6, 256),  # the part of the ramp with its outlier, weight 300
    (7, 0),  # random bit patterns
    (7, 256),
]


def main():
    zoo, out = Path(sys.argv[1]), Path(sys.argv[2])
    index = json.loads((zoo / "dequant.json").read_text())
    blob = (zoo / "dequant.bin").read_bytes()
    for name, entry in index["types"].items():
        block, block_bytes, cols = entry["block"], entry["block_bytes"], entry["cols"]
        length = max(COLS, block)
        records = b""
        for row, first in RECORDS:
            at = entry["raw_offset"] + (row * cols + first) // block * block_bytes
            records += blob[at : at + length // block * block_bytes]
            at = entry["f32_offset"] + (row * cols + first) * 4
            records += blob[at : at + length * 4]
        (out / f"{name.lower()}.rows").write_bytes(records)


if __name__ == "__main__":
    main()
