"""The target as its own drafter: every draft is accepted, at every depth, after any rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from engine.echo_models import BLOCK, FAMILIES, FAR, VOCAB, echo_drafter, echo_target, echoed
from engine.models import random_prompt
from specfast import SamplingParams
from specfast.drafters import DraftTarget, TrainedDrafter, eagle_chain, load_drafter
from specfast.drafters.block_context import CachedContexts
from specfast.drafters.eagle_chain import EagleChain
from specfast.drafters.layers import LayerCache
from specfast.engine import Engine, RoundOutput
from torch import Tensor

# The first row that looks back has to find more than the first token, of which EAGLE has no pair.
PROMPTS = [[token % VOCAB for token in random_prompt(n, seed=n)] for n in (FAR + 1, 40)]
DEPTH = BLOCK - 1


def rounds_of(
    family: str,
    path: Path,
    depths: Sequence[int],
    prompts: list[list[int]] = PROMPTS,
    drafted_near: int | None = None,
) -> list[tuple[int, int]]:
    """(accepted, proposed) of each round, drafts of round r going ``depths[r]`` deep.

    There are as many rounds as depths if all of them accept everything; else the last depth holds.
    """
    near = FAMILIES[family]
    target = echo_target(near)
    checkpoint = echo_drafter(family, path, drafted_near or near)
    drafter = TrainedDrafter(load_drafter(checkpoint, DraftTarget.of(target)))
    num_tokens = 1 + sum(depths) + len(depths)
    engine = Engine(
        target,
        drafter,
        verify_width=BLOCK,
        max_batch_size=len(prompts),
        page_size=64,
        num_pages=sum(-(-(len(prompt) + num_tokens) // 64) for prompt in prompts),
    )
    rounds: Counter[int] = Counter()

    def next_depth(output: RoundOutput) -> None:
        # The prefill comes first.
        number = rounds[output.request_id]
        drafter.num_drafts = depths[min(number, len(depths) - 1)]
        rounds[output.request_id] += 1

    params = SamplingParams(max_new_tokens=num_tokens)
    generations = engine.generate(prompts, params, next_depth)
    for generation in generations:
        text = generation.prompt_ids + generation.token_ids
        assert echoed(text[:-1], near)[-len(generation.token_ids) :] == generation.token_ids
        assert len(set(text[-100:])) > VOCAB // 2, "this text repeats itself"
    return [(r.num_accepted, r.num_proposed) for g in generations for r in g.rounds[1:]]


def accepts_everything(
    family: str, path: Path, depths: Sequence[int], prompts: list[list[int]] = PROMPTS
) -> None:
    rounds = rounds_of(family, path, depths, prompts)
    assert rounds == [(depth, depth) for depth in depths] * len(prompts)


@pytest.mark.parametrize("family", FAMILIES)
def test_accepts_everything(family: str, tmp_path: Path) -> None:
    accepts_everything(family, tmp_path, [DEPTH] * 100)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("family", FAMILIES)
def test_accepts_everything_after_ten_thousand_rounds(family: str, tmp_path: Path) -> None:
    """Of one request; they are short until the last hundred, for their contexts are long."""
    accepts_everything(family, tmp_path, [1] * 9900 + [DEPTH] * 100, PROMPTS[:1])


def test_one_that_knows_less_does_not(tmp_path: Path) -> None:
    rounds = rounds_of("eagle3", tmp_path, [DEPTH] * 10, drafted_near=2)
    assert any(0 < accepted < proposed for accepted, proposed in rounds)


@pytest.mark.parametrize("family", ["eagle", "dspark"])
class TestMutantsFail:
    """What goes wrong at position LATE."""

    LATE = 150

    def fails(self, family: str, path: Path) -> None:
        accepts_everything(family, path / "first", [DEPTH] * 15, PROMPTS[1:])
        with pytest.raises(AssertionError):
            accepts_everything(family, path / "late", [DEPTH] * 25, PROMPTS[1:])

    def test_positions_come_to_an_end(
        self, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pair_counts, positions = eagle_chain.pair_counts, CachedContexts.positions

        def counts(chains: list[EagleChain]) -> Tensor:
            return pair_counts(chains).clamp(max=self.LATE)

        def places(contexts: CachedContexts, num_rows: int) -> Tensor:
            return positions(contexts, num_rows).clamp(max=self.LATE)

        monkeypatch.setattr(eagle_chain, "pair_counts", counts)
        monkeypatch.setattr(CachedContexts, "positions", places)
        self.fails(family, tmp_path)

    def test_a_cache_keeps_a_row_twice(
        self, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = LayerCache.append

        def leaking(cache: LayerCache, keys: Tensor, values: Tensor) -> None:
            if self.LATE <= cache.length < self.LATE + BLOCK:
                keys, values = torch.cat([keys, keys[-1:]]), torch.cat([values, values[-1:]])
            append(cache, keys, values)

        monkeypatch.setattr(LayerCache, "append", leaking)
        self.fails(family, tmp_path)
