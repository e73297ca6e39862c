"""float32 arithmetic of IEEE 754, rounded to nearest, for numbers and for tensors."""

from __future__ import annotations

from ctypes import c_float

import torch
from torch import Tensor


def f32(x: float) -> float:
    """``x`` rounded to float32.

    One operation on float32 operands in double, then rounded, is the float32 operation: 53 bits
    hold more than twice 24, so that rounding twice does no harm.
    """
    return c_float(x).value


def f32_from_int(x: int) -> float:
    """A non-negative integer of any size rounded to float32, ties to even."""
    shift = max(x.bit_length() - 24, 0)
    kept, rest = divmod(x, 1 << shift)
    half = (1 << shift) >> 1
    if shift > 0 and (rest > half or (rest == half and kept % 2 == 1)):
        kept += 1
    return float(kept << shift)


def sqrt(x: Tensor) -> Tensor:
    """The square root of float32, rounded to nearest; torch's own is off by a bit here and there.

    Of a root in double, 53 bits are enough for the second rounding to do no harm.
    """
    return x.double().sqrt().float()


def fma(a: Tensor, b: Tensor | float, c: Tensor | float) -> Tensor:
    """a * b + c of finite float32, rounded once.

    The product is exact in double. The sum is rounded to odd there (of the two doubles around it,
    the one whose last bit is set), which keeps the second rounding from seeing a false tie.
    """
    product = a.double() * b
    addend = c.double() if isinstance(c, Tensor) else torch.full_like(product, c)
    total = product + addend
    second = total - product
    error = (product - (total - second)) + (addend - second)
    even = (total.view(torch.int64) & 1) == 0
    toward = torch.where(error > 0, torch.inf, -torch.inf).double()
    odd = torch.where((error != 0) & even, torch.nextafter(total, toward), total)
    return odd.float()
