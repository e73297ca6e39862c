"""inject_context_kv: keys and values of committed rows, of all layers, into a drafter's cache.

prefix 3, two of three rows committed, pages of 2:   rows     0 1 x
                                                     at       3 4
                                                     page   1 | 2      (page 1 holds 2 and 3)
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from guards import GuardedMemory, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from specfast import KvBuffer, KvLayout, Status, ops, reference
from torch import Tensor

PAGES, CONTEXT = 12, 24
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# Layers, heads, head size, rotary size: whole pieces of 8, a rest that is not rotated, odd ones.
SIZES = [(2, 2, 16, 16), (3, 1, 32, 16), (1, 3, 10, 6), (2, 2, 5, 0), (1, 1, 264, 264)]


def int32(values: Any, device: str = "cpu") -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


class Caches:
    """Zeroed keys and values of each layer, between guards, arranged as ``form`` says."""

    def __init__(
        self, device: str, form: str, size: tuple[int, ...], page_size: int, dtype
    ) -> None:
        layers, heads, head_dim, _ = size
        self.guards = GuardedMemory(device, fill=0)
        shapes = {
            "slots": (PAGES * page_size, heads, head_dim),
            "nhd": (PAGES, page_size, heads, head_dim),
            "hnd": (PAGES, heads, page_size, head_dim),
            "pairs": (PAGES, 2, page_size, heads, head_dim),
            "odd": (PAGES * page_size, heads, head_dim + 1),
        }
        self.tensors, buffers = [], []
        for _ in range(2 * layers if form != "pairs" else layers):
            memory = self.guards.empty(*shapes[form], dtype=dtype)
            self.tensors.append(memory)
            if form == "hnd":
                buffers.append(KvBuffer.hnd(memory))
            elif form == "pairs":
                buffers += [KvBuffer.nhd(memory[:, 0]), KvBuffer.nhd(memory[:, 1])]
            elif form == "odd":
                buffers.append(KvBuffer.slots(memory[..., 1:]))
            else:
                buffers.append(KvBuffer.nhd(memory))
        self.layout = KvLayout(buffers)

    def rows(self, slots: Tensor) -> Tensor:
        """[n, 2 L, H, D] of these slots."""
        views = [buffer.views[0] for buffer in self.layout.buffers]
        return torch.stack([v[slots // v.shape[1], slots % v.shape[1]] for v in views], 1)

    def assert_equal(self, other: Caches) -> None:
        self.guards.check()
        for mine, theirs in zip(self.tensors, other.tensors, strict=True):
            torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=0, atol=0, equal_nan=True)


FORMS = ("slots", "nhd", "hnd", "pairs", "odd")


def random_call(seed: int, *, unsound: bool) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Arguments without the layout, and the sizes that it has."""
    rng = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng)

    batch, width, page_size = int(integers(1, 5)), int(integers(1, 6)), int(integers(1, 4)) * 2
    layers, heads, head_dim, rotary = size = SIZES[seed % len(SIZES)]
    by_path = seed % 2 == 1
    lead = (batch * width + 3,) if by_path else (batch, width)
    keys_values = torch.randn(*lead, layers, 2, heads, head_dim, generator=rng)
    if seed % 3 == 1:  # a head's keys beside its values, rows apart
        keys_values = keys_values.transpose(-2, -3).contiguous().transpose(-2, -3)[..., :, :]
    angles = torch.randn(CONTEXT, rotary // 2, generator=rng)
    weight = torch.randn(layers, head_dim, generator=rng) if seed % 4 else None
    call = {
        "keys_values": keys_values.to(FLOATS[seed % 3]),
        "prefix_lens": integers(0, CONTEXT - width + 1, batch).int(),
        "commit_lens": integers(0, width + 1, batch).int(),
        "page_table": torch.stack([torch.randperm(PAGES, generator=rng) for _ in range(batch + 1)]),
        "page_size": page_size,
        "page_table_rows": torch.randperm(batch + 1, generator=rng)[:batch].int(),
        "cos": angles.cos(),
        "sin": angles.sin(),
        "k_norm_weight": weight,
        "accept_index": None,
    }
    if by_path:
        path = torch.stack([torch.randperm(lead[0], generator=rng)[:width] for _ in range(batch)])
        call["accept_index"] = path.int()
    if unsound:
        victim = int(integers(0, batch))
        fault = int(integers(0, 8))
        call["commit_lens"][victim] = (width, width, width, width, -1, width + 1, width, width)[
            fault
        ]
        if fault == 0:
            call["prefix_lens"][victim] = -1
        elif fault == 1:
            call["prefix_lens"][victim] = CONTEXT
        elif fault == 2:
            call["page_table_rows"][victim] = -1
        elif fault == 3:
            call["page_table_rows"][victim] = batch + 1
        elif fault == 6 and by_path:
            call["accept_index"][victim, int(integers(0, width))] = (-1, lead[0])[seed % 2]
        elif fault >= 6:
            call["page_table"][integers(0, batch + 1, 1)] = (-1, PAGES)[fault - 6]
    if seed % 5 == 2:
        call["page_table"] = call["page_table"].int()
    return call, size


def on(call: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in call.items()}


def assert_equals_the_reference(seed: int, device: str, *, unsound: bool) -> None:
    call, size = random_call(seed, unsound=unsound)
    form = FORMS[seed % 7 % len(FORMS)]
    mine, theirs = (
        Caches(place, form, size, call["page_size"], call["keys_values"].dtype)
        for place in (device, "cpu")
    )
    # Requests may share pages here, so they come one after the other.
    for b in range(len(call["commit_lens"])):
        only = {**call, "commit_lens": torch.zeros_like(call["commit_lens"])}
        only["commit_lens"][b] = call["commit_lens"][b]
        there = on(only, device)
        with unchanged(*(value for value in there.values() if isinstance(value, Tensor))):
            got = ops.inject_context_kv(layout=mine.layout, **there)
        want = reference.inject_context_kv(layout=theirs.layout, **only)
        assert torch.equal(got.cpu(), want)
    mine.assert_equal(theirs)


@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, unsound: bool) -> None:
    for seed in range(30):
        assert_equals_the_reference(seed, device, unsound=unsound)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, unsound: bool) -> None:
    assert_equals_the_reference(seed, "cpu", unsound=unsound)


