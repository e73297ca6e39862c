"""The law of rounds that are decided from shards of the vocabulary, and mutants of the reference.

p         A .4   B .3 | C .2   D .1           the last draw falls on a shard first: .7, .3
drawn     4/7    3/7  | 2/3    1/3            and takes the token that this shard has drawn
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from types import SimpleNamespace

import pytest
from chi_square import assert_follows
from drawn_laws import Drafting, Streams, first_tokens
from exact_laws import Round, assert_exact
from implementations import IMPLEMENTATIONS, Implementation
from sharded_rounds import in_shards
from specfast import SamplingRules
from specfast.reference import distribution
from specfast.reference.accept_batch import AcceptBatch
from specfast.reference.coins import RequestCoins
from specfast.reference.philox import Purpose
from toy_models import Model, by_depth, by_last, sequences

REFERENCE = IMPLEMENTATIONS["reference"]
# The package has functions of these names.
ROW_STATS = import_module("specfast.reference.row_stats")
MERGE = import_module("specfast.reference.merge_row_stats")

ANY = by_depth("1 1 1 1")
# A round, where shards begin, cells of the coins by node, of the shard and of what it draws.
CASES: dict[str, tuple[Round, tuple[int, ...], tuple[int, ...], int, int]] = {
    "no drafts": (Round(by_depth("4 3 2 1"), ANY, (), ()), (0, 2), (), 10, 21),
    "a shard of one": (Round(by_depth("4 3 2 1"), ANY, (), ()), (0, 3), (), 10, 9),
    "a shard without support": (Round(by_depth("4 0 0 6"), ANY, (), ()), (0, 1, 3), (), 10, 1),
    "an empty shard": (Round(by_depth("4 3 2 1"), ANY, (), ()), (0, 2, 2), (), 10, 21),
    "chain": (
        Round(by_depth("4 3 2 1", "1 0 0 0"), ANY, (0,), (1,)),
        (0, 2),
        (10,),
        7,
        3,
    ),
    "siblings in two shards": (
        Round(by_depth("4 3 2 1", "1 0 0 0"), ANY, (0, 0), (3, 0)),
        (0, 2),
        (10,),
        5,
        1,
    ),
    "siblings are a shard": (
        Round(by_depth("4 3 2 1", "1 0 0 0"), ANY, (0, 0), (0, 1)),
        (0, 2),
        (10,),
        1,
        3,
    ),
    "two levels": (
        Round(by_depth("1 2 1", "1 1 2", "1 0 0"), by_depth("1 1 1"), (0, 1), (1, 0)),
        (0, 2),
        (4, 4),
        6,
        2,
    ),
}


class BothDraws(RequestCoins):
    """The given coin of the last draw says which shard it falls on, and where in that shard."""

    shard_cells = 1
    token_cells = 1

    def final(self, node: int, total: int) -> int:
        return int((self._cell // self.token_cells + 0.5) / self.shard_cells * total)

    def drawn(self, purpose: Purpose, node: int, lane: int, total: int) -> int:
        assert purpose == Purpose.FINAL_INNER
        return int((self._cell % self.token_cells + 0.5) / self.token_cells * total)

    @property
    def _cell(self) -> int:
        assert self.given is not None
        assert self.given.final is not None
        return int(float(self.given.final[self.b]) * self.shard_cells * self.token_cells)


def exact(patch: pytest.MonkeyPatch, name: str) -> None:
    """Fail unless every way through the coins gives the target's law."""
    case, offsets, accept_cells, shards, tokens = CASES[name]

    def coins_of(batch: AcceptBatch, sampling: SamplingRules, b: int) -> RequestCoins:
        coins = BothDraws(b, 0, 0, sampling.coins)
        coins.shard_cells, coins.token_cells = shards, tokens
        return coins

    for module in (ROW_STATS, MERGE):
        patch.setattr(module, "coins_of", coins_of)
    assert_exact(
        in_shards(REFERENCE, offsets), "target_only", case, (accept_cells, shards * tokens)
    )


@pytest.mark.parametrize("name", CASES)
def test_exact_law(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    exact(monkeypatch, name)


WANDERING = by_last("4 3 2 1", "1 2 3 4", "2 1 4 3", "3 3 2 2", "1 1 4 4")
UNSURE = by_last("2 3 4 1", "3 2 3 2", "2 3 3 2", "4 2 2 2", "3 3 2 2")
SQUARED = by_last("16 9 4 1", "1 4 9 16", "4 1 16 9", "9 9 4 4", "1 1 16 16")
BEST = by_last("4 3 0 0", "0 0 3 4", "0 0 4 3", "3 3 0 0", "0 0 4 4")
ROUNDS = {
    "chain": (Drafting(depth=2), (0, 2)),
    "siblings": (Drafting(width=2, greedy=True), (0, 1, 2, 3)),
}
FILTERS: dict[str, tuple[dict[str, object], Model]] = {
    "temperature": ({"temperature": 0.5}, SQUARED),
    "top_k and top_p": ({"top_k": 3, "top_p": 0.7}, BEST),
    "off": ({}, WANDERING),
}


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("drafts", ROUNDS)
def test_several_rounds(impl: Implementation, num_draws: int, drafts: str, filters: str) -> None:
    options, law = FILTERS[filters]
    drafting, offsets = ROUNDS[drafts]
    sharded = in_shards(impl, offsets, max_top_k=3)
    streams = Streams(sharded, "target_only", WANDERING, UNSURE, drafting, num_draws, options)
    assert_follows(first_tokens(streams, 3), sequences(law, 3))


def rounds(_: pytest.MonkeyPatch) -> None:
    sharded = in_shards(REFERENCE, (0, 2))
    streams = Streams(sharded, "target_only", WANDERING, UNSURE, Drafting(depth=0), 300, {})
    assert_follows(first_tokens(streams, 1), sequences(WANDERING, 1))


def test_rounds_without_a_mutation(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds(monkeypatch)


Check = Callable[[pytest.MonkeyPatch], None]
MUTANTS: dict[str, tuple[object, str, object, Check]] = {
    "rests are not on one scale": (
        MERGE,
        "rescaled_rest",
        lambda record, maximum, scale: record[1],
        lambda patch: exact(patch, "no drafts"),
    ),
    "a shard may draw a candidate": (
        ROW_STATS,
        "without",
        lambda masses, candidates: masses,
        lambda patch: exact(patch, "chain"),
    ),
    "candidates have no part in the mass": (
        MERGE.MergedRow,
        "total",
        property(lambda self: sum(self.rest)),
        lambda patch: exact(patch, "siblings in two shards"),
    ),
    "the draw of a shard shares its numbers with the last draw": (
        ROW_STATS,
        "Purpose",
        SimpleNamespace(FINAL_INNER=Purpose.FINAL),
        rounds,
    ),
}


@pytest.fixture(autouse=True)
def _fresh_rows() -> Iterator[None]:
    distribution._small_row.cache_clear()
    yield
    distribution._small_row.cache_clear()


@pytest.mark.parametrize("name", MUTANTS)
def test_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    owner, attribute, wrong, check = MUTANTS[name]
    monkeypatch.setattr(owner, attribute, wrong)
    with pytest.raises(AssertionError):
        check(monkeypatch)
