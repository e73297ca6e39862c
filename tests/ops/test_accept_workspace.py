"""Rows read all at once, before the walk: the same results as one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accept_batches import AcceptBatch, assert_same_record
from guards import GuardedMemory
from sampled_batches import Q_FORMS, random_sampled_batch
from specfast import AcceptRecord, ops, reference


def with_workspace(batch: AcceptBatch, device: str) -> AcceptRecord:
    """The workspace lies between guard bytes; that of the block rule begins as garbage."""
    memory = GuardedMemory(device)
    workspace = memory.empty(*batch.draft_tokens.shape, 12, dtype=torch.int32)
    if batch.options["rule"] != "block":
        workspace.zero_()
        batch.run(ops.accept_chain, device, workspace=workspace)  # which leaves it for another call
    record = batch.run(ops.accept_chain, device, workspace=workspace)
    memory.check()
    return record


RULES = [("target_only", "none"), *((rule, q) for rule in ("rejection", "block") for q in Q_FORMS)]


@pytest.mark.parametrize(("rule", "q_form"), RULES)
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, rule: str, q_form: str, unsound: bool) -> None:
    for seed in range(25):
        batch = random_sampled_batch(
            seed,
            rule,
            tree=False,
            q_form=q_form,
            unsound=unsound,
            ragged=bool(seed % 2),
            batch=1 if seed % 3 == 0 else 4,
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


@pytest.mark.parametrize("rule", ["rejection", "block"])
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
def test_a_wrong_workspace_is_refused(rule: str, workspace: torch.Tensor, expected: str) -> None:
    batch = random_sampled_batch(0, rule, tree=False, q_form="probs")
    with pytest.raises(RuntimeError, match=expected):
        batch.run(ops.accept_chain, workspace=workspace)


def test_greedy_has_no_use_for_one() -> None:
    given = random_sampled_batch(0, "target_only", tree=False, q_form="none")
    with pytest.raises(RuntimeError, match='expected no workspace with rule "greedy"'):
        ops.accept_chain(
            given.draft_tokens,
            given.prefix_lens,
            rule="greedy",
            workspace=torch.empty(4, 6, 12, dtype=torch.int32),
        )


@pytest.mark.parametrize("rule", ["target_only", "rejection", "block"])
def test_is_offered_only_where_it_was_faster(rule: Any) -> None:
    assert ops.accept_workspace(1, 8, "cpu", rule=rule) is None
