"""Rounds whose thresholds are known fractions, for exact_laws."""

from __future__ import annotations

from exact_laws import Cells, Round
from toy_models import Context, Model, Row, by_depth, by_last, row

# The article's rows: A is accepted with .3 / .6 = .5; the residual is 0, 1/3, 2/3.
P, Q = "3 4 3", "6 3 1"


def branching(first: str, *after: str) -> Model:
    """A model of two steps, the second by the token before; then token 0 for ever."""
    rows = [row(text) for text in after]

    def model(context: Context) -> Row:
        if len(context) < 2:
            return rows[context[0]] if context else row(first)
        return tuple(row("1" + " 0" * (len(rows) - 1)))

    return model


ARTICLE = Round(by_depth(P, "1 1 2"), by_depth(Q))
TWO_ARTICLES = Round(by_depth(P, P, "1 0 0"), by_depth(Q), parents=(0, 1))
# After A the ratio is 1/2, and then p is so much surer than q that the chain may end: h = 2/7.
BRANCHES = Round(
    branching(P, "8 1 1", "1 2 1", "1 1 2"),
    branching(Q, "2 4 4", "2 1 1", "1 2 1"),
    parents=(0, 1),
)

# Per rule the cells of the coins that the rule needs: of the accept coins by column, of the final.
CHAINS: dict[str, tuple[Round, dict[str, Cells]]] = {
    "article": (ARTICLE, {"rejection": ((2,), 12), "block": ((2,), 12)}),
    "two of the article": (TWO_ARTICLES, {"rejection": ((2, 2), 3), "block": ((11, 12), 3)}),
    "branches": (BRANCHES, {"rejection": ((2, 4), 3), "block": ((7, 8), 3)}),
    # cases.md B11
    "one token too likely": (
        Round(by_depth("1 3 3 3", "1 0 0 0"), by_depth("7 1 1 1")),
        {"rejection": ((7,), 3), "block": ((7,), 3)},
    ),
    # cases.md B14
    "residual needs all of q": (
        Round(by_depth("1 5 2 2", "1 0 0 0"), by_depth("6 1 2 1")),
        {"rejection": ((6,), 5), "block": ((6,), 5)},
    ),
    "p is q": (
        Round(by_depth("2 1 1", "2 1 1", "1 0 0"), by_depth("2 1 1"), parents=(0, 1)),
        {"rejection": ((1, 1), 1), "block": ((1, 1), 1)},
    ),
    "draft without probability": (
        Round(by_depth("0 1 1", "1 0 0"), by_depth("1 0 0")),
        {"rejection": ((1,), 2), "block": ((1,), 2)},
    ),
    "certain draft": (
        Round(by_depth("3 4 3", "1 0 0"), by_depth("1 0 0")),
        {"rejection": ((10,), 7), "block": ((10,), 7)},
    ),
    # Only even ids are drafted, as by a drafter with a vocabulary of its own.
    "target knows more": (
        Round(by_depth("3 4 3", "1 0 0"), by_depth("3 0 1")),
        {"rejection": ((5,), 9), "block": ((5,), 9)},
    ),
}

# Rejection has a coin per child, in the column before the child's node.
REJECTION_TREES: dict[str, tuple[Round, Cells]] = {
    "two siblings": (
        Round(by_depth(P, "1 0 0"), by_depth(Q), parents=(0, 0)),
        ((2, 9), 1),
    ),
    # cases.md B19
    "two of four": (
        Round(by_depth("4 3 2 1", "1 0 0 0"), by_depth("1 2 3 4"), parents=(0, 0)),
        ((12, 8), 1),
    ),
    "all of three": (
        Round(by_depth(P, "1 0 0"), by_depth(Q), parents=(0, 0, 0)),
        ((2, 9, 1), 1),
    ),
    "a child of the second": (
        Round(
            by_depth("5 3 2", "1 1 2", "1 0 0"),
            by_depth("2 3 5", "2 1 1"),
            parents=(0, 0, 2),
        ),
        ((5, 1, 2), 4),
    ),
    "siblings of the second level": (
        Round(by_depth("1 1 2", P, "1 0 0"), by_depth("1 2 1", Q), parents=(0, 1, 1)),
        ((2, 2, 9), 1),
    ),
}

# Target-only has a coin per parent, in the column of its node. The drafts are any.
UNIFORM = by_depth("1 1 1")
TARGET_ONLY: dict[str, tuple[Round, Cells]] = {
    "chain": (
        Round(by_depth(P, P, "1 0 0"), UNIFORM, parents=(0, 1), drafts=(0, 1)),
        ((10, 10), 14),
    ),
    "two of three": (
        Round(by_depth(P, "1 1 2"), UNIFORM, parents=(0, 0), drafts=(2, 0)),
        ((10,), 4),
    ),
    # cases.md B20
    "equal siblings": (
        Round(by_depth(P, "1 1 2"), UNIFORM, parents=(0, 0), drafts=(1, 1)),
        ((10,), 4),
    ),
    "all tokens": (
        Round(by_depth(P, "1 1 2"), UNIFORM, parents=(0, 0, 0), drafts=(1, 2, 0)),
        ((10,), 4),
    ),
    "two levels": (
        Round(
            branching(P, "1 1 2", "2 1 1", "1 2 1"),
            UNIFORM,
            parents=(0, 0, 1, 1, 2),
            drafts=(1, 2, 0, 2, 0),
        ),
        ((10, 4, 4), 3),
    ),
    "a child without probability": (
        Round(by_last("1 0 3", "1 1 2", "1 1 1", "1 1 2"), UNIFORM, parents=(0, 0), drafts=(1, 0)),
        ((4,), 4),
    ),
}
