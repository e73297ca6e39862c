"""Philox4x32-10 (Salmon et al., SC 2011), and where each random number of a request comes from."""

from __future__ import annotations

from enum import IntEnum

Words = tuple[int, int, int, int]

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_VERSION = 1


class Purpose(IntEnum):
    """What a random number decides; each purpose has its own numbers."""

    DRAFT = 0
    ACCEPT = 1
    FINAL = 2
    FINAL_INNER = 3


def philox4x32(counter: Words, key: tuple[int, int]) -> Words:
    """Four random 32-bit words of a 128-bit counter under a 64-bit key; ten rounds."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        first = c0 * _MULTIPLIERS[0]
        second = c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> 32) ^ c1 ^ k0,
            second & _MASK,
            (first >> 32) ^ c3 ^ k1,
            first & _MASK,
        )
        k0 = (k0 + _KEY_STEPS[0]) & _MASK
        k1 = (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def random_words(seed: int, purpose: Purpose, node: int, lane: int, prefix_len: int) -> Words:
    """The words of one decision: of a node, for a purpose, in the round at ``prefix_len``."""
    counter = (lane & _MASK, node & 0xFFFF | purpose << 16 | _VERSION << 24, prefix_len, 0)
    return philox4x32(counter, (seed & _MASK, seed >> 32 & _MASK))
