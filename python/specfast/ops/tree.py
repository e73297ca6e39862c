"""Tree: which drafts are verified, and the links, positions and mask of their tree."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place
from specfast.records import MaskMode, TreeRecord

__all__ = ["build_tree", "select_and_build_tree", "select_draft_tokens", "tree_from_parents"]

# csrc/core/candidate_lists.h
MAX_CANDIDATES = 8192


def select_draft_tokens(
    scores: Tensor,
    parent_list: Tensor,
    *,
    topk: int,
    num_nodes: int,
    out: Tensor | None = None,
    status: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Select the best ``num_nodes - 1`` candidates of a level-wise expanded draft tree.

    Best by (effective score descending, candidate ascending), where the effective score is the
    lowest on the path from the root: an ancestor never comes after its descendants, so the
    selection is a tree whatever the scores are.

    Parameters
    ----------
    scores : float32 [B, C]
        Log probability of the path to each candidate, any row stride. C = k + (D - 1) k² for a
        tree of D levels and k = ``topk``, at most 8192; D <= 1024. Candidates are numbered as
        SGLang does: 0 .. k-1 are the root's children; group g = candidate // k >= 1 holds the
        children of candidate ``parent_list[g]``. NaN counts as -inf, -0.0 as 0.0.
    parent_list : int32 | int64 [B, k (D - 1) + 1]
        Any row stride; column 0 is not read. For D = 1 any number of columns, also none.
    topk : int
        k, candidates per expansion.
    num_nodes : int
        N, nodes of the tree with its root; N <= 1024 and N - 1 <= C.
    out : int32 [B, N - 1], optional
    status : int32 [B], optional
        Buffers to fill; needed if read after a graph's replay.

    Returns
    -------
    selected_index : int32 [B, N - 1]
        Selected candidates, ascending.
    status : int32 [B]
        ``BAD_TREE`` where a candidate had to be selected whose path does not reach the root.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    A parent stands in an earlier group: entry g of ``parent_list`` outside [0, g k) makes the k
    candidates of its group malformed. They, and all below them, count as -inf.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch and slot.
    Capturable with ``out`` and ``status``; one launch. Cost: reads scores and parents once.
    Source: EAGLE-2 (arXiv:2406.16858), section 4.2.

    Examples
    --------
    Two levels, k = 2: candidates 0, 1 under the root, 2, 3 under 0, and 4, 5 under 1.

    >>> import torch, specfast
    >>> scores = torch.tensor([[-0.1, -3.0, -0.5, -2.0, -3.1, -9.0]])
    >>> parent_list = torch.tensor([[-1, 0, 1]])
    >>> selected, status = specfast.ops.select_draft_tokens(
    ...     scores, parent_list, topk=2, num_nodes=4)
    >>> selected.tolist()
    [[0, 2, 3]]
    """
    if out is None:
        # Whether the sizes are in range is for the op to say.
        shape = (scores.shape[0], max(num_nodes - 1, 0))
        out = torch.empty(shape, dtype=torch.int32, device=scores.device)
    if status is None:
        status = torch.empty(scores.shape[0], dtype=torch.int32, device=scores.device)
    torch.ops.specfast.select_draft_tokens(scores, parent_list, topk, num_nodes, out, status)
    return out, status


