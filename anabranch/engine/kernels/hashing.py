"""One 64-bit hash for keys, the same in every reader.

`mix` is a bijection on 64 bits (the finaliser of MurmurHash3 by Austin Appleby, with David Stafford's constants), so for
a key of one column of at most 64 bits equal hashes mean equal keys and no match has to be checked again. Strings and keys
of several columns collide in principle; their matches are checked against the real columns (`Key columns` in `index.py`).
"""

from __future__ import annotations

import numpy as np

from anabranch.engine.kernels.memory import load_u8, load_u64
from anabranch.storage.compiled import njit

M1 = np.uint64(0xBF58476D1CE4E5B9)
M2 = np.uint64(0x94D049BB133111EB)
GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@njit(inline="always")
def mix(x):
    x ^= x >> np.uint64(30)
    x *= M1
    x ^= x >> np.uint64(27)
    x *= M2
    return x ^ (x >> np.uint64(31))


@njit(cache=True, nogil=True)
def hash_words(words, out):
    """Hashes 64-bit words (the bits of a column's values)."""
    for i in range(len(words)):
        out[i] = mix(words[i] + GOLDEN)


@njit(cache=True, nogil=True)
def combine(words, out):
    """Folds the hash of a further column into `out`."""
    for i in range(len(words)):
        out[i] = mix(out[i] * M1 + mix(words[i] + GOLDEN))


@njit(cache=True, nogil=True)
def hash_bytes(offsets, data, out):
    """Hashes variable-length values, eight bytes at a time; `data` is the address of the first byte."""
    for i in range(len(out)):
        at = data + np.int64(offsets[i])
        left = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        h = mix(np.uint64(left) + GOLDEN)
        while left >= 8:
            h = mix((h ^ load_u64(at)) * M2 + GOLDEN)
            at += 8
            left -= 8
        tail = np.uint64(0)
        for b in range(left):
            tail |= np.uint64(load_u8(at + b)) << np.uint64(8 * b)
        out[i] = mix((h ^ tail) * M1 + GOLDEN)


@njit(cache=True, nogil=True)
def hash_lists(offsets, words, out):
    """Hashes lists, by the words of their elements."""
    for i in range(len(out)):
        h = mix(np.uint64(offsets[i + 1] - offsets[i]) + GOLDEN)
        for element in range(offsets[i], offsets[i + 1]):
            h = mix((h ^ words[element]) * M2 + GOLDEN)
        out[i] = h


@njit(cache=True, nogil=True)
def choose(hashes, salt, limit, out):
    """Which rows are chosen: those whose hash, mixed with a salt, is below a limit."""
    for i in range(len(hashes)):
        out[i] = mix((hashes[i] ^ salt) * M1 + GOLDEN) < limit
