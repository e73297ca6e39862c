"""What must hold after every round; a failure is a bug in the engine or in an op."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from specfast.engine.pool import PagedKvPool
from specfast.engine.requests import Request
from specfast.records import AcceptRecord


def check_round(
    requests: Sequence[Request],
    prefix_lens: Sequence[int],
    verify_lens: Sequence[int],
    record: AcceptRecord,
    pool: PagedKvPool,
    first_rows: Sequence[int] | None = None,
) -> None:
    """Check a host record against the requests that have just committed it.

    ``prefix_lens`` are the lengths before the round. Rows of a prefill are its last one. Without
    ``first_rows`` one request's rows follow the other's.
    """
    assert record.slots is not None
    predict = record.predict.tolist()
    commit_lens = record.commit_lens.tolist()
    new_seq_lens = record.new_seq_lens.tolist()
    if first_rows is None:
        first_rows = list(accumulate(verify_lens[:-1], initial=0))
    for b, request in enumerate(requests):
        commit_len, rows = commit_lens[b], range(first_rows[b], first_rows[b] + verify_lens[b])
        path, tokens, positions, slots = (
            _valid_part(field[b].tolist(), commit_len, request)
            for field in (record.accept_index, record.out_tokens, record.positions, record.slots)
        )
        new_positions = range(prefix_lens[b], prefix_lens[b] + commit_len)
        _require(1 <= commit_len <= len(rows), request, "commit_len fits the window")
        _require(path[0] == rows[0], request, "the path starts at the anchor")
        _require(all(row in rows for row in path), request, "the path stays in its window")
        _require([predict[row] for row in path] == tokens, request, "predict[path] == out_tokens")
        _require(positions == list(new_positions), request, "positions follow the prefix")
        _require(
            slots == [_slot(request, position, pool.page_size) for position in new_positions],
            request,
            "committed rows lie in the request's pages",
        )
        _require(
            request.committed_len == new_seq_lens[b] == prefix_lens[b] + commit_len,
            request,
            "committed length grows by commit_len",
        )
        _require(tokens == request.token_ids[-commit_len:], request, "out_tokens are emitted")
        _require(
            request.committed_len == len(request.token_ids) - 1, request, "the bonus has no KV"
        )


def check_pages(requests: Sequence[Request], pool: PagedKvPool) -> None:
    """Check that every page has one owner: a request or the free list."""
    held = [page for request in requests for page in request.pages]
    if len(set(held)) != len(held):
        raise RuntimeError("engine invariant broken: two requests share a KV page")
    if len(held) + pool.num_free_pages != pool.num_pages:
        raise RuntimeError("engine invariant broken: a KV page was lost")


def _valid_part(row: list[int], commit_len: int, request: Request) -> list[int]:
    _require(all(value == -1 for value in row[commit_len:]), request, "padding is -1")
    _require(all(value != -1 for value in row[:commit_len]), request, "committed part is whole")
    return row[:commit_len]


def _slot(request: Request, position: int, page_size: int) -> int:
    return request.pages[position // page_size] * page_size + position % page_size


def _require(holds: bool, request: Request, invariant: str) -> None:
    if not holds:
        raise RuntimeError(f"engine invariant broken for request {request.request_id}: {invariant}")