def build_tree(
    anchors: Tensor,
    draft_tokens: Tensor,
    parent_list: Tensor,
    selected_index: Tensor,
    prefix_lens: Tensor,
    *,
    topk: int,
    mask_mode: MaskMode = "bits",
    mask_capacity: int | None = None,
    out: TreeRecord | None = None,
) -> TreeRecord:
    """Build the verify tree of selected candidates: links, positions, attention mask.

    Node 0 is the anchor, node i >= 1 is candidate ``selected_index[i - 1]``; its parent is the
    node of the candidate's parent. Children are linked in ascending order.

    Parameters
    ----------
    anchors : int32 | int64 [B]
        The root's token, which is emitted but has no KV yet.
    draft_tokens : int32 | int64 [B, N - 1]
        Token of each selected candidate, any row stride. Ids are copied, not checked.
    parent_list : int32 | int64 [B, P]
        As in :func:`select_draft_tokens`; any P with k P <= 8192.
    selected_index : int32 | int64 [B, N - 1]
        Candidates, parents before children (ascending is such an order), any row stride. N <= 1024.
    prefix_lens : int32 [B]
        Committed KV length, the anchor not included.
    topk : int
        k, candidates per expansion.
    mask_mode : "bits" | "qlen" | "full"
        Form of the mask, see :class:`TreeRecord`. No form needs a pre-fill.
    mask_capacity : int, optional
        Bytes of the mask of mode "full" if ``out`` is absent; at least
        ``N * (prefix_lens.sum() + B * N)`` for all requests to fit.
    out : TreeRecord, optional
        Buffers to fill (see ``TreeRecord.empty``); needed if read after a graph's replay.

    Returns
    -------
    TreeRecord
        ``out``, or a new one; every element is written, of a "full" mask those of the batch.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails. A node is detached, and its request flagged ``BAD_TREE``, if its candidate
    is out of range or an earlier node's, or if its parent is malformed, not selected or not an
    earlier node. No link leads to a detached node; its depth is 1, its mask row is itself and the
    root, and nodes below it hang under it. A prefix length outside [0, 2³¹ - N) counts as 0, and a
    request whose "full" mask does not fit gets none; both are ``BAD_PARAM``. A draft id that an
    int32 record cannot hold becomes -1.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch and slot.
    Capturable with ``out``; one launch. Cost: O(N) reads, the record's bytes written, none of it
    for requests that are not there. Source: EAGLE-2 (arXiv:2406.16858), SpecInfer
    (arXiv:2305.09781).

    Examples
    --------
    The tree R -> {A, B}, A -> {C, D} (R=1, A=10, B=11, C=12, D=13) of candidates 0, 1, 2, 3:

    >>> import torch, specfast
    >>> record = specfast.ops.build_tree(
    ...     torch.tensor([1]), torch.tensor([[10, 11, 12, 13]]), torch.tensor([[-1, 0, 1]]),
    ...     torch.tensor([[0, 1, 2, 3]]), torch.tensor([10], dtype=torch.int32), topk=2)
    >>> record.retrieve_next_token.tolist(), record.retrieve_next_sibling.tolist()
    ([[1, 3, -1, -1, -1]], [[-1, 2, -1, 4, -1]])
    >>> record.positions.tolist(), [bin(word) for word in record.mask.flatten().tolist()]
    ([[10, 11, 11, 12, 12]], ['0b1', '0b11', '0b101', '0b1011', '0b10011'])
    """
    if out is None:
        num_nodes = selected_index.shape[-1] + 1
        out = _empty_record("build_tree", anchors, num_nodes, mask_mode, mask_capacity)
    torch.ops.specfast.build_tree(
        anchors,
        draft_tokens,
        parent_list,
        selected_index,
        prefix_lens,
        topk,
        mask_mode,
        *_tensors(out),
    )
    return out


def select_and_build_tree(
    anchors: Tensor,
    scores: Tensor,
    tokens: Tensor,
    parent_list: Tensor,
    prefix_lens: Tensor,
    *,
    topk: int,
    num_nodes: int,
    mask_mode: MaskMode = "bits",
    mask_capacity: int | None = None,
    out: TreeRecord | None = None,
) -> TreeRecord:
    """Select the best candidates and build their verify tree, in one launch.

    Equal to :func:`select_draft_tokens` followed by :func:`build_tree` with the selected tokens;
    what lies between them stays in shared memory.

    Parameters
    ----------
    anchors : int32 | int64 [B]
        The root's token.
    scores : float32 [B, C]
        Log probability of the path to each candidate, as in :func:`select_draft_tokens`.
    tokens : int32 | int64 [B, C]
        Token of each candidate, any row stride.
    parent_list : int32 | int64 [B, k (D - 1) + 1]
        As in :func:`select_draft_tokens`.
    prefix_lens : int32 [B]
        Committed KV length, the anchor not included.
    topk, num_nodes : int
        k and N, as in :func:`select_draft_tokens`.
    mask_mode, mask_capacity, out
        As in :func:`build_tree`.

    Returns
    -------
    TreeRecord
        ``out``, or a new one; every element is written, of a "full" mask those of the batch.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data: a malformed path that had to be selected is detached and flagged ``BAD_TREE``;
    otherwise as :func:`build_tree`.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch and slot.
    Capturable with ``out``; one launch. Cost: reads C scores, C / k parents and N tokens, writes
    the record. Source: EAGLE-2 (arXiv:2406.16858), section 4.2.
    """
    if out is None:
        out = _empty_record("select_and_build_tree", anchors, num_nodes, mask_mode, mask_capacity)
    torch.ops.specfast.select_and_build_tree(
        anchors,
        scores,
        tokens,
        parent_list,
        prefix_lens,
        topk,
        num_nodes,
        mask_mode,
        *_tensors(out),
    )
    return out


