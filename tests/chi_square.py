"""Comparison of counts with a law, at a declared rate of false alarms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

# Of each comparison. A suite of a thousand comparisons fails by chance once in a million runs with
# new seeds; the seeds here are fixed, so that a passing test goes on passing.
ERROR_RATE = 1e-9
# Outcomes that are rarer share a cell with their neighbours (sequences with the same beginning), so
# that the statistic is close to chi-square.
FEWEST_EXPECTED = 20.0


def assert_follows(
    counts: Mapping[Any, int], law: Mapping[Any, Any], what: str = "outcomes"
) -> None:
    """Fail if the counts were drawn from another law than this one."""
    impossible = [outcome for outcome in counts if not law.get(outcome, 0) > 0]
    assert impossible == [], f"{what}: {impossible[:5]} have no probability"
    total = sum(counts.values())
    cells: list[tuple[float, int]] = []
    open_cell = (0.0, 0)
    for outcome in sorted(law):
        expected, count = open_cell
        open_cell = (expected + float(law[outcome]) * total, count + counts.get(outcome, 0))
        if open_cell[0] >= FEWEST_EXPECTED:
            cells.append(open_cell)
            open_cell = (0.0, 0)
    if cells:
        expected, count = cells.pop()
        cells.append((expected + open_cell[0], count + open_cell[1]))
    assert len(cells) > 1, f"{what}: {total} draws say nothing about this law"
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    chance = float(torch.special.gammaincc(half[0], half[1]))
    if chance < ERROR_RATE:
        expected_counts = {outcome: round(float(p) * total, 1) for outcome, p in law.items()}
        raise AssertionError(
            f"{what}: by chance once in {1 / max(chance, 1e-300):.3g} times\n"
            f"{dict(counts)}\ninstead of {expected_counts}"
        )
