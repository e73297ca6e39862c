"""The figures of a decoding, counted by hand."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from round_outputs import generation, round_output
from specfast.cli.decoding import Decoding
from specfast.cli.summary import faults, print_summary, summarize
from specfast.status import Status

PREFILL = round_output([5])


def test_figures_of_two_prompts() -> None:
    first = generation(
        PREFILL,
        round_output([5, 6, 7], accepted=2, proposed=3),
        round_output([5], accepted=0, proposed=0),
        round_output([5, 6, 7, 8], accepted=4, proposed=4, last=True),
    )
    second = generation(PREFILL, round_output([5], accepted=0, proposed=3, last=True))
    summary = summarize(Decoding([first, second], [0, 0], seconds=2.0))
    assert summary.tokens == 11
    assert summary.rounds == 4
    assert summary.drafted_rounds == 3
    assert summary.drafts_proposed == 10
    assert summary.drafts_accepted == 6
    # 8 + 1 tokens came after the two prefills.
    assert summary.tokens_per_round == pytest.approx(9 / 4)
    assert summary.acceptance_by_position == pytest.approx([2 / 3, 2 / 3, 1 / 3, 1 / 3])
    assert summary.tokens_per_second == pytest.approx(5.5)


def test_outputs_that_end_with_their_prefill() -> None:
    summary = summarize(Decoding([generation(round_output([5], last=True))], [0], seconds=0.5))
    assert summary.rounds == summary.tokens_per_round == 0
    assert summary.acceptance_by_position == []
    console = Console(file=StringIO(), width=80)
    print_summary(console, "here", summary, None)
    (line,) = [x for x in console.file.getvalue().splitlines() if "tokens per round" in x]  # type: ignore[attr-defined]
    assert line.split()[-1] == "-"


def test_faults_name_prompt_and_bits() -> None:
    fine = generation(PREFILL, round_output([5], last=True))
    faulty = generation(
        PREFILL,
        round_output([0], status=Status.NAN_LOGITS | Status.BAD_TOKEN),
        round_output([0], status=Status.NAN_LOGITS, last=True),
    )
    assert faults(Decoding([fine, faulty], [0, 0], seconds=1.0)) == [
        "prompt 2: NAN_LOGITS in 2 of 3 rounds",
        "prompt 2: BAD_TOKEN in 1 of 3 rounds",
    ]


@pytest.mark.parametrize("accepted", [0, 2])
def test_positions_are_explained_where_there_are_some(accepted: int) -> None:
    emitted = round_output([5] * (accepted + 1), accepted=accepted, proposed=3, last=True)
    summary = summarize(Decoding([generation(PREFILL, emitted)], [0], seconds=1.0))
    console = Console(file=StringIO(), width=120)
    print_summary(console, "here", summary, None)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("at position 1" in printed) == ("At position n" in printed) == (accepted > 0)
