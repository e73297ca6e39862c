"""What sampled verification takes and gives: rules per request, proposals, row records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor


@dataclass
class LogitEdits:
    """Changes of single logits, a range of entries per request; on the device of the logits.

    E entries in all. A token without an entry is not edited, unless it is among the drafts accepted
    in this round: each occurrence there adds 1 to its count.

    indptr : int32 [B + 1]    entries of request b are ``indptr[b]`` to ``indptr[b + 1]``
    ids : int32 [E]           token ids, ascending and distinct within a request
    counts : int32 [E]        occurrences in the output so far; 0: only in the prompt; -1: in
                              neither (a bias alone)
    biases : float32 [E]      added before all penalties; None: 0
    """

    indptr: Tensor
    ids: Tensor
    counts: Tensor
    biases: Tensor | None = None


@dataclass
class Coins:
    """Uniform numbers in place of the request's own; on the device of the logits.

    A number is used exactly, clamped into [0, 1 - 2^-24]; NaN counts as 0 (``BAD_PARAM``).

    accept : float32 [B, N]    of the accept tests: target-only at the row's node, rejection at
                               the child's node - 1, block at the draft's node - 1
    final : float32 [B]        of the draw that ends the path
    """

    accept: Tensor | None = None
    final: Tensor | None = None


@dataclass
class SamplingRules:
    """How each request samples; every tensor on the device of the logits.

    B requests, R verify rows, V vocabulary. A request with a parameter out of range is greedy
    (``BAD_PARAM``). Penalties apply to the logits, before the bitmask and the temperature.

    temperature : float32 [B]           >= 0; below 1e-5 the request is greedy
    seeds : int64 [B]                   key of the request's random numbers
    top_k : int32 [B]                   keeps the k largest; 0 or -1: off; 1: greedy
    top_p : float32 [B]                 in (0, 1]: keeps the fewest largest whose probabilities, of
                                        what ``top_k`` kept, sum to at least this
    min_p : float32 [B]                 in [0, 1]: keeps what has at least this times the largest
                                        probability
    repetition_penalty : float32 [B]    > 0: divides positive and multiplies other logits of tokens
                                        seen in prompt or output
    presence_penalty : float32 [B]      subtracted where the token is in the output
    frequency_penalty : float32 [B]     subtracted once per occurrence in the output
    edits : LogitEdits                  biases, and which tokens the penalties mean
    token_bitmask : int32 [R, >= ceil(V / 32)]    bit id % 32 of word id // 32: 1 = allowed
    coins : Coins                       uniform numbers in place of the seeds'
    """

    temperature: Tensor
    seeds: Tensor
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    repetition_penalty: Tensor | None = None
    presence_penalty: Tensor | None = None
    frequency_penalty: Tensor | None = None
    edits: LogitEdits | None = None
    token_bitmask: Tensor | None = None
    coins: Coins | None = None


class RowKind(IntEnum):
    """What a row's distribution is: filtered softmax, one token, or nothing to sample from."""

    ORDINARY = 0
    POINT_MASS = 1
    UNUSABLE = 2


@dataclass
class RowRecord:
    """The filtered distribution of each of R rows, from which p(x) is one load and one exponential.

    Token x is kept iff its value is above ``cut_value``, or equal to it with x <= ``cut_id``, and
    its mass is not 0. Its probability is then 2^((value - max) * scale * log2(e)) * 2^40 / mass.
    A point mass has scale 0 and mass 2^40; an unusable row has mass 0, and in ``argmax`` the token
    that it emits. The properties are views of ``packed``.

    packed : int32 [R, 8]
    edited : bool    of logits with biases, penalties or a bitmask, as ``sample_rows`` notes
    """

    packed: Tensor
    edited: bool = False

    @classmethod
    def empty(cls, num_rows: int, device: torch.device | str) -> RowRecord:
        """Allocate records, uninitialised; ops write every element."""
        return cls(torch.empty(num_rows, 8, dtype=torch.int32, device=device))

    @classmethod
    def of_levels(cls, levels: Sequence[RowRecord]) -> RowRecord:
        """The records [B] of each draft level as those of a chain's proposal, [B * levels]."""
        packed = torch.stack([level.packed for level in levels], dim=1).flatten(0, 1)
        return cls(packed, edited=any(level.edited for level in levels))

    @property
    def scale(self) -> Tensor:
        """float32 [R]: 1 / temperature."""
        return self.packed.view(torch.float32)[:, 0]

    @property
    def max(self) -> Tensor:
        """float32 [R]: the largest value."""
        return self.packed.view(torch.float32)[:, 1]

    @property
    def cut_value(self) -> Tensor:
        """float32 [R]: value of the token that the filters end at; -inf where they reach none."""
        return self.packed.view(torch.float32)[:, 2]

    @property
    def cut_id(self) -> Tensor:
        """int32 [R]: id of the token that the filters end at; 2^31 - 1 where they reach none."""
        return self.packed[:, 3]

    @property
    def mass(self) -> Tensor:
        """int64 [R]: mass of all kept tokens, in units of 2^-40 of the largest."""
        return self.packed.view(torch.int64)[:, 2]

    @property
    def argmax(self) -> Tensor:
        """int32 [R]: lowest id of the largest value."""
        return self.packed[:, 6]

    @property
    def kind(self) -> Tensor:
        """int32 [R]: RowKind."""
        return self.packed[:, 7]


