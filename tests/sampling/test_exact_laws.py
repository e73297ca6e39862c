"""The law of one round is exactly the target's: all drafts, all coins, fractions."""

from __future__ import annotations

from fractions import Fraction

import pytest
from exact_laws import Round, assert_exact, mean_accepted, outputs
from implementations import Implementation
from round_cases import ARTICLE, CHAINS, REJECTION_TREES, TARGET_ONLY
from toy_models import Q_FORMS, by_depth

RULES_WITH_Q = ("rejection", "block")


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("rule", RULES_WITH_Q)
def test_chain(impl: Implementation, rule: str, name: str) -> None:
    case, cells = CHAINS[name]
    assert_exact(impl, rule, case, cells[rule])


@pytest.mark.parametrize("name", REJECTION_TREES)
def test_rejection_tree(impl: Implementation, name: str) -> None:
    assert_exact(impl, "rejection", *REJECTION_TREES[name])


@pytest.mark.parametrize("name", TARGET_ONLY)
def test_target_only(impl: Implementation, name: str) -> None:
    assert_exact(impl, "target_only", *TARGET_ONLY[name])


@pytest.mark.parametrize("q_form", Q_FORMS)
@pytest.mark.parametrize("rule", RULES_WITH_Q)
def test_every_form_of_q(impl: Implementation, rule: str, q_form: str) -> None:
    case, cells = CHAINS["target knows more"]
    assert_exact(impl, rule, case, cells[rule], q_form)


@pytest.mark.parametrize("q_form", ["records", "dense", "sparse"])
def test_every_form_of_q_without_the_tried(impl: Implementation, q_form: str) -> None:
    assert_exact(impl, "rejection", *REJECTION_TREES["two siblings"], q_form)


def test_the_article(impl: Implementation) -> None:
    law = outputs(impl, "rejection", ARTICLE, ((2,), 12))
    accepted = {
        x: sum(p for out, p in law.items() if out[0] == x and len(out) == 2) for x in range(3)
    }
    rejected = {x: law.get((x,), Fraction(0)) for x in range(3)}
    q = [Fraction(6, 10), Fraction(3, 10), Fraction(1, 10)]
    assert accepted == {0: q[0] / 2, 1: q[1], 2: q[2]}
    # Of the .3 that is rejected the residual gives 0, 1/3, 2/3.
    assert rejected == {0: 0, 1: Fraction(3, 10) / 3, 2: Fraction(3, 10) * 2 / 3}


def test_two_of_four_accepts_as_often_as_it_can(impl: Implementation) -> None:
    # cases.md B19
    law = outputs(impl, "rejection", *REJECTION_TREES["two of four"])
    assert round(float(mean_accepted(law)), 4) == 0.7643


def test_block_keeps_more_than_token_by_token(impl: Implementation) -> None:
    case, cells = CHAINS["branches"]
    kept = {rule: mean_accepted(outputs(impl, rule, case, cells[rule])) for rule in RULES_WITH_Q}
    assert kept["block"] > kept["rejection"]


# The target's row is .4 .3 .2 .1; of the filters, the kept weights.
FILTERS = {
    "top_k": ({"top_k": 2}, "4 3 0 0"),
    "top_p": ({"top_p": 0.6}, "4 3 0 0"),
    "min_p": ({"min_p": 0.4}, "4 3 2 0"),
    "top_p of what top_k kept": ({"top_k": 3, "top_p": 0.75}, "4 3 0 0"),
    "min_p after top_p": ({"min_p": 0.4, "top_p": 0.75}, "4 3 2 0"),
    "all": ({"top_k": 3, "top_p": 0.99, "min_p": 0.6}, "4 3 0 0"),
    "temperature": ({"temperature": 0.5}, "16 9 4 1"),
    "off": ({"top_k": -1, "top_p": 1.0, "min_p": 0.0}, "4 3 2 1"),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(impl: Implementation, name: str) -> None:
    options, kept = FILTERS[name]
    target = by_depth("4 3 2 1")
    plain = Round(target, by_depth("1 1 1 1"), parents=(), drafts=(), filtered=by_depth(kept))
    assert_exact(impl, "target_only", plain, ((), 630), **options)


# Cells of the rules with q, of target-only.
FILTERED_CELLS = {
    "4 3 0 0": (((1,), 14), ((7,), 1)),
    "4 3 2 0": (((9,), 10), ((9,), 5)),
    "16 9 4 1": (((15,), 20), ((15,), 14)),
}


@pytest.mark.parametrize("name", ["top_k", "top_p", "min_p", "temperature"])
@pytest.mark.parametrize("rule", ["target_only", *RULES_WITH_Q])
def test_filters_of_a_chain(impl: Implementation, rule: str, name: str) -> None:
    options, kept = FILTERS[name]
    drafts = (0,) if rule == "target_only" else None
    case = Round(
        by_depth("4 3 2 1", "1 0 0 0"),
        by_depth("1 1 1 1"),
        drafts=drafts,
        filtered=by_depth(kept, "1 0 0 0"),
    )
    cells = FILTERED_CELLS[kept][rule == "target_only"]
    assert_exact(impl, rule, case, cells, **options)
