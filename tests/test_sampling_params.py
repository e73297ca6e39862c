"""Parameters out of range are named, and no two requests share a seed by accident."""

from __future__ import annotations

import math
import re
from dataclasses import asdict

import pytest
from specfast import SamplingParams
from specfast.sampling_params import derived_seed

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "expected", "values"),
    [
        ("temperature", "in [0, 3.4e38]", [-1e-9, NAN, INF, 1e39, "1"]),
        ("top_k", "-1, 0 or a count < 2^31", [-2, 2**31, 1.5, NAN]),
        # What rounds to 0 in float32 is 0 for the ops.
        ("top_p", "in (0, 1]", [0, -0.1, 1.0001, NAN, 1e-60, None]),
        ("min_p", "in [0, 1]", [-0.1, 1.0001, NAN]),
        ("repetition_penalty", "in (0, 3.4e38]", [0, -1, NAN, INF, 1e-60]),
        ("presence_penalty", "within +-3.4e38", [NAN, INF, -INF, 1e39]),
        ("frequency_penalty", "within +-3.4e38", [NAN, INF, -INF, 1e39]),
        ("logit_bias", "as a mapping of ids to numbers", [[1, 2]]),
        ("logit_bias", "in [0, 2^31)", [{-1: 0.5}, {2**31: 0.5}, {"5": 1.0}]),
        ("logit_bias", "of numbers", [{5: NAN}, {5: "1"}]),
        ("seed", "in [0, 2^64) or None", [-1, 2**64, 0.5]),
        ("logprobs", '"raw", "processed" or None', ["cooked", True]),
        ("max_new_tokens", ">= 1", [0, -1]),
        ("min_new_tokens", "in [0, 128]", [-1, 129]),
        ("stop", "as a tuple of strings that are not empty", ["end", ("end", ""), (5,)]),
        ("stop_token_ids", "in [0, 2^31)", [(-2,), (3, 2**40)]),
        ("eos_token_ids", "in [0, 2^31)", [(-1,), (2**31,), (1.5,)]),
    ],
)
def test_values_out_of_range_are_named(name: str, expected: str, values: list[object]) -> None:
    for value in values:
        sentence = f"expected {name} {expected}, got "
        with pytest.raises(ValueError, match="^" + re.escape(sentence)):
            SamplingParams(**{name: value})  # type: ignore[arg-type]


def test_a_minimum_beyond_int32_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected min_new_tokens < 2\^31"):
        SamplingParams(min_new_tokens=2**31, max_new_tokens=2**31)


def test_the_ends_of_every_range_are_legal() -> None:
    SamplingParams(temperature=0, top_k=-1, top_p=1e-30, min_p=0, repetition_penalty=1e-30, seed=0)
    SamplingParams(temperature=3.4e38, top_k=2**31 - 1, top_p=1, min_p=1, seed=2**64 - 1)
    SamplingParams(repetition_penalty=3.4e38, presence_penalty=-3.4e38, frequency_penalty=3.4e38)
    SamplingParams(logit_bias={0: -INF, 2**31 - 1: INF}, stop=("\n",), max_new_tokens=10**12)


def test_what_is_greedy() -> None:
    assert SamplingParams().is_plain_greedy
    assert SamplingParams(temperature=9e-6, top_p=0.5).is_plain_greedy
    assert SamplingParams(temperature=2.0, top_k=1).is_plain_greedy
    assert not SamplingParams(temperature=1e-5).is_greedy
    for edited in (
        SamplingParams(repetition_penalty=1.1),
        SamplingParams(presence_penalty=-0.5),
        SamplingParams(frequency_penalty=0.1),
        SamplingParams(logit_bias={3: 1.0}),
    ):
        assert edited.is_greedy
        assert not edited.is_plain_greedy


def test_params_keep_their_own_biases() -> None:
    biases = {3: 1.0}
    params = SamplingParams(logit_bias=biases)
    biases[3] = NAN
    assert params.logit_bias == {3: 1.0}
    assert asdict(params)["logit_bias"] == {3: 1.0}
    assert len({params, SamplingParams(logit_bias={3: 1.0}), SamplingParams()}) == 2


def test_seeds_are_those_of_splitmix64() -> None:
    # The first outputs of the published generator from state 0, and from 1234567.
    assert [derived_seed(0, n) for n in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert derived_seed(1234567, 0) == 6457827717110365317


def test_seeds_of_one_engine_are_distinct() -> None:
    seeds = {derived_seed(2**64 - 1, number) for number in range(10_000)}
    assert len(seeds) == 10_000
    assert all(0 <= seed < 2**64 for seed in seeds)