@dataclass
class Proposal:
    """The distribution q that the drafts were drawn from; on the device of the logits.

    Exactly one of: ``logits`` with ``records`` (as ``sample_rows`` leaves them), ``probs``, or
    ``sparse_ids`` with ``sparse_values``. Q rows over Vq ids; B requests, N nodes.

    logits : float32 | bfloat16 | float16 [Q, Vq]    those that the records are of, edits included
    records : RowRecord [Q]
    logits_edited : bool             ``logits`` hold the edits of ``records.edited``; without it
                                     such records are refused, for the raw logits have another q
    probs : float32 [Q, Vq]          probabilities; what is none counts as 0 (``BAD_Q``)
    sparse_ids : int32 | int64 [Q, K]    target ids, distinct; all others have probability 0
    sparse_values : float32 [Q, K]
    row_of_node : int32 [B, N]       row of q that a node's children were drawn from, -1 = none;
                                     absent: b * N + node with B * N rows, b * (N - 1) + node with
                                     B * (N - 1)
    d2t : int64 [Vq]                 target id of draft id i is i + d2t[i], ascending; absent: i
    without_replacement : bool       siblings were drawn without replacement, all of them are in the
                                     tree, in the order of their draws (``sample_rows`` draws so)
    """

    logits: Tensor | None = None
    records: RowRecord | None = None
    probs: Tensor | None = None
    sparse_ids: Tensor | None = None
    sparse_values: Tensor | None = None
    row_of_node: Tensor | None = None
    d2t: Tensor | None = None
    without_replacement: bool = False
    logits_edited: bool = False


@dataclass
class SampledRows:
    """Tokens drawn from R rows, and the distributions that they were drawn from.

    tokens : int32 [R, K]    without replacement, in draw order; -1 where a row has fewer
    records : RowRecord [R]
    status : int32 [R]       specfast.Status bits
    """

    tokens: Tensor
    records: RowRecord
    status: Tensor

    @classmethod
    def empty(cls, num_rows: int, num_draws: int, device: torch.device | str) -> SampledRows:
        """Allocate the buffers, uninitialised; ops write every element."""
        return cls(
            tokens=torch.empty(num_rows, num_draws, dtype=torch.int32, device=device),
            records=RowRecord.empty(num_rows, device),
            status=torch.empty(num_rows, dtype=torch.int32, device=device),
        )


@dataclass
class DraftedBlock:
    """The drafts of a block of G steps, and the distributions that they were drawn from.

    B requests. Row b * G + step of ``records`` is q of draft ``step``, over the logits as the op
    left them: the rows of a chain's :class:`Proposal`.

    tokens : int32 [B, G]    target ids; -1 in padded slots
    records : RowRecord [B * G]
    status : int32 [B]       specfast.Status bits
    """

    tokens: Tensor
    records: RowRecord
    status: Tensor

    @classmethod
    def empty(cls, batch_size: int, num_steps: int, device: torch.device | str) -> DraftedBlock:
        """Allocate the buffers, uninitialised; ops write every element."""
        return cls(
            tokens=torch.empty(batch_size, num_steps, dtype=torch.int32, device=device),
            records=RowRecord.empty(batch_size * num_steps, device),
            status=torch.empty(batch_size, dtype=torch.int32, device=device),
        )


@dataclass
class SelectedWalk:
    """A token of each of M slots, out of K candidates, and the distributions over these.

    B requests. With the candidates as ``sparse_ids`` and ``q`` as ``sparse_values``, both
    [B * M, K], they are a chain's :class:`Proposal`.

    tokens : int32 [B, M]       -1 where there was nothing to take, and in padded slots
    q : float32 [B, M, K]       probability of each candidate after the token before it
    status : int32 [B]          specfast.Status bits
    """

    tokens: Tensor
    q: Tensor
    status: Tensor

    @classmethod
    def empty(
        cls, batch_size: int, num_slots: int, num_candidates: int, device: torch.device | str
    ) -> SelectedWalk:
        """Allocate the buffers, uninitialised; ops write every element."""
        return cls(
            tokens=torch.empty(batch_size, num_slots, dtype=torch.int32, device=device),
            q=torch.empty(batch_size, num_slots, num_candidates, device=device),
            status=torch.empty(batch_size, dtype=torch.int32, device=device),
        )


@dataclass
class RowStats:
    """What one shard of the vocabulary says of R verify rows, or G shards together.

    Words of int64, the same number whatever they hold, so that ranks gather them as they are. Per
    row (docs/numerics.md, "Shards"): the largest value, the mass of the tokens that no draft
    carries and one drawn from them, a word per candidate, a word per token of the best
    ``max_top_k``.

    packed : int64 [R, W], or [G, R, W] by shard; W = 3 + max_candidates + max_top_k
    max_candidates : int    children of a node that are looked at, in sibling order
    max_top_k : int         the largest ``top_k`` that a request may have; 0: none may have one
    """

    packed: Tensor
    max_candidates: int
    max_top_k: int = 0

    @classmethod
    def empty(
        cls,
        num_rows: int,
        device: torch.device | str,
        max_candidates: int,
        max_top_k: int = 0,
        *,
        num_shards: int | None = None,
    ) -> RowStats:
        """Allocate records of one shard, or of ``num_shards`` to gather them into."""
        shape = [num_rows, 3 + max_candidates + max_top_k]
        if num_shards is not None:
            shape = [num_shards, *shape]
        packed = torch.empty(shape, dtype=torch.int64, device=device)
        return cls(packed, max_candidates, max_top_k)


@dataclass
class MergedRows:
    """The target's token after each of R verify rows, as all shards together have it.

    target_predict : int32 [R]    -1 where a row gives none: the path ends there, and with token 0
    status : int32 [R]            specfast.Status bits
    """

    target_predict: Tensor
    status: Tensor

    @classmethod
    def empty(cls, num_rows: int, device: torch.device | str) -> MergedRows:
        """Allocate the buffers, uninitialised; the op writes every element."""
        predict = torch.empty(num_rows, dtype=torch.int32, device=device)
        return cls(predict, torch.empty_like(predict))
