"""One request of a sampled accept: rows of p and q, random numbers, log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from specfast.reference.accept_batch import AcceptBatch
from specfast.reference.coins import RequestCoins, token_at
from specfast.reference.distribution import RowDistribution, row_distribution
from specfast.reference.proposal import ProposalRow, proposal_row
from specfast.reference.request_rules import RequestRules, allowed_ids, edited_row
from specfast.sampling import Proposal, RowKind, SamplingRules
from specfast.status import Status


class SampledRequest:
    """What the sampled rules ask about request ``b``."""

    def __init__(
        self, batch: AcceptBatch, b: int, sampling: SamplingRules, proposal: Proposal | None
    ) -> None:
        self.batch = batch
        self.b = b
        self.sampling = sampling
        self.proposal = proposal
        self.rules = RequestRules.of(sampling, b)
        prefix_len, _ = batch.prefix_len(b)
        self.coins = RequestCoins(b, int(sampling.seeds[b]), prefix_len, sampling.coins)

    @property
    def status(self) -> Status:
        """What was wrong with the request's parameters and the coins that it used."""
        return self.coins.status | (Status.OK if self.rules.sound else Status.BAD_PARAM)

    def p(self, row: int, path: Sequence[int]) -> RowDistribution:
        """The target's distribution after a verify row, the drafts of ``path`` being accepted."""
        assert self.batch.target_logits is not None
        vocab_size = self.batch.num_ids
        logits = self.batch.target_logits[row, :vocab_size]
        values = edited_row(logits, self.rules, self.sampling.edits, self.b, path)
        allowed = allowed_ids(self.sampling.token_bitmask, row, vocab_size)
        return row_distribution(values, allowed, self.rules)

    def q(self, node: int) -> ProposalRow:
        """The distribution that the children of a node were drawn from."""
        assert self.proposal is not None
        sizes = (self.batch.num_requests, self.batch.num_nodes, self.batch.num_ids)
        return proposal_row(self.proposal, self.b, node, *sizes)

    def draw(self, node: int, masses: Tensor, p: RowDistribution) -> tuple[int, Status]:
        """The token that ends the path at a row of p; without masses, the last that p keeps."""
        total = int(masses.sum())
        if total == 0:
            return p.last_kept, Status.ZERO_RESIDUAL
        return token_at(masses, self.coins.final(node, total)), Status.OK

    def raw_logprob(self, row: int, token: int) -> float:
        """Natural logarithm of the token's probability under the logits as they came."""
        assert self.batch.target_logits is not None
        logits = self.batch.target_logits[row, : self.batch.num_ids].double()
        logits = torch.where(logits.isnan(), -math.inf, logits)
        largest = float(logits.max())
        if largest == math.inf:
            return 0.0 if token == int(logits.argmax()) else -math.inf
        if largest == -math.inf:
            return -math.inf
        return float(logits[token] - logits.logsumexp(0))

    def processed_logprob(self, row: int, path: Sequence[int], token: int) -> float:
        """Natural logarithm of the token's probability under p; -inf where there is no p."""
        p = self.p(row, path)
        if p.kind != RowKind.ORDINARY:
            return 0.0 if p.kind == RowKind.POINT_MASS else -math.inf
        mass = int(p.masses[token])
        return math.log(mass / p.total) if mass > 0 else -math.inf
