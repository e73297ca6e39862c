"""StepTimer: rounds of exactly so many rows, each like the one before."""

from __future__ import annotations

import pytest
import torch
from engine.models import CONTEXT, tiny_model
from specfast.engine.step_timer import StepTimer
from specfast.engine.target import Target
from torch import Tensor


def test_a_step_has_its_rows(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    positions_of_steps: list[list[int]] = []
    forward = Target.forward

    def recorded(self: Target, ids: Tensor, positions: Tensor, *rest, **more) -> Tensor:
        positions_of_steps.append(positions.tolist())
        return forward(self, ids, positions, *rest, **more)

    model = tiny_model().to(device)
    timer = StepTimer(model, num_requests=3, width=4, context_len=10, page_size=4)
    monkeypatch.setattr(Target, "forward", recorded)
    for rows in (1, 3, 8, 8, 12):
        assert timer.seconds(rows) > 0
    assert positions_of_steps == [
        [10],
        [10, 10, 10],
        [10, 11, 12, 10, 11, 12, 10, 11],
        [10, 11, 12, 10, 11, 12, 10, 11],
        [10, 11, 12, 13] * 3,
    ]
    assert [timer.requests_of(rows) for rows in (1, 3, 8)] == [1, 3, 3]


def test_a_context_without_room_is_refused() -> None:
    StepTimer(tiny_model(), num_requests=1, width=4, context_len=CONTEXT - 4)
    with pytest.raises(ValueError, match=f"at most {CONTEXT - 4} committed tokens before 4 rows"):
        StepTimer(tiny_model(), num_requests=1, width=4, context_len=CONTEXT - 3)


def test_an_empty_context_can_be_timed() -> None:
    timer = StepTimer(tiny_model(), num_requests=2, width=2, context_len=0)
    assert torch.tensor([timer.seconds(rows) for rows in (1, 2, 4)]).isfinite().all()
