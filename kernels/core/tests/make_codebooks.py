#!/usr/bin/env python3
"""Write src/dequantise/codebooks.rs: the codebooks of the IQ formats, as sets of points.

    make_codebooks.py > ../src/dequantise/codebooks.rs

Needs numpy and gguf 0.19.0, whose `gguf.quants` has the points of ggml's `ggml-common.h` (MIT). In every
codebook they lie in ascending order of a number, the code, whose lowest digit is the first coordinate and
whose base is the number of levels; so the set of codes says all, and a bitmap holds it.
"""

from gguf import quants

BOOKS = [  # name, format that has it
    ("IQ2_XXS", quants.IQ2_XXS),
    ("IQ2_XS", quants.IQ2_XS),
    ("IQ2_S", quants.IQ2_S),
    ("IQ1", quants.IQ1_S),
    ("IQ3_XXS", quants.IQ3_XXS),
    ("IQ3_S", quants.IQ3_S),
]

HEADER = """\
//! Codebooks of the IQ formats as bitmaps: bit `code % 64` of word `code / 64` is set where the
//! point with that code belongs to the book ([`super::iq::points`] says what a code is). They were
//! chosen by statistics over real weights, so that no formula gives them.
//!
//! Source: ggml `ggml-common.h`, by way of gguf 0.19.0; written by tests/make_codebooks.py.
"""


def fnv1a(data):
    """FNV-1a, 64 bits: pins the points in a test, apart from the bitmap they are expanded from."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return value


def grouped(value):
    digits = f"{value:016x}"
    return "0x" + "_".join(digits[i : i + 4] for i in range(0, 16, 4))


def main():
    print(HEADER)
    checksums = []
    for name, source in BOOKS:
        source.init_grid()
        points, dims = source.grid_shape
        levels = list(source.grid_map)
        grid = source.grid.reshape(points, dims).astype(int).tolist()
        codes = [sum(levels.index(x) * len(levels) ** axis for axis, x in enumerate(point)) for point in grid]
        assert codes == sorted(set(codes)), f"{name} is not ascending"
        words = [0] * -(-(len(levels) ** dims) // 64)
        for code in codes:
            words[code // 64] |= 1 << (code % 64)
        print(f"/// {points} points of {dims} coordinates, {len(levels)} levels each.")
        print("#[rustfmt::skip]")
        print(f"pub(super) const {name}: [u64; {len(words)}] = [")
        for at in range(0, len(words), 4):
            print("    " + " ".join(grouped(word) + "," for word in words[at : at + 4]))
        print("];\n")
        checksums.append((name, fnv1a(x % 256 for point in grid for x in point)))
    print("/// FNV-1a of all coordinates as bytes, point after point, taken from the source.")
    print("#[cfg(test)]")
    print(f"pub(super) const CHECKSUMS: [(&str, u64); {len(checksums)}] = [")
    for name, checksum in checksums:
        print(f'    ("{name}", {grouped(checksum)}),')
    print("];")


if __name__ == "__main__":
    main()
