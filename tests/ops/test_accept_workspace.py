"""Rows read all at once, before the walk: the same results as one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accept_batches import AcceptBatch, assert_same_record
from guards import GuardedMemory
from sampled_batches import Q_FORMS, random_sampled_batch
from specfast import AcceptRecord, ops, reference

CASES = [
    ("target_only", True, "none"),
    ("target_only", False, "none"),
    *(("rejection", tree, form) for tree in (True, False) for form in Q_FORMS),
    *(("block", False, form) for form in Q_FORMS),
]


def with_workspace(batch: AcceptBatch, op: Any, device: str) -> AcceptRecord:
    """The workspace lies between guard bytes and begins as garbage."""
    memory = GuardedMemory(device)
    size = (*batch.draft_tokens.shape, 12)
    record = batch.run(op, device, workspace=memory.empty(*size, dtype=torch.int32))
    memory.check()
    return record


@pytest.mark.parametrize(("rule", "tree", "q_form"), CASES)
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(
    device: str, rule: str, tree: bool, q_form: str, unsound: bool
) -> None:
    name = "accept_tree" if tree else "accept_chain"
    for seed in range(25):
        batch = random_sampled_batch(
            seed,
            rule,
            tree=tree,
            q_form=q_form,
            unsound=unsound,
            ragged=bool(seed % 2),
            vocab=2500 if seed % 5 == 0 else 5,
        )
        got = with_workspace(batch, getattr(ops, name), device)
        assert_same_record(got, batch.run(getattr(reference, name)))


@pytest.mark.parametrize("edits", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_without_effect_where_rows_depend_on_the_path(
    device: str, edits: bool, dtype: torch.dtype
) -> None:
    for seed in range(10):
        batch = random_sampled_batch(
            seed, "target_only", tree=False, q_form="none", edits=edits, dtype=dtype
        )
        got = with_workspace(batch, ops.accept_chain, device)
        assert_same_record(got, batch.run(reference.accept_chain))


@pytest.mark.parametrize(
    ("workspace", "expected"),
    [
        (torch.empty(4, 6, 11, dtype=torch.int32), "workspace.*shape.*12.*got"),
        (torch.empty(4, 6, 12, dtype=torch.int64), "workspace.*int32.*got"),
        (torch.empty(3, 6, 12, dtype=torch.int32), "workspace.*B.*4.*got"),
        (
            torch.empty(4 * 6 * 12 + 1, dtype=torch.int32)[1:].view(4, 6, 12),
            "workspace to start at a multiple of 16",
        ),
    ],
)
def test_a_wrong_workspace_is_refused(workspace: torch.Tensor, expected: str) -> None:
    batch = random_sampled_batch(0, "target_only", tree=False, q_form="none")
    with pytest.raises(RuntimeError, match=expected):
        batch.run(ops.accept_chain, workspace=workspace)


def test_greedy_has_no_use_for_one() -> None:
    batch = random_sampled_batch(0, "target_only", tree=False, q_form="none")
    options = {k: v for k, v in batch.options.items() if k not in ("rule", "sampling", "logprobs")}
    with pytest.raises(RuntimeError, match='expected no workspace with rule "greedy"'):
        AcceptBatch(batch.draft_tokens, batch.prefix_lens, options=options).run(
            ops.accept_chain, workspace=torch.empty(4, 6, 12, dtype=torch.int32)
        )


def test_is_offered_only_where_it_was_faster() -> None:
    assert ops.accept_workspace("block", 1, 8, "cpu") is None
    with pytest.raises(RuntimeError, match='expected rule "target_only", "rejection" or "block"'):
        ops.accept_workspace("greedy", 1, 8, "cpu")
