"""Drafters by their formulas: a row at a time, in fp64, without caches, masks or our modules.

Tensors go by their canonical names; a head is a list of channels, a sequence a list of rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Tensors = dict[str, Array]


@dataclass(frozen=True)
class Sizes:
    """Of the small drafters of the tests: no two numbers are one by chance."""

    hidden: int = 12
    inner: int = 20
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 6
    vocab: int = 40
    draft_vocab: int = 40
    eps: float = 1e-5
    theta: float = 700.0
    rotary: int = 6


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / math.sqrt(sum(v * v for v in x) / len(x) + eps) * weight


def rotate(head: Array, position: int, theta: float, channels: int) -> Array:
    half = channels // 2
    out = head.copy()
    for i in range(half):
        angle = position * theta ** (-2 * i / channels)
        cos, sin = math.cos(angle), math.sin(angle)
        out[i] = head[i] * cos - head[i + half] * sin
        out[i + half] = head[i + half] * cos + head[i] * sin
    return out


def mlp(t: Tensors, layer: str, x: Array) -> Array:
    gate = t[f"{layer}mlp.gate_proj.weight"] @ x
    up = t[f"{layer}mlp.up_proj.weight"] @ x
    return t[f"{layer}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)


def heads_of(t: Tensors, name: str, x: Array, count: int) -> list[Array]:
    out = t[f"{name}.weight"] @ x + t.get(f"{name}.bias", 0.0)
    return np.split(out, count)


def query(t: Tensors, layer: str, x: Array, position: int, s: Sizes) -> list[Array]:
    return _rotated(t, f"{layer}self_attn.q", x, s.heads, position, s)


def key(t: Tensors, layer: str, x: Array, position: int, s: Sizes) -> list[Array]:
    return _rotated(t, f"{layer}self_attn.k", x, s.kv_heads, position, s)


def value(t: Tensors, layer: str, x: Array, s: Sizes) -> list[Array]:
    return heads_of(t, f"{layer}self_attn.v_proj", x, s.kv_heads)


def _rotated(t: Tensors, name: str, x: Array, count: int, position: int, s: Sizes) -> list[Array]:
    heads = heads_of(t, f"{name}_proj", x, count)
    if f"{name}_norm.weight" in t:
        heads = [rms_norm(head, t[f"{name}_norm.weight"], s.eps) for head in heads]
    channels = min(s.rotary, s.head_dim)
    return [rotate(head, position, s.theta, channels) for head in heads]


def attend(
    t: Tensors, layer: str, q: list[Array], keys: list[list[Array]], values: list[list[Array]]
) -> Array:
    """The output projection of one query row over all rows of ``keys``."""
    mixed = []
    for number, head in enumerate(q):
        shared = number * len(keys[0]) // len(q)
        scores = np.array([head @ k[shared] for k in keys]) / math.sqrt(len(head))
        weights = np.exp(scores - scores.max())
        weights /= weights.sum()
        mixed.append(sum(w * v[shared] for w, v in zip(weights, values, strict=True)))
    out: Array = t[f"{layer}self_attn.o_proj.weight"] @ np.concatenate(mixed)
    return out + t.get(f"{layer}self_attn.o_proj.bias", 0.0)


@dataclass(frozen=True)
class Pair:
    """A feature, and the token that came after it, at the feature's position."""

    token: int
    feature: Array
    position: int


@dataclass(frozen=True)
class PairRow:
    hidden: Array
    key: list[Array]
    value: list[Array]


def eagle_rows(t: Tensors, s: Sizes, pairs: list[Pair]) -> list[PairRow]:
    """EAGLE-1/2, all pairs from the first."""
    rows: list[PairRow] = []
    for pair in pairs:
        z = t["fc.weight"] @ np.concatenate([t["embed_tokens.weight"][pair.token], pair.feature])
        z = z + t.get("fc.bias", 0.0)
        rows.append(_layer_row(t, s, rows, z, z, pair.position))
    return rows


def eagle3_rows(
    t: Tensors, s: Sizes, pairs: list[Pair], *, norm_before_residual: bool = False
) -> list[PairRow]:
    """EAGLE-3, all pairs from the first; features are behind ``fc``."""
    rows: list[PairRow] = []
    for pair in pairs:
        embedded = t["embed_tokens.weight"][pair.token]
        normed = rms_norm(pair.feature, t["layers.0.hidden_norm.weight"], s.eps)
        u = np.concatenate(
            [rms_norm(embedded, t["layers.0.input_layernorm.weight"], s.eps), normed]
        )
        residual = normed if norm_before_residual else pair.feature
        rows.append(_layer_row(t, s, rows, residual, u, pair.position))
    return rows


def _layer_row(
    t: Tensors, s: Sizes, before: list[PairRow], residual: Array, u: Array, position: int
) -> PairRow:
    layer = "layers.0."
    k, v = key(t, layer, u, position, s), value(t, layer, u, s)
    q = query(t, layer, u, position, s)
    keys, values = [row.key for row in before], [row.value for row in before]
    h = residual + attend(t, layer, q, [*keys, k], [*values, v])
    normed = rms_norm(h, t[f"{layer}post_attention_layernorm.weight"], s.eps)
    return PairRow(h + mlp(t, layer, normed), k, v)
