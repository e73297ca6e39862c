"""fused_add_rms_norm: rows on the residual stream, summed and normed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from guards import GuardedMemory, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from specfast import ops, reference
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# One piece and a rest, one turn of the running sums, two turns, a single channel.
WIDTHS = (40, 13, 4096, 4104, 1)


def random_rows(seed: int) -> tuple[Tensor, Tensor | None, Tensor, float]:
    rng = torch.Generator().manual_seed(seed)
    width, dtype = WIDTHS[seed % len(WIDTHS)], FLOATS[seed % 3]
    count = seed % 4

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(dtype)

    residual = normal(count, width) if seed % 2 else None
    return normal(count, 2 * width)[:, width:], residual, normal(width), (0.0, 1e-5, 1.0)[seed % 3]


def on(values: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    return tuple(value.to(device) if isinstance(value, Tensor) else value for value in values)


def assert_equals_the_reference(seed: int, device: str) -> None:
    call = random_rows(seed)
    x, residual, weight, eps = on(call, device)
    want, want_sum = reference.fused_add_rms_norm(*call[:3], eps=call[3])
    for fill in (0x5C, 0x11):
        memory = GuardedMemory(device, fill)
        out = memory.empty(*x.shape, dtype=x.dtype)
        total = None if residual is None else memory.empty(*x.shape, dtype=x.dtype)
        with unchanged(x, residual, weight):
            got = ops.fused_add_rms_norm(x, residual, weight, eps=eps, out=out, sum=total)
        memory.check()
        assert torch.equal(got[0].cpu(), want)
        assert torch.equal(got[1].cpu(), want_sum)


def test_equals_the_reference(device: str) -> None:
    for seed in range(30):
        assert_equals_the_reference(seed, device)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1))
def test_any_call_equals_the_reference(seed: int) -> None:
    assert_equals_the_reference(seed, "cpu")


@pytest.mark.parametrize("dtype", FLOATS)
def test_is_what_llama_layers_do(dtype: torch.dtype, device: str) -> None:
    rng = torch.Generator().manual_seed(1)
    x, residual = (torch.randn(2, 3, 96, generator=rng).to(device, dtype) for _ in range(2))
    weight = torch.randn(96, generator=rng).to(device, dtype)
    normed, total = ops.fused_add_rms_norm(x, residual, weight, eps=1e-5)
    assert torch.equal(total, x + residual)
    # An order of its own of the squares can tip the rounding of a row's scale, and no more.
    expected = torch.nn.functional.rms_norm(total, (96,), eps=1e-5) * weight
    tolerance = 3 * torch.finfo(dtype).eps
    torch.testing.assert_close(normed, expected, rtol=tolerance, atol=tolerance)


def test_by_hand(device: str) -> None:
    x = torch.tensor([[3.0, 4.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0]], device=device)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    normed, total = ops.fused_add_rms_norm(x, None, weight, eps=0.0)
    assert total is x
    scale = 1 / math.sqrt(25 / 4)
    expected = [[3 * scale, 8 * scale, 0.0, 0.0], [1.0, 2.0, 3.0, 4.0]]
    torch.testing.assert_close(normed.cpu(), torch.tensor(expected))


def test_nan_stays_in_its_row(device: str) -> None:
    x = torch.ones(3, 16, device=device)
    x[1, 5] = math.nan
    normed, _ = ops.fused_add_rms_norm(x, None, torch.ones(16, device=device))
    assert normed.isnan().any(1).tolist() == [False, True, False]


def test_rows_do_not_depend_on_each_other(device: str) -> None:
    x, residual, weight, eps = on(random_rows(3), device)
    assert residual is not None
    assert len(x) == 3
    together, _ = ops.fused_add_rms_norm(x, residual, weight, eps=eps)
    for row in range(3):
        one = slice(row, row + 1)
        alone, _ = ops.fused_add_rms_norm(x[one], residual[one], weight, eps=eps)
        assert torch.equal(alone, together[one])


def test_schema_and_fake(device: str) -> None:
    x, residual, weight, eps = on(random_rows(3), device)
    assert_opcheck(lambda: ops.fused_add_rms_norm(x, residual, weight, eps=eps))
    assert_opcheck(lambda: ops.fused_add_rms_norm(x, None, weight, eps=eps))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "of double": ({"x": torch.zeros(2, 4).double()}, "x of dtype float32 or bfloat16 or float16"),
    "of another dtype": (
        {"residual": torch.zeros(2, 4).bfloat16()},
        "residual of dtype float32, got bfloat16",
    ),
    "of another width": (
        {"weight": torch.zeros(5)},
        r"weight of shape \[W=4\], got \[5\]",
    ),
    "of other rows": (
        {"residual": torch.zeros(3, 4)},
        r"residual of shape \[R=2, W=4\], got \[3, 4\]",
    ),
    "scattered": ({"x": torch.zeros(2, 8)[:, ::2]}, "x with a dense last dimension, got stride 2"),
    "a sum of nothing": (
        {"residual": None, "sum": torch.zeros(2, 4)},
        "residual and sum, or neither",
    ),
    "one row for all": (
        {"out": torch.zeros(1, 4).expand(2, 4)},
        "out with rows of their own",
    ),
    "a buffer with gaps": (
        {"x": torch.zeros(1, 2, 4), "residual": None, "out": torch.zeros(1, 2, 8)[..., :4]},
        "out to be contiguous",
    ),
    "eps": ({"eps": 1.5}, r"eps in \[0, 1\], got 1.5"),
    "without channels": (
        {"x": torch.zeros(2, 0), "residual": None, "weight": torch.zeros(0)},
        r"width W in \[1, 16777216\], got 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str) -> None:
    changed, sentence = REFUSED[name]
    call = {"x": torch.zeros(2, 4), "residual": torch.zeros(2, 4), "weight": torch.ones(4)}
    with pytest.raises(RuntimeError, match=f"fused_add_rms_norm: expected .*{sentence}"):
        ops.fused_add_rms_norm(**{**call, **changed})


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    x, residual, weight, eps = on(random_rows(3), device)
    x, out, total = x.contiguous(), torch.empty_like(residual), torch.empty_like(residual)
    ops.fused_add_rms_norm(x, residual, weight, eps=eps, out=out, sum=total)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.fused_add_rms_norm(x, residual, weight, eps=eps, out=out, sum=total)
    for _ in range(3):
        x.normal_()
        residual.normal_()
        graph.replay()
        want = reference.fused_add_rms_norm(x.cpu(), residual.cpu(), weight.cpu(), eps=eps)
        assert torch.equal(out.cpu(), want[0])
        assert torch.equal(total.cpu(), want[1])
