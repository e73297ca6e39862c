"""Confidences of DSpark as a round's drafts carry them to the planner."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from drafters.small_vocabulary import PROMPT, SmallDrafter, Stream, observe, streams
from specfast import SamplingParams
from specfast.drafters import DraftBatch, TrainedDrafter
from specfast.planner import ConfidenceRelay, Tiers, VerifyPlanner

PARAMS = SamplingParams(temperature=1.0)
TEMPERATURES = [0.5, 2.0, 3.0, 1.0]


def proposed(
    name: str, path: Path, temperatures: list[float] | None = None
) -> tuple[DraftBatch, SmallDrafter, TrainedDrafter, list[Stream]]:
    small = SmallDrafter.of(name, path)
    drafter = TrainedDrafter(small.model, 3, temperatures=temperatures)
    requests = streams(5, PARAMS)
    observe(small, drafter, requests, [len(PROMPT)] * 5)
    return drafter.propose(requests, 8), small, drafter, requests


@pytest.mark.parametrize("temperatures", [None, TEMPERATURES], ids=["raw", "sts"])
@pytest.mark.parametrize("name", ["dspark", "dspark-nested"])
def test_survival(name: str, temperatures: list[float] | None, tmp_path: Path) -> None:
    batch, *_ = proposed(name, tmp_path, temperatures)
    assert batch.confidence is not None
    assert batch.confidence.shape == (5, 3)
    scale = torch.tensor((temperatures or [1.0] * 4)[:3])
    expected = (batch.confidence / scale).sigmoid().cumprod(1)
    survival = batch.survival()
    assert survival is not None
    torch.testing.assert_close(survival, expected)
    # What the planner makes of it: the three likeliest drafts of the batch.
    planner = VerifyPlanner(ConfidenceRelay(5, 3, torch.device("cpu")), Tiers([20]))
    plan = type(planner.plan([0], [0], [4]))(3, 20, "test")
    schedule = planner.schedule(
        plan, batch.confidence, form=batch.confidence_form, temperatures=batch.temperatures
    )
    assert int(schedule.verify_lens.sum()) == 5 + 3
    likeliest = sorted((-float(expected[b, i]), i, b) for b in range(5) for i in range(3))[:3]
    taken = [b for _, _, b in likeliest]
    assert schedule.verify_lens.tolist() == [1 + taken.count(b) for b in range(5)]


def test_a_confidence_knows_no_later_draft(tmp_path: Path) -> None:
    """That of the first draft looks at the anchor, that of the second at the first draft."""
    batch, *_ = proposed("dspark", tmp_path)
    assert batch.confidence is not None
    first, second, _ = batch.confidence.unbind(1)
    torch.testing.assert_close(first, first[:1].expand(5))
    by_draft = dict(zip(batch.tokens[:, 1].tolist(), second.tolist(), strict=True))
    assert len(by_draft) > 1
    for token, value in zip(batch.tokens[:, 1].tolist(), second.tolist(), strict=True):
        assert value == pytest.approx(by_draft[token], abs=1e-5)


def test_drafters_without_confidences(tmp_path: Path) -> None:
    batch, small, *_ = proposed("dflash", tmp_path)
    assert batch.confidence is None
    assert batch.survival() is None
    with pytest.raises(ValueError, match="it has no confidences"):
        TrainedDrafter(small.model, temperatures=[1.0] * 5)
    _, small, *_ = proposed("dspark", tmp_path / "dspark")
    with pytest.raises(ValueError, match="temperatures of 4 drafts, got 3"):
        TrainedDrafter(small.model, temperatures=[1.0] * 3)
    for value in (0.0, -1.0, math.nan, math.inf, 1e-50, 1e50):
        with pytest.raises(ValueError, match="as float32, got " + re.escape(str(value))):
            TrainedDrafter(small.model, temperatures=[1.0, 1.0, 1.0, value])


def test_temperatures_of_whole_numbers(tmp_path: Path) -> None:
    batch, *_ = proposed("dspark", tmp_path, [2, 2, 2, 2])
    assert batch.temperatures is not None
    assert batch.temperatures.dtype == torch.float32
    assert batch.survival() is not None
