"""The figures of ``specfast eval``, counted by hand."""

from __future__ import annotations

import pytest
from round_outputs import generation, round_output
from specfast.cli.decoding import Decoding
from specfast.cli.evaluation import Evaluation, evaluate_rounds, repetition_rate
from specfast.engine import RoundOutput

PREFILL = round_output([5])


def evaluation_of(*rounds: RoundOutput, draft_seconds: float = 0.0) -> Evaluation:
    """Of one prompt with chains, so that drafts are as deep as they are many."""
    decoding = Decoding([generation(PREFILL, *rounds)], [0], 8.0, prefill_seconds=2.0)
    depths = [0, *(output.num_proposed for output in rounds)]
    return evaluate_rounds(decoding, [depths], draft_seconds)


CHAINS = evaluation_of(
    round_output([1, 2, 3], accepted=2, proposed=3),
    round_output([4], accepted=0, proposed=3),
    round_output([5], accepted=0, proposed=0),
    round_output([6, 7, 8, 9], accepted=3, proposed=3),
    round_output([1, 2], accepted=1, proposed=1, last=True),
    draft_seconds=1.5,
)


def test_lengths_and_rates() -> None:
    assert CHAINS.acceptance_length == pytest.approx(6 / 4)
    assert CHAINS.acceptance_length_with_bonus == pytest.approx(10 / 4)
    # The round without drafts counts here, the prefill does not.
    assert CHAINS.summary.tokens_per_round == pytest.approx(11 / 5)
    assert CHAINS.acceptance_rate == pytest.approx(6 / 10)
    assert CHAINS.length_histogram == [1, 1, 1, 1]
    assert CHAINS.fully_accepted_rounds == 2
    lengths = CHAINS.lengths
    assert (lengths.train_block, lengths.proposals) == (None, 3)
    assert (lengths.verify_rows, lengths.outputs) == (4, 4)


def test_by_position() -> None:
    assert CHAINS.proposed_by_position == [4, 3, 3]
    assert CHAINS.acceptance_by_position == pytest.approx([3 / 4, 2 / 4, 1 / 4])
    assert sum(CHAINS.acceptance_by_position) == pytest.approx(CHAINS.acceptance_length)
    # Position 2 was never proposed in the last round, so it was not decided there.
    assert CHAINS.decided_by_position == [4, 2, 2]
    assert CHAINS.conditional_acceptance == pytest.approx([3 / 4, 2 / 2, 1 / 2])


def test_a_text_that_ends_at_an_accepted_draft_rejects_nothing() -> None:
    ended = evaluation_of(
        round_output([1, 2], accepted=1, proposed=3),
        round_output([1], accepted=1, proposed=3, last=True),
    )
    assert ended.acceptance_length_with_bonus == pytest.approx(3 / 2)
    assert ended.decided_by_position == [2, 1, 0]
    assert ended.conditional_acceptance == [1.0, 0.0, None]
    assert ended.acceptance_by_position == [1.0, 0.0, 0.0]
    assert ended.length_histogram == [0, 2, 0, 0]
    assert ended.fully_accepted_rounds == 0


def test_a_tree_is_as_deep_as_its_longest_path() -> None:
    rounds = (PREFILL, round_output([1, 2, 3], accepted=2, proposed=7, last=True))
    decoding = Decoding([generation(*rounds)], [0], 1.0)
    tree = evaluate_rounds(decoding, [[0, 2]], 0.0, train_block=16)
    assert tree.proposed_by_position == tree.decided_by_position == [1, 1]
    assert tree.fully_accepted_rounds == 1
    assert tree.acceptance_rate == pytest.approx(2 / 7)
    lengths = tree.lengths
    assert (lengths.train_block, lengths.proposals) == (16, 7)
    assert (lengths.verify_rows, lengths.outputs) == (8, 3)


def test_time_is_divided_without_rest() -> None:
    cost = CHAINS.cost
    assert (cost.prefill, cost.draft, cost.verify_accept) == (2.0, 1.5, 4.5)
    assert cost.draft_share == pytest.approx(1 / 4)


def test_no_rounds() -> None:
    nothing = evaluation_of()
    assert nothing.acceptance_length == nothing.acceptance_length_with_bonus == 0
    assert nothing.acceptance_rate == 0
    assert nothing.conditional_acceptance == nothing.acceptance_by_position == []
    assert nothing.length_histogram == [0]


def test_repetition_is_counted_within_each_output() -> None:
    # 1234, 2341, 3412, 4123 and 1234 again: one of five.
    assert repetition_rate([[1, 2, 3, 4, 1, 2, 3, 4]]) == pytest.approx(1 / 5)
    assert repetition_rate([[1, 2, 3, 4], [1, 2, 3, 4]]) == 0
    assert repetition_rate([[1, 2, 3, 4, 9, 1, 2, 3, 5]]) == 0
    # Three of the same 4-gram beside one of its own.
    assert repetition_rate([[7] * 6, [1, 2, 3, 4]]) == pytest.approx(2 / 4)
    assert repetition_rate([[1, 2, 3], []]) == 0
