"""The ops on rows of a drafter's layers, in plain torch: the meaning of each."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.reference.float32 import sqrt
from specfast.reference.lane_sums import row_sum
from specfast.reference.sigmoid import sigmoid


def fused_add_rms_norm(
    x: Tensor, residual: Tensor | None, weight: Tensor, *, eps: float = 1e-6
) -> tuple[Tensor, Tensor]:
    """The RMSNorm of ``x + residual``, and that sum."""
    total = x if residual is None else (x.float() + residual.float()).to(x.dtype)
    return _normed(total, weight, eps), total


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(gate) * up of rows that hold both."""
    gate, up = x.float().chunk(2, dim=-1)
    silu = (gate * sigmoid(gate)).to(x.dtype)
    return (silu.float() * up).to(x.dtype)


def gather_eagle_inputs(
    tokens: Tensor,
    embedding: Tensor,
    features: Tensor,
    *,
    parents: Tensor | None = None,
    d2t: Tensor | None = None,
    embedding_norm_weight: Tensor | None = None,
    features_norm_weight: Tensor | None = None,
    eps: float = 1e-6,
    gathered: Tensor | None = None,
) -> Tensor:
    """One node after the other."""
    batch, count = tokens.shape
    width = features.shape[-1]
    out = torch.zeros(batch, count, 2 * width, dtype=features.dtype)
    if gathered is not None:
        gathered.zero_()
    for b in range(batch):
        for node in range(count):
            token = int(tokens[b, node])
            if d2t is not None:
                token = token + int(d2t[token]) if 0 <= token < len(d2t) else -1
            if 0 <= token < len(embedding):
                row = embedding[token]
                normed = embedding_norm_weight
                out[b, node, :width] = row if normed is None else _normed(row, normed, eps)
            parent = node if parents is None else int(parents[b, node])
            if 0 <= parent < features.shape[1]:
                row = features[b, parent]
                normed = features_norm_weight
                out[b, node, width:] = row if normed is None else _normed(row, normed, eps)
                if gathered is not None:
                    gathered[b, node] = row
    return out


def grouped_dynamic_conv(x: Tensor, base: Tensor, dynamic: Tensor) -> Tensor:
    """One row after the other, one tap after the other."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    group_size = x.shape[-1] // dynamic.shape[-1]
    for t in range(x.shape[1]):
        total = torch.zeros_like(x[:, t], dtype=torch.float32)
        for s in range(min(t + 1, len(base))):
            taps = base[s].float() + dynamic[:, t, s].float().repeat_interleave(group_size, -1)
            product = taps * x[:, t - s].float()
            total = product if s == 0 else total + product
        out[:, t] = total.to(x.dtype)
    return out


def _normed(rows: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Rounded before the weight, and after it."""
    x = rows.float()
    scale = 1.0 / sqrt(row_sum(x * x) / float(x.shape[-1]) + torch.tensor(eps))
    normed = (x * scale[..., None]).to(rows.dtype)
    return (normed.float() * weight.float()).to(rows.dtype)
