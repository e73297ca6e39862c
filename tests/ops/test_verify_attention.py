"""verify_attention: a few rows per request over paged keys and values.

keys   0 1 2 3 4 | 5 6 7 8 9       row of      sees
       prefix    | window          a chain     0 .. 5 + i
                                   a tree      0 .. 4, itself and its ancestors
          R 5                      a block     all
        /     \\
      A 6     B 7                  D sees      0 1 2 3 4 | 5 6 . . 9
     /   \\
   C 8   D 9
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accept_batches import int32
from attention_batches import DTYPES, assert_close, random_attention, run, workspace
from hypothesis import given, settings
from hypothesis import strategies as st
from specfast import reference
from torch import Tensor

WINDOWS = ["chain", "bits", "qlen", "block"]


def seen_keys(device: str, **more: Any) -> list[list[int]]:
    """Keys that each of five rows behind a prefix of five sees: value k is a one at place k."""
    call = {
        "query": torch.zeros(5, 1, 16),
        "key_cache": torch.zeros(10, 1, 16),
        "value_cache": torch.eye(10, 16).view(10, 1, 16),
        "page_table": int32([list(range(10))]),
        "prefix_lens": int32([5]),
        "page_size": 1,
        "qo_indptr": int32([0, 5]),
    }
    out = run(call | more, device)[:, 0]
    seen = [row.nonzero().flatten().tolist() for row in out]
    for row, keys in zip(out, seen, strict=True):
        assert torch.allclose(row[keys] * len(keys), torch.ones(len(keys), device=device))
    return seen


def article_mask(mode: str) -> Tensor:
    tree = reference.tree_from_parents(
        torch.zeros(1, 5).long(), int32([[-1, 0, 0, 1, 1]]), int32([5]), mask_mode=mode
    )
    assert tree.mask is not None
    return tree.mask


def test_a_chain_sees_what_is_before_it(device: str) -> None:
    assert seen_keys(device) == [list(range(6 + i)) for i in range(5)]


@pytest.mark.parametrize("mode", ["bits", "qlen"])
def test_a_node_sees_its_ancestors(device: str, mode: str) -> None:
    nodes = [[5], [5, 6], [5, 7], [5, 6, 8], [5, 6, 9]]
    seen = seen_keys(device, window_mask=article_mask(mode))
    assert seen == [[0, 1, 2, 3, 4, *path] for path in nodes]


def test_a_block_sees_itself_whole(device: str) -> None:
    assert seen_keys(device, block_bidirectional=True) == [list(range(10))] * 5


def test_a_sliding_window_counts_the_row_itself(device: str) -> None:
    assert seen_keys(device, sliding_window=3) == [[3 + i, 4 + i, 5 + i] for i in range(5)]
    assert seen_keys(device, sliding_window=1) == [[5 + i] for i in range(5)]
    assert seen_keys(device, sliding_window=10) == [list(range(6 + i)) for i in range(5)]


def test_a_sliding_window_goes_by_depth_in_a_tree(device: str) -> None:
    seen = seen_keys(device, window_mask=article_mask("bits"), sliding_window=3)
    assert seen == [[3, 4, 5], [4, 5, 6], [4, 5, 7], [5, 6, 8], [5, 6, 9]]
    seen = seen_keys(device, window_mask=article_mask("bits"), sliding_window=2)
    assert seen == [[4, 5], [5, 6], [5, 7], [6, 8], [6, 9]]


def test_a_sliding_window_of_a_block_looks_back_only(device: str) -> None:
    seen = seen_keys(device, block_bidirectional=True, sliding_window=2)
    assert seen == [[max(4 + i, 4), *range(5 + i, 10)] for i in range(5)]


def test_rows_that_do_not_count(device: str) -> None:
    """Nor are they seen; their keys may be anything."""
    keys = torch.zeros(10, 1, 16)
    keys[8:] = float("nan")
    seen = seen_keys(device, verify_lens=int32([3]), key_cache=keys, block_bidirectional=True)
    assert seen == [list(range(8))] * 3 + [[], []]
    assert seen_keys(device, verify_lens=int32([-1])) == [[]] * 5
    assert seen_keys(device, max_rows=2) == [list(range(6)), list(range(7)), [], [], []]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
def test_equals_the_reference(
    device: str, dtype: torch.dtype, window: str, heads: tuple[int, int]
) -> None:
    for seed, page_size in enumerate([1, 5, 16]):
        call = random_attention(
            seed,
            prefix_lens=[0, 37, 5, 130],
            rows=[3, 7, 0, 40],
            heads=heads,
            head_dim=64,
            page_size=page_size,
            dtype=dtype,
            window=window,
            padding=2,
            sliding_window=[0, 20, 3][seed],
            paged=seed == 1,
        )
        assert_close(run(call, device, workspace=workspace(call, device)), call)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 64, 128, 256])
def test_long_contexts(device: str, dtype: torch.dtype, head_dim: int) -> None:
    """Of several chunks, near ones and far ones, their ends on and beside the edges."""
    for seed, prefix_lens in enumerate(
        [[511, 512, 513], [2047, 2048, 2100], [4500, 1, 600], [8191, 8192, 10300]]
    ):
        call = random_attention(
            seed,
            prefix_lens=prefix_lens,
            rows=[2, 9, 1],
            heads=(4, 1),
            head_dim=head_dim,
            page_size=64,
            dtype=dtype,
            window=["chain", "bits"][seed % 2],
            sliding_window=[0, 0, 900, 0][seed],
        )
        assert_close(run(call, device, workspace=workspace(call, device)), call)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**31 - 1),
    lens=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), max_size=4),
    group=st.integers(1, 5),
    head_dim=st.integers(1, 20),
    page_size=st.integers(1, 9),
    window=st.sampled_from(WINDOWS),
    sliding_window=st.integers(0, 12),
    paged=st.booleans(),
)
def test_any_call_equals_the_reference(
    seed: int,
    lens: list[tuple[int, int]],
    group: int,
    head_dim: int,
    page_size: int,
    window: str,
    sliding_window: int,
    paged: bool,
) -> None:
    call = random_attention(
        seed,
        prefix_lens=[prefix for prefix, _ in lens],
        rows=[rows for _, rows in lens],
        heads=(2 * group, 2),
        head_dim=head_dim,
        page_size=page_size,
        window=window,
        padding=seed % 3,
        first_row=seed % 2,
        sliding_window=sliding_window,
        paged=paged,
    )
    assert_close(run(call, "cpu"), call)


def test_a_sliding_window_that_ends_within_the_window(device: str) -> None:
    """Deep rows see nothing of the prefix, which ends where a chunk does."""
    for dtype in DTYPES:
        for window in ("chain", "bits"):
            call = random_attention(
                2,
                prefix_lens=[512, 1024, 0, 2048],
                rows=[30, 9, 20, 5],
                head_dim=64,
                page_size=16,
                dtype=dtype,
                window=window,
                sliding_window=3,
            )
            assert_close(run(call, device, workspace=workspace(call, device)), call)


def strided(tensor: Tensor) -> Tensor:
    """The same numbers between others."""
    heads, dim = tensor.shape[-2:]
    wide = torch.full((*tensor.shape[:-2], heads + 1, dim + 8), float("nan"), dtype=tensor.dtype)
    wide[..., :heads, :dim] = tensor
    return wide[..., :heads, :dim]


def hnd(cache: Tensor) -> Tensor:
    """Heads before slots, as a view back in the order of the op."""
    return cache.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layouts_of_one_cache_give_the_same_bits(device: str, dtype: torch.dtype) -> None:
    call = random_attention(
        3, prefix_lens=[20, 70], rows=[3, 5], head_dim=64, page_size=8, dtype=dtype, paged=True
    )
    expected = run(call, device)
    keys, values = call["key_cache"], call["value_cache"]
    both = torch.stack([keys, values], dim=1)  # key and value pages in turn
    layouts: list[tuple[Tensor, Tensor]] = [
        (keys.flatten(0, 1), values.flatten(0, 1)),
        (strided(keys), strided(values)),
        (hnd(keys), hnd(values)),
        (both[:, 0], both[:, 1]),
    ]
    for key_cache, value_cache in layouts:
        # A copy to the device would be dense.
        on_device = [
            torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(t)
            for t in (key_cache, value_cache)
        ]
        same = {"key_cache": on_device[0], "value_cache": on_device[1]}
        assert torch.equal(run(call, device, **same), expected)
    rows = strided(call["query"])
    query = torch.empty_strided(rows.shape, rows.stride(), dtype=dtype, device=device).copy_(rows)
    assert torch.equal(run(call, device, query=query), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_batch(device: str, dtype: torch.dtype) -> None:
    """Alone, among others, with another workspace or without one: the same bits."""
    rows, prefix_lens = [5, 1, 30, 3], [3000, 90, 700, 4200]
    call = random_attention(
        7, prefix_lens=prefix_lens, rows=rows, heads=(8, 2), head_dim=64, page_size=16, dtype=dtype
    )
    together = run(call, device)
    for words in (None, 33_000, 100):
        space = workspace(call, device, words)
        assert torch.equal(run(call, device, workspace=space), together)
    first = 0
    for b, count in enumerate(rows):
        alone = {
            "query": call["query"][first : first + count],
            "page_table": call["page_table"][b : b + 1],
            "prefix_lens": call["prefix_lens"][b : b + 1],
            "qo_indptr": int32([0, count]),
        }
        out = run(call | alone, device, workspace=workspace(call | alone, device), max_rows=count)
        assert torch.equal(out, together[first : first + count])
        first += count


def test_requests_lie_anywhere_in_the_table(device: str) -> None:
    call = random_attention(4, prefix_lens=[9, 2, 30], rows=[1, 2, 3])
    order = [2, 0, 1]
    rows = torch.tensor(order).argsort().int()
    for table_rows in (rows, rows.clone()):
        moved = {"page_table": call["page_table"][order].long(), "page_table_rows": table_rows}
        assert torch.equal(run(call | moved, device), run(call, device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entry", [-1, -(2**31), 2**31 - 1, 19])
def test_pages_that_are_not_there_are_not_seen(device: str, dtype: torch.dtype, entry: int) -> None:
    call = random_attention(5, prefix_lens=[40, 9], rows=[6, 6], head_dim=64, dtype=dtype)
    assert len(call["key_cache"]) == 19 * call["page_size"]
    call["page_table"][0, [2, 10]] = entry
    assert_close(run(call, device), call)
    call["page_table"][:] = entry
    assert run(call, device).count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_lengths(device: str, dtype: torch.dtype) -> None:
    call = random_attention(
        6, prefix_lens=[12, 9, 5], rows=[4, 4, 4], head_dim=64, dtype=dtype, padding=3
    )
    call["page_table"] = call["page_table"].clamp(0, 3)
    call["key_cache"].nan_to_num_(), call["value_cache"].nan_to_num_()
    for bad in (-1, -(2**31), 2**31 - 1):
        lens = call["prefix_lens"].clone()
        lens[1] = bad
        changed = call | {"prefix_lens": lens}
        assert_close(run(changed, device), changed)
    for rows in ([0, -5, 9, 2**31 - 1], [2**31 - 1, 3, 0, 15], [-9, 2, 2, 12]):
        changed = call | {"qo_indptr": int32(rows)}
        assert_close(run(changed, device), changed)
    rows = [0, 8, 4, 12]  # the second has none, and the third begins within the first
    changed = call | {"qo_indptr": int32(rows)}
    got, expected = run(changed, device), reference.verify_attention(**changed)
    alone = torch.tensor([0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14])
    assert torch.allclose(got.cpu()[alone].float(), expected[alone].float(), atol=0.02)
    assert bool(got.isfinite().all())
    for table_row in (-1, 3):
        changed = call | {"page_table_rows": int32([0, table_row, 2])}
        assert_close(run(changed, device), changed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_poison_stays_with_its_request(device: str, dtype: torch.dtype) -> None:
    call = random_attention(8, prefix_lens=[30, 30], rows=[4, 4], head_dim=64, dtype=dtype)
    clean = run(call, device)
    poisoned = {name: call[name].clone() for name in ("key_cache", "value_cache", "query")}
    slot = int(call["page_table"][0, 3]) * call["page_size"]
    poisoned["key_cache"][slot] = float("nan")
    poisoned["value_cache"][slot] = float("inf")
    got = run(call | poisoned, device)
    assert bool(got[:4].isnan().all())
    assert torch.equal(got[4:], clean[4:])
    poisoned = {"query": call["query"].clone()}
    poisoned["query"][1] = float("nan")
    got = run(call | poisoned, device)
    assert bool(got[1].isnan().all())
    assert torch.equal(got[[0, *range(2, 8)]], clean[[0, *range(2, 8)]])


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores(device: str, dtype: torch.dtype) -> None:
    """One key has all the weight; no exponential overflows."""
    call = random_attention(9, prefix_lens=[600], rows=[3], head_dim=64, dtype=dtype)
    call["query"] *= 100
    assert_close(run(call, device, workspace=workspace(call, device)), call)
    assert_close(run(call, device, scale=0.001), call | {"scale": 0.001})
