"""The random numbers are those of Random123, and each decision has its own."""

from __future__ import annotations

from itertools import product

import pytest
from specfast.reference.coins import RequestCoins
from specfast.reference.philox import Purpose, philox4x32, random_words

# Counter, key, result: the vectors of philox4x32 with 10 rounds in Random123's kat_vectors.
KNOWN_ANSWERS = [
    "00000000 00000000 00000000 00000000  00000000 00000000  6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff  ffffffff ffffffff  408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344  a4093822 299f31d0  d16cfe09 94fdcceb 5001e420 24126ea1",
]


@pytest.mark.parametrize("line", KNOWN_ANSWERS)
def test_known_answers(line: str) -> None:
    c0, c1, c2, c3, k0, k1, *expected = (int(word, 16) for word in line.split())
    assert list(philox4x32((c0, c1, c2, c3), (k0, k1))) == expected


def test_the_counter_of_a_decision() -> None:
    seed = -2  # as 64 bits, ff..fe
    words = random_words(seed, Purpose.FINAL, node=3, lane=5, prefix_len=1234)
    assert words == philox4x32((5, 3 | 2 << 16 | 1 << 24, 1234, 0), (0xFFFFFFFE, 0xFFFFFFFF))


def test_no_two_decisions_share_their_words() -> None:
    decisions = list(product((0, 1), Purpose, (0, 1, 1023), (0, 1, 7), (0, 1, 2**31 - 1)))
    assert len({random_words(*decision) for decision in decisions}) == len(decisions)


def test_coins_are_multiples_of_a_unit_below_1() -> None:
    for seed in range(2000):
        coin = RequestCoins(0, seed, 0, None).accept(0, 0, 0)
        assert 0 <= coin < 1
        assert (coin * 2**24).is_integer()


@pytest.mark.parametrize("total", [1, 2, 3, 2**40, 2**60])
def test_positions_stay_below_the_total(total: int) -> None:
    positions = [RequestCoins(0, seed, 0, None).final(0, total) for seed in range(300)]
    assert 0 <= min(positions) <= max(positions) < total
    # Scaled, not cut: all of the range is met.
    assert min(positions) <= total / 8
    assert max(positions) >= total * 7 / 8 - 1
