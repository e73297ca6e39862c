"""float32 arithmetic of the reference, against exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from specfast.reference.float32 import f32, f32_from_int, fma


def nearest(exact: Fraction) -> float:
    """The float32 nearest to a fraction, ties to even."""
    if exact == 0:
        return 0.0
    # One more or less than the logarithm, which is itself rounded next to a power of two.
    guess = math.floor(math.log2(abs(exact))) - 23
    for exponent in (guess - 1, guess, guess + 1):
        unit = Fraction(2) ** max(exponent, -149)
        whole = round(exact / unit)
        if abs(whole) <= 2**24:
            return float(whole * unit)
    raise AssertionError


def numbers(seed: int, count: int) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-30, 3, (count,), generator=rng)
    return torch.randn(count, generator=rng) * 2.0**exponents


def test_fma_rounds_once() -> None:
    a, b, c = (numbers(seed, 4000) for seed in (1, 2, 3))
    c[:1000] = -(a * b)[:1000]  # sums that cancel
    got = fma(a, b, c).tolist()
    for x, y, z, result in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        assert result == nearest(Fraction(x) * Fraction(y) + Fraction(z))


def test_fma_sees_through_a_false_tie() -> None:
    # 2^-24 - 2^-54, just less than half a unit of 1: the sum in double is the tie itself.
    a = torch.tensor([2.0**-12 + 2.0**-27])
    b = torch.tensor([2.0**-12 - 2.0**-27])
    assert (a.double() * b + (1 + 2.0**-23)).float().item() == 1 + 2.0**-22
    assert fma(a, b, 1 + 2.0**-23).item() == 1 + 2.0**-23


def test_integers_round_to_nearest() -> None:
    rng = torch.Generator().manual_seed(0)
    lows = torch.randint(0, 2**26, (3000,), generator=rng).tolist()
    shifts = torch.randint(0, 35, (3000,), generator=rng).tolist()
    for low, shift in zip(lows, shifts, strict=True):
        for x in (low << shift, (low << shift) + 1):
            assert f32_from_int(x) == nearest(Fraction(x))


def test_f32_rounds_and_overflows() -> None:
    assert f32(1e39) == math.inf
    assert f32(1 / 3) == nearest(Fraction(1, 3))
