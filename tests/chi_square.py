"""Comparison of counts with a law, at a declared rate of false alarms."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import torch

# Of each comparison. A suite of a thousand comparisons fails by chance once in a million runs with
# new seeds; the seeds here are fixed, so that a passing test goes on passing.
ERROR_RATE = 1e-9
# Cells that are expected less often count as one, so that the statistic is close to chi-square.
FEWEST_EXPECTED = 20.0


def assert_follows(
    counts: Mapping[Hashable, int], law: Mapping[Hashable, float], what: str = "outcomes"
) -> None:
    """Fail if the counts were drawn from another law than this one."""
    impossible = [outcome for outcome in counts if not law.get(outcome, 0) > 0]
    assert impossible == [], f"{what}: {impossible[:5]} have no probability"
    total = sum(counts.values())
    cells: list[tuple[float, int]] = []
    rare, rare_count = 0.0, 0
    for outcome, probability in law.items():
        expected, count = float(probability) * total, counts.get(outcome, 0)
        if expected < FEWEST_EXPECTED:
            rare, rare_count = rare + expected, rare_count + count
        else:
            cells.append((expected, count))
    if rare >= FEWEST_EXPECTED:
        cells.append((rare, rare_count))
    assert len(cells) > 1, f"{what}: {total} draws say nothing about this law"
    statistic = sum((count - expected) ** 2 / expected for expected, count in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    chance = float(torch.special.gammaincc(half[0], half[1]))
    assert chance >= ERROR_RATE, (
        f"{what}: such counts come by chance once in {1 / max(chance, 1e-300):.3g}\n"
        f"counts {dict(counts)}\nof {total}, expected "
        f"{ {outcome: round(float(p) * total, 1) for outcome, p in law.items()} }"
    )
