"""DFlash, DSpark and DFlash-2 by their formulas: a row at a time, in fp64, without our modules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from drafters.by_formula import Array, Sizes, Tensors, attend, key, mlp, query, rms_norm, value

# Whether the row at the first position sees the key at the second.
Sees = Callable[[int, int], bool]


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


@dataclass(frozen=True)
class BlockFormula:
    """Tensors by canonical name, and what config.json says of the layers.

    sees : one per layer
    conv_group : channels per coefficient of the convolutions; 0 without them
    """

    tensors: Tensors
    sizes: Sizes
    sees: tuple[Sees, ...]
    conv_group: int = 0
    embedding_scale: float = 1.0

    def context(self, taps: Array) -> Array:
        """What a committed row gives to the keys and values of every layer."""
        t = self.tensors
        return rms_norm(t["fc.weight"] @ taps, t["hidden_norm.weight"], self.sizes.eps)

    def context_keys(self, layer: int, rows: list[Array]) -> list[list[Array]]:
        return [key(self.tensors, f"layers.{layer}.", c, i, self.sizes) for i, c in enumerate(rows)]

    def context_values(self, layer: int, rows: list[Array]) -> list[list[Array]]:
        return [value(self.tensors, f"layers.{layer}.", c, self.sizes) for c in rows]

    def block(self, context: list[Array], anchor: int, mask: int, num_rows: int) -> list[Array]:
        """Rows behind the last norm."""
        t, s = self.tensors, self.sizes
        embedding = t["embed_tokens.weight"]
        masks = [t.get("mask_embedding", embedding[mask])] * (num_rows - 1)
        x = [row * self.embedding_scale for row in [embedding[anchor], *masks]]
        for layer in range(len(self.sees)):
            name = f"layers.{layer}."
            normed = [rms_norm(row, t[f"{name}input_layernorm.weight"], s.eps) for row in x]
            out = self._attended(layer, context, self._convolved(name, "attention", 0, normed))
            out = self._convolved(name, "attention", 1, normed, out)
            x = [row + o for row, o in zip(x, out, strict=True)]
            normed = [
                rms_norm(row, t[f"{name}post_attention_layernorm.weight"], s.eps) for row in x
            ]
            out = [mlp(t, name, row) for row in self._convolved(name, "mlp", 0, normed)]
            out = self._convolved(name, "mlp", 1, normed, out)
            x = [row + o for row, o in zip(x, out, strict=True)]
        return [rms_norm(row, t["norm.weight"], s.eps) for row in x]

    def _attended(self, layer: int, context: list[Array], rows: list[Array]) -> list[Array]:
        t, s, name = self.tensors, self.sizes, f"layers.{layer}."
        start = len(context)
        keys = self.context_keys(layer, context)
        values = self.context_values(layer, context)
        for j, row in enumerate(rows):
            keys.append(key(t, name, row, start + j, s))
            values.append(value(t, name, row, s))
        out = []
        for j, row in enumerate(rows):
            seen = [p for p in range(len(keys)) if self.sees[layer](start + j, p)]
            q = query(t, name, row, start + j, s)
            out.append(attend(t, name, q, [keys[p] for p in seen], [values[p] for p in seen]))
        return out

    def _convolved(
        self,
        name: str,
        sublayer: str,
        side: int,
        normed: list[Array],
        rows: list[Array] | None = None,
    ) -> list[Array]:
        """``rows``, or ``normed`` itself, with coefficients that each row of ``normed`` gives."""
        rows = normed if rows is None else rows
        if self.conv_group == 0:
            return rows
        base = self.tensors[f"{name}{sublayer}_conv.base_kernel"]
        projection = self.tensors[f"{name}{sublayer}_conv.kernel_projection.weight"]
        num_taps, hidden = base.shape[1:]
        num_groups = hidden // self.conv_group
        out = []
        for position, n in enumerate(normed):
            dynamic = projection @ n
            y = np.zeros(hidden)
            for tap in range(min(num_taps, position + 1)):
                for c in range(hidden):
                    at = (side * num_taps + tap) * num_groups + c // self.conv_group
                    y[c] += (base[side, tap, c] + dynamic[at]) * rows[position - tap][c]
            out.append(y)
        return out


def markov_bias(
    t: Tensors, kind: str, previous: int, h: Array, state: Array
) -> tuple[Array, Array]:
    """The bias of a row after the token ``previous``, and the state of "rnn" for the next row."""
    e = t["markov_head.markov_w1.weight"][previous]
    if kind == "gated":
        g = t["markov_head.gate_proj.weight"] @ np.concatenate([h, e])
        e = sigmoid(g + t["markov_head.gate_proj.bias"]) * e
    if kind == "rnn":
        r = len(e)
        z = t["markov_head.joint_proj.weight"] @ np.concatenate([state, e, h])
        z = z + t["markov_head.joint_proj.bias"]
        keep = sigmoid(z[:r])
        state = keep * state + (1 - keep) * np.tanh(z[r : 2 * r])
        e = np.tanh(z[2 * r :])
    return t["markov_head.markov_w2.weight"] @ e, state


def selected(
    t: Tensors, h: list[Array], anchor: int, k: int, multiplier: float, softcap: float | None
) -> tuple[list[int], list[dict[int, float]]]:
    """The walk over candidates: drafts, and the scores of the candidates of each slot."""
    before = t["candidate_selector.predecessor_codebook"]
    after = t["candidate_selector.successor_codebook"]
    tokens, tables = [anchor], []
    for row in h:
        logits = t["lm_head.weight"] @ row
        candidates = sorted(range(len(logits)), key=lambda v: (-logits[v], v))[:k]
        w = t["candidate_selector.hidden_projection.weight"] @ row
        table = {}
        for candidate in candidates:
            unary = logits[candidate] * multiplier
            if softcap is not None:
                unary = softcap * np.tanh(unary / softcap)
            table[candidate] = unary + sum(before[tokens[-1]] * w * after[candidate])
        tables.append(table)
        tokens.append(max(table, key=lambda v: table[v]))
    return tokens[1:], tables
