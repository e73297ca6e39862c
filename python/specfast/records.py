"""The tensors that ops fill, grouped as they travel together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

MaskMode = Literal["bits", "qlen", "full"]


@dataclass
class FinishRules:
    """When a request ends; every field is optional and on the device of the logits.

    eos_token_ids : int32 [E]            end a request unless ``ignore_eos``
    stop_token_ids : int32 [B, K]        per request, padded with -1
    max_tokens_left : int32 [B]          tokens that the request may still emit
    min_tokens_left : int32 [B]          before so many new tokens neither EOS nor a stop id ends it
    ignore_eos : bool [B]                EOS does not end the request, stop ids and limits do

    The token that ends a request is emitted. EOS comes before stop ids, both before the limit.
    """

    eos_token_ids: Tensor | None = None
    stop_token_ids: Tensor | None = None
    max_tokens_left: Tensor | None = None
    min_tokens_left: Tensor | None = None
    ignore_eos: Tensor | None = None


@dataclass
class AcceptRecord:
    """What a verify round decided; written whole on every call, padding is -1.

    B requests, S = the most rows that a path may have, R verify rows. Most fields are rows of
    ``per_request`` (int32 [8, B], or [9, B] with ``cap_trim_lens``) and of ``per_step``
    (int32 [3, B, S]), so that a host reads a round with few copies.

    predict : int32 [R]               the token after each committed row, -1 at all other rows
    accept_index : int32 [B, S]       committed verify rows (anchor, accepted drafts)
    num_correct_drafts : int32 [B]    accepted drafts, before truncation
    accept_lens : int32 [B]           num_correct_drafts + 1; 0 in a padded slot
    commit_lens : int32 [B]           accept_lens after truncation (EOS, stop ids, limit)
    new_seq_lens : int32 [B]          prefix_lens + commit_lens
    out_tokens : int32 [B, S]         emitted tokens (accepted drafts, bonus)
    bonus : int32 [B]                 the last emitted token; it has no KV yet
    next_anchor : int32 [B]           bonus, or -1 where the request has finished
    positions : int32 [B, S]          sequence positions of the committed rows
    slots : as out_cache_loc [B, S]   KV slots of the committed rows once relocated; None without
                                      ``out_cache_loc``
    finish_reason : int32 [B]         specfast.FinishReason
    status : int32 [B]                specfast.Status bits
    cap_trim_lens : int32 [B]         drafts that matched past ``verify_lens``, a statistic; None
                                      unless asked for
    logprobs : float32 [B, S]         natural logarithm of each emitted token's probability, 0
                                      elsewhere; None unless asked for
    """

    per_request: Tensor
    per_step: Tensor
    predict: Tensor
    slots: Tensor | None
    logprobs: Tensor | None = None

    @property
    def num_correct_drafts(self) -> Tensor:
        return self.per_request[0]

    @property
    def accept_lens(self) -> Tensor:
        return self.per_request[1]

    @property
    def commit_lens(self) -> Tensor:
        return self.per_request[2]

    @property
    def new_seq_lens(self) -> Tensor:
        return self.per_request[3]

    @property
    def bonus(self) -> Tensor:
        return self.per_request[4]

    @property
    def next_anchor(self) -> Tensor:
        return self.per_request[5]

    @property
    def finish_reason(self) -> Tensor:
        return self.per_request[6]

    @property
    def status(self) -> Tensor:
        return self.per_request[7]

    @property
    def cap_trim_lens(self) -> Tensor | None:
        return self.per_request[8] if self.per_request.shape[0] > 8 else None

    @property
    def accept_index(self) -> Tensor:
        return self.per_step[0]

    @property
    def out_tokens(self) -> Tensor:
        return self.per_step[1]

    @property
    def positions(self) -> Tensor:
        return self.per_step[2]

    @classmethod
    def empty(
        cls,
        batch_size: int,
        width: int,
        num_rows: int,
        device: torch.device | str,
        *,
        slots_dtype: torch.dtype | None = None,
        cap_trim: bool = False,
        logprobs: bool = False,
    ) -> AcceptRecord:
        """Allocate a record, uninitialised; ops write every element."""

        def int32(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        slots = None
        if slots_dtype is not None:
            slots = torch.empty(batch_size, width, dtype=slots_dtype, device=device)
        return cls(
            per_request=int32(9 if cap_trim else 8, batch_size),
            per_step=int32(3, batch_size, width),
            predict=int32(num_rows),
            slots=slots,
            logprobs=torch.empty(batch_size, width, dtype=torch.float32, device=device)
            if logprobs
            else None,
        )


@dataclass
class TreeRecord:
    """A verify tree per request; B requests, N nodes with the root (node 0 = the anchor).

    Written whole on every call. Parents come before their children and siblings ascend. A detached
    node (malformed input, padding) is reached by no link; it is laid out as if it hung under the
    root, and nodes below it hang under it.

    draft_tokens : as the anchors [B, N]   token of each node; column 0 is the anchor
    positions : int32 [B, N]               prefix_lens + depth of the node
    parents : int32 [B, N]                 parent node; -1 for the root and for detached nodes
    retrieve_index : int32 [B, N]          verify row of each node, b * N + node
    retrieve_next_token : int32 [B, N]     first child node, -1 = leaf
    retrieve_next_sibling : int32 [B, N]   next sibling node, -1 = last
    mask : see ``mask_mode``               which tree columns a node may attend to: itself and its
                                           ancestors. "bits": int32 [B, N, ceil(N / 32)], bit
                                           c % 32 of word c // 32; "qlen": bool [B, N, N];
                                           "full": bool [capacity], per request N rows of
                                           prefix_len + N entries, requests back to back; nothing
                                           past the last request is written
    status : int32 [B]                     specfast.Status bits
    """

    draft_tokens: Tensor
    positions: Tensor
    parents: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor
    mask: Tensor
    status: Tensor

    @classmethod
    def empty(
        cls,
        batch_size: int,
        num_nodes: int,
        device: torch.device | str,
        *,
        tokens_dtype: torch.dtype = torch.int64,
        mask_mode: MaskMode = "bits",
        mask_capacity: int | None = None,
    ) -> TreeRecord:
        """Allocate a record, uninitialised; ``mask_capacity`` (bytes) is needed for "full"."""

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        if mask_mode == "bits":
            mask = empty(batch_size, num_nodes, (num_nodes + 31) // 32)
        elif mask_mode == "qlen":
            mask = empty(batch_size, num_nodes, num_nodes, dtype=torch.bool)
        elif mask_mode == "full" and mask_capacity is not None:
            mask = empty(mask_capacity, dtype=torch.bool)
        else:
            raise RuntimeError(
                'TreeRecord.empty: expected mask_mode "bits", "qlen", or "full" with a '
                f"mask_capacity, got {mask_mode!r} with {mask_capacity}"
            )
        return cls(
            draft_tokens=empty(batch_size, num_nodes, dtype=tokens_dtype),
            positions=empty(batch_size, num_nodes),
            parents=empty(batch_size, num_nodes),
            retrieve_index=empty(batch_size, num_nodes),
            retrieve_next_token=empty(batch_size, num_nodes),
            retrieve_next_sibling=empty(batch_size, num_nodes),
            mask=mask,
            status=empty(batch_size),
        )


@dataclass
class ExpandedFrontier:
    """One level of a draft tree; B requests, n expanded nodes, k children of each. Written whole.

    candidate_tokens : int32 [B, n k]     children of node i at i k to i k + k - 1, likeliest first;
                                          ids of the target
    candidate_scores : float32 [B, n k]   log probability of the path to each
    parent_list : int32 [B, k]            numbers of the k best of them within the tree, best first:
                                          the next columns of ``parent_list``, which says whose
                                          children the next level holds
    parents : int32 [B, k]                of which of the n nodes each is a child
    tokens : int32 [B, k]
    scores : float32 [B, k]
    status : int32 [B, n]                 specfast.Status bits of the row of each expanded node

    Rows of the first three may lie at any stride, as views of the buffers of a whole tree do.
    """

    candidate_tokens: Tensor
    candidate_scores: Tensor
    parent_list: Tensor
    parents: Tensor
    tokens: Tensor
    scores: Tensor
    status: Tensor

    @classmethod
    def empty(
        cls, batch_size: int, num_nodes: int, topk: int, device: torch.device | str
    ) -> ExpandedFrontier:
        """Allocate a record, uninitialised; the op writes every element."""

        def empty(columns: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(batch_size, columns, dtype=dtype, device=device)

        return cls(
            candidate_tokens=empty(num_nodes * topk),
            candidate_scores=empty(num_nodes * topk, torch.float32),
            parent_list=empty(topk),
            parents=empty(topk),
            tokens=empty(topk),
            scores=empty(topk, torch.float32),
            status=empty(num_nodes),
        )


@dataclass
class VerifySchedule:
    """How many rows of each request are verified; B requests, gamma drafts. Written whole.

    verify_lens : int32 [B]          rows, the anchor included; 0 in a padded slot
    survival : float32 [B, gamma]    probability that a draft and all before it are accepted, as it
                                     was ranked: never rising, 0 where ``max_lens`` allows no row
    status : int32 [B]               specfast.Status bits
    """

    verify_lens: Tensor
    survival: Tensor
    status: Tensor

    @classmethod
    def empty(cls, batch_size: int, num_drafts: int, device: torch.device | str) -> VerifySchedule:
        """Allocate a record, uninitialised; the op writes every element."""

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return cls(
            verify_lens=empty(batch_size),
            survival=empty(batch_size, num_drafts, dtype=torch.float32),
            status=empty(batch_size),
        )


@dataclass
class VerifyWindow:
    """The rows of one target forward, back to back; B requests, R rows. Written whole.

    verify_lens : int32 [B]      rows that the request has: no more than were asked for
    qo_indptr : int32 [B + 1]    request b owns rows ``qo_indptr[b]`` to ``qo_indptr[b + 1]``; rows
                                 from ``qo_indptr[B]`` on are padding
    input_ids : as draft_tokens [R]    token of each row; 0 in padding and for no legal id
    positions : int32 [R]        position in the sequence; 0 in padding
    out_cache_loc : as page_table [R]  KV slot that the row writes; ``padding_slot`` in padding
    window_index : int32 [R]     b * N + node of each row; -1 in padding
    status : int32 [B]           specfast.Status bits
    """

    verify_lens: Tensor
    qo_indptr: Tensor
    input_ids: Tensor
    positions: Tensor
    out_cache_loc: Tensor
    window_index: Tensor
    status: Tensor

    @classmethod
    def empty(
        cls,
        batch_size: int,
        num_rows: int,
        device: torch.device | str,
        *,
        tokens_dtype: torch.dtype = torch.int64,
        slots_dtype: torch.dtype = torch.int32,
    ) -> VerifyWindow:
        """Allocate a record, uninitialised; the op writes every element."""

        def empty(size: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(size, dtype=dtype, device=device)

        return cls(
            verify_lens=empty(batch_size),
            qo_indptr=empty(batch_size + 1),
            input_ids=empty(num_rows, tokens_dtype),
            positions=empty(num_rows),
            out_cache_loc=empty(num_rows, slots_dtype),
            window_index=empty(num_rows),
            status=empty(batch_size),
        )


@dataclass
class DraftPlaces:
    """Where n rows of B requests lie behind their committed ones. Written whole.

    pages : int32 [B, columns]    of the positions of each request, in order; -1: none
    positions : int32 [n, B]      of each row
    slots : int32 [n, B]          of the cache; -1: none
    counts : int32 [n, B]         1 for a row that exists, 0 for another
    """

    pages: Tensor
    positions: Tensor
    slots: Tensor
    counts: Tensor

    @classmethod
    def empty(
        cls, batch_size: int, num_rows: int, num_columns: int, device: torch.device | str
    ) -> DraftPlaces:
        """Allocate a record, uninitialised; the op writes every element."""

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        rows = num_rows, batch_size
        return cls(empty(batch_size, num_columns), empty(*rows), empty(*rows), empty(*rows))
