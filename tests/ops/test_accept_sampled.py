"""Sampled accept: equal to the reference, bit for bit, whatever the batch holds."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from accept_batches import assert_same_record, int32
from guards import GuardedMemory, assert_records_equal, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled_batches import Q_FORMS, random_sampled_batch
from specfast import AcceptRecord, Coins, Proposal, SamplingRules, ops, reference

CASES = [
    ("target_only", True, "none"),
    ("target_only", False, "none"),
    *(("rejection", True, form) for form in Q_FORMS),
    *(("rejection", False, form) for form in Q_FORMS),
    *(("block", False, form) for form in Q_FORMS),
]


def both(seed: int, rule: str, tree: bool, q_form: str, device: str, **options):
    batch = random_sampled_batch(seed, rule, tree=tree, q_form=q_form, **options)
    name = "accept_tree" if tree else "accept_chain"
    return batch.run(getattr(ops, name), device), batch.run(getattr(reference, name))


@pytest.mark.parametrize(("rule", "tree", "q_form"), CASES)
@pytest.mark.parametrize("edits", [False, True])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(
    device: str, rule: str, tree: bool, q_form: str, edits: bool, unsound: bool
) -> None:
    for seed in range(25):
        got, expected = both(
            seed, rule, tree, q_form, device, edits=edits, unsound=unsound, ragged=bool(seed % 2)
        )
        assert_same_record(got, expected)


@pytest.mark.parametrize(("rule", "tree", "q_form"), CASES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equals_the_reference_in_16_bits(
    device: str, rule: str, tree: bool, q_form: str, dtype: torch.dtype
) -> None:
    for seed in range(100, 110):
        got, expected = both(seed, rule, tree, q_form, device, dtype=dtype, edits=bool(seed % 3))
        assert_same_record(got, expected)


@pytest.mark.parametrize(("rule", "tree", "q_form"), CASES)
@pytest.mark.parametrize("vocab", [33, 1024, 2500])
def test_larger_vocabularies(device: str, rule: str, tree: bool, q_form: str, vocab: int) -> None:
    for seed in range(200, 204):
        got, expected = both(
            seed, rule, tree, q_form, device, vocab=vocab, edits=bool(seed % 2), nodes=4
        )
        assert_same_record(got, expected)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**31 - 1),
    case=st.sampled_from(CASES),
    edits=st.booleans(),
    unsound=st.booleans(),
    ragged=st.booleans(),
    vocab=st.sampled_from([1, 2, 5, 17]),
    nodes=st.sampled_from([1, 2, 9]),
)
def test_any_batch_equals_the_reference(
    seed: int, case, edits: bool, unsound: bool, ragged: bool, vocab: int, nodes: int
) -> None:
    options = {"edits": edits, "unsound": unsound, "ragged": ragged, "vocab": vocab}
    assert_same_record(*both(seed, *case, "cpu", nodes=nodes, **options))


@pytest.mark.parametrize(("rule", "tree", "q_form"), CASES)
def test_guards_sentinels_and_inputs(device: str, rule: str, tree: bool, q_form: str) -> None:
    op = ops.accept_tree if tree else ops.accept_chain
    for seed in range(4):
        batch = random_sampled_batch(
            seed, rule, tree=tree, q_form=q_form, edits=True, unsound=True, ragged=bool(seed % 2)
        )
        template = batch.run(op, device)
        inputs = [
            *(batch.draft_tokens, batch.prefix_lens, *batch.links),
            *tensors_of(batch.options),
        ]
        records: list[AcceptRecord] = []
        for fill in (0x5C, 0x11):
            memory = GuardedMemory(device, fill)
            out = memory.like(template)
            with unchanged(*inputs):
                batch.run(op, device, out=out)
            memory.check()
            records.append(out)
        assert_records_equal(*records)


@pytest.mark.parametrize("row_stride", [8, 2**30 + 8, 2**31 + 8])
@pytest.mark.parametrize("rule", ["target_only", "rejection", "block"])
def test_b08_rows_beyond_two_to_the_31_elements(device: str, rule: str, row_stride: int) -> None:
    if device == "cpu" and row_stride > 8:
        pytest.skip("4 GB of address space for three rows: the GPU has it to spare")
    logits = torch.empty(2 * row_stride + 8, dtype=torch.bfloat16, device=device)
    rows = logits.as_strided((3, 8), (row_stride, 1))
    rows.fill_(-torch.inf)
    rows[0, 3] = rows[1, 4] = rows[2, 5] = rows[2, 6] = 1
    sampling = SamplingRules(
        torch.ones(1, device=device),
        torch.zeros(1, dtype=torch.int64, device=device),
        top_k=int32([2], device=device),
    )
    lens, request_of_row = int32([0], device=device), int32([0, 0, 0], device=device)
    drawn = ops.sample_rows(rows, sampling, lens, request_of_row=request_of_row)
    assert drawn.tokens[:2].tolist() == [[3], [4]]
    # The largest coin takes the last of the two that row 2 keeps.
    last = replace(sampling, coins=Coins(final=torch.ones(1, device=device)))
    q = Proposal(logits=rows, records=drawn.records)
    record = ops.accept_chain(
        int32([[0, 3, 4]], device=device),
        lens,
        target_logits=rows,
        rule=rule,
        sampling=last,
        proposal=None if rule == "target_only" else q,
    )
    assert record.out_tokens.tolist() == [[3, 4, 6]]


def tensors_of(value) -> list[torch.Tensor]:
    """All tensors in a record, a dictionary, or a record of records."""
    if isinstance(value, torch.Tensor):
        return [value]
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return [tensor for part in inner.values() for tensor in tensors_of(part)]
