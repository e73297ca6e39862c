"""commit_state: the state after the last committed row becomes the request's.

rows      0 1 2 3 | 4 5 6 7      committed 0 1 | 4 5 6, so the states after rows 1 and 6
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from guards import GuardedMemory, unchanged
from registered_ops import assert_opcheck
from specfast import Status, ops, reference
from torch import Tensor

SLOTS, WIDTH = 6, 4


def int32(rows: Any, device: str = "cpu") -> Tensor:
    return torch.tensor(rows, dtype=torch.int32, device=device)


def as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().cpu().view(torch.uint8)


def random_bytes(shape: tuple[int, ...], dtype: torch.dtype, rng: torch.Generator) -> Tensor:
    count = torch.Size(shape).numel() * dtype.itemsize
    filling = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=rng)
    return filling.view(dtype).view(shape)


# Layers, item, dtype, and how rows and slots lie in the memory of [L, n, *item].
FORMS: dict[str, tuple[int, tuple[int, ...], torch.dtype]] = {
    "state": (3, (2, 8, 16), torch.float32),
    "state, more than a tile": (2, (4, 70, 64), torch.bfloat16),
    "window": (3, (24, 3), torch.bfloat16),
    "odd": (1, (7,), torch.float16),
    "bytes": (2, (13,), torch.uint8),
    "fp8": (1, (5, 4), torch.float8_e4m3fn),
}


class Memory:
    """States of ``num_rows`` rows and pools; equal for equal seeds. Pools lie between guards."""

    def __init__(self, device: str, num_rows: int, seed: int = 0) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.guards = GuardedMemory(device)
        self.states, self.pools = [], []
        for layers, item, dtype in FORMS.values():
            self.states.append(random_bytes((layers, num_rows, *item), dtype, rng).to(device))
            pool = self.guards.empty(layers, SLOTS, *item, dtype=dtype)
            pool.view(torch.uint8).copy_(
                random_bytes((layers, SLOTS, *item), dtype, rng).view(torch.uint8)
            )
            self.pools.append(pool)

    def assert_equal(self, other: Memory) -> None:
        for name, mine, theirs in zip(FORMS, self.pools, other.pools, strict=True):
            assert torch.equal(as_bytes(mine), as_bytes(theirs)), name
        self.guards.check()


def random_round(rng: torch.Generator, batch: int, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Paths of 0 to WIDTH rows in windows of WIDTH rows; what follows a path is garbage."""
    lengths = torch.randint(0, WIDTH + 1, (batch,), generator=rng)
    path = torch.randint(-(2**31), 2**31 - 1, (batch, WIDTH), generator=rng)
    for b, length in enumerate(lengths.tolist()):
        rows = torch.randperm(WIDTH, generator=rng)[:length].sort().values
        path[b, :length] = b * WIDTH + rows
    slots = torch.randperm(SLOTS, generator=rng)[:batch]
    slots[lengths == 0] = -7
    return path.int().to(device), lengths.int().to(device), slots.to(device)


def test_the_state_is_that_of_the_last_committed_row(device: str) -> None:
    states = torch.arange(8.0, device=device).view(1, 8, 1).expand(2, 8, 3).contiguous()
    pool = torch.full((2, 3, 3), -1.0, device=device)
    path = int32([[0, 1, -1, -1], [4, 5, 6, -1]], device)
    arguments = [states], [pool], path, int32([2, 3], device), torch.tensor([2, 0], device=device)
    assert ops.commit_state(*arguments).tolist() == [Status.OK] * 2
    assert pool[:, :, 0].tolist() == [[6.0, -1.0, 1.0]] * 2


@pytest.mark.parametrize("batch", [1, 3, SLOTS])
def test_equals_the_reference(batch: int, device: str) -> None:
    rng = torch.Generator().manual_seed(batch)
    for seed in range(6):
        memory, expected = Memory(device, batch * WIDTH, seed), Memory("cpu", batch * WIDTH, seed)
        path, lengths, slots = random_round(rng, batch, device)
        if seed % 2:
            slots = slots.int()
        with unchanged(*memory.states, path, lengths, slots):
            status = ops.commit_state(memory.states, memory.pools, path, lengths, slots)
        on_cpu = [tensor.cpu() for tensor in (path, lengths, slots)]
        want = reference.commit_state(expected.states, expected.pools, *on_cpu)
        assert torch.equal(status.cpu(), want)
        memory.assert_equal(expected)


def test_layers_rows_and_slots_at_any_stride(device: str) -> None:
    rng = torch.Generator().manual_seed(1)
    states = torch.randn(8, 2, 3, 5, 4, generator=rng).to(device)[:, :, ::2].permute(1, 2, 0, 3, 4)
    pool = torch.zeros(SLOTS, 7, 5, 4, device=device)
    # Two layers of four, one after the other in each slot.
    buffers = [states[:, 0], states[:, 1]], [pool.transpose(0, 1)[1:3], pool.transpose(0, 1)[4:6]]
    path, lengths = int32([[3, 5]], device), int32([2], device)
    ops.commit_state(*buffers, path, lengths, torch.tensor([4], device=device))
    expected = torch.zeros_like(pool)
    expected[4, 1:3], expected[4, 4:6] = states[:, 0, 5], states[:, 1, 5]
    assert torch.equal(pool, expected)