def hand_drawn(device: str) -> tuple[Caches, dict[str, Any]]:
    """Two channels per head, turned by a quarter at position 3 and by a half at 4."""
    caches = Caches(device, "nhd", (1, 1, 2, 2), 2, torch.float32)
    angles = torch.tensor([[0.0], [0], [0], [math.pi / 2], [math.pi], [0]])
    call = {
        "keys_values": torch.tensor([[1.0, 2], [3, 4], [5, 6], [7, 8], [9, 9], [9, 9]]),
        "prefix_lens": int32([3]),
        "commit_lens": int32([2]),
        "page_table": int32([[0, 4, 2]]),
        "page_size": 2,
        "cos": angles.cos().round(),
        "sin": angles.sin().round(),
    }
    call["keys_values"] = call["keys_values"].view(1, 3, 1, 2, 1, 2)
    return caches, on(call, device)


def test_committed_rows_and_no_others(device: str) -> None:
    caches, call = hand_drawn(device)
    status = ops.inject_context_kv(layout=caches.layout, **call)
    assert status.tolist() == [Status.OK]
    keys, values = (tensor.view(-1, 2).cpu() for tensor in caches.tensors)
    # Position 3 is the second slot of page 4, position 4 the first of page 2.
    expected = torch.zeros(2 * PAGES, 2)
    expected[9], expected[4] = torch.tensor([-2.0, 1]), torch.tensor([-5.0, -6])
    assert torch.equal(keys, expected)
    expected[9], expected[4] = torch.tensor([3.0, 4]), torch.tensor([7.0, 8])
    assert torch.equal(values, expected)


def test_keys_are_normalised_and_values_are_not(device: str) -> None:
    caches, call = hand_drawn(device)
    weight = torch.tensor([[2.0, 1.0]], device=device)
    ops.inject_context_kv(layout=caches.layout, **call, k_norm_weight=weight, eps=0.5)
    scale = 1 / math.sqrt(2.5 + 0.5)
    torch.testing.assert_close(caches.tensors[0][4, 1, 0].tolist(), [-2 * scale, 2 * scale])
    assert caches.tensors[1][4, 1, 0].tolist() == [3, 4]


@pytest.mark.parametrize(
    ("argument", "value", "status"),
    [
        ("commit_lens", 4, Status.BAD_PATH),
        ("commit_lens", -1, Status.BAD_PATH),
        ("prefix_lens", -1, Status.BAD_PARAM),
        ("prefix_lens", 5, Status.BAD_PARAM),
        ("prefix_lens", 2**31 - 1, Status.BAD_PARAM),
        ("page_table", -1, Status.BAD_PARAM),
        ("page_table", PAGES, Status.BAD_PARAM),
        ("page_table", 2**31 - 1, Status.BAD_PARAM),
    ],
)
def test_bad_requests_store_nothing(argument: str, value: int, status: int, device: str) -> None:
    caches, call = hand_drawn(device)
    call[argument].view(-1)[-1] = value
    seen = int32([Status.NAN_LOGITS], device)
    ops.inject_context_kv(layout=caches.layout, **call, status=seen, accumulate_status=True)
    assert seen.tolist() == [Status.NAN_LOGITS | status]
    assert not any(bool(tensor.any()) for tensor in caches.tensors)
    caches.guards.check()


