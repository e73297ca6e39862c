"""verify_attention: memory, arguments, capture."""

from __future__ import annotations

import pytest
import torch
from accept_batches import int32, to_device
from attention_batches import DTYPES, Call, assert_close, random_attention, run, workspace
from guards import GuardedMemory, unchanged
from registered_ops import assert_opcheck
from specfast import ops
from torch import Tensor


def test_guards_sentinels_and_inputs(device: str) -> None:
    for dtype in DTYPES:
        call = random_attention(
            10, prefix_lens=[70, 0, 9], rows=[3, 5, 0], head_dim=64, dtype=dtype, padding=2
        )
        call = {k: to_device(v, device) for k, v in call.items()}
        expected = run(call, device)
        tensors = [value for value in call.values() if isinstance(value, Tensor)]
        for fill in (0x5C, 0x11):
            memory = GuardedMemory(device, fill)
            space = workspace(call, device)
            if space is not None:
                guarded = memory.empty(len(space))
                space = guarded.zero_()
            out = memory.empty(*call["query"].shape, dtype=dtype)
            with unchanged(*tensors):
                run(call, device, out=out, workspace=space)
            memory.check()
            assert torch.equal(out, expected)


def test_out_may_be_strided(device: str) -> None:
    call = random_attention(11, prefix_lens=[20], rows=[4], padding=1)
    wide = torch.full((5, 6, 24), 7.0, device=device)
    run(call, device, out=wide[:, 1:5, :16])
    assert torch.equal(wide[:, 1:5, :16], run(call, device))
    wide[:, 1:5, :16] = 7.0
    assert bool((wide == 7.0).all())


def test_an_empty_batch(device: str) -> None:
    call = random_attention(12, prefix_lens=[], rows=[], padding=3)
    assert run(call, device).count_nonzero() == 0
    call = random_attention(12, prefix_lens=[4, 4], rows=[0, 0])
    assert run(call, device).shape == (0, 4, 16)


def sound() -> Call:
    return random_attention(0, prefix_lens=[9, 5, 1], rows=[2, 2, 1])


