"""The pairs of EAGLE that new pairs attend to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from specfast.drafters.layers import (
    Attention,
    KeyRows,
    LayerCache,
    Places,
    attend,
    causal_visibility,
)


class Pairs(Protocol):
    """What new pairs of B requests attend to."""

    def attend(self, attention: Attention, x: Tensor, places: Places) -> Tensor:
        """Add n pairs each, rows ``x`` [B, n, hidden]; each sees those before it, and itself.

        Returns the values that they mix, [B, n, heads, head_dim].
        """


class CommittedPairs:
    """Pairs of B requests; new ones are appended to their caches and see all before them."""

    def __init__(self, caches: Sequence[LayerCache]) -> None:
        self._caches = caches

    def attend(self, attention: Attention, x: Tensor, places: Places) -> Tensor:
        positions = places.positions
        queries = attention.queries(x, places.rotation)
        keys, values = attention.keys_values(x, places.rotation)
        past = KeyRows.behind(self._caches, keys, values, positions)
        for b, cache in enumerate(self._caches):
            cache.append(keys[b], values[b])
        return attend(queries, past, causal_visibility(positions, past.positions))


class DraftedPairs:
    """Drafted pairs behind the committed ones, whose caches stay as they are.

    ``ancestors`` [B, n, drafted so far, with the n new ones], if given before a forward, says which
    drafted pairs its rows see; absent, all before them.
    """

    def __init__(self, caches: Sequence[LayerCache]) -> None:
        self._caches = caches
        self._past: KeyRows | None = None
        self.ancestors: Tensor | None = None

    def attend(self, attention: Attention, x: Tensor, places: Places) -> Tensor:
        positions = places.positions
        queries = attention.queries(x, places.rotation)
        keys, values = attention.keys_values(x, places.rotation)
        if self._past is None:
            self._past = KeyRows.behind(self._caches, keys, values, positions)
        else:
            self._past = self._past.with_rows(keys, values, positions)
        visible = causal_visibility(positions, self._past.positions)
        if self.ancestors is not None:
            num_committed = visible.shape[-1] - self.ancestors.shape[-1]
            visible = torch.cat([visible[..., :num_committed], self.ancestors], -1)
        return attend(queries, self._past, visible)
