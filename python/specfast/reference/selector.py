"""walk_selector in plain torch: a candidate of each slot, scored after the one taken before."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specfast.reference.coins import RequestCoins, token_at
from specfast.reference.distribution import inverse, on_grid, weights
from specfast.reference.float32 import f32, fma
from specfast.reference.lane_sums import lane_sum
from specfast.reference.philox import Purpose
from specfast.reference.request_rules import RequestRules
from specfast.sampling import SamplingRules, SelectedWalk
from specfast.status import Status


def walk_selector(
    candidates: Tensor,
    unary: Tensor,
    keys: Tensor,
    predecessor: Tensor,
    successor: Tensor,
    anchors: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
) -> SelectedWalk:
    """Walk the slots of each request; see the op."""
    batch_size, num_slots, num_candidates = candidates.shape
    walk = SelectedWalk.empty(batch_size, num_slots, num_candidates, "cpu")
    walk.tokens[:], walk.q[:], walk.status[:] = -1, 0, Status.OK
    for b in range(batch_size):
        previous = int(anchors[b])
        if previous < 0:
            continue
        rules = RequestRules.of(
            SamplingRules(sampling.temperature, sampling.seeds, sampling.top_k), b
        )
        status = Status.OK if rules.sound else Status.BAD_PARAM
        if int(prefix_lens[b]) < 0:
            status |= Status.BAD_PARAM
        is_token = (candidates[b] >= 0) & (candidates[b] < len(successor))
        if previous >= len(predecessor) or not bool(is_token.all()):
            status |= Status.BAD_TOKEN
        coins = RequestCoins(b, int(sampling.seeds[b]), max(int(prefix_lens[b]), 0), None)
        for slot in range(num_slots):
            scores = unary[b, slot].clone()
            if 0 <= previous < len(predecessor):
                after = successor[candidates[b, slot].clamp(0, len(successor) - 1).long()]
                scores += _sums(keys[b, slot] * after.float(), predecessor[previous].float())
            scores[~is_token[slot]] = -math.inf
            has_nan = bool(scores.isnan().any())
            scores = torch.where(scores.isnan(), -math.inf, scores)
            taken, walk.q[b, slot] = _take(scores, rules, coins, slot)
            if has_nan:
                status |= Status.NAN_LOGITS
            elif taken < 0:
                status |= Status.EMPTY_SUPPORT
            previous = int(candidates[b, slot, taken]) if taken >= 0 else -1
            walk.tokens[b, slot] = previous
        walk.status[b] = status
    return walk


def _take(
    scores: Tensor, rules: RequestRules, coins: RequestCoins, slot: int
) -> tuple[int, Tensor]:
    """The candidate taken or -1, and the distribution that it was taken from."""
    q = torch.zeros_like(scores)
    largest = float(scores.max())
    if largest == -math.inf:
        return -1, q
    best = int((scores == largest).nonzero()[0])
    if rules.greedy or largest == math.inf:
        q[best] = 1
        return best, q
    weight = weights(scores, largest, f32(1.0 / rules.temperature))
    masses = on_grid(weight)
    total = int(masses.sum())
    taken = token_at(masses, coins.drawn(Purpose.DRAFT, slot, 0, total))
    return taken, torch.where(masses > 0, weight * inverse(total), 0.0)


def _sums(products: Tensor, before: Tensor) -> Tensor:
    """``products`` [K, R] times ``before`` [R], in the order that the op adds up in."""
    terms = before.tolist()
    return lane_sum(
        len(terms), (len(products),), lambda total, k: fma(products[:, k], terms[k], total)
    )
