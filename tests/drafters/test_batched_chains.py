"""Requests of different lengths that draft together draft what each would alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from drafters.small_vocabulary import CASES, VOCAB, SmallDrafter
from specfast.drafters import TrainedDrafter
from specfast.drafters.draws import ChainDrafts, DraftSampler
from specfast.drafters.layers import KeyRows, LayerCache
from specfast.drafters.trained import Chain, draft_chains, extend_chains
from torch import Tensor

PROMPT_LENS, NUM_COMMITTED, NUM_DRAFTS = (3, 9, 1), 2, 3


def prepared(small: SmallDrafter, *, together: bool) -> list[Chain]:
    """Chains with prompts of their own, and a round of equally many rows committed after them."""
    generator = torch.Generator().manual_seed(2)
    drafter = TrainedDrafter(small.model)
    chains = [drafter.new_chain() for _ in PROMPT_LENS]
    rounds = []
    for chain, length in zip(chains, PROMPT_LENS, strict=True):
        ids = torch.randint(VOCAB, (length + NUM_COMMITTED,), generator=generator)
        taps = small.tap_table[ids] + torch.randn(len(ids), 1, generator=generator)
        chain.extend(ids[:length], taps[:length])
        rounds.append((ids[length:], taps[length:]))
    tokens, taps = (torch.stack(parts) for parts in zip(*rounds, strict=True))
    if together:
        extend_chains(chains, tokens, taps)
    else:
        for chain, one, rows in zip(chains, tokens, taps, strict=True):
            chain.extend(one, rows)
    return chains


def compare(name: str, path: Path) -> None:
    small = SmallDrafter.of(name, path)
    sampler = DraftSampler.greedy(len(PROMPT_LENS), torch.device("cpu"))
    batch = draft_chains(prepared(small, together=True), NUM_DRAFTS, sampler)
    for b, chain in enumerate(prepared(small, together=False)):
        alone: ChainDrafts = chain.draft(NUM_DRAFTS)
        own = batch.of_request(b)
        assert own.tokens.tolist() == alone.tokens.tolist()
        for field in ("logits", "candidates", "q", "confidence"):
            mine, expected = getattr(own, field), getattr(alone, field)
            torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_together_as_alone(name: str, tmp_path: Path) -> None:
    compare(name, tmp_path)


@pytest.mark.parametrize("name", ["safeailab", "llama2", "dflash", "dspark", "dflash-speculators"])
def test_padding_that_is_seen_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind = KeyRows.behind

    def seen(
        caches: Sequence[LayerCache], keys: Tensor, values: Tensor, positions: Tensor
    ) -> KeyRows:
        rows = behind(caches, keys, values, positions)
        return KeyRows(rows.keys, rows.values, rows.positions.clamp(min=0))

    monkeypatch.setattr(KeyRows, "behind", seen)
    with pytest.raises(AssertionError):
        compare(name, tmp_path)
