"""What a drafter's layers do with whole rows between their products, each in one launch."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.ops._fakes import register_in_place

__all__ = ["fused_add_rms_norm", "gather_eagle_inputs", "grouped_dynamic_conv", "silu_and_mul"]


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    *,
    eps: float = 1e-6,
    out: Tensor | None = None,
    sum: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Add rows to the residual stream and norm the sum, in one launch; RMSNorm alone without it.

    Parameters
    ----------
    x : float32 | bfloat16 | float16 [..., W]
        What a sublayer adds. W <= 2^24.
    residual : [..., W] of the same dtype, optional
        Absent: 0.
    weight : [W] of the same dtype
    eps : float
        Added to the mean square; in [0, 1].
    out, sum : [..., W] of the same dtype, optional
        Buffers for both results, ``sum`` with ``residual`` only; needed if read after a graph's
        replay. Not those of the inputs.

    Returns
    -------
    (normed, total) : [..., W]
        ``x + residual``, which without a residual is ``x`` itself, is the second.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    float32 inside. Rounded to the dtype are the sum, the sum times ``1 / sqrt(mean(total ** 2) +
    eps)``, and that times ``weight``, as Llama's layers do. The squares are added up in an order
    that is fixed. NaN stays in its row.
    Devices: CPU, CUDA; equal bits. Deterministic, and independent of how many rows there are.
    Capturable with ``out`` and ``sum``. Cost: reads and writes each row once or twice.
    Source: vLLM's ``fused_add_rms_norm``, which overwrites its arguments.

    Examples
    --------
    >>> import torch, specfast
    >>> x, residual = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    >>> normed, total = specfast.ops.fused_add_rms_norm(x, residual, torch.ones(2), eps=0.0)
    >>> total.tolist(), (normed / normed[0, 0]).tolist()
    ([[3.0, 4.0]], [[1.0, 1.3333333730697632]])
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if sum is None and residual is not None:
        sum = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.ops.specfast.fused_add_rms_norm(
        _as_rows(x),
        None if residual is None else _as_rows(residual),
        weight,
        eps,
        _rows_to_fill(out, "fused_add_rms_norm: expected out"),
        None if sum is None else _rows_to_fill(sum, "fused_add_rms_norm: expected sum"),
    )
    return out, x if sum is None else sum


def silu_and_mul(x: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``silu(gate) * up`` of rows that hold their gates and behind them their ups, in one launch.

    Parameters
    ----------
    x : float32 | bfloat16 | float16 [..., 2 W]
        W <= 2^24.
    out : [..., W] of the same dtype, optional
        Buffer for the result; needed if read after a graph's replay. Not that of ``x``.

    Returns
    -------
    [..., W]
        ``out``, or a new one.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype or device; names it, what was expected and got.

    Notes
    -----
    ``silu(g) = g / (1 + exp(-g))`` in float32 by operations that round the same everywhere, within
    3e-7; rounded to the dtype before the product and after it, as Llama's layers do.
    Devices: CPU, CUDA; equal bits. Deterministic. Capturable with ``out``. Cost: reads each row
    once.
    Source: vLLM's and FlashInfer's op of that name.

    Examples
    --------
    >>> import torch, specfast
    >>> specfast.ops.silu_and_mul(torch.tensor([[0.0, 30.0, 5.0, 2.0]])).tolist()
    [[0.0, 60.0]]
    """
    if out is None:
        # Of any rank and size: the op has the sentence for a wrong one.
        out = x.new_empty((*x.shape[:-1], x.shape[-1] // 2)) if x.dim() else x.new_empty(0)
    rows = _rows_to_fill(out, "silu_and_mul: expected out")
    torch.ops.specfast.silu_and_mul(_as_rows(x), rows)
    return out


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
    out: Tensor | None = None,
    gathered: Tensor | None = None,
) -> Tensor:
    """Put the embedding and the features of each node side by side, as EAGLE's layer reads them.

    Parameters
    ----------
    tokens : int32 | int64 [B, n]
        Of each node; any stride between rows.
    embedding : float32 | bfloat16 | float16 [V, W]
        W <= 2^24.
    features : [B, m, W] of the same dtype
        Of the nodes before, any strides but the last; without ``parents`` m is n.
    parents : int32 | int64 [B, n], optional
        Which of the m rows of features each node has; absent: node i has row i.
    d2t : int64 [Vq], optional
        ``tokens`` are ids of a draft vocabulary, and that of the target is t + d2t[t].
    embedding_norm_weight, features_norm_weight : [W] of the same dtype, optional
        Of the RMSNorm of either half (EAGLE-3); absent: it is copied.
    eps : float
        Of these norms, added to the mean square; in [0, 1].
    out : [B, n, 2 W] of the same dtype, optional
        Buffer for the result; needed if read after a graph's replay.
    gathered : [B, n, W] of the same dtype, optional
        Gets the features of each node as they are.

    Returns
    -------
    [B, n, 2 W]
        ``out``, or a new one.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    Bad data never fails: a token that has no embedding makes zeros, and so does a parent outside
    [0, m). Norms are those of :func:`fused_add_rms_norm`.
    Devices: CPU, CUDA; equal bits. Deterministic, and independent of batch and slot. Capturable
    with ``out``. Cost: reads and writes each half once.
    Source: EAGLE-1 (arXiv:2401.15077) and EAGLE-3 (arXiv:2503.01840).

    Examples
    --------
    >>> import torch, specfast
    >>> specfast.ops.gather_eagle_inputs(
    ...     torch.tensor([[1, 0]]), torch.tensor([[1.0], [2.0]]), torch.tensor([[[7.0], [8.0]]]),
    ...     parents=torch.tensor([[1, 1]])).tolist()
    [[[2.0, 8.0], [1.0, 8.0]]]
    """
    if out is None:
        width = features.shape[-1] if features.dim() else 0
        out = features.new_empty((*tokens.shape, 2 * width))
    torch.ops.specfast.gather_eagle_inputs(
        tokens,
        embedding,
        features,
        parents,
        d2t,
        embedding_norm_weight,
        features_norm_weight,
        eps,
        out,
        gathered,
    )
    return out


def grouped_dynamic_conv(
    x: Tensor, base: Tensor, dynamic: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Convolve the rows of blocks causally, with taps that each row brings along, in one launch.

    Row t becomes the sum over s of ``base[s] + dynamic[:, t, s]`` times row t - s; there is none
    before row 0.

    Parameters
    ----------
    x : float32 | bfloat16 | float16 [B, n, C]
        Any strides but the last. C <= 2^24.
    base : [K, C] of the same dtype
    dynamic : [B, n, K, C / g] of the same dtype
        For each g neighbouring channels; any strides but the last.
    out : [B, n, C] of the same dtype, optional
        Buffer for the result; needed if read after a graph's replay. Not that of ``x``.

    Returns
    -------
    [B, n, C]
        ``out``, or a new one.

    Raises
    ------
    RuntimeError
        An argument of wrong shape, dtype, device or range; names it, what was expected and got.

    Notes
    -----
    float32 in the order of s, each operation rounded, and the result rounded to the dtype.
    Devices: CPU, CUDA; equal bits. Deterministic, and independent of the batch. Capturable with
    ``out``. Cost: reads each row K times, from caches but once.
    Source: the grouped dynamic convolution of DFlash-2 (z-lab).

    Examples
    --------
    >>> import torch, specfast
    >>> specfast.ops.grouped_dynamic_conv(
    ...     torch.tensor([[[1.0, 2.0], [3.0, 4.0]]]), torch.tensor([[1.0, 1.0], [10.0, 0.0]]),
    ...     torch.zeros(1, 2, 2, 1)).tolist()
    [[[1.0, 2.0], [13.0, 4.0]]]
    """
    if out is None:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.ops.specfast.grouped_dynamic_conv(x, base, dynamic, out)
    return out


def _as_rows(tensor: Tensor) -> Tensor:
    """[R, W] of [..., W]."""
    if tensor.dim() == 2:
        return tensor
    return tensor.flatten(0, -2) if tensor.dim() > 2 else tensor[None]


def _rows_to_fill(tensor: Tensor, expected: str) -> Tensor:
    """The same, without a copy."""
    if tensor.dim() > 2 and not tensor.is_contiguous():
        raise RuntimeError(f"{expected} to be contiguous, got strides {list(tensor.stride())}")
    return _as_rows(tensor)


register_in_place(
    "fused_add_rms_norm", "silu_and_mul", "gather_eagle_inputs", "grouped_dynamic_conv"
)
