"""rope_append_kv: the rows of a layer, from their product to attention and cache."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from guards import GuardedMemory, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from specfast import KvBuffer, KvLayout, ops, reference
from torch import Tensor

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Heads of queries and of keys, channels, of which so many are rotated.
SIZES = [(4, 2, 16, 16), (3, 1, 32, 16), (2, 2, 10, 6), (2, 1, 5, 0), (1, 1, 264, 256)]
POSITIONS = 12


def random_call(seed: int) -> dict[str, Any]:
    """Some positions and slots are none; no slot is of two rows."""
    rng = torch.Generator().manual_seed(seed)
    heads, kv_heads, head_dim, rotary = SIZES[seed % len(SIZES)]
    batch, count, dtype = 1 + seed % 4, 1 + seed % 3, FLOATS[seed % 3]
    num_rows = batch * count

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng)

    positions = torch.randint(-1, POSITIONS + 1, (batch, count), generator=rng)
    slots = torch.randperm(num_rows + 4, generator=rng)[:num_rows].view(batch, count) - 1
    angles = normal(POSITIONS, rotary // 2)
    is_normed = seed % 4 > 1
    return {
        "qkv": normal(batch, count, (heads + 2 * kv_heads) * head_dim).to(dtype),
        "positions": positions.int() if seed % 2 else positions,
        "slots": slots.int() if seed % 3 else slots,
        "cos": angles.cos(),
        "sin": angles.sin(),
        "q_norm_weight": normal(head_dim) if is_normed else None,
        "k_norm_weight": normal(head_dim) if is_normed else None,
        "eps": 1e-5,
    }


def caches(
    seed: int, call: dict[str, Any], device: str, fill: int
) -> tuple[GuardedMemory, list[Tensor]]:
    """Keys slot by slot or page by page of pairs, values between guards as well."""
    _, kv_heads, head_dim, _ = SIZES[seed % len(SIZES)]
    memory, dtype = GuardedMemory(device, fill), call["qkv"].dtype
    num_slots = call["slots"].numel() + 2
    if seed % 2:
        both = memory.empty(num_slots, 2, kv_heads, head_dim, dtype=dtype)
        return memory, [both[:, 0], both[:, 1]]
    shape = num_slots, kv_heads, head_dim
    return memory, [memory.empty(*shape, dtype=dtype) for _ in range(2)]


def on(call: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in call.items()}


def assert_equals_the_reference(seed: int, device: str) -> None:
    call = random_call(seed)
    heads, _, head_dim, _ = SIZES[seed % len(SIZES)]
    there = on(call, device)
    for fill in (0x5C, 0x11):
        _, theirs = caches(seed, call, "cpu", fill)
        want = reference.rope_append_kv(key_cache=theirs[0], value_cache=theirs[1], **call)
        memory, mine = caches(seed, call, device, fill)
        out = memory.empty(*call["positions"].shape, heads, head_dim, dtype=want.dtype)
        with unchanged(*(value for value in there.values() if isinstance(value, Tensor))):
            ops.rope_append_kv(key_cache=mine[0], value_cache=mine[1], **there, out=out)
        memory.check()
        assert torch.equal(out.cpu(), want)
        for got, expected in zip(mine, theirs, strict=True):
            assert torch.equal(got.cpu(), expected)


def test_equals_the_reference(device: str) -> None:
    for seed in range(60):
        assert_equals_the_reference(seed, device)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1))
def test_any_call_equals_the_reference(seed: int) -> None:
    assert_equals_the_reference(seed, "cpu")


def hand_drawn(device: str) -> dict[str, Any]:
    """Two heads of queries and one of keys; a quarter turn at position 1, a half turn at 2."""
    angles = torch.tensor([[0.0], [math.pi / 2], [math.pi]])
    call = {
        "qkv": torch.arange(1.0, 17.0).view(1, 2, 8),
        "key_cache": torch.zeros(4, 1, 2),
        "value_cache": torch.zeros(4, 1, 2),
        "positions": torch.tensor([[1, 2]]),
        "slots": torch.tensor([[3, 0]]),
        "cos": angles.cos().round(),
        "sin": angles.sin().round(),
    }
    return on(call, device)


def test_rows_are_turned_and_stored(device: str) -> None:
    call = hand_drawn(device)
    queries = ops.rope_append_kv(**call)
    assert queries.tolist() == [[[[-2, 1], [-4, 3]], [[-9, -10], [-11, -12]]]]
    assert call["key_cache"][:, 0].tolist() == [[-13, -14], [0, 0], [0, 0], [-6, 5]]
    assert call["value_cache"][:, 0].tolist() == [[15, 16], [0, 0], [0, 0], [7, 8]]


@pytest.mark.parametrize("slot", [-1, 4, 2**40])
def test_a_row_without_a_slot_is_not_stored(slot: int, device: str) -> None:
    call = hand_drawn(device)
    call["slots"][0, 0] = slot
    assert ops.rope_append_kv(**call)[0, 0].tolist() == [[-2, 1], [-4, 3]]
    assert call["key_cache"][:, 0].tolist() == [[-13, -14], [0, 0], [0, 0], [0, 0]]


@pytest.mark.parametrize("position", [-1, 3, 2**40])
def test_a_row_at_no_position_is_zeros_and_is_not_stored(position: int, device: str) -> None:
    call = hand_drawn(device)
    call["positions"][0, 0] = position
    assert ops.rope_append_kv(**call)[0, 0].tolist() == [[0, 0], [0, 0]]
    assert call["value_cache"][:, 0].tolist() == [[15, 16], [0, 0], [0, 0], [0, 0]]


def test_keys_are_those_of_injected_context(device: str) -> None:
    """A drafted row that is committed later has the bits that it had."""
    rng = torch.Generator().manual_seed(2)
    heads, head_dim, count, slots = 2, 64, 3, 8
    rows = torch.randn(1, count, 3 * heads * head_dim, generator=rng).bfloat16()
    angles = torch.randn(slots, head_dim // 2, generator=rng)
    weight = torch.randn(head_dim, generator=rng)
    drafted, injected = torch.zeros(2, 2, slots, heads, head_dim).bfloat16().to(device)
    table = {"cos": angles.cos().to(device), "sin": angles.sin().to(device)}
    places = torch.arange(2, 2 + count, device=device)[None]
    ops.rope_append_kv(
        rows.to(device), *drafted, places, places, k_norm_weight=weight.to(device), **table
    )
    ops.inject_context_kv(
        rows[..., heads * head_dim :].reshape(1, count, 1, 2, heads, head_dim).to(device),
        KvLayout([KvBuffer.nhd(cache) for cache in injected]),
        torch.tensor([2], dtype=torch.int32, device=device),
        torch.tensor([count], dtype=torch.int32, device=device),
        torch.zeros(1, 1, dtype=torch.int32, device=device),
        page_size=slots,
        k_norm_weight=weight[None].to(device),
        **table,
    )
    assert torch.equal(drafted, injected)
    assert bool(drafted.any())


def test_nan_stays_in_its_head_and_values_keep_their_bits(device: str) -> None:
    call = hand_drawn(device)
    call["qkv"][0, 0, 2] = call["qkv"][0, 0, 7] = math.nan
    weight = torch.ones(2, device=device)
    queries = ops.rope_append_kv(**call, q_norm_weight=weight, k_norm_weight=weight)
    assert queries.isnan().any(-1).tolist() == [[[False, True], [False, False]]]
    assert not bool(call["key_cache"].isnan().any())
    stored, given = call["value_cache"][3, 0], call["qkv"][0, 0, 6:]
    assert torch.equal(stored.view(torch.int32), given.view(torch.int32))


def test_places_may_lie_at_any_strides(device: str) -> None:
    """As columns of a record that has a row per step do."""
    dense, strided = hand_drawn(device), hand_drawn(device)
    for name in ("positions", "slots"):
        strided[name] = strided[name].T.contiguous().repeat(1, 3)[:, 1:2].T
        assert strided[name].stride(1) == 3
    assert torch.equal(ops.rope_append_kv(**strided), ops.rope_append_kv(**dense))
    assert torch.equal(strided["key_cache"], dense["key_cache"])


def test_no_rows(device: str) -> None:
    call = hand_drawn(device)
    none = {name: call[name][:0] for name in ("qkv", "positions", "slots")}
    assert ops.rope_append_kv(**{**call, **none}).shape == (0, 2, 2, 2)
    assert not bool(call["key_cache"].any())


def test_schema_and_fake(device: str) -> None:
    assert_opcheck(lambda: ops.rope_append_kv(**hand_drawn(device)))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rows of int": ({"qkv": torch.zeros(1, 2, 8).int()}, "qkv of dtype float32 or bfloat16"),
    "rows of another batch": (
        {"qkv": torch.zeros(3, 8)},
        r"qkv of shape \[R=2, \(Hq \+ 2 H\) D\], got \[3, 8\]",
    ),
    "a column too many": (
        {"qkv": torch.zeros(1, 2, 9)},
        r"qkv of \(Hq \+ 2 H\) D=8 columns, got 9",
    ),
    "without queries": (
        {"qkv": torch.zeros(1, 2, 4)},
        r"number of heads Hq in \[1, 2147483647\], got 0",
    ),
    "caches of two sizes": (
        {"value_cache": torch.zeros(5, 1, 2)},
        r"value_cache of shape \[slots=4, H=1, D=2\], got \[5, 1, 2\]",
    ),
    "a cache of bfloat16": (
        {"key_cache": torch.zeros(4, 1, 2).bfloat16()},
        "key_cache of dtype float32, got bfloat16",
    ),
    "one slot for all": (
        {"key_cache": torch.zeros(1, 1, 2).expand(4, 1, 2)},
        "key_cache with rows of their own",
    ),
    "scattered channels": (
        {"value_cache": torch.zeros(4, 1, 4)[..., ::2]},
        "value_cache with a dense last dimension, got stride 2",
    ),
    "slots of other rows": (
        {"slots": torch.zeros(1, 3).long()},
        r"slots of shape \[B=1, n=2\], got \[1, 3\]",
    ),
    "positions of float": ({"positions": torch.zeros(1, 2)}, "positions of dtype int32 or int64"),
    "angles of more channels": (
        {"cos": torch.zeros(3, 2), "sin": torch.zeros(3, 2)},
        r"columns of cos in \[0, 1\], got 2",
    ),
    "sines of other positions": (
        {"sin": torch.zeros(2, 1)},
        r"sin of shape \[positions=3, half=1\], got \[2, 1\]",
    ),
    "a norm of bfloat16": (
        {"q_norm_weight": torch.zeros(2).bfloat16()},
        "q_norm_weight of dtype float32, got bfloat16",
    ),
    "a norm of another size": (
        {"k_norm_weight": torch.zeros(3)},
        r"k_norm_weight of shape \[D=2\], got \[3\]",
    ),
    "eps": ({"eps": 2.0}, r"eps in \[0, 1\], got 2.0"),
    "queries with gaps": (
        {"out": torch.zeros(1, 2, 2, 4)[..., :2]},
        "queries to be contiguous",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str) -> None:
    changed, sentence = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"rope_append_kv: expected .*{sentence}"):
        ops.rope_append_kv(**{**hand_drawn("cpu"), **changed})


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    call = hand_drawn(device)
    out = ops.rope_append_kv(**call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.rope_append_kv(**call, out=out)
    for slot in (1, 2, -1):
        call["qkv"].normal_()
        call["slots"][0, 0] = slot
        on_cpu = on(call, "cpu")
        graph.replay()
        want = reference.rope_append_kv(**{**on_cpu, "eps": 1e-6})
        assert torch.equal(out.cpu(), want)
        for name in ("key_cache", "value_cache"):
            assert torch.equal(call[name].cpu(), on_cpu[name])
