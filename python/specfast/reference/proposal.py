"""q, the distribution that drafts were drawn from, as the rules with q read it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.reference.distribution import GRID, SMALL_VOCAB, inverse, on_grid, weights
from specfast.sampling import Proposal, RowKind, RowRecord

# Above 1 by no more than the rounding of a sum in half precision.
LARGEST_PROBABILITY = 1 + 5e-4


@dataclass(frozen=True, eq=False)
class ProposalRow:
    """One row of q over the target's ids.

    values : float32 [V], weights of a record or probabilities as given; masses : int64 [V]
    total : sum of the masses; are_probabilities : whether values need no factor
    invalid : bool [V], where what was given is no probability
    """

    values: Tensor
    masses: Tensor
    total: int
    are_probabilities: bool
    invalid: Tensor

    def probabilities(self, tried: Sequence[int] = ()) -> Tensor:
        """float32 [V]: q without the tokens that were tried before, normalised."""
        if self.are_probabilities and not tried:
            return self.values
        gone = sorted(set(tried))
        left = self.total - int(self.masses[gone].sum())
        if left <= 0:
            return torch.zeros_like(self.values)
        rest = self.values * inverse(left)
        rest[gone] = 0
        return rest


def proposal_row(
    proposal: Proposal, b: int, node: int, num_requests: int, num_nodes: int, vocab_size: int
) -> ProposalRow:
    """q of the children of a node; without a row, q is 0 and nowhere valid."""
    row = _row_index(proposal, b, node, num_requests, num_nodes)
    if not 0 <= row < _num_rows(proposal):
        return _given(torch.full((vocab_size,), -1.0))
    if proposal.records is not None and proposal.logits is not None:
        return _from_record(proposal, row, vocab_size)
    if proposal.probs is not None:
        return _given(_spread(proposal.probs[row].float(), proposal.d2t, vocab_size))
    assert proposal.sparse_ids is not None
    assert proposal.sparse_values is not None
    ids, values = proposal.sparse_ids[row].long(), proposal.sparse_values[row].float()
    return _given(_scattered(ids, values, vocab_size))


def _num_rows(proposal: Proposal) -> int:
    for rows in (proposal.logits, proposal.probs, proposal.sparse_ids):
        if rows is not None:
            return rows.shape[0]
    raise ValueError("a proposal has logits with records, probs, or sparse ids and values")


def _row_index(proposal: Proposal, b: int, node: int, num_requests: int, num_nodes: int) -> int:
    if proposal.row_of_node is not None:
        return int(proposal.row_of_node[b, node])
    # The last node of a chain has no children, and so may have no row.
    per_request = num_nodes if _num_rows(proposal) == num_requests * num_nodes else num_nodes - 1
    return b * per_request + node


def _from_record(proposal: Proposal, row: int, vocab_size: int) -> ProposalRow:
    assert proposal.logits is not None
    assert proposal.records is not None
    logits = proposal.logits[row].float()
    if proposal.d2t is None:
        logits = logits[:vocab_size]
    words = proposal.records.packed[row]
    if len(logits) <= SMALL_VOCAB:
        kept, total = _small_record(tuple(logits.tolist()), tuple(words.tolist()))
    else:
        kept, total = _kept_weights(logits, words)
    values = _spread(kept, proposal.d2t, vocab_size)
    none = torch.zeros(vocab_size, dtype=torch.bool)
    return ProposalRow(values, on_grid(values), total, False, none)


@functools.lru_cache(maxsize=4096)
def _small_record(logits: tuple[float, ...], words: tuple[int, ...]) -> tuple[Tensor, int]:
    return _kept_weights(torch.tensor(logits), torch.tensor(words, dtype=torch.int32))


def _kept_weights(logits: Tensor, words: Tensor) -> tuple[Tensor, int]:
    """float32 [Vq] weights of the tokens that a row record keeps, and its mass."""
    record = RowRecord(words[None])
    kind = int(record.kind)
    kept = torch.zeros_like(logits)
    if kind == RowKind.POINT_MASS:
        argmax = int(record.argmax)
        if not 0 <= argmax < len(kept):
            return kept, 0
        kept[argmax] = 1
        return kept, GRID
    if kind != RowKind.ORDINARY:
        return kept, 0
    cut_value, cut_id = float(record.cut_value), int(record.cut_id)
    ids = torch.arange(len(logits))
    above_cut = (logits > cut_value) | ((logits == cut_value) & (ids <= cut_id))
    row_weights = weights(logits, float(record.max), float(record.scale))
    is_kept = above_cut & (on_grid(row_weights) > 0)
    return torch.where(is_kept, row_weights, 0.0), int(record.mass) % 2**64


def _spread(values: Tensor, d2t: Tensor | None, vocab_size: int) -> Tensor:
    """Values of draft ids as values of target ids."""
    if d2t is None and len(values) == vocab_size:
        return values
    ids = torch.arange(len(values))
    return _scattered(ids if d2t is None else ids + d2t, values, vocab_size)


def _scattered(ids: Tensor, values: Tensor, vocab_size: int) -> Tensor:
    """float32 [V] with the values at their ids, 0 elsewhere; ids outside are left out."""
    inside = (ids >= 0) & (ids < vocab_size)
    return torch.zeros(vocab_size).scatter(0, ids[inside], values[inside])


def _given(values: Tensor) -> ProposalRow:
    if len(values) <= SMALL_VOCAB:
        return _small_given(tuple(values.tolist()))
    return _from_probabilities(values)


@functools.lru_cache(maxsize=4096)
def _small_given(values: tuple[float, ...]) -> ProposalRow:
    return _from_probabilities(torch.tensor(values))


def _from_probabilities(given: Tensor) -> ProposalRow:
    valid = (given >= 0) & (given <= LARGEST_PROBABILITY)
    values = torch.where(valid, given.clamp(max=1), 0.0)
    masses = on_grid(values)
    return ProposalRow(values, masses, int(masses.sum()), True, ~valid)