QUERY, CACHE = (5, 4, 16), (36, 2, 16)
ARGUMENTS: dict[str, Call] = {
    r"query of shape \[R, H, D\], got \[5, 64\]": {"query": torch.zeros(5, 64)},
    "query of dtype float32 or bfloat16 or float16, got float64": {
        "query": torch.zeros(QUERY).double()
    },
    "query with a dense last dimension, got stride 4": {
        "query": torch.zeros(5, 16, 4).transpose(1, 2)
    },
    r"head_dim D of query in \[1, 1024\], got 0": {"query": torch.zeros(5, 4, 0)},
    "key_cache of dtype float32, got bfloat16": {"key_cache": torch.zeros(CACHE).bfloat16()},
    r"value_cache of shape \[slots=\d+, KV heads=2, D=16\], got \[36, 2, 8\]": {
        "value_cache": torch.zeros(36, 2, 8)
    },
    "value_cache with as many dimensions as key_cache, 3, got 4": {
        "value_cache": torch.zeros(9, 4, 2, 16)
    },
    r"key_cache of shape \[pages, page_size=4, KV heads, D=16\], got \[9, 5, 2, 16\]": {
        "key_cache": torch.zeros(9, 5, 2, 16),
        "value_cache": torch.zeros(9, 5, 2, 16),
    },
    "query with a multiple of the 3 heads of key_cache, got 4": {
        "key_cache": torch.zeros(36, 3, 16),
        "value_cache": torch.zeros(36, 3, 16),
    },
    "value_cache with pages 4 slots apart, as key_cache has them, got 8": {
        "key_cache": torch.zeros(9, 4, 2, 16),
        "value_cache": torch.zeros(9, 8, 2, 16)[:, :4],
    },
    r"page_table of shape \[T=3, num_pages\], got \[2, 4\]": {
        "page_table": torch.zeros(2, 4).int()
    },
    "page_table of dtype int32 or int64, got float32": {"page_table": torch.zeros(3, 4)},
    "prefix_lens of dtype int32, got int64": {"prefix_lens": torch.zeros(3).long()},
    r"the number of requests B in \[0, 1024\], got 1025": {"prefix_lens": torch.zeros(1025).int()},
    r"qo_indptr of shape \[B \+ 1=4\], got \[3\]": {"qo_indptr": int32([0, 1, 2])},
    r"verify_lens of shape \[B=3\], got \[2\]": {"verify_lens": int32([1, 1])},
    r"page_table_rows of shape \[B=3\], got \[2\]": {"page_table_rows": int32([1, 1])},
    r"page_size in \[1, 2147483647\], got 0": {"page_size": 0},
    r"max_rows in \[1, 128\], got 129": {"max_rows": 129},
    r"window_mask of shape \[B=3, N, words\], got \[2, 8, 1\]": {
        "window_mask": torch.zeros(2, 8, 1).int()
    },
    r"window_mask of ceil\(N / 32\) = 2 words, got 1": {"window_mask": torch.zeros(3, 40, 1).int()},
    r"the number of nodes N of window_mask in \[1, 128\], got 129": {
        "window_mask": torch.zeros(3, 129, 5).int()
    },
    r"window_mask of shape \[B=3, N, N=8\], got \[3, 8, 9\]": {
        "window_mask": torch.zeros(3, 8, 9).bool()
    },
    "window_mask of dtype int32 or uint8 or bool, got float32": {
        "window_mask": torch.zeros(3, 8, 8)
    },
    "block_bidirectional without window_mask, got both": {
        "window_mask": torch.zeros(3, 8, 1).int(),
        "block_bidirectional": True,
    },
    r"sliding_window in \[0, 2147483647\], got -1": {"sliding_window": -1},
    "a finite scale above 0, got 0": {"scale": 0.0},
    "a finite scale above 0, got inf": {"scale": float("inf")},
    "a finite scale above 0, got nan": {"scale": float("nan")},
    r"out of shape \[R=5, H=4, D=16\], got \[4, 4, 16\]": {"out": torch.zeros(4, 4, 16)},
    r"out with rows of their own, got strides \[0, 16, 1\]": {
        "out": torch.zeros(1, 4, 16).expand(QUERY)
    },
    "out of dtype float32, got float16": {"out": torch.zeros(QUERY).half()},
    "workspace of dtype int32, got uint8": {"workspace": torch.zeros(99, dtype=torch.uint8)},
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    with pytest.raises(RuntimeError, match="verify_attention: expected " + message):
        run(sound(), "cpu", **ARGUMENTS[message])


@pytest.mark.parametrize("dtype", DTYPES)
def test_capture_and_replay(device: str, dtype: torch.dtype) -> None:
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    call = random_attention(
        13, prefix_lens=[5000, 400, 90], rows=[6, 6, 6], head_dim=64, dtype=dtype, window="bits"
    )
    call["key_cache"].nan_to_num_(), call["value_cache"].nan_to_num_()
    call["page_table"] = call["page_table"].clamp(0, 100)
    static = {k: to_device(v, device) for k, v in call.items()}
    space = workspace(call, device)
    out = run(static, device, workspace=space)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.verify_attention(**static, out=out, workspace=space)
    for seed in range(8):
        fresh = torch.Generator().manual_seed(seed)
        lens = torch.randint(0, 5000, (3,), generator=fresh, dtype=torch.int32)
        rows = int32([0, *sorted(torch.randint(0, 19, (3,), generator=fresh).tolist())])
        static["prefix_lens"].copy_(lens)
        static["qo_indptr"].copy_(rows)
        graph.replay()
        changed = call | {"prefix_lens": lens, "qo_indptr": rows}
        assert_close(out, changed)
        assert torch.equal(out, run(changed, device))


def test_opcheck(device: str) -> None:
    call = random_attention(14, prefix_lens=[70, 9], rows=[3, 2], head_dim=64)
    assert_opcheck(lambda: run(call, device, workspace=workspace(call, device)))
