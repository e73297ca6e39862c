"""A round's record in one tensor, so that the host reads it in one copy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.records import AcceptRecord


@dataclass(frozen=True)
class RecordShape:
    """Sizes of a record: B requests, S rows of a path at most, R verify rows."""

    batch_size: int
    width: int
    num_rows: int
    logprobs: bool

    @property
    def num_elements(self) -> int:
        """Of the int32 tensor that holds a record."""
        return sum(tensor.numel() for tensor in self._tensors().values())

    def pack(self, device: torch.device) -> tuple[AcceptRecord, Tensor]:
        """A record, uninitialised, and the one int32 tensor that holds all of it."""
        packed = torch.empty(self.num_elements, dtype=torch.int32, device=device)
        return self.unpack(packed), packed

    def unpack(self, packed: Tensor) -> AcceptRecord:
        """The record as views of ``packed``."""
        tensors = self._tensors()
        parts = torch.split(packed, [tensor.numel() for tensor in tensors.values()])
        return AcceptRecord(
            **{
                name: part.view(tensor.dtype).view(tensor.shape)
                for (name, tensor), part in zip(tensors.items(), parts, strict=True)
            }
        )

    def _tensors(self) -> dict[str, Tensor]:
        """Those of a record, by field, without memory; every element has 4 bytes."""
        record = AcceptRecord.empty(
            self.batch_size,
            self.width,
            self.num_rows,
            "meta",
            slots_dtype=torch.int32,
            logprobs=self.logprobs,
        )
        return {name: tensor for name, tensor in vars(record).items() if tensor is not None}
