"""How the drafts of a batch are drawn, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.base import DraftRequest
from specfast.drafters.sampling import sampling_rules
from specfast.sampling import Proposal, RowKind, RowRecord, SampledRows, SamplingRules
from specfast.status import Status

UNUSABLE = Status.NAN_LOGITS | Status.EMPTY_SUPPORT


@dataclass(frozen=True)
class ChainDrafts:
    """Drafts of B requests, m each; with ``of_request``, those of one, without the B.

    tokens : int64 [B, m]              ids of the target
    logits : [B, m, draft vocabulary]  what each was drawn from, biases of a head included
    candidates : int64 [B, m, K]       of a drafter that chooses among a few: ids of the target that
                                       the columns of ``logits`` [B, m, K] stand for; else None
    confidence : [B, m] or None        before the sigmoid: is a draft accepted if those before are
    """

    tokens: Tensor
    logits: Tensor
    candidates: Tensor | None = None
    confidence: Tensor | None = None

    def of_request(self, b: int) -> ChainDrafts:
        return self._each(lambda values: values[b])

    def _each(self, part: Callable[[Tensor], Tensor]) -> ChainDrafts:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{n: part(v) for n, v in given.items() if v is not None})


class DraftSampler:
    """Draws the drafts of a batch, one level after the other.

    A greedy request gets the argmax, lowest id first. Every row is recorded, so that
    ``levels`` with the rows themselves are the q of what was drawn.

    Parameters
    ----------
    rules : SamplingRules
        Of B requests.
    prefix_lens : int32 [B]
        Committed KV lengths, which tell the rounds apart.
    """

    def __init__(self, rules: SamplingRules, prefix_lens: Tensor) -> None:
        self._rules = rules
        self._prefix_lens = prefix_lens
        self.levels: list[RowRecord] = []
        self._usable: list[Tensor] = []

    @classmethod
    def of(cls, requests: Sequence[DraftRequest], device: torch.device) -> DraftSampler:
        """With each request's own temperature, filters and random numbers."""
        lens = [len(request.token_ids) - 1 for request in requests]
        prefix_lens = torch.tensor(lens, dtype=torch.int32, device=device)
        return cls(sampling_rules(requests, device), prefix_lens)

    @classmethod
    def greedy(cls, batch_size: int, device: torch.device) -> DraftSampler:
        zeros = torch.zeros(batch_size, dtype=torch.int32, device=device)
        return cls(SamplingRules(zeros.float(), zeros.long()), zeros)

    def draw(self, logits: Tensor) -> Tensor:
        """Columns int64 [B] drawn from ``logits`` [B, Vq], the next level."""
        drawn = ops.sample_rows(logits, self._rules, self._prefix_lens, level=len(self.levels))
        self._record(drawn)
        # Where nothing can be drawn the draft is dropped, and the steps after it need some id.
        return drawn.tokens[:, 0].long().clamp(min=0)

    def _record(self, drawn: SampledRows) -> None:
        self.levels.append(drawn.records)
        self._usable.append((drawn.status & int(UNUSABLE)) == 0)

    def num_usable(self) -> Tensor:
        """int64 [B]: levels before the first row that nothing could be drawn from.

        Whether a row is usable depends on the drafts before it alone, so that drafts may be cut
        there.
        """
        return torch.stack(self._usable, 1).long().cumprod(1).sum(1)


def proposal_of(drafts: ChainDrafts, sampler: DraftSampler, d2t: Tensor | None) -> Proposal:
    """q of each request and level of ``drafts``, which ``sampler`` has drawn."""
    rows = drafts.logits.flatten(0, 1)
    records = RowRecord.of_levels(sampler.levels)
    if drafts.candidates is not None:
        ids = drafts.candidates.flatten(0, 1).int()
        return Proposal(sparse_ids=ids, sparse_values=probabilities(rows, records))
    return Proposal(logits=rows, records=records, d2t=d2t)


def probabilities(rows: Tensor, records: RowRecord) -> Tensor:
    """float32 [R, K]: what ``rows`` [R, K] and their records say of each column."""
    values = rows.double()
    ids = torch.arange(rows.shape[1], device=rows.device)
    cut, cut_id = records.cut_value.double()[:, None], records.cut_id[:, None]
    kept = (values > cut) | ((values == cut) & (ids <= cut_id))
    exponents = (values - records.max.double()[:, None]) * records.scale.double()[:, None]
    grid = torch.where(kept, (exponents.exp() * 2.0**40).floor(), 0.0)
    ordinary = (grid / records.mass.double()[:, None]).float()
    kind = records.kind[:, None]
    point = (ids == records.argmax[:, None]).float()
    shares = torch.where(kind == RowKind.POINT_MASS, point, ordinary)
    return torch.where(kind == RowKind.UNUSABLE, 0.0, shares)