def test_a_padded_slot_has_nothing_to_be_wrong(device: str) -> None:
    caches, call = hand_drawn(device)
    call["commit_lens"][0] = 0
    call["prefix_lens"][0] = -7
    call["page_table"][:] = -1
    assert ops.inject_context_kv(layout=caches.layout, **call).tolist() == [Status.OK]
    assert not any(bool(tensor.any()) for tensor in caches.tensors)


def test_nan_stays_in_its_head_and_values_keep_their_bits(device: str) -> None:
    call, size = random_call(0, unsound=False)
    call["keys_values"] = call["keys_values"][:1].clone()
    for name in ("prefix_lens", "commit_lens", "page_table_rows"):
        call[name] = call[name][:1]
    call["commit_lens"][0] = 1
    call["keys_values"][0, 0, 0, 0, 1, 3] = math.nan
    call["keys_values"][0, 0, 0, 1, 1, 3] = math.nan
    call["k_norm_weight"] = torch.ones(size[0], size[2])
    caches = Caches(device, "slots", size, call["page_size"], torch.float32)
    ops.inject_context_kv(layout=caches.layout, **on(call, device))
    keys, values = caches.tensors[0].cpu(), caches.tensors[1].cpu()
    assert keys.isnan().any(0).tolist() == [[False] * 16, [True] * 16]
    stored = values[values.isnan().any(2).any(1)]
    assert torch.equal(stored.view(torch.int32), call["keys_values"][0, :1, 0, 1].view(torch.int32))


def test_a_request_does_not_depend_on_its_batch(device: str) -> None:
    call, size = random_call(1, unsound=False)
    call = on(call, device)
    assert call["keys_values"].dtype == torch.bfloat16
    batch = len(call["commit_lens"])
    call["commit_lens"][:] = 1
    table = torch.arange(batch, device=device)[:, None].expand(-1, call["page_table"].shape[1])
    call["page_table"], call["page_table_rows"] = table.contiguous(), None
    together = Caches(device, "slots", size, call["page_size"], torch.bfloat16)
    ops.inject_context_kv(layout=together.layout, **call)
    alone = Caches(device, "slots", size, call["page_size"], torch.bfloat16)
    for b in range(batch):
        names = ("prefix_lens", "commit_lens", "page_table", "accept_index")
        one = {**call, **{name: call[name][b : b + 1] for name in names}}
        ops.inject_context_kv(layout=alone.layout, **one)
    together.assert_equal(alone)
    assert all(bool(tensor.any()) for tensor in together.tensors)


def test_no_requests_and_no_rows(device: str) -> None:
    caches, call = hand_drawn(device)
    none = {**call, "keys_values": call["keys_values"][:, :0]}
    none["commit_lens"] = torch.zeros_like(call["commit_lens"])
    assert ops.inject_context_kv(layout=caches.layout, **none).tolist() == [0]
    names = ("keys_values", "prefix_lens", "commit_lens", "page_table")
    empty = {**call, **{name: call[name][:0] for name in names}}
    assert ops.inject_context_kv(layout=caches.layout, **empty).tolist() == []


def test_schema_and_fake(device: str) -> None:
    caches, call = hand_drawn(device)
    assert_opcheck(lambda: ops.inject_context_kv(layout=caches.layout, **call))


