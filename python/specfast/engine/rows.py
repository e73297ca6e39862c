"""The rows of one target forward: whose they are and where their KV lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.engine.pool import PageTable
from specfast.engine.requests import Request


@dataclass(frozen=True)
class RowBatch:
    """R rows of B requests, back to back; a request has at most W rows and sees at most K slots.

    prefix_lens, verify_lens : int32 [B]   committed KV; rows of the request
    page_table_rows : int64 [B]            of the requests: ``Request.slot``
    qo_indptr : int32 [B + 1]              request b owns rows qo_indptr[b] .. qo_indptr[b + 1]
    offsets : int64 [B, W]                 a padded view of each request's rows; padding repeats
                                           the last row
    row_index : int64 [B, W]               the row at each place of that view
    place_of_row : int64 [R]               the place b * W + i of each row in that view
    kv_slots : int64 [B, K]                slot of each position, window included; padding repeats
                                           the last, so that only written slots are ever read
    out_cache_loc : int32 [R]              slot that each row writes
    starts_empty : bool                    no request has committed KV yet
    """

    prefix_lens: Tensor
    verify_lens: Tensor
    page_table_rows: Tensor
    qo_indptr: Tensor
    offsets: Tensor
    row_index: Tensor
    place_of_row: Tensor
    kv_slots: Tensor
    out_cache_loc: Tensor
    starts_empty: bool

    @property
    def batch_size(self) -> int:
        return self.row_index.shape[0]

    @property
    def num_rows(self) -> int:
        return self.place_of_row.shape[0]

    @property
    def width(self) -> int:
        return self.row_index.shape[1]

    def flatten(self, padded: Tensor) -> Tensor:
        """[B, N, ...] with N >= W to [R, ...]."""
        return padded[:, : self.width].flatten(0, 1)[self.place_of_row]


def lay_out_rows(
    requests: Sequence[Request],
    verify_lens: Sequence[int],
    page_table: PageTable,
    device: torch.device,
) -> RowBatch:
    """Lay out ``verify_lens[b]`` rows after the committed KV of each request.

    Every size is known on the host, so no step waits for the device.
    """
    prefix_lens = [request.committed_len for request in requests]
    num_rows, width = sum(verify_lens), max(verify_lens)
    kv_len = max(p + v for p, v in zip(prefix_lens, verify_lens, strict=True))
    slots = [request.slot for request in requests]
    per_request = torch.tensor([prefix_lens, list(verify_lens), slots], device=device)
    prefix, rows, slot = per_request.unbind()
    indptr = torch.nn.functional.pad(rows.cumsum(0), (1, 0))

    request_of_row = torch.repeat_interleave(rows, output_size=num_rows)
    offset_of_row = torch.arange(num_rows, device=device) - indptr[request_of_row]
    offsets = torch.minimum(torch.arange(width, device=device), rows[:, None] - 1)

    last_position = (prefix + rows)[:, None] - 1
    positions = torch.minimum(torch.arange(kv_len, device=device), last_position)
    kv_slots = page_table.slots(slot, positions)
    return RowBatch(
        prefix_lens=prefix.int(),
        verify_lens=rows.int(),
        page_table_rows=slot,
        qo_indptr=indptr.int(),
        offsets=offsets,
        row_index=indptr[:-1, None] + offsets,
        place_of_row=request_of_row * width + offset_of_row,
        kv_slots=kv_slots,
        out_cache_loc=kv_slots[request_of_row, prefix[request_of_row] + offset_of_row].int(),
        starts_empty=max(prefix_lens) == 0,
    )
