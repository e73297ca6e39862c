"""grouped_dynamic_conv: a row of a block mixed with those before it, by taps of its own."""

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
# Channels and groups: whole pieces of 8, smaller groups, one channel.
SIZES = ((48, 3), (30, 6), (1304, 163), (1, 1))


def random_call(seed: int) -> dict[str, Tensor]:
    """With the taps of another side between those of this one."""
    rng = torch.Generator().manual_seed(seed)
    width, groups = SIZES[seed % len(SIZES)]
    batch, rows, taps = seed % 4, seed % 6, 1 + seed % 5

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(FLOATS[seed % 3])

    return {
        "x": normal(batch, rows + 1, width)[:, 1:],
        "base": normal(taps, width),
        "dynamic": normal(batch, rows, 2, taps, groups)[:, :, seed % 2],
    }


def on(call: dict[str, Tensor], device: str) -> dict[str, Tensor]:
    return {name: value.to(device) for name, value in call.items()}


def assert_equals_the_reference(seed: int, device: str) -> None:
    call = random_call(seed)
    there = on(call, device)
    want = reference.grouped_dynamic_conv(**call)
    for fill in (0x5C, 0x11):
        memory = GuardedMemory(device, fill)
        out = memory.empty(*want.shape, dtype=want.dtype)
        with unchanged(*there.values()):
            assert ops.grouped_dynamic_conv(**there, out=out) is out
        memory.check()
        assert torch.equal(out.cpu(), want)


def test_equals_the_reference(device: str) -> None:
    for seed in range(60):
        assert_equals_the_reference(seed, device)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1))
def test_any_call_equals_the_reference(seed: int) -> None:
    assert_equals_the_reference(seed, "cpu")


def test_by_hand(device: str) -> None:
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]], device=device)
    base = torch.tensor([[1.0, 1.0], [10.0, 0.0]], device=device)
    dynamic = torch.zeros(1, 3, 2, 1, device=device)
    # The row's own tap of the last row, and what the row before is worth to the second.
    dynamic[0, 2, 0] = 1.0
    dynamic[0, 1, 1] = -10.0
    rows = ops.grouped_dynamic_conv(x, base, dynamic)
    assert rows.tolist() == [[[1, 2], [3, 4 - 20], [40, 12]]]


def test_a_block_does_not_see_another(device: str) -> None:
    call = on(random_call(23), device)
    together = ops.grouped_dynamic_conv(**call)
    assert len(together) == 3
    for b in range(3):
        one = {name: call[name][b : b + 1] for name in ("x", "dynamic")}
        assert torch.equal(ops.grouped_dynamic_conv(**{**call, **one}), together[b : b + 1])


def test_nan_stays_in_its_channel_and_behind(device: str) -> None:
    x = torch.ones(1, 4, 8, device=device)
    x[0, 1, 3] = math.nan
    rows = ops.grouped_dynamic_conv(
        x, torch.ones(2, 8, device=device), torch.zeros(1, 4, 2, 1, device=device)
    )
    assert rows.isnan().nonzero().tolist() == [[0, 1, 3], [0, 2, 3]]


def test_schema_and_fake(device: str) -> None:
    call = on(random_call(23), device)
    assert_opcheck(lambda: ops.grouped_dynamic_conv(**call))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "of int": ({"x": torch.zeros(1, 3, 4).int()}, "x of dtype float32 or bfloat16 or float16"),
    "a block alone": ({"x": torch.zeros(3, 4)}, r"x of shape \[B, n, C\], got \[3, 4\]"),
    "a base of another width": (
        {"base": torch.zeros(2, 5)},
        r"base of shape \[K, C=4\], got \[2, 5\]",
    ),
    "taps of another number": (
        {"dynamic": torch.zeros(1, 3, 3, 2)},
        r"dynamic of shape \[B=1, n=3, K=2, groups\], got \[1, 3, 3, 2\]",
    ),
    "groups that do not fit": (
        {"dynamic": torch.zeros(1, 3, 2, 3)},
        "dynamic of a number of groups that divides C=4, got 3",
    ),
    "no taps": (
        {"base": torch.zeros(0, 4), "dynamic": torch.zeros(1, 3, 0, 2)},
        r"number of taps K in \[1, 2147483647\], got 0",
    ),
    "taps of another dtype": (
        {"dynamic": torch.zeros(1, 3, 2, 2).half()},
        "dynamic of dtype float32, got float16",
    ),
    "a buffer with gaps": ({"out": torch.zeros(1, 3, 8)[..., :4]}, "out to be contiguous"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str) -> None:
    changed, sentence = REFUSED[name]
    call = {"x": torch.zeros(1, 3, 4), "base": torch.zeros(2, 4)}
    call["dynamic"] = torch.zeros(1, 3, 2, 2)
    with pytest.raises(RuntimeError, match=f"grouped_dynamic_conv: expected .*{sentence}"):
        ops.grouped_dynamic_conv(**{**call, **changed})


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    call = on(random_call(23), device)
    out = ops.grouped_dynamic_conv(**call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.grouped_dynamic_conv(**call, out=out)
    for _ in range(3):
        call["x"].normal_()
        graph.replay()
        assert torch.equal(out.cpu(), reference.grouped_dynamic_conv(**on(call, "cpu")))