def cache(*shape: int, dtype: torch.dtype = torch.float32) -> KvBuffer:
    return KvBuffer.nhd(torch.zeros(*shape, dtype=dtype))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "rows without layers": (
        {"keys_values": torch.zeros(1, 3, 2)}, "expected layout of keys and values of L=0",
    ),
    "rows of a path": (
        {"keys_values": torch.zeros(3, 1, 2, 1, 2)},
        r"keys_values of shape \[B=1, S, L, 2, H, D\], got \[3, 1, 2, 1, 2\]",
    ),
    "keys alone": (
        {"keys_values": torch.zeros(1, 3, 1, 1, 1, 2)}, r"keys_values of shape \[B=1, S, L, 2, H",
    ),
    "more rows than are numbered": (
        {"keys_values": torch.zeros(1, 1, 1, 2, 1, 2).expand(1, 2**30, 1, 2, 1, 2)},
        r"heads S \* L \* H in \[0, 1073741823\], got 1073741824",
    ),
    "rows of int": ({"keys_values": torch.zeros(1, 3, 1, 2, 1, 2).int()}, "keys_values of dtype"),
    "scattered heads": (
        {"keys_values": torch.zeros(1, 3, 1, 2, 1, 4)[..., ::2]}, "keys_values with a dense last",
    ),
    "buffers of one layer more": (
        {"layout": KvLayout([cache(24, 1, 2)] * 1 + [cache(24, 1, 2) for _ in range(3)])},
        "layout of keys and values of L=1 layers, got 4 buffers",
    ),
    "other heads": (
        {"layout": KvLayout([cache(24, 2, 2), cache(24, 2, 2)])},
        r"buffer 0 of layout by slot with items \[1, 2\], got slots with items \[2, 2\]",
    ),
    "by row": (
        {"layout": KvLayout([cache(24, 1, 2), KvBuffer.rows(torch.zeros(24, 1, 2))])},
        r"buffer 1 of layout by slot with items \[1, 2\], got rows",
    ),
    "heads apart": (
        {"layout": KvLayout([KvBuffer.slots(torch.zeros(24, 1, 4)[..., ::2]) for _ in range(2)])},
        "buffer 0 of layout with dense heads, got stride 2",
    ),
    "cache of bfloat16": (
        {"layout": KvLayout([cache(24, 1, 2, dtype=torch.bfloat16) for _ in range(2)])},
        "buffers of dtype float32, got bfloat16",
    ),
    "path of another batch": (
        {"keys_values": torch.zeros(3, 1, 2, 1, 2), "accept_index": int32([[0], [1]])},
        r"accept_index of shape \[B=1, S\], got \[2, 1\]",
    ),
    "lengths of int64": ({"commit_lens": torch.tensor([1])}, "commit_lens of dtype int32"),
    "prefix of another batch": (
        {"prefix_lens": int32([1, 2])}, r"prefix_lens of shape \[B=1\], got \[2\]",
    ),
    "angles of float64": ({"cos": torch.zeros(6, 1).double()}, "cos of dtype float32"),
    "more angles than pairs": (
        {"cos": torch.zeros(6, 2), "sin": torch.zeros(6, 2)}, r"columns of cos in \[0, 1\], got 2",
    ),
    "sines of other positions": (
        {"sin": torch.zeros(5, 1)}, r"sin of shape \[positions=6, half=1\], got \[5, 1\]",
    ),
    "norm of another head": (
        {"k_norm_weight": torch.ones(1, 3)}, r"k_norm_weight of shape \[L=1, D=2\], got \[1, 3\]",
    ),
    "norm of bfloat16": (
        {"k_norm_weight": torch.ones(1, 2).bfloat16()}, "k_norm_weight of dtype float32",
    ),
    "negative eps": ({"eps": -1.0}, r"eps in \[0, 1\], got -1"),
    "NaN eps": ({"eps": math.nan}, r"eps in \[0, 1\]"),
    "no page size": ({"page_size": 0}, r"page_size in \[1, 2147483647\], got 0"),
    "table of another batch": (
        {"page_table": int32([[0], [1]])}, "page_table of B=1 rows without page_table_rows, got 2",
    ),
    "status of another batch": ({"status": int32([0, 0])}, r"status of shape \[B=1\], got \[2\]"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    caches, call = hand_drawn("cpu")
    arguments = {"layout": caches.layout, **call, **changes}
    with pytest.raises(RuntimeError, match=f"inject_context_kv: .*{message}"):
        ops.inject_context_kv(**arguments)


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    """One graph, replayed with other lengths, pages and rows in the captured tensors."""
    caches, call = hand_drawn(device)
    twin, on_cpu = hand_drawn("cpu")
    status = torch.zeros_like(call["commit_lens"])
    ops.inject_context_kv(layout=caches.layout, **call, status=status)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.inject_context_kv(layout=caches.layout, **call, status=status)
    rng = torch.Generator().manual_seed(1)
    reference.inject_context_kv(layout=twin.layout, **on_cpu)
    for number in range(8):
        on_cpu["keys_values"].normal_(generator=rng)
        on_cpu["prefix_lens"][0] = number % 5
        on_cpu["commit_lens"][0] = number % 4
        on_cpu["page_table"].copy_(torch.randperm(PAGES, generator=rng)[:3])
        for name in ("keys_values", "prefix_lens", "commit_lens", "page_table"):
            call[name].copy_(on_cpu[name])
        graph.replay()
        want = reference.inject_context_kv(layout=twin.layout, **on_cpu)
        assert torch.equal(status.cpu(), want)
        caches.assert_equal(twin)
