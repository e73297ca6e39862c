"""StepTimer: rounds of exactly so many rows, each like the one before."""

from __future__ import annotations

import re

import pytest
import torch
from engine.models import CONTEXT, tiny_model
from specfast.engine import Engine, VerifyTiers
from specfast.engine.captured_round import CapturedRound, LaunchedRound
from specfast.engine.sps_setting import WayOfRounds
from specfast.engine.step_timer import StepTimer
from specfast.engine.target import Target
from specfast.engine.verified_round import VerifiedRound
from specfast.planner import AdditiveSeconds, Planning, SpsTable
from torch import Tensor


def test_a_step_has_its_rows(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    positions_of_steps: list[list[int]] = []
    forward = Target.forward

    def recorded(self: Target, ids: Tensor, positions: Tensor, *rest, **more) -> Tensor:
        positions_of_steps.append(positions.tolist())
        return forward(self, ids, positions, *rest, **more)

    model = tiny_model().to(device)
    timer = StepTimer(
        model, num_requests=3, width=4, tiers=[12, 1, 3, 8], context_len=10, page_size=4
    )
    assert timer.setting.tiers == (1, 3, 8, 12)
    monkeypatch.setattr(Target, "forward", recorded)
    for rows, steps in ((1, 1), (3, 1), (8, 2), (12, 1)):
        seconds = timer.seconds(rows, steps)
        assert len(seconds) == steps
        assert min(seconds) > 0
    assert positions_of_steps == [
        [10],
        [10, 10, 10],
        [10, 11, 12, 10, 11, 12, 10, 11],
        [10, 11, 12, 10, 11, 12, 10, 11],
        [10, 11, 12, 13] * 3,
    ]
    assert [timer.requests_of(rows) for rows in (1, 3, 8)] == [1, 3, 3]


def test_a_context_without_room_is_refused() -> None:
    StepTimer(tiny_model(), num_requests=1, width=4, tiers=[4], context_len=CONTEXT - 4)
    with pytest.raises(ValueError, match=f"at most {CONTEXT - 4} committed tokens before 4 rows"):
        StepTimer(tiny_model(), num_requests=1, width=4, tiers=[4], context_len=CONTEXT - 3)


@pytest.mark.parametrize("rounds", ["eager", "padded"])
def test_an_empty_context_can_be_timed(rounds: WayOfRounds) -> None:
    model = tiny_model()
    timer = StepTimer(model, num_requests=2, width=2, tiers=[2, 3, 4], context_len=0, rounds=rounds)
    assert torch.tensor([timer.seconds(rows, 2) for rows in (2, 3, 4)]).isfinite().all()


def test_rows_of_no_tier_are_refused() -> None:
    timer = StepTimer(tiny_model(), num_requests=2, width=2, tiers=[2, 4], context_len=0)
    with pytest.raises(ValueError, match=re.escape("expected rows of a tier, (2, 4), got 3")):
        timer.seconds(3, 1)


class Rounds:
    """What the rounds of tiers did, in their order, and what was read of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs: list[dict[str, list[int]]] = []
        self.events: list[str] = []
        self._replay, self._launch, self._read = (
            CapturedRound.replay,
            CapturedRound.launch,
            LaunchedRound.read,
        )
        monkeypatch.setattr(CapturedRound, "replay", lambda captured: self.replay(captured))
        monkeypatch.setattr(CapturedRound, "launch", lambda captured: self.launch(captured))
        monkeypatch.setattr(LaunchedRound, "read", lambda launched: self.read(launched))

    def replay(self, captured: CapturedRound) -> None:
        prefix_lens = captured.round.inputs.prefix_lens.tolist()
        self._replay(captured)
        window = captured.round._window
        self.runs.append(
            {
                "prefix_lens": prefix_lens,
                "verify_lens": window.verify_lens.tolist(),
                "padding": [int((window.window_index < 0).sum())],
                "rows": [captured.round.num_rows],
            }
        )

    def launch(self, captured: CapturedRound) -> LaunchedRound:
        self.events.append("launch")
        return self._launch(captured)

    def read(self, launched: LaunchedRound) -> VerifiedRound:
        self.events.append("read")
        return self._read(launched)


@pytest.mark.parametrize("rounds", ["padded", "graphs"])
def test_a_planned_step_is_a_round_of_its_tier(
    rounds: WayOfRounds, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its rows are rows of drafts, and it starts where the one before started."""
    if rounds == "graphs" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    model = tiny_model(head_dim=64).to(device)
    timer = StepTimer(
        model, num_requests=3, width=4, tiers=[3, 8], context_len=10, page_size=4, rounds=rounds
    )
    assert timer.setting.tiers == (3, 8, 12)
    assert timer.setting.num_requests == 3
    seen = Rounds(monkeypatch)
    for rows, lens in [(3, [1, 1, 1]), (8, [3, 3, 2]), (12, [4, 4, 4])]:
        seen.runs.clear()
        seen.events.clear()
        seconds = timer.seconds(rows, 2)
        assert len(seconds) == 2
        assert min(seconds) > 0
        # Each is launched before the one before is read, as an engine does.
        assert seen.events == ["launch", "launch", "read", "launch", "read", "read"]
        step = {"prefix_lens": [10] * 3, "verify_lens": lens, "padding": [0], "rows": [rows]}
        assert seen.runs == [step] * 3


@pytest.mark.parametrize("rounds", ["eager", "padded", "graphs"])
def test_the_setting_is_that_of_an_engine(rounds: WayOfRounds, device: str) -> None:
    """A table of these steps is one for an engine that runs them, and for no other."""
    if rounds == "graphs" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    model = tiny_model(head_dim=64).to(device)
    timer = StepTimer(model, num_requests=2, width=3, tiers=[2, 4], context_len=8, rounds=rounds)
    table = SpsTable(timer.setting, "a commit", AdditiveSeconds(1.0, ((1, 0.0),), ((1, 0.0),)))

    def engine(*sizes: int, **others: bool) -> Engine:
        capture = rounds == "graphs"
        tiers = VerifyTiers(sizes, 3, [2, 4], **{"capture": capture, **others})
        return Engine(model, verify_width=3, tiers=tiers, planning=Planning("compact", table))

    if rounds == "eager":
        assert timer.setting.tiers == (2, 4)
        with pytest.raises(ValueError, match="with backend 'verify_attention, padded, fp32', got"):
            engine(2, capture=False)
        return
    engine(2)
    with pytest.raises(ValueError, match="with num_requests 1, got 2"):
        engine(1)
    with pytest.raises(ValueError, match=re.escape("tiers of one batch size, got those of [1, 2]")):
        engine(1, 2)
    if rounds == "graphs":
        with pytest.raises(ValueError, match="with backend 'verify_attention, padded, fp32', got"):
            engine(2, capture=False)


def test_more_requests_than_a_round_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="1025 requests at once; at most 1024"):
        StepTimer(
            tiny_model(), num_requests=1025, width=1, tiers=[], context_len=0, rounds="padded"
        )
