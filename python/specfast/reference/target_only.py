"""Target-only verification: siblings divide one coin by their target probabilities, without q."""

from __future__ import annotations

from collections.abc import Iterable

from specfast.reference.accept_batch import Child
from specfast.reference.float32 import f32
from specfast.reference.sampled_request import SampledRequest
from specfast.reference.walk import Rule, Step, follow
from specfast.sampling import RowKind

SMALLEST_THRESHOLD = f32(1e-9)


def target_only_rule(
    request: SampledRequest, threshold_single: float, threshold_acc: float
) -> Rule:
    """Accept the first child with coin * threshold_acc < p(children up to it).

    Or with p(child) >= threshold_single, which as threshold_acc is exact at 1 and trades exactness
    for acceptance below.
    """
    threshold_acc = max(threshold_acc, SMALLEST_THRESHOLD)

    def step(node: int, row: int, path: list[int], children: Iterable[Child]) -> Step:
        p = request.p(row, path)
        if p.kind == RowKind.UNUSABLE:
            return Step(-1, p.token, p.status)
        if p.kind == RowKind.POINT_MASS:
            return follow(p.token, children, p.status)
        status = p.status
        coin: float | None = None
        tokens: list[int] = []
        accumulated = 0
        for child in children:
            status |= child.status
            if child.token < 0 or is_repeated(child.token, tokens):
                continue
            tokens.append(child.token)
            if coin is None:
                coin = request.coins.accept(node, lane=0, column=node)
            mass = int(p.masses[child.token])
            accumulated += mass
            if mass > 0 and (
                is_below(coin * threshold_acc, accumulated, p.total)
                or is_at_least(mass, p.total, threshold_single)
            ):
                return Step(child.node, child.token, status)
        rest = p.masses.clone()
        rest[tokens] = 0
        token, drawn_status = request.draw(node, rest, p)
        return Step(-1, token, status | drawn_status)

    return step


def is_repeated(token: int, tokens: list[int]) -> bool:
    """Whether an earlier sibling has the token: its probability counts once."""
    return token in tokens


def is_below(product: float, mass: int, total: int) -> bool:
    """product < mass / total, exactly; a double holds the product of two float32."""
    numerator, denominator = product.as_integer_ratio()
    return numerator * total < mass * denominator


def is_at_least(mass: int, total: int, threshold: float) -> bool:
    """mass / total >= threshold, exactly."""
    numerator, denominator = threshold.as_integer_ratio()
    return mass * denominator >= numerator * total
