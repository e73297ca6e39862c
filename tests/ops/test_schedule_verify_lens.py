"""schedule_verify_lens: which drafts of a batch are worth their row.

survival   A .95 .90 .85     budget 4: A's three, then B's first     lens 4, 2
           B .70 .30 .10     order: survival, then position, then request
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from accept_batches import int32, to_device
from guards import assert_records_equal, assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_batches import Call, random_schedule
from registered_ops import assert_opcheck
from specfast import Status, VerifySchedule, ops, reference

FORMS = ("survival", "confidence", "logits")
ARTICLE = [[0.95, 0.90, 0.85], [0.70, 0.30, 0.10]]


def schedule(confidence: list[list[float]], device: str, budget: Any, **more: Any) -> list[int]:
    return record_of(confidence, device, budget, **more).verify_lens.tolist()


def record_of(
    confidence: list[list[float]], device: str, budget: Any, **more: Any
) -> VerifySchedule:
    return run({"confidence": torch.tensor(confidence), "budget": budget, **more}, device)


def run(call: Call, device: str, **more: Any) -> VerifySchedule:
    return ops.schedule_verify_lens(**{k: to_device(v, device) for k, v in call.items()}, **more)


def test_the_article(device: str) -> None:
    assert schedule(ARTICLE, device, 4) == [4, 2]


def test_the_budget_goes_to_the_best(device: str) -> None:
    lens = [schedule(ARTICLE, device, budget) for budget in range(8)]
    expected = [[1, 1], [2, 1], [3, 1], [4, 1], [4, 2], [4, 3], [4, 4], [4, 4]]
    assert lens == expected
    assert schedule(ARTICLE, device, None) == [4, 4]
    assert schedule(ARTICLE, device, int32([3])) == [4, 1]


def test_ties_go_by_position_and_then_by_request(device: str) -> None:
    equal = [[0.5, 0.5, 0.5]] * 3
    lens = [schedule(equal, device, budget) for budget in (1, 2, 4, 7, 9)]
    assert lens == [[2, 1, 1], [2, 2, 1], [3, 2, 2], [4, 3, 3], [4, 4, 4]]


def test_confidences_are_multiplied_along_the_chain(device: str) -> None:
    record = record_of([[0.5, 0.5, 1.0], [0.5, 0.25, 1.0]], device, 4, form="confidence")
    assert record.survival.tolist() == [[0.5, 0.25, 0.25], [0.5, 0.125, 0.125]]
    assert record.verify_lens.tolist() == [4, 2]


def test_logits_have_a_temperature_per_position(device: str) -> None:
    logits = [[2 * math.log(3), -math.log(4), 100.0, -100.0]]
    temperatures = torch.tensor([2.0, 1.0, 1.0, 1.0])
    record = record_of(logits, device, 2, form="logits", temperatures=temperatures)
    expected = torch.tensor([0.75, 0.75 / 5, 0.75 / 5, 0.0])
    torch.testing.assert_close(record.survival[0].cpu(), expected, rtol=1e-6, atol=0)
    assert record.verify_lens.tolist() == [3]


def test_least_and_most_rows(device: str) -> None:
    options = {"min_lens": int32([1, 3]), "max_lens": int32([2, 4])}
    assert schedule(ARTICLE, device, 0, **options) == [1, 3]
    # Two drafts of B come without the budget; A may have one.
    assert schedule(ARTICLE, device, 1, **options) == [2, 3]
    assert schedule(ARTICLE, device, 2, **options) == [2, 4]
    record = record_of(ARTICLE, device, 0, min_lens=int32([3, 3]), max_lens=int32([2, 0]))
    assert record.verify_lens.tolist() == [2, 0]  # what a request may have, holds
    assert record.status.tolist() == [Status.OK, Status.OK]


def test_padded_slots_have_no_rows_and_take_no_budget(device: str) -> None:
    rows = [[math.nan] * 3, *ARTICLE, [1.0] * 3]
    record = record_of(rows, device, 4, max_lens=int32([0, 4, 4, 0]), min_lens=int32([-7, 1, 1, 9]))
    assert record.verify_lens.tolist() == [0, 4, 2, 0]
    assert record.status.tolist() == [Status.OK] * 4
    assert record.survival[[0, 3]].count_nonzero() == 0


def test_finished_slots_are_padded_slots(device: str) -> None:
    rows = [[1.0] * 3, *ARTICLE, [math.nan] * 3]
    for dtype in (torch.int32, torch.int64):
        anchors = torch.tensor([-1, 0, 5, -1], dtype=dtype)
        bad_if_looked_at = {"max_lens": int32([9, 4, 4, -1]), "min_lens": int32([9, 1, 1, 0])}
        record = record_of(rows, device, 4, anchors=anchors, **bad_if_looked_at)
        assert record.verify_lens.tolist() == [0, 4, 2, 0]
        assert record.status.tolist() == [Status.OK] * 4
        assert record.survival[[0, 3]].count_nonzero() == 0


def test_nothing_below_epsilon_is_chosen(device: str) -> None:
    assert schedule(ARTICLE, device, 6, epsilon=0.3) == [4, 3]
    above = torch.nextafter(torch.tensor(0.3), torch.tensor(1.0)).item()
    assert schedule(ARTICLE, device, 6, epsilon=above) == [4, 2]
    assert schedule([[0.0, 0.0]], device, 1, epsilon=0.0) == [2]
    assert schedule([[0.0, 0.0]], device, 1) == [1]


def test_a_length_is_a_prefix_whatever_the_survivals_are(device: str) -> None:
    # The 1.0 of the second draft is worth what the first one is.
    record = record_of([[0.2, 1.0, 0.1], [0.5, 0.3, 0.25]], device, 3)
    torch.testing.assert_close(record.survival[0].cpu(), torch.tensor([0.2, 0.2, 0.1]))
    assert record.verify_lens.tolist() == [1, 4]
    assert record.status.tolist() == [Status.OK, Status.OK]
    hole = record_of([[0.9, math.nan, 0.8]], device, 3)
    assert hole.verify_lens.tolist() == [2]
    assert hole.status.tolist() == [Status.BAD_PARAM]


BAD_NUMBERS = {
    "NaN": ("confidence", [math.nan], None, 0.0),
    "negative": ("confidence", [-0.1], None, 0.0),
    "above one": ("confidence", [1.5], None, 1.0),
    "infinite": ("survival", [math.inf], None, 1.0),
    "minus infinity": ("survival", [-math.inf], None, 0.0),
    "NaN logit": ("logits", [math.nan], None, 0.0),
    "no temperature": ("logits", [3.0], [0.0], 0.0),
    "negative temperature": ("logits", [3.0], [-1.0], 0.0),
    "infinite temperature": ("logits", [3.0], [math.inf], 0.0),
    "NaN temperature": ("logits", [3.0], [math.nan], 0.0),
}


@pytest.mark.parametrize("name", BAD_NUMBERS)
def test_bad_numbers(device: str, name: str) -> None:
    form, confidence, temperatures, survival = BAD_NUMBERS[name]
    given = None if temperatures is None else torch.tensor(temperatures)
    record = record_of([confidence], device, 1, form=form, temperatures=given)
    assert record.survival.tolist() == [[survival]]
    assert record.status.tolist() == [Status.BAD_PARAM]
    assert record.verify_lens.tolist() == [2 if survival else 1]


def test_infinite_logits_are_sure(device: str) -> None:
    record = record_of([[math.inf, -math.inf, math.inf]], device, 3, form="logits")
    assert record.survival.tolist() == [[1.0, 0.0, 0.0]]
    assert record.status.tolist() == [Status.OK]


def test_lengths_out_of_range_are_clamped(device: str) -> None:
    record = record_of([[0.5]] * 4, device, 0, max_lens=int32([-1, 3, 2, 2]))
    assert record.verify_lens.tolist() == [0, 1, 1, 1]
    assert record.status.tolist() == [Status.BAD_PARAM, Status.BAD_PARAM, 0, 0]
    record = record_of([[0.5]] * 4, device, 0, min_lens=int32([0, 3, 2, 1]))
    assert record.verify_lens.tolist() == [1, 2, 2, 1]
    assert record.status.tolist() == [Status.BAD_PARAM, Status.BAD_PARAM, 0, 0]


def test_a_negative_budget_on_the_device_is_none(device: str) -> None:
    record = record_of([[0.5]] * 2, device, int32([-3]), max_lens=int32([2, 0]))
    assert record.verify_lens.tolist() == [1, 0]
    assert record.status.tolist() == [Status.BAD_PARAM, Status.OK]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unsound", [False, True])
@pytest.mark.parametrize(
    ("batch_size", "num_drafts"), [(1, 1), (3, 7), (40, 7), (70, 15), (700, 3), (0, 4), (5, 0)]
)
def test_equals_the_reference(
    device: str, form: str, unsound: bool, batch_size: int, num_drafts: int
) -> None:
    for seed in range(6):
        call = random_schedule(seed, batch_size, num_drafts, form=form, unsound=unsound)
        assert_records_equal(run(call, device), reference.schedule_verify_lens(**call))


@settings(max_examples=300)
@given(
    seed=st.integers(0, 2**31 - 1),
    batch_size=st.integers(0, 6),
    num_drafts=st.integers(0, 5),
    form=st.sampled_from(FORMS),
    unsound=st.booleans(),
)
def test_any_call_equals_the_reference(
    seed: int, batch_size: int, num_drafts: int, form: str, unsound: bool
) -> None:
    call = random_schedule(seed, batch_size, num_drafts, form=form, unsound=unsound)
    assert_records_equal(run(call, "cpu"), reference.schedule_verify_lens(**call))


@pytest.mark.parametrize(("batch_size", "num_drafts"), [(3510, 7), (24576, 1), (1, 24576)])
def test_the_largest_batches(device: str, batch_size: int, num_drafts: int) -> None:
    call = random_schedule(1, batch_size, num_drafts, form="confidence", unsound=False)
    call["budget"] = batch_size * num_drafts // 3
    assert_records_equal(run(call, device), reference.schedule_verify_lens(**call))


@given(seed=st.integers(0, 2**31 - 1), form=st.sampled_from(FORMS))
def test_budget_is_spent_and_never_exceeded(seed: int, form: str) -> None:
    call = random_schedule(seed, 5, 4, form=form, unsound=False)
    record = run(call, "cpu")
    nothing = run({**call, "budget": 0}, "cpu").verify_lens
    everything = run({**call, "budget": None}, "cpu").verify_lens
    budget = int(call.get("budget", 20))
    spent = int((record.verify_lens - nothing).sum())
    assert spent == min(budget, int((everything - nothing).sum()))


@given(seed=st.integers(0, 2**31 - 1), draft=st.integers(0, 4), unsound=st.booleans())
def test_a_cut_does_not_look_behind_itself(seed: int, draft: int, unsound: bool) -> None:
    """Whether a draft is verified is decided by its own survival and by earlier ones."""
    call = random_schedule(seed, 4, 5, form="confidence", unsound=unsound)
    before = run(call, "cpu").verify_lens
    other = random_schedule(seed + 1, 4, 5, form="confidence", unsound=unsound)["confidence"]
    call["confidence"] = call["confidence"].clone()
    call["confidence"][2, draft + 1 :] = other[2, draft + 1 :]
    after = run(call, "cpu").verify_lens
    # Row draft + 1 carries this draft.
    assert (before[2] > draft + 1) == (after[2] > draft + 1)


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(12):
        call = random_schedule(seed, 9, 5, form=FORMS[seed % 3], unsound=True)
        call = {k: to_device(v, device) for k, v in call.items()}
        template = run(call, device)
        inputs = [value for value in call.values() if isinstance(value, torch.Tensor)]
        assert_written_whole(
            lambda out, call=call: run(call, device, out=out), template, device, *inputs
        )


ARGUMENTS = {
    "confidence of dtype float32, got float64": {"confidence": torch.zeros(2, 3).double()},
    r"confidence of shape \[B, gamma\], got \[3\]": {"confidence": torch.zeros(3)},
    "confidence with a dense last dimension, got stride 2": {
        "confidence": torch.zeros(2, 6)[:, ::2]
    },
    r"the number of drafts B \* gamma of confidence in \[0, 24576\], got 24577": {
        "confidence": torch.zeros(24577, 1)
    },
    'form "survival", "confidence" or "logits", got "sigmoid"': {"form": "sigmoid"},
    'temperatures with form "logits" only, got form "survival"': {"temperatures": torch.ones(3)},
    r"temperatures of shape \[gamma=3\], got \[4\]": {
        "form": "logits",
        "temperatures": torch.ones(4),
    },
    r"min_lens of shape \[B=2\], got \[3\]": {"min_lens": torch.ones(3, dtype=torch.int32)},
    "max_lens of dtype int32, got int64": {"max_lens": torch.ones(2, dtype=torch.int64)},
    r"anchors of shape \[B=2\], got \[1\]": {"anchors": int32([1])},
    r"budget in \[0, 9223372036854775807\], got -1": {"budget": -1},
    "budget of dtype int32, got int64": {"budget": torch.ones(1, dtype=torch.int64)},
    r"budget of shape \[1\], got \[2\]": {"budget": torch.ones(2, dtype=torch.int32)},
    r"epsilon in \[0, 1\], got -0.5": {"epsilon": -0.5},
    r"epsilon in \[0, 1\], got nan": {"epsilon": math.nan},
    r"out.verify_lens of shape \[B=2\], got \[3\]": {"out": VerifySchedule.empty(3, 3, "cpu")},
    r"out.survival of shape \[B=2, gamma=3\], got \[2, 4\]": {
        "out": VerifySchedule.empty(2, 4, "cpu")
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    arguments = {"confidence": torch.zeros(2, 3), **ARGUMENTS[message]}
    with pytest.raises(RuntimeError, match="schedule_verify_lens: expected " + message):
        ops.schedule_verify_lens(**arguments)


def test_capture_and_replay(device: str) -> None:
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    confidence = torch.empty(9, 5, device=device)
    budget = torch.zeros(1, dtype=torch.int32, device=device)
    out = VerifySchedule.empty(9, 5, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.schedule_verify_lens(confidence, budget, form="logits", out=out)
    for seed in range(20):
        fresh = random_schedule(seed, 9, 5, form="logits", unsound=True)["confidence"]
        confidence.copy_(fresh)
        budget.fill_(seed - 1)
        graph.replay()
        expected = reference.schedule_verify_lens(fresh, int32([seed - 1]), form="logits")
        assert_records_equal(out, expected)


def test_opcheck(device: str) -> None:
    confidence = torch.rand(2, 3, device=device)
    assert_opcheck(lambda: ops.schedule_verify_lens(confidence, 3, form="logits"))
    assert_opcheck(lambda: ops.schedule_verify_lens(confidence, int32([3], device=device)))
