"""The cut and the law: two requests under one budget, all drafts, all coins, fractions.

The confidence of a second draft depends on the first one's token, as a confidence head's does:

first draft    survivals        budget that looks at the drafts    first drafts   0 0   0 1   1 1
0              3/4   27/40                                         budget           4     3     0
1              3/4    3/40

So a pair of ones is not verified but drawn anew, and there are fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import product

import pytest
import torch
from exact_laws import Round, outputs
from implementations import Implementation
from specfast import ops
from specfast.planner import (
    ConfidenceRelay,
    SpsSetting,
    SpsTable,
    TierRates,
    Tiers,
    VerifyPlanner,
    choose_budget,
)
from toy_models import Context, by_depth, completed, sequences

TARGET, DRAFT = by_depth("1 1"), by_depth("3 1")
WIDTH = 3
# Draft 0 is accepted with 2/3, draft 1 always; what is drawn is one of two.
CELLS = ((3, 3), 2)
TIERS = Tiers(range(2, 7))
COST = TierRates(TIERS.rows, (100.0, 60.0, 50.0, 50.0, 49.0))
SETTING = SpsSetting("a card", "a model", "a backend", 2, TIERS.rows)
TABLE = SpsTable(SETTING, "a commit", COST)

Drafts = tuple[int, int]
Laws = dict[tuple[Drafts, int], dict[Context, Fraction]]


def survivals(*drafts: Drafts) -> torch.Tensor:
    return torch.tensor([[0.75, 0.75 * (0.9, 0.1)[first]] for first, _ in drafts])


@pytest.fixture
def laws(impl: Implementation) -> Laws:
    """The first tokens of a request, by its drafts and how many rows are verified."""
    found: Laws = {}
    for drafts in product(range(2), repeat=2):
        case = Round(TARGET, DRAFT, parents=(0, 1), drafts=drafts)
        for length in (1, 2, 3):
            law = outputs(impl, "rejection", case, CELLS, verify_len=length)
            found[drafts, length] = completed(law, TARGET, WIDTH)
    return found


def joint_law(
    laws: Laws, budget_for: Callable[[torch.Tensor], int], device: str
) -> dict[tuple[Context, Context], Fraction]:
    """The first tokens of two requests whose drafts share the budget."""
    law: dict[tuple[Context, Context], Fraction] = {}
    q = [Fraction(3, 4), Fraction(1, 4)]
    for a, b in product(product(range(2), repeat=2), repeat=2):
        current = survivals(a, b)
        schedule = ops.schedule_verify_lens(current.to(device), budget_for(current))
        len_a, len_b = schedule.verify_lens.tolist()
        weight = q[a[0]] * q[a[1]] * q[b[0]] * q[b[1]]
        for (of_a, p_a), (of_b, p_b) in product(laws[a, len_a].items(), laws[b, len_b].items()):
            pair = (of_a, of_b)
            law[pair] = law.get(pair, Fraction(0)) + weight * p_a * p_b
    return law


def both_plain() -> dict[tuple[Context, Context], Fraction]:
    one = sequences(TARGET, WIDTH)
    return {(a, b): p * r for (a, p), (b, r) in product(one.items(), repeat=2)}


@pytest.mark.parametrize("budget", range(5))
def test_lengths_from_this_round_keep_the_law(
    impl: Implementation, laws: Laws, budget: int
) -> None:
    """Under any budget, the cut of a request is decided before the token that it cuts is seen."""
    assert joint_law(laws, lambda _: budget, impl.device) == both_plain()


def test_a_budget_from_this_round_breaks_the_law(impl: Implementation, laws: Laws) -> None:
    def from_this_round(current: torch.Tensor) -> int:
        budget = choose_budget(current, [3, 3], COST, TIERS)
        assert budget is not None
        return budget

    chosen = {
        (a, b): from_this_round(survivals((a, 0), (b, 0))) for a, b in product(range(2), repeat=2)
    }
    assert chosen == {(0, 0): 4, (0, 1): 3, (1, 0): 3, (1, 1): 0}
    law = joint_law(laws, from_this_round, impl.device)
    assert sum(law.values()) == 1
    first_is_one = sum(p for (of_a, _), p in law.items() if of_a[0] == 1)
    # Both first drafts are 1 in 1/16 of all rounds, and half of those lose their 1.
    assert first_is_one == Fraction(1, 2) - Fraction(1, 32)


@pytest.mark.parametrize("earlier", [((0, 0), (0, 0)), ((0, 0), (1, 0)), ((1, 0), (1, 0))])
def test_the_planner_keeps_the_law(
    impl: Implementation, laws: Laws, earlier: tuple[Drafts, Drafts]
) -> None:
    """Its budget comes from two rounds ago, whatever this round's drafts are."""
    budgets = set()

    def planned(current: torch.Tensor) -> int:
        relay = ConfidenceRelay(2, 2, torch.device("cpu"))
        planner = VerifyPlanner(relay, TIERS, TABLE)
        for of_round in (survivals(*earlier), current, current):
            plan = planner.plan([0, 1], [1, 2], [3, 3])
            schedule = planner.schedule(plan, of_round)
            planner.publish(schedule, torch.tensor([0, 1]), [0, 1], [1, 2])
        assert plan.budget is not None
        budgets.add(plan.budget)
        return plan.budget

    assert joint_law(laws, planned, impl.device) == both_plain()
    assert budgets == {choose_budget(survivals(*earlier), [3, 3], COST, TIERS)}
