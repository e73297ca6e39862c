"""How the drafts of a batch are drawn, and what they were drawn from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from specfast import ops
from specfast.drafters.base import DraftRequest
from specfast.drafters.sampling import prefix_lens_of, sampling_rules
from specfast.ops.markov import MarkovKind
from specfast.sampling import Proposal, RowRecord, SamplingRules, SelectedWalk
from specfast.status import Status

UNUSABLE = Status.NAN_LOGITS | Status.EMPTY_SUPPORT


@dataclass(frozen=True)
class ChainDrafts:
    """Drafts of B requests, m each; with ``of_request``, those of one, without the B.

    tokens : int64 [B, m]              ids of the target
    logits : [B, m, draft vocabulary]  what each was drawn from, biases of a head included
    candidates, q : int64, float32 [B, m, K]
                                       of a drafter that chooses among a few, in place of logits:
                                       ids of the target, and what they were drawn by
    confidence : [B, m] or None        before the sigmoid: is a draft accepted if those before are
    """

    tokens: Tensor
    logits: Tensor | None = None
    candidates: Tensor | None = None
    q: Tensor | None = None
    confidence: Tensor | None = None

    def of_request(self, b: int) -> ChainDrafts:
        return self._each(lambda values: values[b])

    def _each(self, part: Callable[[Tensor], Tensor]) -> ChainDrafts:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{n: part(v) for n, v in given.items() if v is not None})


class DraftSampler:
    """Draws the drafts of a batch, one level after the other or a block at once.

    A greedy request gets the argmax, lowest id first. Every row is recorded, so that
    ``levels`` with the rows themselves are the q of what was drawn; a walk comes with its q.

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
        self._status: list[Tensor] = []
        self._usable: Tensor | None = None

    @classmethod
    def of(cls, requests: Sequence[DraftRequest], device: torch.device) -> DraftSampler:
        """With each request's own temperature, filters and random numbers."""
        return cls(sampling_rules(requests, device), prefix_lens_of(requests, device))

    @classmethod
    def greedy(cls, batch_size: int, device: torch.device) -> DraftSampler:
        zeros = torch.zeros(batch_size, dtype=torch.int32, device=device)
        return cls(SamplingRules(zeros.float(), zeros.long()), zeros)

    def draw(self, logits: Tensor) -> Tensor:
        """Columns int32 [B] drawn from ``logits`` [B, Vq], the next level; -1: none."""
        drawn = ops.sample_rows(logits, self._rules, self._prefix_lens, level=len(self.levels))
        self.levels.append(drawn.records)
        self._status.append(drawn.status)
        return drawn.tokens[:, 0]

    def draw_block(
        self,
        logits: Tensor,
        w1: Tensor,
        w2: Tensor,
        anchors: Tensor,
        *,
        kind: MarkovKind,
        projection: Tensor | None,
        hidden_rows: Tensor | None,
        d2t: Tensor | None,
        workspace: Tensor | None,
    ) -> Tensor:
        """Target ids int64 [B, m] of a block; ``logits`` [B, m, Vq] become what was drawn from.

        The arguments are those of ``ops.sample_markov_block``.
        """
        block = ops.sample_markov_block(
            logits,
            as_ops_take(w1),
            as_ops_take(w2),
            anchors,
            self._rules,
            self._prefix_lens,
            kind=kind,
            projection=None if projection is None else as_ops_take(projection),
            hidden_rows=hidden_rows,
            d2t=d2t,
            workspace=workspace,
        )
        records = block.records.packed.view(*block.tokens.shape, -1)
        self.levels += [RowRecord(level) for level in records.unbind(1)]
        # The op's flags are of whole requests.
        self._usable = logits.amax(-1) > -torch.inf  # the maximum with a NaN is NaN
        return block.tokens.long().clamp(min=0)

    def walk(
        self,
        candidates: Tensor,
        unary: Tensor,
        keys: Tensor,
        predecessor: Tensor,
        successor: Tensor,
        anchors: Tensor,
    ) -> SelectedWalk:
        """One of the candidates [B, m, K] of each slot after the other, and their q.

        The arguments are those of ``ops.walk_selector``, of any rank. Temperatures count, filters
        do not.
        """
        walk = ops.walk_selector(
            candidates,
            unary,
            _in_eights(keys.float()),
            _in_eights(as_ops_take(predecessor)),
            _in_eights(as_ops_take(successor)),
            anchors,
            self._rules,
            self._prefix_lens,
        )
        self._usable = (walk.tokens >= 0) & ~unary.isnan().any(-1)
        return walk

    def num_usable(self) -> Tensor:
        """int64 [B]: levels before the first row that nothing could be drawn from.

        Whether a row is usable depends on the drafts before it alone, so that drafts may be cut
        there.
        """
        usable = self._usable
        if usable is None:
            usable = (torch.stack(self._status, 1) & int(UNUSABLE)) == 0
        return usable.cumprod(1).sum(1)


def drawn_ids(columns: Sequence[Tensor]) -> Tensor:
    """int64 [B, m] of the columns that ``DraftSampler.draw`` gave, one level after the other.

    Where nothing could be drawn the draft is dropped, and may be any.
    """
    return torch.stack(list(columns), 1).clamp(min=0).long()


def proposal_of(drafts: ChainDrafts, sampler: DraftSampler, d2t: Tensor | None) -> Proposal:
    """q of each request and level of ``drafts``, which ``sampler`` has drawn."""
    if drafts.candidates is not None and drafts.q is not None:
        ids = drafts.candidates.flatten(0, 1).int()
        return Proposal(sparse_ids=ids, sparse_values=drafts.q.flatten(0, 1))
    assert drafts.logits is not None
    records = RowRecord.of_levels(sampler.levels)
    return Proposal(logits=drafts.logits.flatten(0, 1), records=records, d2t=d2t)


def as_ops_take(values: Tensor) -> Tensor:
    """float16 as float32, for ``ops.sample_markov_block`` and ``ops.walk_selector``."""
    return values.float() if values.dtype == torch.float16 else values


def _in_eights(rows: Tensor) -> Tensor:
    """With zeros behind, up to a multiple of 8."""
    missing = -rows.shape[-1] % 8
    return functional.pad(rows, (0, missing)) if missing else rows
