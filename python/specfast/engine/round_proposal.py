"""The proposal that a captured round reads: q of the host's drafts, at fixed addresses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.sampling import Proposal, RowRecord

_ROW_FIELDS = ("logits", "probs", "sparse_ids", "sparse_values")


@dataclass(frozen=True)
class ProposalForm:
    """Which tensors a proposal has, of which dtypes and widths.

    fields : (name, dtype, width) of each tensor with rows of q
    d2t : address of the map of draft ids, which is read where it lies
    """

    fields: tuple[tuple[str, torch.dtype, int], ...]
    d2t: int | None
    without_replacement: bool
    logits_edited: bool

    @classmethod
    def of(cls, proposal: Proposal) -> ProposalForm:
        tensors = {name: getattr(proposal, name) for name in _ROW_FIELDS}
        return cls(
            tuple((n, t.dtype, t.shape[1]) for n, t in tensors.items() if t is not None),
            None if proposal.d2t is None else proposal.d2t.data_ptr(),
            proposal.without_replacement,
            proposal.logits_edited,
        )


class RoundProposal:
    """Room for the q of so many slots of at most ``width`` rows each.

    proposal : Proposal    what the round reads; it names the row of every node
    """

    def __init__(self, like: Proposal, slots: int, width: int, device: torch.device) -> None:
        form = ProposalForm.of(like)
        rows = slots * width
        self._tensors = {
            name: torch.zeros(rows, columns, dtype=dtype, device=device)
            for name, dtype, columns in form.fields
        }
        records = None if like.records is None else RowRecord.empty(rows, device)
        if records is not None:
            records.packed.zero_()
            records.edited = form.logits_edited
        self._row_of_node = torch.full((slots, width), -1, dtype=torch.int32, device=device)
        self.proposal = Proposal(
            **self._tensors,
            records=records,
            row_of_node=self._row_of_node,
            d2t=like.d2t,
            without_replacement=form.without_replacement,
            logits_edited=form.logits_edited,
        )

    def load(self, proposal: Proposal, tokens: Tensor) -> None:
        """Copy the q of ``tokens`` [B, N], the drafts and their anchors."""
        count, columns = tokens.shape
        for name, ours in self._tensors.items():
            theirs = getattr(proposal, name)
            ours[: len(theirs)].copy_(theirs)
        if self.proposal.records is not None and proposal.records is not None:
            packed = proposal.records.packed
            self.proposal.records.packed[: len(packed)].copy_(packed)
        rows = proposal.row_of_node
        if rows is None:
            rows = _default_rows(num_rows_of(proposal), count, columns, tokens.device)
        self._row_of_node[:count, : rows.shape[1]].copy_(rows)


def num_rows_of(proposal: Proposal) -> int:
    """Q."""
    return next(len(t) for n in _ROW_FIELDS if (t := getattr(proposal, n)) is not None)


def _default_rows(num_rows: int, count: int, columns: int, device: torch.device) -> Tensor:
    """Where a proposal names none: one row per node, or per node but the last."""
    per_request = columns if num_rows == count * columns else columns - 1
    rows = torch.arange(count * per_request, dtype=torch.int32, device=device)
    return rows.view(count, per_request)
