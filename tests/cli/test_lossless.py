"""What --check accepts and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from specfast.cli import lossless
from specfast.cli.lossless import TIE, LosslessCheck, check_lossless
from specfast.cli.target import DtypeName, TargetModel
from specfast.sampling_params import SamplingParams

PROMPT = [70, 71, 72]
PARAMS = SamplingParams(max_new_tokens=8, eos_token_ids=(0,))


def greedy(target: TargetModel, prompt: list[int], length: int) -> list[int]:
    """Plain decoding, one whole forward per token."""
    ids = list(prompt)
    for _ in range(length):
        with torch.inference_mode():
            ids.append(int(target.model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@pytest.fixture
def output(target: TargetModel) -> list[int]:
    output = greedy(target, PROMPT, 8)
    assert 0 not in output
    return output


def judge(target: TargetModel, ours: list[int], plain: list[int]) -> LosslessCheck:
    return check_lossless(target, PROMPT, ours, plain, PARAMS)


def other(token: int) -> int:
    return 100 if token != 100 else 101


def test_the_greedy_output_passes(target: TargetModel, output: list[int]) -> None:
    check = judge(target, output, output)
    assert check.failure is None
    assert check.num_different == 0
    assert check.first_difference is None
    assert check.worst_gap <= check.worst_tolerance == pytest.approx(TIE)


@pytest.mark.parametrize("position", [0, 3, 7])
def test_another_token_is_no_tie(target: TargetModel, output: list[int], position: int) -> None:
    ours = list(output)
    ours[position] = other(ours[position])
    check = judge(target, ours, output)
    assert check.failure == f"plain decoding differs at token {position}, and it is no tie"
    assert check.first_difference is not None
    assert check.first_difference.token_id == ours[position]
    assert check.first_difference.plain_token_id == output[position]
    assert check.num_different == 1


def test_a_fault_that_plain_decoding_shares_is_found(
    target: TargetModel, output: list[int]
) -> None:
    wrong = [*output[:4], other(output[4])]
    wrong += greedy(target, PROMPT + wrong, 3)
    check = judge(target, wrong, wrong)
    assert check.failure == "token 4 is not the target's choice"
    assert check.worst_position == 4


def test_an_output_that_ends_early_or_late(target: TargetModel, output: list[int]) -> None:
    early = judge(target, output[:5], output[:5])
    assert early.failure == "it ends after 5 tokens, where nothing ends it"
    assert judge(target, output[:5], output).num_different == 3
    params = replace(PARAMS, eos_token_ids=(output[2],))
    first_eos = output.index(output[2]) + 1
    late = check_lossless(target, PROMPT, output, output, params)
    assert late.failure is not None
    assert "ends after 8 tokens" in late.failure
    at_eos = output[:first_eos]
    assert check_lossless(target, PROMPT, at_eos, at_eos, params).failure is None
    ignoring = replace(params, ignore_eos=True)
    assert check_lossless(target, PROMPT, output, output, ignoring).failure is None


def test_an_output_may_end_with_the_context(target: TargetModel, output: list[int]) -> None:
    target.probed.context_length = len(PROMPT) + 5
    assert judge(target, output[:5], output[:5]).failure is None
    assert judge(target, output[:4], output[:4]).failure is not None


def with_logits(monkeypatch: pytest.MonkeyPatch, rows: list[list[float]]) -> None:
    monkeypatch.setattr(lossless, "teacher_forced_logits", lambda *_: torch.tensor(rows))


@pytest.mark.parametrize(("gap", "forgiven"), [(0.0, True), (9e-5, True), (1.2e-4, False)])
def test_a_tie_is_forgiven(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, gap: float, forgiven: bool
) -> None:
    with_logits(monkeypatch, [[0, 1, 0]] * 3 + [[1 - gap, 1, 0]] + [[0, 1, 0]] * 4)
    ours = [1, 1, 1, 0, 1, 1, 1, 1]
    params = replace(PARAMS, eos_token_ids=())
    check = check_lossless(target, PROMPT, ours, [1] * 5, params)
    assert check.first_difference is not None
    assert check.first_difference.is_tie == forgiven
    assert check.first_difference.gap == pytest.approx(gap, abs=1e-6)
    assert (check.failure is None) == forgiven


def test_after_a_tie_every_token_is_still_judged(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_logits(monkeypatch, [[1, 1, 0]] + [[0, 1, 0]] * 7)
    params = replace(PARAMS, eos_token_ids=())
    check = check_lossless(target, PROMPT, [0, 1, 1, 2, 1, 1, 1, 1], [1] * 8, params)
    assert check.failure == "token 3 is not the target's choice"


def test_bf16_is_judged_by_the_teacher_forced_pass_alone(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2 layers, largest magnitude 16: 2^-7 * sqrt(4) * 16 = 0.25.
    params = replace(PARAMS, eos_token_ids=())
    bf16 = replace(target, dtype=DtypeName.BF16)
    with_logits(monkeypatch, [[7.75, 8, -16]] * 8)
    check = check_lossless(bf16, PROMPT, [0] * 8, [1] * 8, params)
    assert check.worst_tolerance == pytest.approx(0.25)
    assert check.failure is None
    assert check.num_different == check.num_not_largest == 8
    with_logits(monkeypatch, [[7.749, 8, -16]] * 8)
    assert check_lossless(bf16, PROMPT, [0] * 8, [1] * 8, params).failure is not None


@pytest.mark.parametrize("dtype", list(DtypeName))
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_without_numbers_vouch_for_nothing(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch, dtype: DtypeName, value: float
) -> None:
    with_logits(monkeypatch, [[0, 1, 0]] * 7 + [[0, 1, value]])
    params = replace(PARAMS, eos_token_ids=())
    check = check_lossless(replace(target, dtype=dtype), PROMPT, [1] * 8, [1] * 8, params)
    assert check.failure == "token 7 is not the target's choice"
