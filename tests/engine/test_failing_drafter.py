"""A drafter that fails in the middle of a step costs time, and no token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

import pytest
import torch
from engine.drafters import FixedDrafter
from engine.models import plain_greedy, random_prompt, tiny_model
from specfast import SamplingParams
from specfast.drafters import DraftBatch, DraftRequest
from specfast.engine import Engine
from torch import Tensor

PROMPTS = [random_prompt(length, seed=length) for length in (5, 1, 12)]
LIMITS = (9, 4, 6)


class FailingDrafter(FixedDrafter):
    """Fails at call number ``failing`` of ``method``.

    seen : rows of each request that it has been shown
    """

    tap_layers = (0,)

    def __init__(self, method: str, failing: int) -> None:
        super().__init__([1, 2])
        self._method = method
        self._calls = itertools.count(1)
        self._failing = failing
        self.seen: dict[int, int] = {}

    def _count(self, method: str) -> None:
        if method == self._method and next(self._calls) == self._failing:
            raise torch.OutOfMemoryError

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        self._count("propose")
        for request in requests:
            assert self.seen[request.request_id] == len(request.token_ids) - 1
        return super().propose(requests, verify_width)

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        for request, rows in zip(requests, taps, strict=True):
            number = request.request_id
            self.seen[number] = self.seen.get(number, 0) + len(rows)
            self._count("observe")

    def release(self, request_id: int) -> None:
        self.seen.pop(request_id, None)
        self._count("release")


@pytest.mark.parametrize(
    ("method", "failing"),
    [("propose", 2), ("release", 1), ("release", 3), *(("observe", n) for n in (1, 4, 6, 7))],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_every_token_is_told_once(method: str, failing: int, streamed: bool) -> None:
    model = tiny_model()
    drafter = FailingDrafter(method, failing)
    engine = Engine(model, drafter, max_batch_size=2, verify_width=3)
    emitted: dict[int, list[int]] = {i: [] for i in range(len(PROMPTS))}
    ended = []
    streams = []
    for prompt, limit in zip(PROMPTS, LIMITS, strict=True):
        params = SamplingParams(max_new_tokens=limit)
        if streamed:
            streams.append(engine.stream([prompt], params))
        else:
            engine.add_request(prompt, params)
    num_failed = 0
    for _ in range(50):
        if not engine.has_unfinished:
            break
        num_failed += 1
        with suppress(torch.OutOfMemoryError):
            for output in engine.step():
                if not streamed:
                    emitted[output.request_id] += output.token_ids
                    ended += [output.request_id] if output.finish_reason else []
            num_failed -= 1
    assert num_failed == 1
    for output in itertools.chain(*streams):
        emitted[output.request_id] += output.token_ids
        ended += [output.request_id] if output.finish_reason else []
    for i, (prompt, limit) in enumerate(zip(PROMPTS, LIMITS, strict=True)):
        assert emitted[i] == plain_greedy(model, prompt, limit)
    assert sorted(ended) == [0, 1, 2]
    assert not drafter.seen
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_cancelled_request_is_told_whatever_the_drafter_does() -> None:
    engine = Engine(tiny_model(), FailingDrafter("release", 1))
    number = engine.add_request(PROMPTS[0])
    engine.step()
    with pytest.raises(torch.OutOfMemoryError):
        engine.cancel(number)
    assert [output.request_id for output in engine.step()] == [number]
    assert not engine.has_unfinished
