"""Requests that begin with a long context, without the prefill that would have written it."""

from __future__ import annotations

from typing import Any

from specfast.drafters.paged_drafter import PagedDrafter
from specfast.engine import Engine
from specfast.sampling_params import SamplingParams


def seat(engine: Engine, context_len: int, params: SamplingParams) -> None:
    """Add a request whose first ``context_len`` tokens are committed; their KV is what is there."""
    engine.add_request([1] * (context_len + 1), params)
    engine._admit()
    request = engine._running[-1]
    engine._pages.allocate(request, context_len)
    request.committed_len = context_len


def fill_kv(engine: Engine) -> None:
    """Random keys and values everywhere, those of a drafter included."""
    pools: list[Any] = [engine.pool]
    if isinstance(engine.drafter, PagedDrafter):
        pools.append(engine.drafter._chains.rows)  # type: ignore[union-attr]
    for pool in pools:
        for storage in (*pool.keys, *pool.values):
            storage.normal_()
