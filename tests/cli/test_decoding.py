"""The time of a decoding, by a clock that only the engine moves."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from round_outputs import round_output
from specfast.cli.decoding import decode
from specfast.engine import Engine, RoundOutput
from specfast.sampling_params import SamplingParams


class ClockedEngine:
    """Admits a request in 1 s, prefills in 10 s, and ends it with its second round of 100 s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.steps = 0.0, 0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    @property
    def has_unfinished(self) -> bool:
        return self.steps < 3

    def add_request(self, prompt_ids: list[int], params: SamplingParams) -> int:
        self.now += 1
        return 0

    def step(self) -> list[RoundOutput]:
        self.now += 100 if self.steps else 10
        self.steps += 1
        return [round_output([5], last=self.steps == 3)]

    def seed_of(self, request_id: int, params: SamplingParams) -> int:
        return 0


def test_prefills_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ClockedEngine(monkeypatch)

    def show(index: int, output: RoundOutput) -> None:
        engine.now += 1000

    decoding = decode(cast(Engine, cast(Any, engine)), [[1]], SamplingParams(), show)
    assert (decoding.seconds, decoding.prefill_seconds) == (211.0, 11.0)