def tree_from_parents(
    draft_tokens: Tensor,
    parents: Tensor,
    prefix_lens: Tensor,
    *,
    verify_lens: Tensor | None = None,
    mask_mode: MaskMode = "bits",
    mask_capacity: int | None = None,
    out: TreeRecord | None = None,
) -> TreeRecord:
    """Build the verify tree of a parent array: n-gram trees, static and dynamic trees.

    Parameters
    ----------
    draft_tokens : int32 | int64 [B, N]
        Token of each node, column 0 the anchor; any row stride. Copied, not checked. N <= 1024.
    parents : int32 | int64 [B, N]
        Parent node of each node, an earlier node; column 0 is not read. Any row stride.
    prefix_lens : int32 [B]
        Committed KV length, the anchor not included.
    verify_lens : int32 [B], optional
        Nodes of each request, root included; later nodes are padding, and 0 is a padded slot.
        Padding is detached without a flag. All nodes if absent.
    mask_mode, mask_capacity, out
        As in :func:`build_tree`.

    Returns
    -------
    TreeRecord
        ``out``, or a new one; every element is written, of a "full" mask those of the batch.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails. A node whose parent is not an earlier node is detached (see
    :func:`build_tree`) and its request flagged ``BAD_TREE``; a verify length outside [0, N] is
    clamped and flagged ``BAD_PARAM``; prefix lengths and a "full" mask as in :func:`build_tree`.
    Devices: CPU, CUDA; equal results. Deterministic, and independent of batch and slot.
    Capturable with ``out``; one launch. Cost: O(N) reads, the record's bytes written.
    Source: SpecInfer (arXiv:2305.09781).

    Examples
    --------
    >>> import torch, specfast
    >>> record = specfast.ops.tree_from_parents(
    ...     torch.tensor([[1, 10, 11, 12, 13]]), torch.tensor([[-1, 0, 0, 1, 1]]),
    ...     torch.tensor([10], dtype=torch.int32))
    >>> record.retrieve_next_token.tolist(), record.retrieve_next_sibling.tolist()
    ([[1, 3, -1, -1, -1]], [[-1, 2, -1, 4, -1]])
    """
    if out is None:
        num_nodes = draft_tokens.shape[-1]
        out = _empty_record("tree_from_parents", draft_tokens, num_nodes, mask_mode, mask_capacity)
    torch.ops.specfast.tree_from_parents(
        draft_tokens, parents, prefix_lens, verify_lens, mask_mode, *_tensors(out)
    )
    return out


def _empty_record(
    op: str, tokens: Tensor, num_nodes: int, mask_mode: MaskMode, mask_capacity: int | None
) -> TreeRecord:
    """A record like ``tokens``; whether the sizes are in range is for the op to say."""
    if mask_mode == "full" and mask_capacity is None:
        raise RuntimeError(f'{op}: expected mask_capacity with mask_mode "full", got None')
    return TreeRecord.empty(
        tokens.shape[0],
        max(num_nodes, 0),
        tokens.device,
        tokens_dtype=tokens.dtype,
        mask_mode=mask_mode,
        mask_capacity=mask_capacity,
    )


def _tensors(record: TreeRecord) -> tuple[Tensor, ...]:
    return (
        record.draft_tokens,
        record.positions,
        record.parents,
        record.retrieve_index,
        record.retrieve_next_token,
        record.retrieve_next_sibling,
        record.mask,
        record.status,
    )


register_in_place("select_draft_tokens", "build_tree", "select_and_build_tree", "tree_from_parents")
