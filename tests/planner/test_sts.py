"""Sequential temperature scaling, on outcomes that occur exactly as often as they are likely."""

from __future__ import annotations

import json
import math
from itertools import product
from pathlib import Path

import pytest
import torch
from specfast.planner import fit_temperatures, read_temperatures
from torch import Tensor

SHARES = 40


def rounds_of(temperatures: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Confidences of two drafts, and outcomes of what they say under these temperatures."""
    logits, outcomes = [], []
    for first, second in product((-1.0, 0.5, 2.0), (-0.5, 1.0, 3.0)):
        chances = [
            1 / (1 + math.exp(-x / t)) for x, t in zip((first, second), temperatures, strict=True)
        ]
        for i, j in product(range(SHARES), repeat=2):
            one = (i + 0.5) / SHARES < chances[0]
            logits.append([first, second])
            outcomes.append([int(one), int(one and (j + 0.5) / SHARES < chances[1])])
    return torch.tensor(logits), torch.tensor(outcomes)


@pytest.mark.parametrize("true", [(1.0, 1.0), (10**0.3, 10**-0.2), (0.5, 4.0)])
def test_finds_what_the_outcomes_came_from(true: tuple[float, float]) -> None:
    fit = fit_temperatures(*rounds_of(true))
    # As near as the grid comes, a twentieth of a decade.
    assert fit.temperatures == pytest.approx(true, rel=10**0.05 - 1)
    assert fit.num_samples == 9 * SHARES**2
    assert max(fit.ece_after) < 0.02
    assert all(a <= b for a, b in zip(fit.ece_after, fit.ece_before, strict=True))


def test_a_position_makes_up_for_those_before_it() -> None:
    """No temperature changes a confidence of a half; that of the second draft sees to the rest."""
    logits = torch.tensor([[0.0, -1.0]]).expand(20, 2)
    outcomes = torch.zeros(20, 2, dtype=torch.int64)
    outcomes[:5, 0] = outcomes[:4, 1] = 1
    first, second = fit_temperatures(logits, outcomes).temperatures
    assert first == 1.0
    # 4 of 20 is a half of 0.4.
    assert second == pytest.approx(-1 / math.log(0.4 / 0.6), rel=10**0.05 - 1)


def test_what_nobody_decided_counts_nowhere() -> None:
    logits, outcomes = rounds_of((2.0, 0.5))
    undecided = torch.full_like(outcomes, -1)
    undecided[:, 0] = 0
    mixed = fit_temperatures(
        torch.cat([logits, -logits]), torch.cat([outcomes, torch.full_like(outcomes, -1)])
    )
    assert mixed.temperatures == fit_temperatures(logits, outcomes).temperatures
    alone = fit_temperatures(logits, undecided)
    assert (alone.temperatures[1], alone.ece_before[1], alone.ece_after[1]) == (1.0, 0.0, 0.0)


def test_a_confidence_that_is_no_number_promises_nothing() -> None:
    logits, outcomes = rounds_of((2.0, 0.5))
    rejected = torch.zeros(400, 2, dtype=outcomes.dtype)
    fit = fit_temperatures(
        torch.cat([logits, torch.full((400, 2), torch.nan)]), torch.cat([outcomes, rejected])
    )
    assert fit.temperatures == fit_temperatures(logits, outcomes).temperatures


def test_reads_what_others_write(tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_text(json.dumps({"temperatures": [1, 1.5], "num_samples": 10}))
    assert read_temperatures(path, 2) == [1.0, 1.5]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"temperatures": [1.0, 1.5, 2.0]}', "temperatures of 2 drafts, got 3"),
        ('{"temperatures": [1.0, 0.0]}', "above 0 and finite as float32, got 0.0"),
        ('{"temperatures": [1.0, -1]}', "above 0 and finite as float32, got -1"),
        ('{"temperatures": [1.0, NaN]}', "above 0 and finite as float32, got nan"),
        ('{"temperatures": [1.0, Infinity]}', "above 0 and finite as float32, got inf"),
        ('{"temperatures": [1.0, true]}', '"temperatures" to be a list of numbers'),
        ('{"temperatures": 2}', '"temperatures" to be a list of numbers'),
        ("[1.0, 1.5]", '"temperatures" to be a list of numbers'),
        ("{}", '"temperatures" to be a list of numbers'),
        ("", "is not JSON"),
    ],
)
def test_other_files_are_refused(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "sts.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_temperatures(path, 2)


@pytest.mark.parametrize(("shape", "other"), [((2, 1), (2, 2)), ((2, 2), (3, 2)), ((2,), (2,))])
def test_outcomes_of_other_drafts_are_refused(
    shape: tuple[int, ...], other: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"confidence and outcomes \[R, gamma\], got \[2"):
        fit_temperatures(torch.zeros(shape), torch.zeros(other, dtype=torch.int64))


def test_positions_at_the_end_of_the_grid() -> None:
    """At position 1 every temperature says a half, which is right; at 2 none says little enough."""
    outcomes = torch.tensor([[1, 0], [0, 0]] * 20)
    fit = fit_temperatures(torch.tensor([[0.0, 1.5]] * 40), outcomes)
    assert fit.positions_at_limit == [2]
