"""Requests that are cancelled, and outputs that are read while they are decided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from engine.drafters import FixedDrafter, OracleDrafter
from engine.models import plain_greedy, random_prompt, tiny_model
from specfast import FinishReason, SamplingParams, Status
from specfast.drafters import DraftBatch, DraftRequest, NgramDrafter
from specfast.engine import Engine, RoundOutput

PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 31)]
TEXTS = [plain_greedy(tiny_model(), prompt, 24) for prompt in PROMPTS]
LONG = SamplingParams(max_new_tokens=24)


def drafter() -> OracleDrafter:
    return OracleDrafter([p + t for p, t in zip(PROMPTS, TEXTS, strict=True)])


def run_out(engine: Engine) -> dict[int, list[RoundOutput]]:
    seen: dict[int, list[RoundOutput]] = {}
    while engine.has_unfinished:
        for output in engine.step():
            seen.setdefault(output.request_id, []).append(output)
    assert engine.pool.num_free_pages == engine.pool.num_pages
    return seen


def text_of(outputs: list[RoundOutput]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


@pytest.mark.parametrize("steps", [0, 1, 3, 4, 6])
def test_a_cancelled_request_leaves_at_once_and_the_others_go_on(steps: int) -> None:
    guide = drafter()
    engine = Engine(tiny_model(), guide, max_batch_size=2)
    ids = [engine.add_request(prompt, LONG) for prompt in PROMPTS]
    before: dict[int, list[int]] = {i: [] for i in ids}
    for _ in range(steps):
        for output in engine.step():
            before[output.request_id] += output.token_ids
    held = [len(request.pages) for request in engine._running if request.request_id == ids[1]]
    assert bool(sum(held)) == (steps > 1)
    free = engine.pool.num_free_pages
    assert engine.cancel(ids[1])
    assert engine.pool.num_free_pages == free + sum(held)
    # As often as it was told of, and never again.
    assert guide.released == ([ids[1]] if steps else [])
    assert not engine.cancel(ids[1])
    outputs = run_out(engine)
    assert outputs[ids[1]] == [RoundOutput(ids[1], [], 0, 0, FinishReason.ABORT, Status.OK)]
    assert TEXTS[1][: len(before[ids[1]])] == before[ids[1]]
    for i in (0, 2):
        assert before[ids[i]] + text_of(outputs[ids[i]]) == TEXTS[i]
        assert outputs[ids[i]][-1].finish_reason is FinishReason.LENGTH


def test_who_waits_behind_a_cancelled_request_moves_up() -> None:
    engine = Engine(tiny_model(), num_pages=4)
    running = engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=24))
    engine.step()
    # The first of the queue wants the whole pool, the one behind it a page.
    too_long = engine.add_request(PROMPTS[2], SamplingParams(max_new_tokens=33))
    short = engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=2))
    assert [output.request_id for output in engine.step()] == [running]
    assert engine.cancel(too_long)
    assert [output.request_id for output in engine.step()] == [too_long]
    assert [output.request_id for output in engine.step()] == [short]
    run_out(engine)


def test_unknown_and_finished_requests_cannot_be_cancelled() -> None:
    engine = Engine(tiny_model())
    (generation,) = engine.generate([PROMPTS[0]], SamplingParams(max_new_tokens=2))
    assert not engine.cancel(generation.request_id)
    assert not engine.cancel(77)
    assert not engine.has_unfinished


def test_generate_ends_a_request_that_its_callback_cancels() -> None:
    engine = Engine(tiny_model(), drafter())

    def stop_second(output: RoundOutput) -> None:
        if output.request_id == 1 and output.num_proposed:
            engine.cancel(1)

    first, second, third = engine.generate(PROMPTS, LONG, on_round=stop_second)
    assert (first.token_ids, third.token_ids) == (TEXTS[0], TEXTS[2])
    assert second.finish_reason is FinishReason.ABORT
    assert 0 < len(second.token_ids) < 24
    assert TEXTS[1][: len(second.token_ids)] == second.token_ids
    run_out(engine)


def test_a_stream_gives_each_round_before_the_next() -> None:
    engine = Engine(tiny_model(), NgramDrafter())
    stream = engine.stream(PROMPTS[:2], LONG)
    first = next(stream)
    assert (first.request_id, first.token_ids) == (0, TEXTS[0][:1])
    assert engine.has_unfinished
    outputs = [first, *stream]
    for i in range(2):
        mine = [output for output in outputs if output.request_id == i]
        assert text_of(mine) == TEXTS[i]
        assert [bool(o.finish_reason) for o in mine] == [False] * (len(mine) - 1) + [True]
    run_out(engine)


def test_streams_are_read_in_turns() -> None:
    engine = Engine(tiny_model(), drafter())
    streams = [engine.stream([prompt], LONG) for prompt in PROMPTS]
    texts: list[list[int]] = [[], [], []]
    order = [0, 1, 1, 1, 1, 2, 0, 1, 2, 0]
    for i in order:
        texts[i] += next(streams[i]).token_ids
    (other,) = engine.generate([PROMPTS[0]], LONG)
    assert other.token_ids == TEXTS[0]
    for i, stream in enumerate(streams):
        texts[i] += text_of(list(stream))
    assert texts == TEXTS
    run_out(engine)


@pytest.mark.parametrize("reads", [0, 1, 4])
def test_a_stream_that_is_closed_cancels_what_it_has_left(reads: int) -> None:
    engine = Engine(tiny_model(), drafter())
    kept = engine.add_request(PROMPTS[2], LONG)
    stream = engine.stream(PROMPTS[:2], LONG)
    for _ in range(reads):
        next(stream)
    del stream
    outputs = run_out(engine)
    assert [outputs[i][-1].finish_reason for i in (1, 2)] == [FinishReason.ABORT] * 2
    assert text_of(outputs[kept])[-3:] == TEXTS[2][-3:]


def test_a_stream_refuses_a_bad_prompt_before_it_is_read() -> None:
    engine = Engine(tiny_model())
    with pytest.raises(ValueError, match="at least one token"):
        engine.stream([[1], []])
    assert not engine.has_unfinished


class ForgettingDrafter(FixedDrafter):
    """In its second round, the last reference to a stream goes: Python ends it then and there."""

    def __init__(self, streams: list[Iterator[RoundOutput]]) -> None:
        super().__init__([1, 2])
        self._streams = streams
        self.num_rounds = 0

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        self.num_rounds += 1
        if self.num_rounds == 2:
            self._streams.clear()
        return super().propose(requests, verify_width)


def test_a_stream_that_ends_in_the_middle_of_a_step() -> None:
    model, streams = tiny_model(), list[Iterator[RoundOutput]]()
    engine = Engine(model, ForgettingDrafter(streams), verify_width=3)
    prompts = [random_prompt(length, seed=length) for length in (5, 7)]
    number = engine.add_request(prompts[0], SamplingParams(max_new_tokens=8))
    streams.append(engine.stream(prompts[1:], SamplingParams(max_new_tokens=20)))
    outputs: list[RoundOutput] = []
    while engine.has_unfinished:
        outputs += engine.step()
    emitted = [t for output in outputs if output.request_id == number for t in output.token_ids]
    assert emitted == plain_greedy(model, prompts[0], 8)
    ends = [output.finish_reason for output in outputs if output.finish_reason]
    assert sorted(ends) == sorted([FinishReason.ABORT, FinishReason.LENGTH])
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_what_is_left_of_an_interrupted_generate_is_cancelled() -> None:
    engine = Engine(tiny_model(), verify_width=3)

    def interrupted(output: RoundOutput) -> None:
        if output.request_id == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate([[1, 2], [3, 4], [5]], SamplingParams(max_new_tokens=9), interrupted)
    assert [output.finish_reason for output in engine.step()] == [FinishReason.ABORT] * 3
    assert not engine.has_unfinished
    assert engine.pool.num_free_pages == engine.pool.num_pages
