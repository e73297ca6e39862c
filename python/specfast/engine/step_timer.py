"""How long a round takes, by its rows: what an SPS table is made of."""

from __future__ import annotations

import time

import torch
from transformers import PreTrainedModel

from specfast.drafters.base import DraftBatch
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.requests import Request
from specfast.engine.target import Target
from specfast.engine.verifier import Verifier
from specfast.planner import CaptureSlots
from specfast.sampling_params import SamplingParams


class StepTimer:
    """Runs greedy rounds of chains that commit nothing, so that each is like the one before.

    Parameters
    ----------
    model : transformers causal LM
        Any that ``Target`` supports.
    num_requests : int
        Requests at most; fewer where there are fewer rows.
    width : int
        Rows of a request at most.
    context_len : int
        Committed tokens of each request. Their keys and values are zeros.
    page_size : int
        Tokens per KV page.

    Raises
    ------
    ValueError
        A context that leaves a round no room, or a model that cannot be a target.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        num_requests: int,
        width: int,
        context_len: int,
        page_size: int = 16,
    ) -> None:
        target = Target(model)
        limit = target.context_length
        if limit is not None and context_len + width > limit:
            raise ValueError(
                f"expected at most {limit - width} committed tokens before {width} rows, "
                f"got {context_len}"
            )
        self.width = width
        pages_per_request = -(-(context_len + width) // page_size)
        pool = PagedKvPool(
            target.kv_shapes,
            num_pages=num_requests * pages_per_request,
            page_size=page_size,
            dtype=target.kv_dtype,
            device=target.device,
        )
        for storage in (*pool.keys, *pool.values):
            storage.zero_()
        page_table = PageTable(num_requests, pages_per_request, page_size, target.device)
        self._verifier = Verifier(target, pool, page_table)
        rng = torch.Generator().manual_seed(0)
        self._drafts = torch.randint(0, target.vocab_size, (num_requests, width), generator=rng)
        self._requests = []
        for number in range(num_requests):
            pages = pool.allocate(pages_per_request)
            slot = page_table.take_row()
            page_table.write(slot, 0, pages)
            request = Request(
                request_id=number,
                params=SamplingParams(),
                token_ids=[0] * (context_len + 1),
                num_prompt_tokens=context_len + 1,
                max_len=context_len + 1 + width,
                reserved_pages=pages_per_request,
                committed_len=context_len,
                pages=pages,
                slot=slot,
            )
            self._requests.append(request)

    def requests_of(self, num_rows: int) -> int:
        """How many requests share so many rows."""
        return min(num_rows, len(self._requests))

    @torch.inference_mode()
    def seconds(self, num_rows: int) -> float:
        """Time one round of so many rows, from its layout to its record on the host."""
        count = self.requests_of(num_rows)
        lens = list(CaptureSlots.even(num_rows, count, self.width).lens)
        draft = DraftBatch(self._drafts[:count, : max(lens)], lens)
        begin = time.perf_counter()
        self._verifier.verify(self._requests[:count], draft, lens)
        return time.perf_counter() - begin
