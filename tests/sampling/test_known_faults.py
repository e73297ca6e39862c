"""Inputs that broke other verifiers, each with the right value."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from chi_square import assert_follows
from hand_written_rounds import chain, ids, log, tree
from implementations import Implementation
from specfast import Coins, FinishReason, FinishRules, LogitEdits, Proposal, Status

INF, NAN = math.inf, math.nan
LARGEST_COIN = 1 - 2.0**-24
RULES = ("target_only", "rejection", "block")


@pytest.mark.parametrize("rule", RULES)
class TestEveryRule:
    @pytest.mark.parametrize(
        ("row", "token", "status"),
        [
            ([NAN] * 6, 0, Status.NAN_LOGITS),
            ([-INF] * 6, 0, Status.EMPTY_SUPPORT),
            ([0.0, 1.0, INF, 0.0, 0.0, 0.0], 2, Status.OK),
            ([-INF, NAN, -INF, -INF, 4.0, -INF], 4, Status.NAN_LOGITS),
        ],
    )
    def test_b01_rows_without_numbers(
        self, impl: Implementation, rule: str, row: list[float], token: int, status: Status
    ) -> None:
        record = chain(impl, rule, torch.tensor([row, [0.0] * 6]), ids([3]))
        assert record.out_tokens.tolist() == [[token, -1]]
        assert record.num_correct_drafts.tolist() == [0]
        assert record.status.tolist() == [status]

    def test_b01_an_unusable_row_later_leaves_the_law_before(
        self, impl: Implementation, rule: str
    ) -> None:
        logits = torch.cat([log([0.5, 0.5]), torch.full((2, 2), NAN)])
        q = Proposal(probs=torch.tensor([[1.0, 0.0]] * 2))
        outs = [
            chain(impl, rule, logits, ids([0, 1]), q=q, coins=([coin, coin], 0.3)).out_tokens
            for coin in (0.25, 0.75)
        ]
        assert [out.tolist() for out in outs] == [[[0, 0, -1]], [[1, -1, -1]]]

    def test_b02_equal_p_and_q_never_reject(self, impl: Implementation, rule: str) -> None:
        if rule == "target_only":
            pytest.skip("has no q")
        q = Proposal(probs=torch.full((1, 4), 0.25))
        record = chain(
            impl, rule, torch.zeros(2, 4), ids([2]), q=q, coins=([LARGEST_COIN], LARGEST_COIN)
        )
        assert record.out_tokens.tolist() == [[2, 3]]

    def test_b03_coin_0_accepts_nothing_impossible(self, impl: Implementation, rule: str) -> None:
        logits = log([0.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0])
        record = chain(impl, rule, logits, ids([2]), coins=([0.0], 0.0))
        assert record.out_tokens.tolist() == [[1, -1]]

    def test_b04_the_largest_coin_draws_the_last_token(
        self, impl: Implementation, rule: str
    ) -> None:
        logits = log([0.5, 0.5, 0.0, 0.0, 0.0])
        record = chain(
            impl, rule, logits, torch.zeros(1, 0, dtype=torch.int32), coins=([], LARGEST_COIN)
        )
        assert record.out_tokens.tolist() == [[1]]

    @pytest.mark.parametrize("bad", [-1, 4, 2**31 - 1])
    def test_b05_padding_is_no_draft(self, impl: Implementation, rule: str, bad: int) -> None:
        sure = [[0.0, 1, 0, 0], [1.0, 0, 0, 0], [0.0, 0, 1, 0], [0.0, 0, 0, 1], [1.0, 0, 0, 0]]
        drafts = ids([1, 0, bad, bad]).repeat(50, 1)
        record = chain(impl, rule, log(*sure), drafts)
        assert record.out_tokens.tolist() == [[1, 0, 2, -1, -1]] * 50
        assert record.num_correct_drafts.tolist() == [2] * 50
        assert record.status.tolist() == [Status.BAD_TOKEN] * 50

    def test_b10_the_accept_rate_is_p(
        self, impl: Implementation, rule: str, num_requests: int
    ) -> None:
        logits = log([0.1, 0.9], [0.5, 0.5])
        record = chain(impl, rule, logits, ids([0]).repeat(num_requests, 1))
        assert_follows(Counter(record.out_tokens[:, 0].tolist()), {0: 0.1, 1: 0.9})

    def test_b21_drafts_after_the_first_reject_do_not_count(
        self, impl: Implementation, rule: str
    ) -> None:
        sure = [[0.0, 1, 0], [0.0, 0, 1], [0.0, 1, 0], [0.0, 1, 0], [1.0, 0, 0]]
        record = chain(impl, rule, log(*sure), ids([1, 1, 1, 1]))
        assert record.num_correct_drafts.tolist() == [1]
        assert record.out_tokens.tolist() == [[1, 2, -1, -1, -1]]

    def test_b24_a_request_is_the_same_in_every_slot(self, impl: Implementation, rule: str) -> None:
        rng = torch.Generator().manual_seed(1)
        logits = torch.randn(8 * 4, 9, generator=rng)
        drafts = torch.randint(0, 9, (8, 3), generator=rng, dtype=torch.int32)
        seeds = torch.arange(8) + 1111
        together = chain(impl, rule, logits, drafts, sampling={"seeds": seeds.to(impl.device)})
        for b in range(8):
            alone = chain(
                impl,
                rule,
                logits[4 * b : 4 * b + 4],
                drafts[b : b + 1],
                sampling={"seeds": seeds[b : b + 1].to(impl.device)},
            )
            assert alone.out_tokens[0].tolist() == together.out_tokens[b].tolist()

    def test_b25_seeds_and_rounds_differ(self, impl: Implementation, rule: str) -> None:
        logits = torch.zeros(1, 1000)
        none = torch.zeros(100, 0, dtype=torch.int32)
        first, second = (
            chain(impl, rule, logits, none, prefix_len=n).out_tokens.flatten() for n in (3, 4)
        )
        assert len(set(first.tolist())) > 80
        assert int((first == second).sum()) < 5

    def test_b33_greedy_and_sampled_rows_in_one_batch(
        self, impl: Implementation, rule: str, num_requests: int
    ) -> None:
        num_draws = num_requests // 3
        logits = torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]])
        temperature = torch.tensor([0.0, 1.0, 1e-6] * num_draws, device=impl.device)
        record = chain(
            impl,
            rule,
            logits,
            ids([2]).repeat(3 * num_draws, 1),
            sampling={"temperature": temperature},
        )
        accepted = record.num_correct_drafts.view(-1, 3)
        assert accepted[:, [0, 2]].eq(1).all()
        p = math.exp(3) / sum(math.exp(v) for v in (1, 2, 3))
        assert_follows(Counter(accepted[:, 1].tolist()), {1: p, 0: 1 - p})
        # A greedy request takes the lowest of equals, and never looks at a coin.
        # The lowest of equals, and no coin.
        greedy = record.out_tokens.view(-1, 3, 2)[:, [0, 2]].cpu()
        assert greedy.eq(torch.tensor([2, 0])).all()

    def test_b32_greedy_takes_the_lowest_of_equals(self, impl: Implementation, rule: str) -> None:
        logits = torch.tensor([[0.0, 5.0, 5.0, 5.0]] * 2)
        for draft, accepted in ((1, 1), (3, 0)):
            record = chain(impl, rule, logits, ids([draft]), sampling={"top_k": 1})
            assert record.num_correct_drafts.tolist() == [accepted]

    @pytest.mark.parametrize(("logit_of_5", "outputs"), [(2.0, [4, 5]), (1.0, [4, 4])])
    def test_b35_penalties_count_what_was_accepted(
        self, impl: Implementation, rule: str, logit_of_5: float, outputs: list[int]
    ) -> None:
        row = [-9.0, -9.0, -9.0, -9.0, 3.5, logit_of_5]
        edits = LogitEdits(ids([0, 1])[0], ids([4])[0], ids([1])[0])
        edits = LogitEdits(*(t.to(impl.device) for t in (edits.indptr, edits.ids, edits.counts)))
        options = {"temperature": 0.0, "frequency_penalty": 1.0, "edits": edits}
        record = chain(impl, rule, torch.tensor([row] * 3), ids([4, 4]), sampling=options)
        assert record.out_tokens[0, :2].tolist() == outputs
        assert record.num_correct_drafts.tolist() == [1 if outputs[1] == 5 else 2]

    def test_b37_the_grammar_starts_inside_the_window(
        self, impl: Implementation, rule: str
    ) -> None:
        # Reasoning ends with token 7; from then on a grammar holds, whose first state knows 5 and 6
        # only, so that a second end is no draft of it. The target would have liked one.
        logits = torch.zeros(4, 8)
        for row, favourite in enumerate((3, 7, 7, 1)):
            logits[row, favourite] = 30
        mask = torch.tensor([0xFF, 0xFF, 0b0110_0000, 0xFF], dtype=torch.int32)[:, None]
        record = chain(
            impl,
            rule,
            logits,
            ids([3, 7, 7]),
            sampling={"token_bitmask": mask.to(impl.device)},
        )
        assert record.num_correct_drafts.tolist() == [2]
        assert record.out_tokens[0, :2].tolist() == [3, 7]
        assert record.out_tokens[0, 2].item() in (5, 6)

    @pytest.mark.parametrize(
        ("drafts", "emitted", "reason"),
        [
            ([10, 11, 9, 20, 21, 22], [10, 11, 9], FinishReason.EOS),
            ([10, 11, 20, 21, 22, 9], [10, 11, 20, 21, 22], FinishReason.LENGTH),
        ],
    )
    def test_b40_the_end_inside_accepted_drafts(
        self,
        impl: Implementation,
        rule: str,
        drafts: list[int],
        emitted: list[int],
        reason: FinishReason,
    ) -> None:
        logits = torch.full((7, 24), -INF)
        for row, token in enumerate([*drafts, 8]):
            logits[row, token] = 0
        finish = FinishRules(
            eos_token_ids=ids([9])[0].to(impl.device),
            max_tokens_left=ids([5])[0].to(impl.device),
        )
        record = chain(impl, rule, logits, ids(drafts), finish=finish)
        assert record.accept_lens.tolist() == [7]
        assert record.out_tokens[0].tolist() == emitted + [-1] * (7 - len(emitted))
        assert record.commit_lens.tolist() == [len(emitted)]
        assert record.new_seq_lens.tolist() == [3 + len(emitted)]
        assert record.finish_reason.tolist() == [reason]
        assert record.next_anchor.tolist() == [-1]

    def test_b39_a_draft_against_the_grammar_is_rejected(
        self, impl: Implementation, rule: str
    ) -> None:
        allowed = torch.tensor([0b0010, 0b1001, 0b0100, 0b1111], dtype=torch.int32)[:, None]
        record = chain(
            impl,
            rule,
            torch.zeros(4, 4),
            ids([1, 1, 2]),
            sampling={"token_bitmask": allowed.to(impl.device)},
        )
        assert record.num_correct_drafts.tolist() == [1]
        assert record.out_tokens[0, 1].item() in (0, 3)


def test_b03_a_coin_at_a_boundary_belongs_to_what_follows(impl: Implementation) -> None:
    # Two children of .25 each: the coin .25 is the second's.
    logits = log([0.25, 0.25, 0.5, 0.0], [1.0, 1, 1, 1], [1.0, 1, 1, 1])
    coins = Coins(torch.tensor([[0.25, 0.5, 0.5]], device=impl.device))
    record = tree(impl, "target_only", logits, [0, 1], sampling={"coins": coins})
    assert record.out_tokens[0, 0].item() == 1


def test_b13_block_accepts_what_the_token_rule_rejects(impl: Implementation) -> None:
    logits = log([0.5, 0.5], [0.9, 0.1], [0.5, 0.5])
    q = Proposal(probs=torch.tensor([[0.8, 0.2], [0.4, 0.6]]))
    high = ([LARGEST_COIN, LARGEST_COIN], 0.0)
    assert chain(impl, "block", logits, ids([0, 0]), q=q, coins=high).num_correct_drafts == 2
    assert chain(impl, "rejection", logits, ids([0, 0]), q=q, coins=high).num_correct_drafts == 0


def test_b13_block_ends_early_with_its_own_probability(impl: Implementation) -> None:
    # After (0, 1): r = .625, and h = .1625 / (.1625 + .375) = .3023.
    logits = log([0.5, 0.5], [0.9, 0.1], [0.5, 0.5])
    q = Proposal(probs=torch.tensor([[0.8, 0.2], [0.4, 0.6]]))
    kept = [
        chain(impl, "block", logits, ids([0, 1]), q=q, coins=([coin, 0.99], 0.5))
        for coin in (0.302, 0.303)
    ]
    assert [record.num_correct_drafts.item() for record in kept] == [1, 0]


def test_b18_the_parent_s_row_decides(impl: Implementation, num_requests: int) -> None:
    logits = log([0.2, 0.8], [1.0, 0.0], [0.0, 1.0])
    record = tree(impl, "target_only", logits, [0, 1], batch_size=num_requests)
    assert_follows(Counter(record.out_tokens[:, 0].tolist()), {0: 0.2, 1: 0.8})


@pytest.mark.parametrize("rule", ["target_only", "rejection"])
def test_b18_forty_siblings(impl: Implementation, rule: str) -> None:
    logits = torch.full((41, 64), -INF)
    logits[0, 39] = 0
    logits[1:] = 0
    options: dict[str, Any] = {}
    if rule == "rejection":
        probs = torch.full((20 * 41, 64), 1 / 64, device=impl.device)
        options["proposal"] = Proposal(probs=probs, without_replacement=True)
    record = tree(impl, rule, logits, list(range(40)), batch_size=20, **options)
    assert record.accept_index[:, 1].tolist() == [41 * b + 40 for b in range(20)]


def test_b20_equal_siblings_count_once(impl: Implementation, num_requests: int) -> None:
    logits = log([0.6, 0.4], [0.5, 0.5], [0.5, 0.5])
    record = tree(impl, "target_only", logits, [1, 1], batch_size=num_requests)
    assert_follows(Counter(record.out_tokens[:, 0].tolist()), {0: 0.6, 1: 0.4})


def test_b27_rows_without_a_choice_need_no_seed(impl: Implementation) -> None:
    logits = torch.full((1, 12), -INF)
    logits[0, 9] = 1
    none = torch.zeros(2, 0, dtype=torch.int32)
    record = chain(impl, "target_only", logits, none)
    assert record.out_tokens.tolist() == [[9], [9]]


def test_b38_the_grammar_follows_the_tree(impl: Implementation) -> None:
    # R -> A, B; A -> C. The grammar allows A C or B D; ids A..D are 0..3.
    mask = torch.tensor([0b0011, 0b0100, 0b1000, 0b0001], dtype=torch.int32)[:, None]
    record = tree(
        impl,
        "target_only",
        torch.zeros(4, 4),
        [0, 1, 2],
        parents=[0, 0, 1],
        width=3,
        batch_size=40,
        sampling={"token_bitmask": mask.repeat(40, 1).to(impl.device)},
    )
    outputs = {tuple(out) for out in record.out_tokens.tolist()}
    assert outputs == {(0, 2, 0), (1, 3, -1)}


def test_b59_a_vocabulary_of_the_drafter(impl: Implementation) -> None:
    # Draft ids 0, 1, 2 are the target's 0, 5, 9; columns past 9 are padding.
    logits = torch.zeros(2, 12)
    logits[:, 10:] = 50
    q = Proposal(
        probs=torch.tensor([[0.2, 0.3, 0.5]], device=impl.device),
        d2t=torch.tensor([0, 4, 7], device=impl.device),
    )
    # p is .1 everywhere: id 9 is accepted below .1 / .5.
    for coin, accepted in ((0.19, 1), (0.21, 0)):
        record = chain(impl, "rejection", logits, ids([9]), q=q, coins=([coin], 0.0), vocab_size=10)
        assert record.num_correct_drafts.tolist() == [accepted]
    # The residual keeps the ids that the drafter does not know: the seven of them share it.
    drawn = {
        chain(impl, "rejection", logits, ids([9]), q=q, coins=([0.5], (i + 0.5) / 7), vocab_size=10)
        .out_tokens[0, 0]
        .item()
        for i in range(7)
    }
    assert drawn == {1, 2, 3, 4, 6, 7, 8}


def test_a_q_that_is_none_is_rejected_and_told(impl: Implementation) -> None:
    for bad in (NAN, -0.5, 1.1, INF):
        q = Proposal(probs=torch.tensor([[0.2, bad]], device=impl.device))
        record = chain(impl, "rejection", torch.zeros(2, 2), ids([1]), q=q, coins=([0.0], 0.9))
        assert record.num_correct_drafts.tolist() == [0]
        assert record.status.tolist() == [Status.BAD_Q]
    q = Proposal(probs=torch.tensor([[0.2, 1.0004]], device=impl.device))
    record = chain(impl, "rejection", torch.zeros(2, 2), ids([1]), q=q, coins=([0.4], 0.9))
    assert record.num_correct_drafts.tolist() == [1]
    assert record.status.tolist() == [Status.OK]


def test_thresholds_accept_more(impl: Implementation) -> None:
    logits = log([0.3, 0.7], [0.5, 0.5])
    coins = ([0.5], 0.0)
    for thresholds, accepted in (
        ({}, 0),
        ({"threshold_single": 0.25}, 1),
        ({"threshold_acc": 0.5}, 1),
        ({"threshold_acc": 0.7}, 0),
    ):
        record = chain(impl, "target_only", logits, ids([0]), coins=coins, **thresholds)
        assert record.num_correct_drafts.tolist() == [accepted]


def test_log_probabilities(impl: Implementation) -> None:
    logits = log([0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25])
    options = {"sampling": {"top_k": 2}, "coins": ([0.0], 0.9)}
    for mode, expected in (("raw", [0.3, 0.25]), ("processed", [3 / 7, 0.5])):
        record = chain(impl, "target_only", logits, ids([2]), logprobs=mode, **options)
        assert record.out_tokens.tolist() == [[2, 1]]
        assert record.logprobs.exp().cpu()[0].tolist() == pytest.approx(expected, rel=1e-5)
