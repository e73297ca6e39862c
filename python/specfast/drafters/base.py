"""What a drafter is asked and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specfast import ops
from specfast.ops.plan import ConfidenceForm
from specfast.records import AcceptRecord
from specfast.sampling import Proposal, SamplingRules
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
    def slot(self) -> int:
        """Its place among the requests of the engine, its own until it ends."""

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
    confidence : float32 [B, N - 1] or None
                                     of a chain, how sure the drafter is of each draft, from what
                                     stands before it; of a tree that no coin chose, with the form
                                     "survival", of each node and its path, best nodes first
    confidence_form, temperatures    of ``confidence``, as ``ops.schedule_verify_lens`` takes them
    status : B ints or None          specfast.Status bits that the drafter met, for the round's

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
    confidence: Tensor | None = None
    confidence_form: ConfidenceForm = "survival"
    temperatures: Tensor | None = None
    status: list[int] | None = None

    def survival(self) -> Tensor | None:
        """float32 [B, N - 1]: how likely each draft and all before it are accepted, if known."""
        if self.confidence is None:
            return None
        form, temperatures = self.confidence_form, self.temperatures
        schedule = ops.schedule_verify_lens(self.confidence, form=form, temperatures=temperatures)
        return schedule.survival

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


@dataclass(frozen=True)
class DraftSlots:
    """A batch of slots on the device, as a round finds it; B slots, N rows at most.

    A slot without a request has ``verify_lens`` 0, and one whose request has just ended an anchor
    of -1: what is drafted there does not matter.

    tokens : int32 [B, N]          column 0 holds the anchors; drafts go into the others
    parents : int32 [B, N]         where drafts are trees: node that each node follows, an earlier
                                   one, to be written; column 0 is not read
    verify_lens : int32 [B]        rows that may be verified, anchor included
    tokens_left : int32 [B]        that the request may still emit: more rows are wasted
    prefix_lens : int32 [B]        committed KV length, which is the anchor's position
    page_table_rows : int32 [B]    of ``DraftPages.table``: the ``DraftRequest.slot`` of each
    sampling : SamplingRules       how the target's tokens are chosen, filters included
    is_sampled : bool              whether any request is sampled: only then a proposal is used
    """

    tokens: Tensor
    verify_lens: Tensor
    tokens_left: Tensor
    prefix_lens: Tensor
    page_table_rows: Tensor
    sampling: SamplingRules
    is_sampled: bool
    parents: Tensor | None = None


@dataclass(frozen=True)
class DraftPages:
    """The engine's pages, for a drafter on the device that keeps something per position.

    What a request has committed has pages, the rest of its row of ``table`` may be of others.

    table : int32 [S, num_pages]   the page table; it keeps its address as long as the engine lives
    page_size : int                positions of a page
    pool_size : int                pages that there are; ids in ``table`` are below it
    """

    table: Tensor
    page_size: int
    pool_size: int


@dataclass(frozen=True)
class DeviceDrafts:
    """What a drafter on the device says of its drafts, beside them.

    proposal : Proposal, optional
        What they were drawn from; without one they are verified target-only.
    confidence : float32 [B, N - 1], optional
        How sure it is of each draft, as ``DraftBatch`` has it: for the planner.
    confidence_form, temperatures
        As ``ops.schedule_verify_lens`` takes them.
    status : int32 [B], optional
        specfast.Status bits that the drafter met, for the round's.
    """

    proposal: Proposal | None = None
    confidence: Tensor | None = None
    confidence_form: ConfidenceForm = "survival"
    temperatures: Tensor | None = None
    status: Tensor | None = None


@runtime_checkable
class DeviceDrafter(Drafter, Protocol):
    """A drafter that works on the device alone: its drafts are captured in the round.

    With one the engine launches a round before it has read the round before.
    """

    @property
    def drafts_trees(self) -> bool:
        """Whether all its drafts are trees, or all of them chains."""

    def attach(self, pages: DraftPages) -> None:
        """Serve the engine of these pages, and no other one from now on; before all else."""

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        """The next call of :meth:`draft` is for these, which stand where the host believes."""

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        """Write ``tokens[:, 1:]`` of the slots that have a request, and ``parents`` of trees.

        ``verify_lens`` may be lowered, for this round. What has to last from round to round is
        allocated elsewhere: memory that is allocated here is used again by other rounds.

        Drafts must not depend on the coins of this round. Nothing may be read on the host; when it
        is captured, the same kernels have to be right for every later round.
        """

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: Tensor | None) -> None:
        """After the decision, on the device as well: ``taps`` [B, N, W] of the committed rows.

        ``slots`` are as :meth:`draft` left them; ``taps`` past ``commit_lens`` repeat some row, and
        are None where :class:`TapDrafter` does not ask for them. Of a slot whose ``commit_lens`` is
        0 nothing may be written. In such rounds ``observe`` is not called.
        """


class PlainDecoding:
    """Drafts nothing: each round verifies the anchor alone and emits one token."""

    drafts_trees = False

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        return DraftBatch.from_lists(requests, [[] for _ in requests])

    def attach(self, pages: DraftPages) -> None:
        pass

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        pass

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        slots.verify_lens.clamp_(max=1)
        return DeviceDrafts()

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: Tensor | None) -> None:
        pass

    def release(self, request_id: int) -> None:
        pass
