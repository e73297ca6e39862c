"""The filtered distribution of one row, in integers: masses on a grid of 2^-40 of the largest."""

from __future__ import annotations

import functools
import math
import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.reference.float32 import f32, f32_from_int, fma
from specfast.reference.request_rules import RequestRules
from specfast.sampling import RowKind
from specfast.status import Status

GRID = 1 << 40
INT32_MAX = 2**31 - 1
LOG2_E = float.fromhex("0x1.715476p+0")
# 2^f on [-0.5, 0.5], highest power first.
EXP2 = [float.fromhex(c) for c in ("0x1.5bba08p-10", "0x1.3cea8ap-7", "0x1.c6b754p-5")]
EXP2 += [float.fromhex(c) for c in ("0x1.ebf9bcp-3", "0x1.62e42ap-1", "0x1p+0")]
# Adding it leaves no bit for a fraction.
ROUND_TO_INT = 12582912.0
LOWEST_EXPONENT = -40
# Tests of the law meet the same few rows of small vocabularies again and again.
SMALL_VOCAB = 64


def weights(values: Tensor, maximum: float, scale: float) -> Tensor:
    """exp((v - max) * scale) in float32 [V], by operations that round the same everywhere."""
    distance = torch.where(values == maximum, 0.0, values - maximum)
    t = (distance * f32(scale * LOG2_E)).clamp(max=0)
    usable = t >= LOWEST_EXPONENT  # false for NaN
    t = torch.where(usable, t, 0.0)
    whole = (t + ROUND_TO_INT) - ROUND_TO_INT
    fraction = t - whole
    y = torch.full_like(t, EXP2[0])
    for coefficient in EXP2[1:]:
        y = fma(y, fraction, coefficient)
    power = ((whole.to(torch.int32) + 127) << 23).view(torch.float32)  # 2^whole
    return torch.where(usable, y * power, 0.0)


def on_grid(values: Tensor) -> Tensor:
    """float32 of [0, 1] to int64 units of 2^-40, rounded down."""
    return (values.double() * GRID).floor().to(torch.int64)


def inverse(total: int) -> float:
    """float32 factor from weights to probabilities, if the masses sum to ``total`` > 0."""
    return f32(1.0 / f32(f32_from_int(total) / GRID))


@dataclass(frozen=True, eq=False)
class RowDistribution:
    """p of one row: p(x) = masses[x] / total. Compare RowRecord.

    token : the lowest id of the largest value; of an unusable row, what it emits
    weights : float32 [V], 0 where x is not kept; masses : int64 [V]; total : their sum
    """

    kind: RowKind
    token: int
    status: Status
    weights: Tensor
    masses: Tensor
    total: int
    scale: float
    maximum: float
    cut_value: float
    cut_id: int

    @functools.cached_property
    def probabilities(self) -> Tensor:
        """float32 [V]; zeros if nothing is kept."""
        return self.weights * inverse(self.total) if self.total > 0 else self.weights

    @property
    def last_kept(self) -> int:
        """The highest id with mass; the argmax if there is none."""
        kept = self.masses.nonzero()
        return int(kept[-1]) if len(kept) > 0 else self.token

    @property
    def record_words(self) -> tuple[int, ...]:
        """The eight int32 of a RowRecord."""
        floats = (self.scale, self.maximum, self.cut_value)
        ints = (self.cut_id, self.total, self.token, self.kind)
        return struct.unpack("<8i", struct.pack("<3fiQ2i", *floats, *ints))


def row_distribution(
    values: Tensor, allowed: Tensor | None, rules: RequestRules
) -> RowDistribution:
    """The distribution of edited values float32 [V], of which bool [V] may be ``allowed``."""
    if allowed is not None:
        values = torch.where(allowed, values, -math.inf)
    # -0 and 0 are one value.
    values = values + 0.0
    lowest_allowed = 0
    if allowed is not None and bool(allowed.any()):
        lowest_allowed = int(allowed.nonzero()[0])
    if len(values) <= SMALL_VOCAB:
        return _small_row(tuple(values.tolist()), lowest_allowed, rules)
    return _distribution(values, lowest_allowed, rules)


