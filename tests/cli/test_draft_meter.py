"""What stands before a drafter changes no draft and counts what rounds took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from specfast.cli.draft_meter import DraftMeter, TapDraftMeter, metered, node_depths
from specfast.drafters import DraftBatch, DraftRequest, NgramDrafter, TapDrafter
from torch import Tensor

CPU = torch.device("cpu")


def request(request_id: int, num_tokens: int) -> Any:
    return SimpleNamespace(request_id=request_id, token_ids=[3] * num_tokens, tokens_left=9)


class SlowDrafter:
    """Drafts in 1 s and looks at rows in 10 s, by a clock that only it moves."""

    tap_layers = (1, 2)

    def __init__(self, monkeypatch: pytest.MonkeyPatch, batch: DraftBatch) -> None:
        self.now, self.batch, self.seen = 0.0, batch, 0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        self.now += 1
        return self.batch

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        self.now += 10
        self.seen += len(taps)

    def release(self, request_id: int) -> None:
        self.now += 100


def trees() -> DraftBatch:
    requests = [request(4, 3), request(7, 3)]
    return DraftBatch.from_lists(requests, [[1, 2, 3, 4], [1, 2]], [[0, 1, 0, 3], [0, 0]])


def test_depths_of_nodes() -> None:
    chains = DraftBatch.from_lists([request(0, 1), request(1, 1)], [[1, 2, 3], [1]])
    assert node_depths(chains)[0] == [0, 1, 2, 3]
    assert node_depths(trees())[0] == [0, 1, 2, 1, 2]
    assert node_depths(trees())[1][:3] == [0, 1, 1]


def test_what_hangs_on_no_path_has_no_depth() -> None:
    # Node 1 names itself as its parent, node 2 follows it; node 4 names a later one.
    batch = DraftBatch.from_lists([request(0, 1)], [[1, 2, 3, 4]], [[1, 1, 0, 5]])
    assert node_depths(batch) == [[0, 0, 0, 1, 0]]


def test_depth_of_what_was_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    meter = DraftMeter(SlowDrafter(monkeypatch, trees()), CPU)
    meter.propose([request(4, 3), request(7, 3)], 8)
    assert [meter.depth(4, n) for n in range(5)] == [0, 1, 2, 2, 2]
    assert meter.depth(7, 2) == 1
    # The engine lets a request go before its last round is looked at.
    meter.release(7)
    assert meter.depth(7, 2) == 1


def test_survivals_are_those_of_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    requests, survival = [request(4, 3), request(7, 3)], torch.tensor([[0.5, 0.25, 0.125, 0.0]] * 2)
    for parents, expected in ((None, [0.5, 0.25]), (trees().parents, [])):
        batch = replace(trees(), parents=parents, confidence=survival)
        meter = metered(SlowDrafter(monkeypatch, batch), CPU)
        meter.propose(requests, 5)
        assert meter.survival(4, 2) == meter.confidence(4, 2) == expected


def test_prompts_are_no_part_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = SlowDrafter(monkeypatch, trees())
    meter = metered(drafter, CPU)
    assert isinstance(meter, TapDraftMeter)
    assert meter.tap_layers == (1, 2)
    meter.observe([request(4, 3)], [torch.zeros(2, 5)])
    assert (meter.seconds, drafter.seen) == (0.0, 1)
    meter.propose([request(4, 3), request(7, 3)], 8)
    assert meter.seconds == 1.0
    meter.observe([request(4, 5), request(7, 4)], [torch.zeros(2, 5), torch.zeros(1, 5)])
    assert (meter.seconds, drafter.seen) == (11.0, 3)


def test_a_drafter_without_taps_stays_one() -> None:
    assert not isinstance(metered(NgramDrafter(), CPU), TapDrafter)
