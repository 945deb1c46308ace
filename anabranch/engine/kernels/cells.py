"""The hash that routes rows: XXH64 with seed 42 (Yann Collet's xxHash), which is what Spark's `xxhash64` computes.

Routing and indexing use different hashes on purpose: rows that share a slot share bits of the routing hash.
"""

from __future__ import annotations

import numpy as np

from anabranch.engine.kernels.memory import load_u8, load_u32, load_u64
from anabranch.storage.compiled import njit

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)
SEED = np.uint64(42)


@njit(inline="always")
def _rotate(x, bits):
    return (x << np.uint64(bits)) | (x >> np.uint64(64 - bits))


@njit(inline="always")
def _round(accumulator, word):
    return _rotate(accumulator + word * P2, 31) * P1


@njit(inline="always")
def _finish(h):
    h ^= h >> np.uint64(33)
    h *= P2
    h ^= h >> np.uint64(29)
    h *= P3
    return h ^ (h >> np.uint64(32))


@njit(cache=True, nogil=True)
def route_words(words, out):
    """XXH64 of each 64-bit word."""
    for i in range(len(words)):
        h = SEED + P5 + np.uint64(8)
        h ^= _round(np.uint64(0), words[i])
        out[i] = _finish(_rotate(h, 27) * P1 + P4)


@njit(cache=True, nogil=True)
def route_bytes(offsets, data, out):
    """XXH64 of each variable-length value; `data` is the address of the first byte."""
    for i in range(len(out)):
        at = data + np.int64(offsets[i])
        length = np.int64(offsets[i + 1]) - np.int64(offsets[i])
        end = at + length
        if length >= 32:
            v1, v2, v3, v4 = SEED + P1 + P2, SEED + P2, SEED, SEED - P1
            while at + 32 <= end:
                v1, v2 = _round(v1, load_u64(at)), _round(v2, load_u64(at + 8))
                v3, v4 = _round(v3, load_u64(at + 16)), _round(v4, load_u64(at + 24))
                at += 32
            h = _rotate(v1, 1) + _rotate(v2, 7) + _rotate(v3, 12) + _rotate(v4, 18)
            h = (h ^ _round(np.uint64(0), v1)) * P1 + P4
            h = (h ^ _round(np.uint64(0), v2)) * P1 + P4
            h = (h ^ _round(np.uint64(0), v3)) * P1 + P4
            h = (h ^ _round(np.uint64(0), v4)) * P1 + P4
        else:
            h = SEED + P5
        h += np.uint64(length)
        while at + 8 <= end:
            h = _rotate(h ^ _round(np.uint64(0), load_u64(at)), 27) * P1 + P4
            at += 8
        if at + 4 <= end:
            h = _rotate(h ^ (np.uint64(load_u32(at)) * P1), 23) * P2 + P3
            at += 4
        while at < end:
            h = _rotate(h ^ (np.uint64(load_u8(at)) * P5), 11) * P1
            at += 1
        out[i] = _finish(h)


@njit(cache=True, nogil=True)
def coordinates(hashes, share, out):
    """The part of a dimension each hash falls into: the hash as a signed number, modulo the share, never negative."""
    for i in range(len(hashes)):
        value = np.int64(hashes[i]) % np.int64(share)
        out[i] = value + share if value < 0 else value
