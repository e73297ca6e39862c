"""expand_frontier in plain torch: likeliest children, and which of them go on."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specfast.records import ExpandedFrontier
from specfast.reference.distribution import on_grid, weights
from specfast.reference.float32 import f32, fma
from specfast.reference.lane_sums import lane_sum
from specfast.status import Status

_LN_2 = 0.6931471805599453
_LN_GRID = 27.725887222397812
_LOG2_E = float.fromhex("0x1.715476p+0")
_EXP2 = [float.fromhex(c) for c in ("0x1.3a02b8p-7", "0x1.c9fc46p-5", "0x1.ec0378p-3")]
_EXP2 += [float.fromhex("0x1.62e12cp-1"), 1.0]
_TILE = 1024


def expand_frontier(
    logits: Tensor,
    scores: Tensor | None = None,
    *,
    topk: int,
    first_candidate: int = 0,
    vocab_size: int | None = None,
    d2t: Tensor | None = None,
) -> ExpandedFrontier:
    """Expand the frontier of each tree by one level; see the op."""
    batch_size, num_nodes = logits.shape[:2]
    level = ExpandedFrontier.empty(batch_size, num_nodes, topk, "cpu")
    above = torch.zeros(batch_size, num_nodes) if scores is None else scores
    for b in range(batch_size):
        for node in range(num_nodes):
            values = logits[b, node, :vocab_size].float()
            logs, level.status[b, node] = log_probabilities(values)
            ids = _best(values, topk)
            children = slice(node * topk, (node + 1) * topk)
            targets = ids if d2t is None else ids + d2t[ids]
            fits = (targets >= 0) & (targets < 2**31)
            level.candidate_tokens[b, children] = torch.where(fits, targets, -1).int()
            level.candidate_scores[b, children] = (above[b, node] + logs[ids]).nan_to_num(
                -math.inf, posinf=math.inf, neginf=-math.inf
            )
        chosen = _best(level.candidate_scores[b], topk)
        level.parent_list[b] = first_candidate + chosen
        level.parents[b] = chosen // topk
        level.tokens[b] = level.candidate_tokens[b, chosen]
        level.scores[b] = level.candidate_scores[b, chosen]
    return level


def log_probabilities(values: Tensor) -> tuple[Tensor, Status]:
    """float32 [V] of a row at temperature 1, by sums of its tiles; and the row's status."""
    nan = values.isnan()
    values = torch.where(nan, -math.inf, values)
    status = Status.NAN_LOGITS if bool(nan.any()) else Status.OK
    maximum = float(values.max())
    logs = torch.full_like(values, -math.inf)
    if maximum == -math.inf:
        return logs, status or Status.EMPTY_SUPPORT
    if maximum == math.inf:
        logs[int((values == maximum).nonzero()[0])] = 0
        return logs, status
    total = _mass(values, maximum)
    return ((values - maximum).double() - (_log(total) - _LN_GRID)).float(), status


def _mass(values: Tensor, maximum: float) -> int:
    """The sum of exp(v - maximum) in units of 2^-40, of which each tile gives a whole number."""
    padding = -len(values) % _TILE
    tiles = torch.nn.functional.pad(values, (0, padding), value=-math.inf).view(-1, _TILE)
    of_tiles = tiles.amax(1)
    terms = _tile_weights(tiles - of_tiles[:, None])
    sums = lane_sum(_TILE, (len(tiles),), lambda total, k: total + terms[:, k])
    return int(on_grid(weights(of_tiles, maximum, 1.0) * sums).sum())


def _tile_weights(below: Tensor) -> Tensor:
    """exp(below), 2^-64 at least, also of NaN."""
    below = torch.where(below >= -100, below, -100)
    share = fma(below, f32(_LOG2_E / 64), 1.0).clamp(min=0)
    whole = (share.double() * 64).round()
    fraction = (share.double() * 64 - whole).float()
    y = torch.full_like(share, _EXP2[0])
    for coefficient in _EXP2[1:]:
        y = fma(y, fraction, coefficient)
    power = ((whole.to(torch.int32) - 64 + 127) << 23).view(torch.float32)  # 2^(whole - 64)
    return y * power


def _log(n: int) -> float:
    """The natural logarithm of n, with operations that round the same everywhere."""
    x, exponent = float(n), 0
    while x >= 1.5:
        x, exponent = x * 0.5, exponent + 1
    s = (x - 1) / (x + 1)
    total = 0.0
    for k in range(23, 0, -2):
        total = total * (s * s) + 1 / k
    return 2 * s * total + exponent * _LN_2


def _best(values: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest, the first among equals first; NaN is as -inf."""
    values = torch.where(values.isnan(), -math.inf, values)
    return values.argsort(descending=True, stable=True)[:count]
