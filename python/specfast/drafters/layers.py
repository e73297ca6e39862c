"""What the decoder layers of all drafters share; B requests with n rows each: [B, n, hidden]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specfast import ops
from specfast.drafters.checkpoint.spec import BackboneSpec, RopeSpec
from specfast.drafters.checkpoint.weights import Weights


class Rotation:
    """Rotates the two halves of the first channels of each head, by the angles of some positions.

    cos, sin : [..., 1, rotary_dim]    of both halves; of the first one, the sines are negative
    """

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._cos = cos
        self._sin = sin

    def __call__(self, x: Tensor) -> Tensor:
        """``x`` [..., heads, head_dim] at those positions."""
        dim = self._cos.shape[-1]
        halves = x[..., :dim]
        rotated = halves * self._cos + halves.roll(dim // 2, -1) * self._sin
        return rotated if dim == x.shape[-1] else torch.cat([rotated, x[..., dim:]], dim=-1)


@dataclass(frozen=True)
class Places:
    """Where rows of B requests are: ``positions`` [B, n], and how ``rotary`` turns heads there."""

    positions: Tensor
    rotary: Rotary
    dtype: torch.dtype

    @cached_property
    def rotation(self) -> Rotation:
        return self.rotary.at(self.positions, self.dtype)

    def column(self, number: int) -> Places:
        """The place of one row, or of any number of rows that are all there."""
        return replace(self, positions=self.positions[:, number : number + 1])


class Rotary:
    """The rotary embedding of a drafter."""

    def __init__(self, spec: RopeSpec, device: torch.device) -> None:
        self._frequencies = _frequencies(spec).to(device)
        self._of_halves = self._frequencies.repeat(2)
        ones = torch.ones_like(self._frequencies)
        self._signs = torch.cat([-ones, ones])

    def at(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        """Of heads at ``positions`` [...] in ``dtype``: once for all layers."""
        cos, sin = _angles(positions, self._of_halves)
        tables = (cos, sin * self._signs)
        return Rotation(*(table.to(dtype)[..., None, :] for table in tables))

    def tables(self, num_positions: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of all positions: float32 [num_positions, rotary_dim / 2]."""
        positions = torch.arange(num_positions, device=self._frequencies.device)
        return _angles(positions, self._frequencies)