@pytest.mark.parametrize(
    ("row", "length", "slot"),
    [(5, -1, 0), (5, WIDTH + 1, 0), (-1, 1, 0), (8, 1, 0), (0, 1, -1), (0, 1, SLOTS)],
)
def test_bad_requests_keep_their_state(row: int, length: int, slot: int, device: str) -> None:
    memory, before = Memory(device, 8), Memory(device, 8)
    path, lengths = int32([[row] * WIDTH, [4, 5, 6, 7]], device), int32([length, 2], device)
    status = int32([Status.NAN_LOGITS, Status.OK], device)
    ops.commit_state(
        memory.states, memory.pools, path, lengths, int32([slot, 3], device),
        status=status, accumulate_status=True,
    )  # fmt: skip
    assert status.tolist() == [Status.NAN_LOGITS | Status.BAD_PATH, Status.OK]
    for source, destination in zip(before.states, before.pools, strict=True):
        destination[:, 3] = source[:, 5]
    memory.assert_equal(before)


def sound(**changes: Any) -> dict[str, Any]:
    arguments = {
        "states": [torch.zeros(2, 8, 3), torch.zeros(1, 8, 2, 2)],
        "pools": [torch.zeros(2, SLOTS, 3), torch.zeros(1, SLOTS, 2, 2)],
        "accept_index": int32([[0, 1], [4, 5]]),
        "commit_lens": int32([2, 1]),
        "state_slots": torch.tensor([0, 1]),
    }
    return {**arguments, **changes}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no buffers": ({"states": [], "pools": []}, r"the number of states in \[1, 256\], got 0"),
    "a pool too few": ({"pools": [torch.zeros(2, SLOTS, 3)]}, "as many pools as states"),
    "pool of another dtype": (
        {"states": [torch.zeros(2, 8, 3)], "pools": [torch.zeros(2, SLOTS, 3).half()]},
        r"pools \[L, slots, \*item\] of one dtype, got \[2, 8, 3\] and \[2, 6, 3\]",
    ),
    "pool of another item": (
        {"states": [torch.zeros(2, 8, 3)], "pools": [torch.zeros(2, SLOTS, 4)]},
        r"got \[2, 8, 3\] and \[2, 6, 4\]",
    ),
    "pool of fewer layers": (
        {"states": [torch.zeros(2, 8, 3)], "pools": [torch.zeros(1, SLOTS, 3)]},
        r"got \[2, 8, 3\] and \[1, 6, 3\]",
    ),
    "no item": (
        {"states": [torch.zeros(2, 8)], "pools": [torch.zeros(2, SLOTS)]},
        r"expected states \[L, R, \*item\]",
    ),
    "scattered items": (
        {"states": [torch.zeros(2, 8, 6)[..., ::2]], "pools": [torch.zeros(2, SLOTS, 3)]},
        "with contiguous items",
    ),
    "one slot for all": (
        {"states": [torch.zeros(2, 8, 3)], "pools": [torch.zeros(2, 1, 3).expand(2, SLOTS, 3)]},
        "slots do not overlap, got slots 0 bytes apart",
    ),
    "items without bytes": (
        {"states": [torch.zeros(2, 8, 0)], "pools": [torch.zeros(2, SLOTS, 0)]},
        "at least one layer and byte",
    ),
    "rows of another batch": (
        {"states": [torch.zeros(2, 8, 3), torch.zeros(1, 9, 2, 2)]},
        "the same rows R and slots in all",
    ),
    "path of int64": (
        {"accept_index": torch.zeros(2, 2, dtype=torch.int64)},
        "expected accept_index of dtype int32, got int64",
    ),
    "lengths of another batch": (
        {"commit_lens": int32([1])}, r"expected commit_lens of shape \[B=2\], got \[1\]",
    ),
    "slots of float": (
        {"state_slots": torch.zeros(2)}, "state_slots of dtype int32 or int64, got float32",
    ),
    "status of another batch": (
        {"status": int32([0])}, r"expected status of shape \[B=2\], got \[1\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_wrong_arguments_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=f"commit_state: .*{message}"):
        ops.commit_state(**sound(**changes))


def test_the_sound_call_and_an_empty_batch() -> None:
    assert ops.commit_state(**sound()).tolist() == [0, 0]
    empty = {"accept_index": int32([]).view(0, 2), "commit_lens": int32([])}
    assert ops.commit_state(**sound(**empty, state_slots=int32([]))).tolist() == []


def test_schema_and_fake(device: str) -> None:
    memory = Memory(device, 8)
    path, lengths, slots = random_round(torch.Generator().manual_seed(2), 2, device)
    # Gradients of bytes are no matter, and neither are those of floats here.
    floats = [0, 1, 2]
    states, pools = ([side[i] for i in floats] for side in (memory.states, memory.pools))
    for tensor in (*states, *pools):
        tensor.zero_()
    assert_opcheck(lambda: ops.commit_state(states, pools, path, lengths, slots))


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    """One graph, replayed with other paths, lengths, slots and states in the captured tensors."""
    rng = torch.Generator().manual_seed(4)
    memory, twin = Memory(device, 3 * WIDTH), Memory("cpu", 3 * WIDTH)
    captured = random_round(rng, 3, device)
    status = torch.zeros_like(captured[1])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.commit_state(memory.states, memory.pools, *captured, status=status)
    for seed in range(20, 30):
        fresh = random_round(rng, 3, "cpu")
        for old, new in zip(captured, fresh, strict=True):
            old.copy_(new)
        other = Memory("cpu", 3 * WIDTH, seed)
        for mine, theirs, new in zip(memory.states, twin.states, other.states, strict=True):
            mine.view(torch.uint8).copy_(new.view(torch.uint8))
            theirs.view(torch.uint8).copy_(new.view(torch.uint8))
        graph.replay()
        want = reference.commit_state(twin.states, twin.pools, *fresh)
        assert torch.equal(status.cpu(), want)
        memory.assert_equal(twin)
