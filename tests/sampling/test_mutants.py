"""Wrong rules, each of which the tests of the law have to notice.

A mutant changes one thing in the reference. The check is one that passes without it
(test_exact_laws, or below) and has to fail with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import pytest
import torch
from chi_square import assert_follows
from drawn_laws import Drafting, Streams, first_tokens
from exact_laws import Round, assert_exact, outputs
from implementations import IMPLEMENTATIONS
from round_cases import CHAINS, REJECTION_TREES, TARGET_ONLY
from specfast.reference import accept, block, coins, distribution, rejection, target_only
from specfast.reference.accept_batch import Child
from specfast.reference.coins import RequestCoins
from specfast.reference.philox import Purpose
from specfast.reference.proposal import ProposalRow
from specfast.reference.request_rules import RequestRules
from specfast.reference.sampled_request import SampledRequest
from specfast.reference.walk import Rule, Step
from toy_models import Model, by_depth, row, sequences

IMPL = IMPLEMENTATIONS["reference"]
Mutate = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[Mutate, Callable[[], object]]] = {}


@pytest.fixture(autouse=True)
def _fresh_rows() -> Iterator[None]:
    """Rows that were computed before a mutation, or under it, are not used after."""
    distribution._small_row.cache_clear()
    yield
    distribution._small_row.cache_clear()


def chain(rule: str, name: str) -> Callable[[], object]:
    case, cells = CHAINS[name]
    return lambda: assert_exact(IMPL, rule, case, cells[rule])


def tree(name: str) -> Callable[[], object]:
    return lambda: assert_exact(IMPL, "rejection", *REJECTION_TREES[name])


def siblings(name: str) -> Callable[[], object]:
    return lambda: assert_exact(IMPL, "target_only", *TARGET_ONLY[name])


def rounds(
    rule: str,
    target: Model,
    draft: Model,
    num_streams: int,
    length: int,
    depth: int = 1,
) -> None:
    streams = Streams(IMPL, rule, target, draft, Drafting(depth), num_streams, {})
    assert_follows(first_tokens(streams, length), sequences(target, length))


def mutant(name: str, check: Callable[[], object]) -> Callable[[Mutate], Mutate]:
    def add(mutate: Mutate) -> Mutate:
        MUTANTS[name] = (mutate, check)
        return mutate

    return add


@mutant("ratio inverted", chain("rejection", "article"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "accepts", lambda coin, p, q: q > 0 and p > 0 and coin * p < q)


@mutant("coin 0: every draft accepted", chain("rejection", "article"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestCoins, "accept", lambda self, node, lane, column: 0.0)


@mutant("drafts without q accepted", chain("rejection", "draft without probability"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "accepts", lambda coin, p, q: coin * q <= p or coin < 0.6)


@mutant("residual from p", chain("rejection", "article"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "residual", lambda p, q: p)


@mutant("residual without the drafted token alone", chain("rejection", "residual needs all of q"))
def _(patch: pytest.MonkeyPatch) -> None:
    # Of these rows (cases.md B14) the token that is drafted too often is the likeliest of q.
    patch.setattr(
        rejection,
        "residual",
        lambda p, q: torch.where(torch.arange(len(q)) == q.argmax(), 0.0, p),
    )


def reuse_accept_coin(self: RequestCoins, node: int, total: int) -> int:
    return int(self.accept(node, 0, node) * total)


@mutant("accept coin decides the final token", chain("rejection", "one token too likely"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestCoins, "final", reuse_accept_coin)


@mutant("accept coin decides the final token, target-only", siblings("chain"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RequestCoins, "final", reuse_accept_coin)


def first_coin_only(patch: pytest.MonkeyPatch) -> None:
    accept = RequestCoins.accept
    patch.setattr(RequestCoins, "accept", lambda self, node, lane, column: accept(self, 0, 0, 0))


MUTANTS["one coin for all levels"] = (first_coin_only, chain("rejection", "branches"))
MUTANTS["one coin for all levels, block"] = (first_coin_only, chain("block", "branches"))
MUTANTS["one coin for all levels, target-only"] = (first_coin_only, siblings("two levels"))
MUTANTS["one coin for all siblings"] = (first_coin_only, tree("two of four"))


TWO_OF_THREE = TARGET_ONLY["two of three"][0]


def two_coins() -> None:
    # A rule with a coin per sibling would find the second one in the first child's column.
    assert_exact(IMPL, "target_only", TWO_OF_THREE, ((10, 10), 4))


@mutant("a coin of its own for every sibling, target-only", two_coins)
def _(patch: pytest.MonkeyPatch) -> None:
    def rule(request: SampledRequest, *_: float) -> Rule:
        def step(node: int, row: int, path: list[int], children: Iterable[Child]) -> Step:
            p = request.p(row, path)
            rest, accumulated = p.masses.clone(), 0
            for lane, child in enumerate(children):
                accumulated += int(p.masses[child.token])
                coin = request.coins.accept(node, lane, column=child.node - 1)
                if target_only.is_below(coin, accumulated, p.total):
                    return Step(child.node, child.token, p.status)
                rest[child.token] = 0
            return Step(-1, *request.draw(node, rest, p))

        return step

    patch.setattr(accept, "target_only_rule", rule)


TWO_TOKENS = functools.partial(rounds, "target_only", by_depth("6 4"), by_depth("3 7"), 150, 4)
FAR_APART = functools.partial(rounds, "rejection", by_depth("1 3 3 3"), by_depth("7 1 1 1"), 600, 1)
BLOCKS = functools.partial(rounds, "block", by_depth("1 1"), by_depth("1 49"), 600, 4, depth=2)


@mutant("coins return in every round", TWO_TOKENS)
def _(patch: pytest.MonkeyPatch) -> None:
    words = coins.random_words
    patch.setattr(coins, "random_words", lambda seed, *where: words(seed, *where[:-1], 0))


@mutant("coins by position, block", BLOCKS)
def _(patch: pytest.MonkeyPatch) -> None:
    # cases.md B47: a position that no draft was kept for is asked again in the next round. Block
    # verification has looked at its coin by then, token by token it would be the first look.
    words = coins.random_words

    def by_position(
        seed: int, purpose: Purpose, node: int, lane: int, prefix_len: int
    ) -> tuple[int, ...]:
        if purpose != Purpose.ACCEPT:
            return words(seed, purpose, node, lane, prefix_len)
        return words(seed, purpose, 0, lane, prefix_len + node)

    patch.setattr(coins, "random_words", by_position)


@mutant("coins do not depend on the seed", TWO_TOKENS)
def _(patch: pytest.MonkeyPatch) -> None:
    words = coins.random_words
    patch.setattr(coins, "random_words", lambda seed, *where: words(0, *where))


@mutant("draft and final token share their coins", FAR_APART)
def _(patch: pytest.MonkeyPatch) -> None:
    words = coins.random_words
    patch.setattr(coins, "random_words", lambda seed, purpose, *where: words(seed, 0, *where))


@pytest.mark.parametrize(
    "check",
    [TWO_TOKENS, FAR_APART, BLOCKS, two_coins],
    ids=["two tokens", "far apart", "blocks", "two coins"],
)
def test_rounds_without_a_mutation(check: Callable[[], None]) -> None:
    check()


@mutant("q not normalised after a rejection", tree("two of four"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProposalRow, "probabilities", lambda self, tried=(): self.values)


@mutant("p not normalised after a rejection", tree("two of four"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rejection, "normalised", lambda rest: rest)


@mutant("equal siblings count twice", siblings("equal siblings"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(target_only, "is_repeated", lambda token, tokens: False)


def draw_from_p(
    self: SampledRequest, node: int, masses: object, p: distribution.RowDistribution
) -> tuple[int, int]:
    return coins.token_at(p.masses, self.coins.final(node, p.total)), 0


@mutant("the last token may be a rejected sibling", siblings("two of three"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SampledRequest, "draw", draw_from_p)


@mutant("the last token ignores the drafts before it", chain("rejection", "branches"))
def _(patch: pytest.MonkeyPatch) -> None:
    rows = SampledRequest.p
    patch.setattr(SampledRequest, "p", lambda self, row, path: rows(self, row - len(path), path))


@mutant("block with the residual of the token rule", chain("block", "branches"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block, "block_residual", lambda ratio, p, q: (p - q).clamp(min=0))


@mutant("block ratio above 1", chain("block", "branches"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block, "next_ratio", lambda ratio, p, q: ratio * p / q)


@mutant("block ratio forgets the drafts before", chain("block", "branches"))
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(block, "next_ratio", lambda ratio, p, q: min(p / q, 1.0))


def filtered(weights: str, **options: float) -> Callable[[], object]:
    plain = Round(
        by_depth("4 3 2 1"), by_depth("1 1 1 1"), (), drafts=(), filtered=by_depth(weights)
    )
    return lambda: assert_exact(IMPL, "target_only", plain, ((), 630), **options)


@mutant("top_p before top_k", filtered("4 3 0 0", top_k=3, top_p=0.75))
def _(patch: pytest.MonkeyPatch) -> None:
    def swapped(ordered: torch.Tensor, vocab_size: int, rules: RequestRules) -> int:
        return min(distribution._nucleus(ordered, rules.top_p), rules.top_k)

    patch.setattr(distribution, "_num_kept", swapped)


def min_p_first(patch: pytest.MonkeyPatch) -> None:
    def swapped(ordered: torch.Tensor, vocab_size: int, rules: RequestRules) -> int:
        passing = ordered[ordered >= rules.min_p * distribution.GRID]
        return distribution._nucleus(passing, rules.top_p)

    patch.setattr(distribution, "_num_kept", swapped)


MUTANTS["min_p before top_p"] = (min_p_first, filtered("4 3 2 0", min_p=0.4, top_p=0.75))


@mutant("temperature after the filters", filtered("16 9 0 0", temperature=0.5, min_p=0.3))
def _(patch: pytest.MonkeyPatch) -> None:
    num_kept = distribution._num_kept

    def swapped(ordered: torch.Tensor, vocab_size: int, rules: RequestRules) -> int:
        untempered = ordered.double().div(distribution.GRID).pow(rules.temperature)
        masses = (untempered * distribution.GRID).long()
        return num_kept(masses, vocab_size, rules)

    patch.setattr(distribution, "_num_kept", swapped)


@mutant("top_p without the token that crosses it", filtered("4 3 0 0", top_p=0.6))
def _(patch: pytest.MonkeyPatch) -> None:
    nucleus = distribution._nucleus
    patch.setattr(distribution, "_nucleus", lambda ordered, p: nucleus(ordered, p) - 1)


@pytest.mark.parametrize("name", MUTANTS)
def test_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    mutate, check = MUTANTS[name]
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        check()


def test_siblings_pruned_by_score_break_the_law() -> None:
    # Two are drawn, the one with the larger q is verified: not what the rule allows.
    q, p = row("2 3 5"), row("5 3 2")
    law: dict[int, Fraction] = {}
    for kept in range(3):
        drawn = sum(
            probability
            for tokens, probability in _pairs(q)
            if max(tokens, key=lambda token: q[token]) == kept
        )
        case = Round(lambda _: p, lambda _: q, drafts=(kept,))
        for output, probability in outputs(IMPL, "rejection", case, ((5,), 10)).items():
            law[output[0]] = law.get(output[0], Fraction(0)) + drawn * probability
    assert [round(float(law[token]), 3) for token in range(3)] == [0.504, 0.161, 0.336]


def _pairs(q: tuple[Fraction, ...]) -> Iterator[tuple[tuple[int, int], Fraction]]:
    for first in range(len(q)):
        for second in range(len(q)):
            if first != second:
                yield (first, second), q[first] * q[second] / (1 - q[first])


def test_certain_drafts_with_an_uncertain_q_break_the_law() -> None:
    # cases.md B15: the draft is always token 0, and q says .4 .3 .3 instead of 1.
    case = Round(by_depth("3 5 2"), by_depth("4 3 3"), drafts=(0,))
    law = outputs(IMPL, "rejection", case, ((4,), 10))
    first = [sum(p for out, p in law.items() if out[0] == token) for token in range(3)]
    assert first == [Fraction(3, 4), Fraction(1, 4), 0]