def _angles(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [..., frequencies]."""
    angles = positions.to(torch.float32)[..., None] * frequencies
    return angles.cos(), angles.sin()


def _frequencies(spec: RopeSpec) -> Tensor:
    exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
    frequencies = 1.0 / spec.theta**exponents
    if spec.rope_type == "linear":
        return frequencies / spec.factor
    if spec.rope_type == "llama3":
        # Wavelengths beyond the original context are stretched, short ones are not, and those
        # between go over smoothly.
        turns = spec.original_max_position * frequencies / (2 * math.pi)
        blend = (turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)
        blend = blend.clamp(0, 1)
        return frequencies * (blend + (1 - blend) / spec.factor)
    return frequencies


class LayerCache:
    """Rotated keys and values of a layer and a request, by position: [rows, kv_heads, head_dim].

    With a ``window``, which counts a query's own position, only what queries from ``length``
    onwards may still see is kept: the last ``window - 1`` rows.
    """

    def __init__(self, window: int | None = None) -> None:
        self.length = 0
        self._kept = None if window is None else window - 1
        self._rows: tuple[Tensor, Tensor] | None = None

    @property
    def num_rows(self) -> int:
        return 0 if self._rows is None else self._rows[0].shape[0]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Rows of the positions ``length`` onwards."""
        self.length += len(keys)
        if self._rows is not None:
            keys = torch.cat([self._rows[0], keys])
            values = torch.cat([self._rows[1], values])
        first = 0 if self._kept is None else max(len(keys) - self._kept, 0)
        self._rows = (keys[first:], values[first:])

    def rows(self) -> tuple[Tensor, Tensor]:
        """All keys and all values that are kept."""
        if self._rows is None:
            raise ValueError("LayerCache.rows: nothing is stored")
        return self._rows


@dataclass(frozen=True)
class KeyRows:
    """What rows of B requests may attend to: K keys each, the missing ones padded.

    keys, values : [B, K, kv_heads, head_dim]
    positions : int64 [B, K]    -1 is padding
    """

    keys: Tensor
    values: Tensor
    positions: Tensor

    @classmethod
    def behind(
        cls, caches: Sequence[LayerCache], keys: Tensor, values: Tensor, positions: Tensor
    ) -> KeyRows:
        """What the B caches hold, and new rows [B, n, ...] behind it; caches stay as they are."""
        if all(cache.num_rows == 0 for cache in caches):
            return cls(keys, values, positions)
        counts = positions.new_tensor([cache.num_rows for cache in caches])
        lengths = positions.new_tensor([cache.length for cache in caches])
        # A cache that holds nothing has no rows of any shape.
        none = keys.new_empty(0, *keys.shape[2:])
        pairs = [cache.rows() if cache.num_rows > 0 else (none, none) for cache in caches]
        stored = [pad_sequence(list(rows), batch_first=True) for rows in zip(*pairs, strict=True)]
        steps = torch.arange(stored[0].shape[1], device=positions.device)
        places = (lengths - counts)[:, None] + steps
        places = torch.where(steps < counts[:, None], places, -1)
        return cls(stored[0], stored[1], places).with_rows(keys, values, positions)

    def with_rows(self, keys: Tensor, values: Tensor, positions: Tensor) -> KeyRows:
        return KeyRows(
            torch.cat([self.keys, keys], 1),
            torch.cat([self.values, values], 1),
            torch.cat([self.positions, positions], 1),
        )


class Attention:
    """Projections of one layer, and what is between them and the softmax."""

    def __init__(self, weights: Weights, prefix: str, spec: BackboneSpec) -> None:
        self._weights = weights
        self._prefix = prefix
        self._spec = spec

    def append(
        self,
        x: Tensor,
        positions: Tensor,
        slots: Tensor,
        caches: tuple[Tensor, Tensor],
        angles: tuple[Tensor, Tensor],
    ) -> Tensor:
        """Rotated queries [B, n, heads, head_dim] of rows ``x`` [B, n, hidden], the rest in one go.

        Rotated keys, and values, go to ``slots`` [B, n] of both ``caches`` [slots, kv_heads,
        head_dim], without those that are none. ``angles`` are those of ``Rotary.tables``.
        """
        queries: Tensor = ops.rope_append_kv(
            self._weights.linear(f"{self._prefix}qkv_proj", x),
            *caches,
            positions,
            slots,
            cos=angles[0],
            sin=angles[1],
            q_norm_weight=self._norm_weight("q_norm"),
            k_norm_weight=self._norm_weight("k_norm"),
            eps=self._weights.norm_eps,
        )
        return queries

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, of rows ``x`` [B, n, hidden]: [B, n, kv_heads, head_dim]."""
        heads = self._spec.num_kv_heads
        keys = self._normed("k_norm", self._project("k_proj", x, heads))
        return rotation(keys), self._project("v_proj", x, heads)

    def queries(self, x: Tensor, rotation: Rotation) -> Tensor:
        """Rotated queries of rows ``x`` [B, n, hidden]: [B, n, heads, head_dim]."""
        queries = self._normed("q_norm", self._project("q_proj", x, self._spec.num_heads))
        return rotation(queries)

    def output(self, mixed: Tensor) -> Tensor:
        """[B, n, hidden] of the values that each head has mixed, [B, n, heads, head_dim]."""
        return self._weights.linear(f"{self._prefix}o_proj", mixed.flatten(-2))

    def _norm_weight(self, name: str) -> Tensor | None:
        return self._weights.head_norm(self._prefix + name) if self._spec.qk_norm else None

    def _project(self, name: str, x: Tensor, heads: int) -> Tensor:
        return self._weights.linear(self._prefix + name, x).view(*x.shape[:-1], heads, -1)

    def _normed(self, name: str, x: Tensor) -> Tensor:
        return self._weights.norm(self._prefix + name, x) if self._spec.qk_norm else x


def attend(queries: Tensor, past: KeyRows, visible: Tensor) -> Tensor:
    """Values of ``past`` mixed for ``queries`` [B, n, heads, head_dim], of their shape.

    Each row where ``visible`` [B, n, K] is true.
    """
    groups = queries.shape[-2] // past.keys.shape[-2]
    keys, values = (part.repeat_interleave(groups, dim=-2) for part in (past.keys, past.values))
    scores = torch.einsum("bqhd,bkhd->bhqk", queries, keys) / math.sqrt(queries.shape[-1])
    scores = scores.float().masked_fill(~visible[:, None], -math.inf)
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1).to(values.dtype), values)


def causal_visibility(positions: Tensor, key_positions: Tensor) -> Tensor:
    """Rows at ``positions`` [B, n] see the keys up to their own: bool [B, n, K]."""
    keys = key_positions[:, None]
    return (keys >= 0) & (keys <= positions[..., None])


def gated_mlp(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    gated = ops.silu_and_mul(weights.linear(f"{prefix}gate_up_proj", x))
    return weights.linear(f"{prefix}down_proj", gated)
