"""silu_and_mul: the two projections of a gated MLP, out of one product."""

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
WIDTHS = (40, 13, 1304, 1)


def random_rows(seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    width = WIDTHS[seed % len(WIDTHS)]
    rows = 5 * torch.randn(seed % 4, 3 * width, generator=rng)
    return rows.to(FLOATS[seed % 3])[:, : 2 * width]


def assert_equals_the_reference(seed: int, device: str) -> None:
    on_cpu = random_rows(seed)
    x = on_cpu.to(device)
    want = reference.silu_and_mul(on_cpu)
    for fill in (0x5C, 0x11):
        memory = GuardedMemory(device, fill)
        out = memory.empty(*want.shape, dtype=want.dtype)
        with unchanged(x):
            assert ops.silu_and_mul(x, out=out) is out
        memory.check()
        assert torch.equal(out.cpu(), want)


def test_equals_the_reference(device: str) -> None:
    for seed in range(24):
        assert_equals_the_reference(seed, device)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1))
def test_any_call_equals_the_reference(seed: int) -> None:
    assert_equals_the_reference(seed, "cpu")


@pytest.mark.parametrize("dtype", FLOATS)
def test_is_what_llama_layers_do(dtype: torch.dtype, device: str) -> None:
    gate = torch.linspace(-30, 30, 481, device=device).to(dtype)
    up = torch.linspace(2, -2, 481, device=device).to(dtype)
    got = ops.silu_and_mul(torch.cat([gate, up])[None, None])
    assert got.shape == (1, 1, 481)
    tolerance = 2 * torch.finfo(dtype).eps
    expected = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(got[0, 0], expected, rtol=tolerance, atol=1e-7)


def test_numbers_at_the_ends(device: str) -> None:
    inf, nan = math.inf, math.nan
    gate, up = [nan, 1.0, inf, -inf, -1e4, 1e4, 0.0], [1.0, nan, 2.0, 2.0, 3.0, 3.0, -5.0]
    (row,) = ops.silu_and_mul(torch.tensor([gate + up], device=device)).tolist()
    assert [math.isnan(value) for value in row] == [True, True, False, True, False, False, False]
    assert (row[2], row[4], row[5], row[6]) == (inf, 0.0, 3e4, 0.0)


def test_schema_and_fake(device: str) -> None:
    x = random_rows(3).to(device)
    assert_opcheck(lambda: ops.silu_and_mul(x))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "of int": ({"x": torch.zeros(2, 4).int()}, "x of dtype float32 or bfloat16 or float16"),
    "an odd number of columns": ({"x": torch.zeros(2, 3)}, "x of an even number of columns, got 3"),
    "without columns": ({"x": torch.zeros(2, 0)}, r"width W in \[1, 16777216\], got 0"),
    "scattered": ({"x": torch.zeros(2, 8)[:, ::2]}, "x with a dense last dimension, got stride 2"),
    "a buffer of another width": (
        {"out": torch.zeros(2, 4)},
        r"out of shape \[R=2, W=2\], got \[2, 4\]",
    ),
    "a buffer of another dtype": ({"out": torch.zeros(2, 2).half()}, "out of dtype float32"),
    "one row for all": ({"out": torch.zeros(1, 2).expand(2, 2)}, "out with rows of their own"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str) -> None:
    changed, sentence = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"silu_and_mul: expected .*{sentence}"):
        ops.silu_and_mul(**{"x": torch.zeros(2, 4), **changed})


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    x = random_rows(3).to(device)
    out = ops.silu_and_mul(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.silu_and_mul(x, out=out)
    for _ in range(3):
        x.normal_()
        graph.replay()
        assert torch.equal(out.cpu(), reference.silu_and_mul(x.cpu()))
