"""What the decoder layers of all drafters share. One request at a time: rows are [n, hidden]."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from specfast.drafters.checkpoint.spec import BackboneSpec, RopeSpec
from specfast.drafters.checkpoint.weights import Weights


class Rotary:
    """Rotates the two halves of the first ``rotary_dim`` channels of each head."""

    def __init__(self, spec: RopeSpec, device: torch.device) -> None:
        self._dim = spec.rotary_dim
        self._frequencies = _frequencies(spec).to(device)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """``x`` [n, heads, head_dim] at ``positions`` [n]."""
        angles = positions.to(torch.float32)[:, None, None] * self._frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[..., : self._dim].chunk(2, dim=-1)
        rotated = (first * cos - second * sin, second * cos + first * sin)
        return torch.cat([*rotated, x[..., self._dim :]], dim=-1)


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
    """Rotated keys and values of one layer, a row per position: [length, kv_heads, head_dim]."""

    def __init__(self) -> None:
        self._rows: tuple[Tensor, Tensor] | None = None

    @property
    def length(self) -> int:
        return 0 if self._rows is None else self._rows[0].shape[0]

    def with_rows(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """What is stored, and ``keys`` and ``values`` behind it; stores nothing."""
        if self._rows is None:
            return keys, values
        return torch.cat([self._rows[0], keys]), torch.cat([self._rows[1], values])

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        self._rows = self.with_rows(keys, values)
        return self._rows

    def rows(self) -> tuple[Tensor, Tensor]:
        """All keys and all values."""
        if self._rows is None:
            raise ValueError("LayerCache.rows: nothing is stored")
        return self._rows

    def crop(self, length: int) -> None:
        if self._rows is not None:
            self._rows = (self._rows[0][:length], self._rows[1][:length])


class Attention:
    """Projections and softmax of one layer."""

    def __init__(self, weights: Weights, prefix: str, spec: BackboneSpec, rotary: Rotary) -> None:
        self._weights = weights
        self._prefix = prefix
        self._spec = spec
        self._rotary = rotary

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys, and values, of rows ``x``: [n, kv_heads, head_dim] each."""
        heads = self._spec.num_kv_heads
        keys = self._normed("k_norm", self._project("k_proj", x, heads))
        return self._rotary(keys, positions), self._project("v_proj", x, heads)

    def attend(
        self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, visible: Tensor
    ) -> Tensor:
        """Rows ``x`` over ``keys`` and ``values`` where ``visible`` [n, keys] is true."""
        spec = self._spec
        queries = self._normed("q_norm", self._project("q_proj", x, spec.num_heads))
        queries = self._rotary(queries, positions)
        groups = spec.num_heads // spec.num_kv_heads
        keys, values = (part.repeat_interleave(groups, dim=1) for part in (keys, values))
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / math.sqrt(spec.head_dim)
        scores = scores.float().masked_fill(~visible, -math.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1).to(values.dtype), values)
        return self._weights.linear(f"{self._prefix}o_proj", mixed.flatten(1))

    def _project(self, name: str, x: Tensor, heads: int) -> Tensor:
        return self._weights.linear(self._prefix + name, x).view(len(x), heads, -1)

    def _normed(self, name: str, x: Tensor) -> Tensor:
        return self._weights.norm(self._prefix + name, x) if self._spec.qk_norm else x


def causal_visibility(num_rows: int, num_before: int, device: torch.device) -> Tensor:
    """Row i sees the ``num_before`` rows before the first, and rows up to itself."""
    keys = torch.arange(num_before + num_rows, device=device)
    return keys <= torch.arange(num_before, num_before + num_rows, device=device)[:, None]


def gated_mlp(weights: Weights, prefix: str, x: Tensor) -> Tensor:
    gate = functional.silu(weights.linear(f"{prefix}gate_proj", x))
    return weights.linear(f"{prefix}down_proj", gate * weights.linear(f"{prefix}up_proj", x))