@functools.lru_cache(maxsize=4096)
def _small_row(
    values: tuple[float, ...], lowest_allowed: int, rules: RequestRules
) -> RowDistribution:
    return _distribution(torch.tensor(values, dtype=torch.float32), lowest_allowed, rules)


def _distribution(values: Tensor, lowest_allowed: int, rules: RequestRules) -> RowDistribution:
    nan = values.isnan()
    status = Status.NAN_LOGITS if bool(nan.any()) else Status.OK
    values = torch.where(nan, -math.inf, values)
    maximum = float(values.max())
    if maximum == -math.inf:
        nothing = torch.zeros_like(values)
        return RowDistribution(
            kind=RowKind.UNUSABLE,
            token=lowest_allowed,
            status=status or Status.EMPTY_SUPPORT,
            weights=nothing,
            masses=on_grid(nothing),
            total=0,
            scale=0.0,
            maximum=0.0,
            cut_value=0.0,
            cut_id=-1,
        )
    argmax = int((values == maximum).nonzero()[0])
    if rules.greedy or maximum == math.inf:
        one = torch.zeros_like(values)
        one[argmax] = 1
        return RowDistribution(
            kind=RowKind.POINT_MASS,
            token=argmax,
            status=status,
            weights=one,
            masses=on_grid(one),
            total=GRID,
            scale=0.0,
            maximum=maximum,
            cut_value=maximum,
            cut_id=argmax,
        )
    scale = f32(1.0 / rules.temperature)
    row_weights = weights(values, maximum, scale)
    masses = on_grid(row_weights)
    support = masses > 0
    # Stable, so that equal values stay in the order of their ids.
    order = torch.argsort(values, descending=True, stable=True)
    order = order[support[order]]
    kept = order[: _num_kept(masses[order], len(values), rules)]
    is_kept = torch.zeros_like(support)
    is_kept[kept] = True
    is_cut = _counts_to_a_token(len(order), len(values), rules)
    return RowDistribution(
        kind=RowKind.ORDINARY,
        token=argmax,
        status=status,
        weights=torch.where(is_kept, row_weights, 0.0),
        masses=torch.where(is_kept, masses, 0),
        total=int(masses[kept].sum()),
        scale=scale,
        maximum=maximum,
        cut_value=float(values[kept[-1]]) if is_cut else -math.inf,
        cut_id=int(kept[-1]) if is_cut else INT32_MAX,
    )


def _counts_to_a_token(support: int, vocab_size: int, rules: RequestRules) -> bool:
    """Whether a filter ends at one of the tokens, even at the last; a large top_k does not."""
    reaches_k = 0 < rules.top_k < vocab_size and rules.top_k <= support
    return reaches_k or rules.top_p < 1 or rules.min_p * GRID > 1


def _num_kept(ordered: Tensor, vocab_size: int, rules: RequestRules) -> int:
    """How many of the masses, largest value first, pass top_k, then top_p, then min_p."""
    num_kept = len(ordered)
    if 0 < rules.top_k < vocab_size:
        num_kept = min(num_kept, rules.top_k)
    if rules.top_p < 1:
        num_kept = _nucleus(ordered[:num_kept], rules.top_p)
    if rules.min_p > 0:
        numerator, denominator = rules.min_p.as_integer_ratio()
        # The smallest integer at or above min_p * 2^40.
        least = -(-numerator * GRID // denominator)
        passing = (ordered[:num_kept] >= least).nonzero()
        num_kept = int(passing[-1]) + 1
    return num_kept


def _nucleus(ordered: Tensor, top_p: float) -> int:
    """The length of the shortest prefix that holds ``top_p`` of the mass."""
    numerator, denominator = top_p.as_integer_ratio()
    needed = -(-numerator * int(ordered.sum()) // denominator)
    return int(torch.searchsorted(ordered.cumsum(0), needed)) + 1
