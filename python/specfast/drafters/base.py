"""What a drafter is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specfast.sampling import Proposal
from specfast.sampling_params import SamplingParams


class DraftRequest(Protocol):
    """A running request as a drafter sees it."""

    @property
    def request_id(self) -> int:
        """Never reused within one engine."""

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output; the last one is the anchor. Only ever appended to."""

    @property
    def tokens_left(self) -> int:
        """Tokens that the request may still emit; a path of more drafts is wasted."""

    @property
    def params(self) -> SamplingParams:
        """How the target's tokens are chosen; see also ``drafters.sampling.sampling_rules``."""

    @property
    def seed(self) -> int:
        """Of the request's random numbers, whether it brought one or not; in [0, 2^64)."""


@dataclass(frozen=True)
class DraftBatch:
    """Drafts of one round; B requests, N rows at most, the anchor included.

    tokens : int32 or int64 [B, N]   column 0 is the anchor's place, unused columns are -1
    verify_lens : list of B ints     rows that are used, anchor included; at least 1
    parents : int32 [B, N] or None   node that each node follows, -1 for column 0; a parent comes
                                     before its children. None means a chain
    proposal : Proposal or None      what the drafts were drawn from, on the target's device: they
                                     are then tested by p / q. None: whatever they were made from,
                                     they are verified target-only, which is exact as well

    Drafts that were drawn must not be dropped by what they are: all siblings are there, in the
    order of their draws, and where ``verify_lens`` cuts may depend on earlier nodes alone. Their
    random numbers are those of purpose DRAFT at this round's prefix length, which is
    ``len(token_ids) - 1``, as ``ops.sample_rows`` takes them.

    An id outside the vocabulary is legal: the target rejects it. A parent out of order detaches
    its node. Both are flagged in the round's status.
    """

    tokens: Tensor
    verify_lens: list[int]
    parents: Tensor | None = None
    proposal: Proposal | None = None

    @classmethod
    def from_lists(
        cls,
        requests: Sequence[DraftRequest],
        drafts: Sequence[Sequence[int]],
        parents: Sequence[Sequence[int]] | None = None,
    ) -> DraftBatch:
        """Pad one list of drafts per request; ``parents[b][i]`` is the node that draft i follows.

        Drafts are nodes 1, 2, ... of their request; node 0 is the anchor.
        """
        verify_lens = [1 + len(row) for row in drafts]
        width = max(verify_lens, default=1)

        def padded(first: int, row: Sequence[int]) -> list[int]:
            return [first, *row, *[-1] * (width - 1 - len(row))]

        tokens = [padded(r.token_ids[-1], row) for r, row in zip(requests, drafts, strict=True)]
        table = None
        if parents is not None:
            table = torch.tensor([padded(-1, row) for row in parents], dtype=torch.int32)
        return cls(torch.tensor(tokens, dtype=torch.int32), verify_lens, table)


class Drafter(Protocol):
    """Guesses what the target will say next."""

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        """Draft for every request, in this order, at most ``verify_width`` rows each."""

    def release(self, request_id: int) -> None:
        """Forget a request that has ended."""


@runtime_checkable
class TapDrafter(Drafter, Protocol):
    """A drafter that reads hidden states of the target."""

    @property
    def tap_layers(self) -> tuple[int, ...] | None:
        """As ``TapRecorder`` takes them."""

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        """Rows that have just been committed, of requests that go on.

        ``taps[b]`` [n, width] are those of n rows, the prompt's or the anchor and its accepted
        drafts. The tokens that they emitted are the last n of ``requests[b].token_ids``, the new
        anchor included. Never a rejected row. A request is seen first with its whole prompt.
        """


class PlainDecoding:
    """Drafts nothing: each round verifies the anchor alone and emits one token."""

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        return DraftBatch.from_lists(requests, [[] for _ in requests])

    def release(self, request_id: int) -> None:
        pass
