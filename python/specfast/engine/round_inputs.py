"""What a captured round reads: tensors whose addresses stay, filled by one copy from the host."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specfast.drafters.base import DraftBatch
from specfast.drafters.sampling import seed_word
from specfast.engine.requests import Request
from specfast.records import AcceptRecord

# Ids that end a request, over EOS and stop ids; a request with more of them is not captured.
MAX_END_IDS = 16

_DTYPES = {torch.int32: np.int32, torch.int64: np.int64, torch.float32: np.float32}


class RoundInputs:
    """Inputs of rounds of one batch size; B slots, at most N rows in each.

    A slot without a request has ``verify_lens`` 0, and nothing else of it is read.

    seeds : int64 [B]                  of the random numbers
    tokens, parents : int32 [B, N]     anchor and drafts, and the node that each node follows
    verify_lens : int32 [B]
    page_table_rows : int32 [B]        the request's row of the page table
    counters : int32 [3, B]            the three that follow, so that one kernel counts in all
    prefix_lens, max_tokens_left : int32 [B]
    min_tokens_left : int32 [B]        less than 0 as well, which is 0
    stop_token_ids : int32 [B, MAX_END_IDS]
    temperature, top_p, min_p : float32 [B]; top_k : int32 [B]

    budget : int32 [1]                 drafts that the planner grants the batch; not loaded

    Lifetime: :meth:`load` overwrites all of it, so the round before must have ended by then.
    """

    seeds: Tensor
    tokens: Tensor
    parents: Tensor
    verify_lens: Tensor
    page_table_rows: Tensor
    counters: Tensor
    prefix_lens: Tensor
    max_tokens_left: Tensor
    min_tokens_left: Tensor
    stop_token_ids: Tensor
    temperature: Tensor
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.budget = torch.full((1,), slots * width, dtype=torch.int32, device=device)
        self._shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
            "seeds": (torch.int64, (slots,)),  # first: 8-byte aligned
            "tokens": (torch.int32, (slots, width)),
            "parents": (torch.int32, (slots, width)),
            "verify_lens": (torch.int32, (slots,)),
            "page_table_rows": (torch.int32, (slots,)),
            "counters": (torch.int32, (3, slots)),
            "stop_token_ids": (torch.int32, (slots, MAX_END_IDS)),
            "temperature": (torch.float32, (slots,)),
            "top_p": (torch.float32, (slots,)),
            "min_p": (torch.float32, (slots,)),
            "top_k": (torch.int32, (slots,)),
        }
        self._width = width
        num_bytes = sum(_num_bytes(*shape) for shape in self._shapes.values())
        pinned = device.type == "cuda"
        self._staging = torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        self._packed = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._host: dict[str, Any] = {}
        first = 0
        for name, (dtype, shape) in self._shapes.items():
            last = first + _num_bytes(dtype, shape)
            setattr(self, name, self._packed[first:last].view(dtype).view(shape))
            host = self._staging.numpy()[first:last]
            self._host[name] = host.view(_DTYPES[dtype]).reshape(shape)
            first = last
        for i, name in enumerate(("prefix_lens", "max_tokens_left", "min_tokens_left")):
            setattr(self, name, self.counters[i])
            self._host[name] = self._host["counters"][i]
        self._steps = torch.tensor([[1], [-1], [-1]], dtype=torch.int32, device=device)

    def clear(self) -> None:
        """Make all slots padded ones."""
        self.verify_lens.zero_()

    def advance(self, record: AcceptRecord) -> None:
        """What the same requests need in the round after this, if nobody joins or leaves."""
        self.counters.addcmul_(self._steps, record.commit_lens)
        self.tokens[:, 0].copy_(record.next_anchor)

    def snapshot(self) -> Tensor:
        """A copy of all inputs, for :meth:`restore`."""
        return self._packed.clone()

    def restore(self, snapshot: Tensor) -> None:
        self._packed.copy_(snapshot)

    def load(
        self, requests: Sequence[Request], draft: DraftBatch | None, verify_lens: Sequence[int]
    ) -> None:
        """Fill the first slots with a round of ``requests``; the others are padded slots.

        Without a ``draft``, only the anchors: the device drafts.

        Raises
        ------
        RuntimeError
            More requests or rows than these tensors hold.
        """
        shape = [len(requests), 1] if draft is None else list(draft.tokens.shape)
        count, columns = shape
        slots = len(self._host["verify_lens"])
        if len(requests) != count or count > slots or columns > self._width:
            raise RuntimeError(
                f"captured round: expected at most {slots} requests of at most {self._width} rows, "
                f"got {len(requests)} requests and drafts {shape}"
            )
        host = self._host
        host["verify_lens"][:] = 0
        host["verify_lens"][:count] = verify_lens
        host["tokens"][:] = -1
        host["stop_token_ids"][:count] = -1
        on_device = None
        if draft is not None and draft.tokens.device.type == "cpu":
            # An id that 32 bits do not hold is as illegal as -1.
            ids = draft.tokens.numpy()
            host["tokens"][:count, :columns] = np.where((ids >= 0) & (ids < 2**31), ids, -1)
        elif draft is not None:
            on_device = draft.tokens
        if draft is not None and draft.parents is not None:
            host["parents"][:count, :columns] = draft.parents.cpu().numpy()
        for slot, request in enumerate(requests):
            params = request.params
            host["tokens"][slot, 0] = request.token_ids[-1]
            host["prefix_lens"][slot] = request.committed_len
            host["page_table_rows"][slot] = request.slot
            host["max_tokens_left"][slot] = request.tokens_left
            host["min_tokens_left"][slot] = request.min_tokens_left
            end_ids = request.end_token_ids
            host["stop_token_ids"][slot, : len(end_ids)] = end_ids
            host["seeds"][slot] = seed_word(request.seed)
            host["temperature"][slot] = params.temperature
            host["top_k"][slot] = params.top_k
            host["top_p"][slot] = params.top_p
            host["min_p"][slot] = params.min_p
        self._packed.copy_(self._staging, non_blocking=True)
        if on_device is not None:
            self.tokens[:count, 1:columns].copy_(on_device[:, 1:])


def _num_bytes(dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    return dtype.itemsize * math.prod(shape)
