"""What the tests of sampled verification run on: one entry per implementation of the same calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specfast import ops, reference


@dataclass(frozen=True)
class Implementation:
    """The sampled calls of one implementation.

    ``draws`` is how many streams it draws in a test of a law, ``slow_draws`` with --slow; a test
    that asks for more evidence takes a multiple.
    """

    accept_chain: Callable[..., Any]
    accept_tree: Callable[..., Any]
    sample_rows: Callable[..., Any]
    device: str
    draws: int
    slow_draws: int


def _ops_on(device: str) -> Implementation:
    return Implementation(
        ops.accept_chain,
        ops.accept_tree,
        ops.sample_rows,
        device=device,
        draws=1_000,
        slow_draws=1_000_000,
    )


# "cpu" and "cuda" are also what --device chooses between.
IMPLEMENTATIONS = {
    "reference": Implementation(
        reference.accept_chain,
        reference.accept_tree,
        reference.sample_rows,
        device="cpu",
        draws=100,
        slow_draws=10_000,
    ),
    "cpu": _ops_on("cpu"),
    "cuda": _ops_on("cuda"),
}
