"""The planner: a plan from earlier rounds, lengths from this one's confidences."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from accept_batches import int32
from late_copies import LateCopies
from specfast import ops
from specfast.planner import (
    ConfidenceRelay,
    SpsSetting,
    SpsTable,
    TierRates,
    Tiers,
    VerifyPlan,
    VerifyPlanner,
)

TIERS = Tiers((2, 4, 6, 8))
COST = TierRates(TIERS.rows, (100.0, 90.0, 80.0, 55.0))
SETTING = SpsSetting("a card", "a model", "a backend", 2, TIERS.rows)
TABLE = SpsTable(SETTING, "a commit", COST)
LAGGED = [[0.9, 0.6, 0.2], [0.8, 0.5, 0.1]]
CURRENT = [[0.95, 0.90, 0.85], [0.70, 0.30, 0.10]]
ROWS, GENERATIONS, MAX_LENS = [4, 1], [11, 12], [4, 4]


def planner(device: str = "cpu", **options: Any) -> VerifyPlanner:
    relay = ConfidenceRelay(5, 3, torch.device(device), copies=options.pop("copies", None))
    return VerifyPlanner(relay, TIERS, **{"table": TABLE, **options})


def run_round(
    planner: VerifyPlanner,
    confidence: list[list[float]],
    generations: list[int] = GENERATIONS,
    device: str = "cpu",
) -> tuple[VerifyPlan, list[int]]:
    """A round of two requests; its plan and lengths."""
    plan = planner.plan(ROWS, generations, MAX_LENS)
    schedule = planner.schedule(plan, torch.tensor(confidence, device=device))
    planner.publish(schedule, torch.tensor(ROWS, device=device), ROWS, generations)
    if device != "cpu":
        torch.cuda.synchronize()
    return plan, schedule.verify_lens.tolist()


def test_budget_from_two_rounds_ago_lengths_from_now(device: str) -> None:
    subject = planner(device)
    for _ in range(2):
        plan, lens = run_round(subject, LAGGED, device=device)
        assert plan == VerifyPlan(None, 8, "no survivals of 2 rounds ago")
        assert lens == [4, 4]
    plan, lens = run_round(subject, CURRENT, device=device)
    assert plan == VerifyPlan(4, 6, "planned")
    assert lens == [4, 2]
    # CURRENT is of the round before this one: not yet.
    assert run_round(subject, [[0.0] * 3] * 2, device=device)[0].budget == 4
    # With it the best budget is another.
    assert run_round(subject, LAGGED, device=device)[0] == VerifyPlan(4, 6, "planned")
    assert run_round(subject, LAGGED, device=device)[0] == VerifyPlan(0, 2, "planned")


def test_a_late_copy_means_the_uniform_layout() -> None:
    copies = LateCopies()
    subject = planner(copies=copies)
    run_round(subject, LAGGED)
    run_round(subject, LAGGED)
    assert run_round(subject, CURRENT)[0].budget is None
    assert run_round(subject, CURRENT)[0].tier == 8
    for copy in copies.started:
        copy.arrive()
    assert run_round(subject, CURRENT)[0].budget is not None


def test_a_reused_place_counts_as_sure() -> None:
    subject = planner()
    run_round(subject, [[0.0] * 3] * 2)
    run_round(subject, [[0.0] * 3] * 2)
    # Place 1 went to request 13. Of request 11 nothing is expected, of 13 everything.
    plan, lens = run_round(subject, CURRENT, generations=[11, 13])
    assert plan == VerifyPlan(3, 6, "planned", num_stale=1)
    assert lens == [4, 1]  # the budget is the batch's, not the new one's
    # A generation that is behind the copy's is as little the request's own.
    assert subject.plan(ROWS, [10, 12], MAX_LENS) == VerifyPlan(3, 6, "planned", num_stale=1)
    assert subject.plan(ROWS, GENERATIONS, MAX_LENS) == VerifyPlan(0, 2, "planned")


def test_why_rounds_have_no_budget_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    subject = planner()
    with caplog.at_level("INFO", "specfast.planner"):
        for _ in range(4):
            run_round(subject, LAGGED)
        subject.forget()
        run_round(subject, LAGGED)
    message = "a round verifies all drafts: no survivals of 2 rounds ago"
    assert [record.getMessage() for record in caplog.records] == [message]


def test_static_never_cuts() -> None:
    subject = planner(mode="static")
    for _ in range(4):
        assert run_round(subject, LAGGED) == (VerifyPlan(None, 8, "static"), [4, 4])


def test_no_table_means_verify_all() -> None:
    subject = planner(table=None)
    for _ in range(4):
        assert run_round(subject, [[0.0] * 3] * 2) == (
            VerifyPlan(None, 8, "no SPS table"),
            [4, 4],
        )


def test_cap_accept_lays_out_all_rows() -> None:
    subject = planner(mode="cap-accept")
    for _ in range(2):
        run_round(subject, LAGGED)
    assert run_round(subject, CURRENT) == (VerifyPlan(4, 8, "planned"), [4, 2])


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="mode of static, cap-accept, compact, got 'ragged'"):
        planner(mode="ragged")
    for epsilon in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=rf"epsilon in \[0, 1\], got {epsilon}"):
            planner(epsilon=epsilon)


def test_a_table_of_other_tiers_is_refused() -> None:
    fewer = TierRates((2, 4), (100.0, 90.0))
    table = replace(TABLE, setting=replace(SETTING, tiers=(2, 4)), cost=fewer)
    message = "expected an SPS table of the tiers (2, 4, 6, 8), got one of (2, 4)"
    with pytest.raises(ValueError, match=re.escape(message)):
        planner(table=table)


def test_epsilon_and_filling_reach_the_budget() -> None:
    for options, budget in [({"epsilon": 0.55}, 3), ({"epsilon": 0.85, "fill_tier": True}, 2)]:
        subject = planner(**options)
        for _ in range(2):
            run_round(subject, LAGGED)
        assert run_round(subject, CURRENT)[0].budget == budget
    subject = planner(epsilon=0.85)
    for _ in range(2):
        run_round(subject, LAGGED)
    assert run_round(subject, CURRENT)[0].budget == 1


def test_more_rows_than_any_tier() -> None:
    subject = planner()
    rows, generations = [0, 1, 2], [1, 2, 3]
    for _ in range(2):
        subject._relay.publish(torch.full((3, 3), 0.5), torch.tensor(rows), rows, generations)
    assert subject.plan(rows, generations, [4, 4, 4]).tier is not None
    static = planner(mode="static").plan(rows, generations, [4, 4, 4])
    assert static == VerifyPlan(None, None, "static")
    rows, generations = list(range(5)) * 2, list(range(10))
    plan = subject.plan(rows, generations, [1] * 10)
    assert plan == VerifyPlan(None, None, "anchors beyond the largest tier 8")


def test_padded_slots_and_shorter_requests(device: str) -> None:
    subject = planner(device)
    for _ in range(2):
        run_round(subject, LAGGED, device=device)
    plan = subject.plan(ROWS, GENERATIONS, [2, 0])
    assert plan == VerifyPlan(1, 2, "planned")
    max_lens = int32([2, 0], device=device)
    confidence = torch.tensor(CURRENT, device=device)
    schedule = subject.schedule(plan, confidence, max_lens=max_lens)
    assert schedule.verify_lens.tolist() == [2, 0]


def test_the_budget_may_go_through_the_device(device: str) -> None:
    subject = planner(device)
    budget = torch.full((1,), -1, dtype=torch.int32, device=device)
    confidence = torch.tensor(CURRENT, device=device)
    for plan, lens in [(VerifyPlan(4, 6, ""), [4, 2]), (VerifyPlan(None, 8, ""), [4, 4])]:
        schedule = subject.schedule(plan, confidence, budget_on_device=budget)
        assert schedule.verify_lens.tolist() == lens
    assert budget.item() == 6


def test_cap_accept_and_compact_give_equal_tokens(device: str) -> None:
    """One cut, two layouts: all rows with a cap, and only the rows within it."""
    generator = torch.Generator().manual_seed(3)
    batch_size, num_nodes, vocab = 5, 4, 3
    tokens = torch.randint(0, vocab, (batch_size, num_nodes), generator=generator)
    logits = torch.randn(batch_size, num_nodes, vocab, generator=generator)
    prefix_lens = int32([3, 9, 0, 5, 7])
    pages = torch.arange(batch_size * 20).view(batch_size, 20)
    lens = ops.schedule_verify_lens(torch.rand(batch_size, 3, generator=generator), 6).verify_lens
    window = ops.build_verify_window(
        tokens, prefix_lens, pages, num_rows=16, page_size=1, verify_lens=lens
    )
    records = {}
    whole = ops.build_verify_window(tokens, prefix_lens, pages, num_rows=20, page_size=1)
    for mode, rows in [("cap-accept", whole), ("compact", window)]:
        of_rows = rows.window_index.clamp(min=0).long()
        records[mode] = ops.accept_chain(
            tokens.to(device),
            prefix_lens.to(device),
            target_logits=logits.flatten(0, 1)[of_rows].to(device),
            qo_indptr=rows.qo_indptr.to(device),
            verify_lens=lens.to(device),
            out_cache_loc=rows.out_cache_loc.to(device),
        )
    capped, compact = records["cap-accept"], records["compact"]
    assert int(compact.num_correct_drafts.sum()) > 0
    for name in ("out_tokens", "commit_lens", "slots", "positions", "new_seq_lens", "status"):
        assert torch.equal(getattr(capped, name), getattr(compact, name)), name
