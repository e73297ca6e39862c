"""Every page has one owner, through any number of joins, rounds, ends and cancellations."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from engine.models import CONTEXT, VOCAB, tiny_model
from specfast import AcceptRecord, FinishReason, SamplingParams
from specfast.drafters import DraftBatch, DraftRequest
from specfast.engine import Engine
from specfast.engine.pool import KvShape, PagedKvPool
from specfast.engine.requests import Request
from specfast.engine.verified_round import VerifiedRound


class AnyDrafter:
    """Windows of any width; remembers of whom it was told."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self.known: set[int] = set()

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        self.known |= {request.request_id for request in requests}
        widths = [self._draw.randrange(verify_width) for _ in requests]
        return DraftBatch.from_lists(requests, [[0] * width for width in widths])

    def release(self, request_id: int) -> None:
        self.known.discard(request_id)


class DiceVerifier:
    """Commits any number of rows and ends requests by chance, without a model.

    Before that it looks who owns the pages under the windows.
    """

    def __init__(self, engine: Engine, draw: random.Random) -> None:
        self._engine = engine
        self._draw = draw

    def prefill(self, request: Request) -> VerifiedRound:
        return self._decide([request], [len(request.token_ids) - 1], [1])

    def verify(
        self, requests: Sequence[Request], draft: DraftBatch, verify_lens: Sequence[int]
    ) -> VerifiedRound:
        return self._decide(requests, [r.committed_len for r in requests], list(verify_lens))

    def _decide(
        self, requests: Sequence[Request], prefix_lens: list[int], verify_lens: list[int]
    ) -> VerifiedRound:
        size = self._engine.pool.page_size
        owner: dict[int, int] = {}
        for request, prefix_len, rows in zip(requests, prefix_lens, verify_lens, strict=True):
            assert prefix_len + rows <= self._engine.context_length
            assert len(request.pages) * size >= prefix_len + rows
            for page in request.pages:
                assert 0 <= page < self._engine.pool.num_pages
                assert owner.setdefault(page, request.request_id) == request.request_id
        record = AcceptRecord.empty(
            len(requests), max(verify_lens), sum(verify_lens), "cpu", slots_dtype=torch.int32
        )
        for field in (record.per_request, record.per_step, record.predict, record.slots):
            assert field is not None
            field.fill_(-1)
        record.status.zero_()
        first = 0
        for b, (request, prefix_len, rows) in enumerate(
            zip(requests, prefix_lens, verify_lens, strict=True)
        ):
            count = min(self._draw.randint(1, rows), request.tokens_left)
            reason = FinishReason.STOP if self._draw.random() < 0.02 else FinishReason(0)
            if count == request.tokens_left:
                reason = FinishReason.LENGTH
            tokens = torch.tensor([self._draw.randrange(VOCAB) for _ in range(count)])
            positions = torch.arange(prefix_len, prefix_len + count)
            pages = torch.tensor(request.pages)[positions // size]
            assert record.slots is not None
            record.slots[b, :count] = pages * size + positions % size
            record.positions[b, :count] = positions
            record.accept_index[b, :count] = torch.arange(first, first + count)
            record.out_tokens[b, :count] = tokens
            record.predict[first : first + count] = tokens
            record.commit_lens[b] = count
            record.num_correct_drafts[b] = count - 1
            record.new_seq_lens[b] = prefix_len + count
            record.finish_reason[b] = reason
            first += rows
        return VerifiedRound.of(record, verify_lens)


@pytest.mark.parametrize(("page_size", "num_pages"), [(1, 70), (5, 24)])
def test_no_page_is_lost_or_shared(
    page_size: int, num_pages: int, request: pytest.FixtureRequest
) -> None:
    num_rounds = 50_000 if request.config.getoption("--slow") else 2000
    draw = random.Random(page_size)
    drafter = AnyDrafter(draw)
    engine = Engine(
        tiny_model(), drafter, max_batch_size=6, page_size=page_size, num_pages=num_pages,
        verify_width=5,
    )  # fmt: skip
    engine._verifier = DiceVerifier(engine, draw)  # type: ignore[assignment]
    unfinished: set[int] = set()
    ends = dict.fromkeys(FinishReason, 0)
    most_waiting = 0
    for _ in range(num_rounds):
        if draw.random() < 0.25:
            prompt = [0] * draw.choice([1, 3, 17, draw.randint(1, engine.context_length - 1)])
            params = SamplingParams(max_new_tokens=draw.choice([1, 9, 40, CONTEXT]))
            unfinished.add(engine.add_request(prompt, params))
        if unfinished and draw.random() < 0.03 * len(unfinished):
            gone = draw.choice(sorted(unfinished))
            assert engine.cancel(gone)
            assert not engine.cancel(gone)
        for output in engine.step():
            assert output.request_id in unfinished
            ends[output.finish_reason] += 1
            if output.finish_reason:
                unfinished.remove(output.request_id)
        held = [page for running in engine._running for page in running.pages]
        assert len({*held, *engine.pool._free}) == num_pages
        assert len(held) + engine.pool.num_free_pages == num_pages
        assert drafter.known <= unfinished
        most_waiting = max(most_waiting, len(engine._waiting))
    assert most_waiting > 3
    assert min(ends[FinishReason(reason)] for reason in (0, 2, 3, 4)) > num_rounds // 200
    for request_id in unfinished:
        engine.cancel(request_id)
    while engine.has_unfinished:
        engine.step()
    assert engine.pool.num_free_pages == num_pages
    assert not drafter.known
    assert len(engine._page_table._free_rows) == 6


def test_a_page_is_returned_once() -> None:
    pool = PagedKvPool(
        {0: KvShape(1, 2, 2)}, num_pages=4, page_size=2, dtype=torch.float32,
        device=torch.device("cpu"),
    )  # fmt: skip
    first, second = pool.allocate(2), pool.allocate(1)
    for wrong in (first + second + [3], [second[0], second[0]], [*first, first[0]]):
        with pytest.raises(RuntimeError, match="pages that are in use, each once"):
            pool.release(wrong)
    assert pool.num_free_pages == 1
    pool.release(first)
    with pytest.raises(RuntimeError, match="pages that are in use, each once"):
        pool.release(first)
    pool.release(second)
    assert sorted(pool.allocate(4)) == [0, 1, 2, 3]
