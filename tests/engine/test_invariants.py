"""A round that breaks an invariant does not pass unnoticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine.models import tiny_model
from specfast import AcceptRecord, FinishReason, SamplingParams
from specfast.drafters import DraftBatch
from specfast.engine import Engine
from specfast.engine.invariants import check_pages, check_round
from specfast.engine.pool import KvShape, PagedKvPool
from specfast.engine.requests import Request

PREFIX_LENS = [10, 3]
VERIFY_LENS = [2, 5]


def pool() -> PagedKvPool:
    return PagedKvPool(
        {0: KvShape(1, 2, 2)},
        num_pages=8,
        page_size=4,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def committed_round() -> tuple[list[Request], AcceptRecord]:
    """Prefixes of 10 and 3, windows of 2 and 5 rows; 1 and 3 rows are committed."""
    requests = [
        Request(0, SamplingParams(), list(range(12)), 2, 99, 0, 11, [5, 0, 2]),
        Request(1, SamplingParams(), [0, 0, 0, 0, 31, 32, 33], 2, 99, 0, 6, [1, 7]),
    ]
    record = AcceptRecord.empty(2, 5, 7, "cpu", slots_dtype=torch.int32)
    for field in (record.per_step, record.predict, record.slots):
        assert field is not None
        field.fill_(-1)
    # Request 1 owns rows 2..6; the path is its rows 0, 1, 3.
    paths, tokens = [[0], [2, 3, 5]], [[11], [31, 32, 33]]
    slots = [[2 * 4 + 2], [1 * 4 + 3, 7 * 4, 7 * 4 + 1]]
    for b, (path, emitted, at) in enumerate(zip(paths, tokens, slots, strict=True)):
        n = len(path)
        record.accept_index[b, :n] = torch.tensor(path)
        record.out_tokens[b, :n] = torch.tensor(emitted)
        record.positions[b, :n] = torch.arange(PREFIX_LENS[b], PREFIX_LENS[b] + n)
        record.slots[b, :n] = torch.tensor(at)
        record.predict[torch.tensor(path)] = torch.tensor(emitted, dtype=torch.int32)
        record.commit_lens[b] = n
        record.new_seq_lens[b] = PREFIX_LENS[b] + n
        record.finish_reason[b] = FinishReason.NOT_FINISHED
    return requests, record


def check(requests: list[Request], record: AcceptRecord) -> None:
    check_round(requests, PREFIX_LENS, VERIFY_LENS, record, pool())


def test_a_right_round_passes() -> None:
    check(*committed_round())


@pytest.mark.parametrize(
    ("fault", "invariant"),
    [
        (lambda _, r: r.accept_index[1].copy_(torch.tensor([2, 3, -1, -1, -1])), "part is whole"),
        (lambda _, r: r.accept_index[0, 1].fill_(1), "padding is -1"),
        (lambda _, r: r.out_tokens[0, 3].fill_(4), "padding is -1"),
        (lambda _, r: r.commit_lens[0].fill_(0), "padding is -1"),
        # Rows of the neighbour, and of nobody.
        (lambda _, r: r.accept_index[1, 0].fill_(0), "starts at the anchor"),
        (lambda _, r: r.accept_index[1, 2].fill_(7), "stays in its window"),
        (lambda _, r: r.predict[5].fill_(32), r"predict\[path\] == out_tokens"),
        (lambda _, r: r.positions[1, 2].fill_(6), "positions follow the prefix"),
        (lambda _, r: r.slots[1, 1].fill_(8), "lie in the request's pages"),
        (lambda q, _: q[1].pages.reverse(), "lie in the request's pages"),
        (lambda _, r: r.new_seq_lens[1].fill_(7), "committed length grows by commit_len"),
        (lambda q, _: setattr(q[1], "committed_len", 7), "committed length grows"),
        (lambda q, _: q[0].token_ids.pop(), "out_tokens are emitted"),
        (lambda q, _: q[1].token_ids.insert(0, 9), "the bonus has no KV"),
    ],
)
def test_every_fault_is_found(
    fault: Callable[[list[Request], AcceptRecord], object], invariant: str
) -> None:
    requests, record = committed_round()
    fault(requests, record)
    with pytest.raises(RuntimeError, match=rf"invariant broken for request \d: .*{invariant}"):
        check(requests, record)


def test_a_shared_page_and_a_lost_page_are_found() -> None:
    requests, _ = committed_round()
    kv_pool = pool()
    for request in requests:
        request.pages = kv_pool.allocate(2)
    check_pages(requests, kv_pool)
    requests[0].pages.append(requests[1].pages[0])
    with pytest.raises(RuntimeError, match="two requests share a KV page"):
        check_pages(requests, kv_pool)
    requests[0].pages = []
    with pytest.raises(RuntimeError, match="a KV page was lost"):
        check_pages(requests, kv_pool)


class Forgetful:
    """Drafts nothing, and loses a token of the request behind the engine's back."""

    def propose(self, requests: list[Request], verify_width: int) -> DraftBatch:
        batch = DraftBatch.from_lists(requests, [[]])
        requests[0].token_ids.pop(0)
        return batch

    def release(self, request_id: int) -> None:
        pass


@pytest.mark.parametrize("check_invariants", [True, False])
def test_the_engine_checks_when_asked(check_invariants: bool) -> None:
    engine = Engine(tiny_model(), Forgetful(), check_invariants=check_invariants)
    engine.add_request([1, 2, 3])
    engine.step()
    if check_invariants:
        with pytest.raises(RuntimeError, match="the bonus has no KV"):
            engine.step()
    else:
        engine.step()
