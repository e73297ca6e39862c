"""Requests that begin with a long context, without the prefill that would have written it."""

from __future__ import annotations

from specfast.engine import Engine
from specfast.sampling_params import SamplingParams


def seat(engine: Engine, context_len: int, params: SamplingParams) -> None:
    """Add a request whose first ``context_len`` tokens are committed; their KV is zeros."""
    engine.add_request([1] * (context_len + 1), params)
    engine._admit()
    request = engine._running[-1]
    engine._pages.allocate(request, context_len)
    request.committed_len = context_len


def clear_kv(engine: Engine) -> None:
    for storage in (*engine.pool.keys, *engine.pool.values):
        storage.zero_()
