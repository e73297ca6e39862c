"""The walk from the root: at each node a rule accepts a child, or says what comes instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from torch import Tensor

from specfast.reference.accept_batch import AcceptBatch, Child, Path, Window
from specfast.status import Status


class Step(NamedTuple):
    """What a rule decided at a node: the accepted child or -1, and the token in either case."""

    node: int
    token: int
    status: Status


# Called with a node, its verify row, the drafts accepted so far, and the node's children.
Rule = Callable[[int, int, list[int], Iterable[Child]], Step]


def walk(batch: AcceptBatch, b: int, window: Window, rule: Rule) -> Path:
    """Follow the accepted children while there are some and the path is not full."""
    path = Path()
    node = 0 if window.verified > 0 else -1
    while node >= 0:
        row, status = batch.row(b, node, window)
        path.status |= status
        if row < 0:
            break
        if path.rows and row <= path.rows[-1]:
            path.status |= Status.BAD_TREE
            break
        full = len(path.nodes) + 1 == batch.width
        children: Iterable[Child] = [] if full else batch.children(b, node, window.verified)
        step = rule(node, row, path.tokens, children)
        path.status |= step.status
        path.nodes.append(node)
        path.rows.append(row)
        path.tokens.append(step.token)
        node = step.node
    return path


def trimmed_drafts(batch: AcceptBatch, b: int, window: Window, rule: Rule, path: Path) -> int:
    """Drafts of a chain past ``verify_lens`` that the rule would have accepted: a statistic."""
    if not path.nodes or path.nodes[-1] != window.verified - 1:
        return 0
    limit = min(window.rows, batch.num_nodes)
    accepted = path.tokens[:-1]
    node = path.nodes[-1]
    while True:
        step = rule(node, window.base + node, accepted, batch.children(b, node, limit))
        if step.node < 0:
            return node + 1 - window.verified
        accepted, node = [*accepted, step.token], step.node


def greedy_rule(batch: AcceptBatch) -> Rule:
    """Accept the first child that carries the target's token."""

    def step(node: int, row: int, path: list[int], children: Iterable[Child]) -> Step:
        token, valid, status = _prediction(batch, row)
        return follow(token, children, status) if valid else Step(-1, token, status)

    return step


def follow(token: int, children: Iterable[Child], status: Status) -> Step:
    """The first child that carries ``token``, if any; ``token`` comes out either way."""
    for child in children:
        status |= child.status
        if child.token == token:
            return Step(child.node, token, status)
    return Step(-1, token, status)


def _prediction(batch: AcceptBatch, row: int) -> tuple[int, bool, Status]:
    """What the target says after a verify row, and whether the path may go on from there."""
    if batch.target_logits is not None:
        return greedy_prediction(batch.target_logits[row], batch.num_ids)
    assert batch.target_predict is not None
    token = int(batch.target_predict[row])
    if not 0 <= token < batch.num_ids:
        return 0, False, Status.BAD_TOKEN
    return token, True, Status.OK


def greedy_prediction(row: Tensor, vocab_size: int) -> tuple[int, bool, Status]:
    """Lowest id of the largest value; NaN never wins; nothing usable means token 0."""
    values = row[:vocab_size].float().tolist()
    status = Status.NAN_LOGITS if any(math.isnan(v) for v in values) else Status.OK
    best, token = -math.inf, -1
    for i, value in enumerate(values):
        if value > best:
            best, token = value, i
    if token < 0:
        return 0, False, status or Status.EMPTY_SUPPORT
    return token, True, status
