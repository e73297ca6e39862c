"""The budget K: most tokens per second, by expected tokens and the cost of R + K rows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specfast.planner import AdditiveSeconds, TierRates, Tiers, choose_budget

TWO = torch.tensor([[0.9, 0.6, 0.2], [0.8, 0.5, 0.1]])


def per_row(*rates: float, first: int = 2) -> tuple[TierRates, Tiers]:
    """Steps per second of every number of rows from ``first`` on."""
    tiers = tuple(range(first, first + len(rates)))
    return TierRates(tiers, rates), Tiers(tiers)


def test_the_article() -> None:
    """Tokens 2, 2.9, 3.7, 4.3, 4.8, 5.0, 5.1 times steps: the fifth is the largest, 384."""
    assert choose_budget(TWO, [4, 4], *per_row(100, 95, 90, 85, 80, 65, 55)) == 4


def test_no_row_is_worth_it() -> None:
    assert choose_budget(TWO, [4, 4], *per_row(100, 50, 25, 12, 6, 3, 2)) == 0


def test_the_best_lies_behind_a_worse_one() -> None:
    # One more row alone loses, two more rows win.
    assert choose_budget(torch.tensor([[0.9, 0.9]]), [3], *per_row(10, 5, 9, first=1)) == 2


def test_equal_values_take_fewer_rows() -> None:
    assert choose_budget(torch.tensor([[1.0]]), [2], *per_row(10, 5, first=1)) == 0


def test_rows_cost_what_their_tier_costs() -> None:
    """2 anchors pad to 4 rows, so two drafts are free; 6 rows would cost as many as 8."""
    tiers = Tiers((4, 8))
    assert choose_budget(TWO, [4, 4], TierRates((4, 8), (100, 70)), tiers) == 2
    assert choose_budget(TWO, [4, 4], TierRates((4, 8), (100, 80)), tiers) == 6


def test_requests_end_where_they_must() -> None:
    flat = per_row(*[100] * 8, first=1)
    assert choose_budget(TWO, [4, 4], *flat) == 6
    assert choose_budget(TWO, [4, 2], *flat) == 4
    assert choose_budget(TWO, [1, 0], *flat) == 0
    assert choose_budget(TWO, [0, 0], *flat) == 0


def test_padded_slots_have_no_anchor_either() -> None:
    three = torch.cat([torch.ones(1, 3), TWO])
    assert choose_budget(three, [0, 4, 4], *per_row(100, 95, 90, 85, 80, 65, 55)) == 4


def test_survivals_below_epsilon_are_not_counted() -> None:
    flat = per_row(*[100] * 7)
    assert choose_budget(TWO, [4, 4], *flat, epsilon=0.15) == 5
    assert choose_budget(TWO, [4, 4], *flat, epsilon=0.5) == 4
    assert choose_budget(TWO, [4, 4], *flat, epsilon=0.55) == 3


def test_drafts_without_hope_are_not_worth_a_row() -> None:
    survival = torch.tensor([[0.5, 0.0, 0.0]])
    assert choose_budget(survival, [4], TierRates((4,), (9,)), Tiers((4,)), epsilon=0.0) == 1


def test_the_largest_tier_ends_the_search() -> None:
    assert choose_budget(TWO, [4, 4], *per_row(100, 100, 100)) == 2
    assert choose_budget(TWO, [4, 4], *per_row(100, first=1)) is None


def test_filling_the_tier() -> None:
    cost, tiers = TierRates((2, 4, 16), (100, 90, 10)), Tiers((2, 4, 16))
    survival = torch.tensor([[0.3, 0.0, 0.0], [0.1, 0.0, 0.0]])

    def budget(max_lens: Sequence[int], fill_tier: bool) -> int | None:
        return choose_budget(survival, max_lens, cost, tiers, epsilon=0.2, fill_tier=fill_tier)

    assert budget([4, 4], False) == 1
    assert budget([4, 4], True) == 2
    assert budget([2, 1], True) == 1  # there are no more drafts


def test_the_additive_form() -> None:
    cost = AdditiveSeconds(0.004, ((1, 0.0), (4, 0.006)), ((0, 0.0), (8, 0.008)))
    assert cost.rate(4, 8) == pytest.approx(1 / 0.018)
    assert cost.rate(2, 2) == pytest.approx(1 / 0.008)
    assert cost.rate(9, 99) == pytest.approx(1 / 0.018)  # constant outside
    # Milliseconds are 8 + K; tokens per millisecond: 2/8, 2.9/9, 3.7/10, 4.3/11, 4.8/12, 5/13.
    assert choose_budget(TWO, [4, 4], cost, Tiers(range(2, 9))) == 4


def brute_force(
    survival: torch.Tensor, max_lens: Sequence[int], cost: TierRates, tiers: Tiers
) -> int:
    """Every K, its tokens summed anew."""
    drafts = [v for row, n in zip(survival.tolist(), max_lens, strict=True) for v in row[: n - 1]]
    requests = len(max_lens)
    values = {}
    for budget in range(len(drafts) + 1):
        tier = tiers.holding(requests + budget)
        if tier is not None:
            tokens = requests + sum(sorted(drafts, reverse=True)[:budget])
            values[budget] = tokens * cost.rate(requests, tier)
    return max(values, key=lambda budget: (values[budget], -budget))


@given(data=st.data(), batch_size=st.integers(1, 4), num_drafts=st.integers(0, 4))
def test_no_other_budget_is_better(data: st.DataObject, batch_size: int, num_drafts: int) -> None:
    # Eighths and whole rates: all products are exact.
    eighths = st.integers(1, 8).map(lambda i: i / 8)
    chain = st.lists(eighths, min_size=num_drafts, max_size=num_drafts)
    rows = data.draw(st.lists(chain, min_size=batch_size, max_size=batch_size))
    survival = torch.tensor(rows).view(batch_size, num_drafts)
    lens = st.integers(1, num_drafts + 1)
    max_lens = data.draw(st.lists(lens, min_size=batch_size, max_size=batch_size))
    tiers = Tiers(data.draw(st.sets(st.integers(1, 20), max_size=5)) | {batch_size})
    count = len(tiers.rows)
    rates = data.draw(st.lists(st.integers(1, 100), min_size=count, max_size=count))
    cost = TierRates(tiers.rows, tuple(float(rate) for rate in rates))
    chosen = choose_budget(survival, max_lens, cost, tiers)
    assert chosen == brute_force(survival, max_lens, cost, tiers)
