"""Block verification of a chain (Sun et al. 2024, arXiv:2403.10444).

It decides on the whole chain, and so keeps at least as many drafts as token by token.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from specfast.reference.accept_batch import Path, Window
from specfast.reference.distribution import GRID, RowDistribution, on_grid
from specfast.reference.float32 import f32, fma
from specfast.reference.sampled_request import SampledRequest
from specfast.sampling import RowKind
from specfast.status import Status


@dataclass(frozen=True)
class _Stop:
    """A place where the chain may end: after ``ratio``, before a draft that may be worse."""

    p: RowDistribution
    rest: Tensor  # int64 [V] masses of the token that follows if it ends here


def block_path(request: SampledRequest, window: Window) -> Path:
    """The kept drafts and the token after them."""
    path = Path()
    if window.verified == 0:
        return path
    drafts: list[int] = []
    stops: list[_Stop] = []
    kept, ratio = 0, 1.0
    while ratio > 0:
        node = len(drafts)
        draft = _draft_after(request, window, node)
        p = request.p(window.base + node, drafts) if draft >= 0 else None
        if p is not None:
            path.status |= p.status
        if p is None or p.kind == RowKind.UNUSABLE:
            # The end of the chain: what is here decides by its ratio alone.
            if node > 0 and _keeps(request, node, ratio, 1.0):
                kept = node
            break
        rest, next_ratio = _continue(request, node, p, draft, ratio, path)
        stops.append(_Stop(p, rest))
        if node > 0:
            excess = int(rest.sum()) / GRID
            if _keeps(request, node, excess, excess + (1.0 - ratio)):
                kept = node
        drafts.append(draft)
        ratio = next_ratio
    if kept == len(stops):
        stops.append(_last_stop(request, window, drafts[:kept], path))
    token, status = _token_after(request, kept, stops[kept])
    path.status |= status
    path.nodes = list(range(kept + 1))
    path.rows = [window.base + node for node in path.nodes]
    path.tokens = [*drafts[:kept], token]
    return path


def _draft_after(request: SampledRequest, window: Window, node: int) -> int:
    """The next draft of the chain; -1 if it is bad or there is none."""
    return request.batch.draft(request.b, node + 1) if node + 1 < window.verified else -1


def _last_stop(request: SampledRequest, window: Window, drafts: list[int], path: Path) -> _Stop:
    """The row after all drafts; where it could go on, it meets what comes next."""
    node = len(drafts)
    p = request.p(window.base + node, drafts)
    path.status |= p.status
    if p.kind != RowKind.UNUSABLE and node + 1 < window.verified:
        path.status |= Status.BAD_TOKEN
    return _Stop(p, p.masses)


def _keeps(request: SampledRequest, node: int, kept: float, of: float) -> bool:
    """coin < kept / of, for the drafts up to ``node``."""
    return request.coins.accept(node - 1, lane=0, column=node - 1) * of < kept


def _continue(
    request: SampledRequest,
    node: int,
    p: RowDistribution,
    draft: int,
    ratio: float,
    path: Path,
) -> tuple[Tensor, float]:
    """Masses of what follows if the chain ends before ``draft``, and the ratio after it.

    Before a point mass q does not matter: the draft counts as the one that had to come.
    """
    if p.kind == RowKind.POINT_MASS:
        matches = draft == p.token
        return on_grid(p.weights * (0.0 if matches else ratio)), ratio if matches else 0.0
    q = request.q(node)
    if bool(q.invalid[draft]):
        path.status |= Status.BAD_Q
    proposed = q.probabilities()
    rest = on_grid(block_residual(ratio, p.probabilities, proposed))
    return rest, next_ratio(ratio, float(p.probabilities[draft]), float(proposed[draft]))


def block_residual(ratio: float, p: Tensor, q: Tensor) -> Tensor:
    """max(ratio * p - q, 0) in float32, rounded once."""
    return fma(p, ratio, -q).clamp(min=0)


def next_ratio(ratio: float, p: float, q: float) -> float:
    """The ratio of the drafts up to the next one: min(ratio * p / q, 1)."""
    return min(f32(f32(ratio * p) / q), 1.0) if q > 0 else 0.0


def _token_after(request: SampledRequest, node: int, stop: _Stop) -> tuple[int, Status]:
    if stop.p.kind != RowKind.ORDINARY:
        return stop.p.token, Status.OK
    return request.draw(node, stop.rest, stop.p)
