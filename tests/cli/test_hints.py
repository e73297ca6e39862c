"""Each hint, on either side of its rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli.test_evaluation import evaluation_of
from drafters.block_files import dflash_cases
from drafters.eagle_files import eagle_cases
from round_outputs import round_output
from specfast.cli.evaluation import Evaluation
from specfast.cli.hints import hints
from specfast.drafters import DrafterSpec
from specfast.drafters.checkpoint import CheckpointFiles, read_spec


def spec_of(case: object, path: Path) -> DrafterSpec:
    return read_spec(CheckpointFiles(case.write(path)))  # type: ignore[attr-defined]


@pytest.fixture
def eagle(tmp_path: Path) -> DrafterSpec:
    return spec_of(eagle_cases()[0], tmp_path / "eagle")


@pytest.fixture
def block(tmp_path: Path) -> DrafterSpec:
    return spec_of(dflash_cases()[0], tmp_path / "block")


def rounds_that_accepted(*counts: int, draft_seconds: float = 0.0) -> Evaluation:
    """``counts[k]`` rounds accepted k of as many drafts as there are counts; no 4-gram repeats."""
    m, rounds, token = len(counts), [], 10
    for accepted, count in enumerate(counts):
        for _ in range(count):
            token += accepted + 1
            emitted = list(range(token - accepted - 1, token))
            rounds.append(round_output(emitted, accepted=accepted, proposed=m))
    return evaluation_of(*rounds, draft_seconds=draft_seconds)


def said(evaluation: Evaluation, spec: DrafterSpec | None = None, width: int = 64) -> list[str]:
    return list(hints(evaluation, spec, width))


def test_nothing_drafted() -> None:
    (hint,) = said(evaluation_of(round_output([1], last=True)))
    assert "No round had drafts" in hint


def test_few_rounds() -> None:
    (hint,) = said(rounds_that_accepted(49, 0))
    assert hint.startswith("Only 49 rounds")
    assert said(rounds_that_accepted(50, 0)) == []


def test_position_1_near_zero(eagle: DrafterSpec) -> None:
    (hint,) = said(rounds_that_accepted(96, 4), eagle)
    assert "Position 1 is accepted in 4%" in hint
    assert "shifted by one" in hint
    assert said(rounds_that_accepted(95, 5), eagle) == []
    # Of an n-gram drafter it says nothing about a fault.
    assert said(rounds_that_accepted(96, 4)) == []


def test_position_2_near_zero(eagle: DrafterSpec, block: DrafterSpec) -> None:
    # Two of 52 decided.
    (hint,) = said(rounds_that_accepted(48, 50, 2), eagle)
    assert "hidden state" in hint
    (hint,) = said(rounds_that_accepted(48, 50, 2), block)
    assert "mask" in hint
    # Three of 53; and where position 1 is poor already, it is no news.
    assert said(rounds_that_accepted(47, 50, 3), eagle) == []
    assert said(rounds_that_accepted(52, 48, 0), eagle) == []


def test_repetition() -> None:
    plain = rounds_that_accepted(60, 0)
    (hint,) = said(replace(plain, repetition_rate=0.2))
    assert "20% of the outputs' 4-grams" in hint
    assert said(replace(plain, repetition_rate=0.199)) == []


def test_all_accepted() -> None:
    rounds = [round_output([10 + 2 * i, 11 + 2 * i], accepted=1, proposed=1) for i in range(30)]
    rejected = [round_output([100 + i], accepted=0, proposed=1) for i in range(31)]
    (hint,) = said(evaluation_of(*rounds, *rejected[:30]))
    assert hint.startswith("30 of 60 rounds accepted all")
    assert said(evaluation_of(*rounds, *rejected)) == []


def test_drafting_takes_long() -> None:
    (hint,) = said(rounds_that_accepted(60, 0, draft_seconds=3.0))
    assert "50% of their time drafting" in hint
    assert said(rounds_that_accepted(60, 0, draft_seconds=2.9)) == []


def test_a_block_that_is_cut(eagle: DrafterSpec, block: DrafterSpec) -> None:
    assert block.block is not None
    m = block.block.num_proposals
    some = rounds_that_accepted(40, 20, 20)
    (hint,) = said(some, block, m)
    assert hint.startswith(f"--verify-width {m} cuts the block's {m} proposals; {m + 1}")
    assert said(some, block, m + 1) == []
    assert said(some, eagle, 2) == []
