"""Rows read all at once, before the walk: the same results as one after the other."""

from __future__ import annotations

import pytest
import torch
from accept_batches import AcceptBatch, assert_same_record
from guards import GuardedMemory
from sampled_batches import Q_FORMS, random_sampled_batch
from specfast import AcceptRecord, ops, reference


def with_workspace(batch: AcceptBatch, device: str) -> AcceptRecord:
    """The workspace lies between guard bytes and begins as garbage."""
    memory = GuardedMemory(device)
    size = (*batch.draft_tokens.shape, 12)
    record = batch.run(ops.accept_chain, device, workspace=memory.empty(*size, dtype=torch.int32))
    memory.check()
    return record


@pytest.mark.parametrize("q_form", Q_FORMS)
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, q_form: str, unsound: bool) -> None:
    for seed in range(25):
        batch = random_sampled_batch(
            seed,
            "block",
            tree=False,
            q_form=q_form,
            unsound=unsound,
            ragged=bool(seed % 2),
            vocab=2500 if seed % 5 == 0 else 5,
        )
        got = with_workspace(batch, device)
        assert_same_record(got, batch.run(reference.accept_chain))


@pytest.mark.parametrize("edits", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_is_without_effect_where_rows_depend_on_the_path(
    device: str, edits: bool, dtype: torch.dtype
) -> None:
    for seed in range(10):
        batch = random_sampled_batch(
            seed, "block", tree=False, q_form="probs", edits=edits, dtype=dtype
        )
        got = with_workspace(batch, device)
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
    batch = random_sampled_batch(0, "block", tree=False, q_form="probs")
    with pytest.raises(RuntimeError, match=expected):
        batch.run(ops.accept_chain, workspace=workspace)


@pytest.mark.parametrize("rule", ["greedy", "target_only", "rejection"])
def test_other_rules_have_no_use_for_one(rule: str) -> None:
    given = random_sampled_batch(0, "target_only", tree=False, q_form="none")
    with pytest.raises(RuntimeError, match=f'expected no workspace with rule "{rule}"'):
        ops.accept_chain(
            given.draft_tokens,
            given.prefix_lens,
            rule=rule,
            workspace=torch.empty(4, 6, 12, dtype=torch.int32),
        )


def test_is_offered_only_where_it_was_faster() -> None:
    assert ops.accept_workspace(1, 8, "cpu") is None
