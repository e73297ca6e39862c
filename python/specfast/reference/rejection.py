"""p/q rejection (Leviathan et al. 2023, Chen et al. 2023).

Recursive over siblings that were drawn without replacement, as SpecInfer (Miao et al. 2023) tries
several.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from specfast.reference.accept_batch import Child
from specfast.reference.distribution import inverse, on_grid
from specfast.reference.sampled_request import SampledRequest
from specfast.reference.walk import Rule, Step, follow
from specfast.sampling import RowKind
from specfast.status import Status


def rejection_rule(request: SampledRequest) -> Rule:
    """Accept a child with probability min(1, p / q), else go on with the residual of p."""

    def step(node: int, row: int, path: list[int], children: Iterable[Child]) -> Step:
        p = request.p(row, path)
        if p.kind == RowKind.UNUSABLE:
            return Step(-1, p.token, p.status)
        if p.kind == RowKind.POINT_MASS:
            return follow(p.token, children, p.status)
        status = p.status
        target, masses = p.probabilities, p.masses
        rest: Tensor | None = None  # what rejections left of p, not normalised
        tried: list[int] = []
        for ordinal, child in enumerate(children):
            status |= child.status
            if child.token < 0:
                continue
            if rest is not None:
                target = normalised(rest)
            q = request.q(node)
            if bool(q.invalid[child.token]):
                status |= Status.BAD_Q
            proposed = q.probabilities(tried)
            coin = request.coins.accept(node, lane=ordinal, column=child.node - 1)
            if accepts(coin, float(target[child.token]), float(proposed[child.token])):
                return Step(child.node, child.token, status)
            rest = residual(target, proposed)
            masses = on_grid(rest)
            tried.append(child.token)
        token, drawn_status = request.draw(node, masses, p)
        return Step(-1, token, status | drawn_status)

    return step


def accepts(coin: float, p: float, q: float) -> bool:
    """coin < p / q, exactly; a double holds the product of two float32."""
    return q > 0 and p > 0 and coin * q < p


def residual(p: Tensor, q: Tensor) -> Tensor:
    """max(p - q, 0) in float32."""
    return (p - q).clamp(min=0)


def normalised(rest: Tensor) -> Tensor:
    """What is left of p as probabilities; zeros if nothing is."""
    total = int(on_grid(rest).sum())
    return rest * inverse(total) if total > 0 else rest * 0
