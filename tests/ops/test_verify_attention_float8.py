"""verify_attention over keys and values in float8_e4m3fn, with scales."""

from __future__ import annotations

import pytest
import torch
from accept_batches import int32, to_device
from attention_batches import DTYPES, Call, assert_close, random_attention, run, workspace
from guards import GuardedMemory, unchanged
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from specfast import ops
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", ["chain", "bits", "qlen", "block"])
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
            scales=[1, heads[1], heads[1]][seed],
        )
        assert_close(run(call, device, workspace=workspace(call, device)), call)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 64, 128, 256])
def test_long_contexts(device: str, dtype: torch.dtype, head_dim: int) -> None:
    for seed, prefix_lens in enumerate([[511, 512, 513], [2047, 2048, 2100]]):
        call = random_attention(
            seed,
            prefix_lens=prefix_lens,
            rows=[2, 9, 1],
            heads=(4, 2),
            head_dim=head_dim,
            page_size=64,
            dtype=dtype,
            window=["chain", "bits"][seed],
            sliding_window=[0, 900][seed],
            scales=2,
        )
        assert_close(run(call, device, workspace=workspace(call, device)), call)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**31),
    lens=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=4),
    group=st.integers(1, 4),
    head_dim=st.integers(1, 20),
    page_size=st.integers(1, 9),
    window=st.sampled_from(["chain", "bits", "block"]),
    sliding_window=st.integers(0, 12),
    scales=st.sampled_from([1, 2]),
)
def test_any_call_equals_the_reference(
    seed: int,
    lens: list[tuple[int, int]],
    group: int,
    head_dim: int,
    page_size: int,
    window: str,
    sliding_window: int,
    scales: int,
) -> None:
    call = random_attention(
        seed,
        prefix_lens=[prefix for prefix, _ in lens],
        rows=[rows for _, rows in lens],
        heads=(2 * group, 2),
        head_dim=head_dim,
        page_size=page_size,
        window=window,
        sliding_window=sliding_window,
        scales=scales,
    )
    assert_close(run(call, "cpu"), call)


def every_value(device: str) -> Tensor:
    """The 254 numbers of the format in a cache of one slot each, [254, 1, 1]."""
    numbers = [i for i in range(256) if i & 127 != 127]
    return torch.tensor(numbers, dtype=torch.uint8, device=device).view(FLOAT8).view(-1, 1, 1)


def test_every_number_is_read_exactly(device: str) -> None:
    """One key each, whose value comes back; scales are powers of two."""
    values = every_value(device)
    count = len(values)
    out = ops.verify_attention(
        torch.zeros(count, 1, 1, device=device),
        torch.zeros(count, 1, 1, device=device).to(FLOAT8),
        values,
        torch.arange(count, device=device).view(-1, 1),
        torch.zeros(count, dtype=torch.int32, device=device),
        page_size=1,
        qo_indptr=torch.arange(count + 1, dtype=torch.int32, device=device),
        key_scale=torch.ones(1, device=device),
        value_scale=torch.full((1,), 0.25, device=device),
    )
    assert torch.equal(out, values.float() / 4)


@pytest.mark.parametrize("window", ["chain", "bits"])
def test_float32_over_the_numbers_themselves_has_the_same_bits(device: str, window: str) -> None:
    """Scales that are powers of two round nothing, on either side."""
    call = random_attention(
        3, prefix_lens=[600, 9], rows=[5, 3], head_dim=64, page_size=8, window=window, scales=2
    )
    call["key_scale"] = torch.tensor([0.125, 2.0])
    call["value_scale"] = torch.tensor([4.0, 0.5])
    plain = {name: value for name, value in call.items() if not name.endswith("_scale")}
    for name in ("key", "value"):
        plain[f"{name}_cache"] = call[f"{name}_cache"].float() * call[f"{name}_scale"][:, None]
    assert torch.equal(run(call, device), run(plain, device))
    swapped = {"key_scale": call["value_scale"], "value_scale": call["key_scale"]}
    assert not torch.equal(run(call | swapped, device), run(plain, device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_does_not_depend_on_its_batch(device: str, dtype: torch.dtype) -> None:
    rows = [5, 1, 30]
    call = random_attention(
        7, prefix_lens=[1500, 90, 700], rows=rows, heads=(8, 2), head_dim=64, page_size=16,
        dtype=dtype, scales=2,
    )  # fmt: skip
    together = run(call, device, workspace=workspace(call, device))
    first = 0
    for b, count in enumerate(rows):
        alone = {
            "query": call["query"][first : first + count],
            "page_table": call["page_table"][b : b + 1],
            "prefix_lens": call["prefix_lens"][b : b + 1],
            "qo_indptr": int32([0, count]),
        }
        assert torch.equal(run(call | alone, device), together[first : first + count])
        first += count


def test_layouts_of_one_cache_give_the_same_bits(device: str) -> None:
    call = random_attention(
        3, prefix_lens=[20, 70], rows=[3, 5], head_dim=64, page_size=8, paged=True, scales=1
    )
    call = {name: to_device(value, device) for name, value in call.items()}
    expected = run(call, device)
    keys, values = call["key_cache"], call["value_cache"]
    both = torch.stack([keys.view(torch.uint8), values.view(torch.uint8)], dim=1).view(FLOAT8)

    def hnd(cache: Tensor) -> Tensor:
        return cache.transpose(1, 2).contiguous().transpose(1, 2)

    for key_cache, value_cache in [
        (keys.flatten(0, 1), values.flatten(0, 1)),
        (hnd(keys), hnd(values)),
        (both[:, 0], both[:, 1]),
    ]:
        same = {"key_cache": key_cache, "value_cache": value_cache}
        assert torch.equal(run(call | same, device), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("entry", [-1, -(2**31), 2**31 - 1, 19])
def test_pages_that_are_not_there_are_not_seen(device: str, dtype: torch.dtype, entry: int) -> None:
    call = random_attention(5, prefix_lens=[40, 9], rows=[6, 6], head_dim=64, dtype=dtype, scales=1)
    assert len(call["key_cache"]) == 19 * call["page_size"]
    call["page_table"][0, [2, 10]] = entry
    assert_close(run(call, device), call)
    call["page_table"][:] = entry
    assert run(call, device).count_nonzero() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("nan", [0x7F, 0xFF])
@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
def test_a_nan_that_is_seen_stays_with_its_request(
    device: str, dtype: torch.dtype, nan: int, name: str
) -> None:
    call = random_attention(
        8, prefix_lens=[30, 30], rows=[4, 4], head_dim=64, dtype=dtype, scales=2
    )
    clean = run(call, device)
    poisoned = call[name].view(torch.uint8).clone()
    poisoned[int(call["page_table"][0, 3]) * call["page_size"]] = nan
    got = run(call | {name: poisoned.view(FLOAT8)}, device)
    assert bool(got[:4].isnan().all())
    assert torch.equal(got[4:], clean[4:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [float("nan"), 0.0, -1.0, float("inf")])
@pytest.mark.parametrize("name", ["key_scale", "value_scale"])
def test_a_scale_that_is_none_stays_with_its_head(
    device: str, dtype: torch.dtype, bad: float, name: str
) -> None:
    call = random_attention(
        8, prefix_lens=[30], rows=[4], head_dim=64, heads=(4, 2), dtype=dtype, scales=2
    )
    clean = run(call, device)
    scale = call[name].clone()
    scale[1] = bad
    got = run(call | {name: scale}, device)
    assert torch.equal(got[:, :2], clean[:, :2])
    assert bool(got[:, 2:].isnan().all())


def test_guards_sentinels_and_inputs(device: str) -> None:
    for dtype in DTYPES:
        call = random_attention(
            10, prefix_lens=[70, 0, 9], rows=[3, 5, 0], head_dim=64, dtype=dtype, padding=2,
            scales=2,
        )  # fmt: skip
        call = {k: to_device(v, device) for k, v in call.items()}
        expected = run(call, device)
        tensors = [value for value in call.values() if isinstance(value, Tensor)]
        for fill in (0x5C, 0x11):
            memory = GuardedMemory(device, fill)
            out = memory.empty(*call["query"].shape, dtype=dtype)
            with unchanged(*tensors):
                run(call, device, out=out)
            memory.check()
            assert torch.equal(out, expected)


def sound() -> Call:
    return random_attention(0, prefix_lens=[9, 5, 1], rows=[2, 2, 1], scales=2)


SCALES = "key_scale and value_scale with keys and values of float8_e4m3fn, got "
ARGUMENTS: dict[str, Call] = {
    SCALES + "neither": {"key_scale": None, "value_scale": None},
    SCALES + "key_scale alone": {"value_scale": None},
    SCALES + "value_scale alone": {"key_scale": None},
    "key_cache of dtype float8_e4m3fn, got float32": {"key_cache": torch.zeros(36, 2, 16)},
    "value_cache of dtype float8_e4m3fn, got float8_e5m2": {
        "value_cache": torch.zeros(36, 2, 16).to(torch.float8_e5m2)
    },
    "value_cache of dtype float8_e4m3fn, got bfloat16": {
        "value_cache": torch.zeros(36, 2, 16).bfloat16()
    },
    "key_scale of dtype float32, got float64": {"key_scale": torch.ones(2).double()},
    r"key_scale of shape \[KV heads=2\], got \[3\]": {"key_scale": torch.ones(3)},
    r"value_scale of shape \[KV heads=2\], got \[0\]": {"value_scale": torch.ones(0)},
    r"value_scale of shape \[KV heads=2\], got \[1, 2\]": {"value_scale": torch.ones(1, 2)},
    r"key_scale to be contiguous, got strides \[2\]": {"key_scale": torch.ones(4)[::2]},
    "query of dtype float32 or bfloat16 or float16, got float8_e4m3fn": {
        "query": torch.zeros(5, 4, 16).to(FLOAT8)
    },
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_bad_arguments_are_named(message: str) -> None:
    with pytest.raises(RuntimeError, match="verify_attention: expected " + message):
        run(sound(), "cpu", **ARGUMENTS[message])


def test_other_caches_are_refused_without_scales() -> None:
    bare = {"key_scale": None, "value_scale": None}
    for dtype, name in ((torch.float8_e5m2, "float8_e5m2"), (torch.bfloat16, "bfloat16")):
        caches = {name: sound()[name].to(dtype) for name in ("key_cache", "value_cache")}
        with pytest.raises(RuntimeError, match=f"key_cache of dtype float32, got {name}"):
            run(sound(), "cpu", **caches, **bare)


def test_scales_of_another_device_are_refused(device: str) -> None:
    if device == "cpu":
        pytest.skip("there is no other")
    call = {name: to_device(value, device) for name, value in sound().items()}
    with pytest.raises(RuntimeError, match="expected key_scale on cuda:0, got cpu"):
        ops.verify_attention(**call | {"key_scale": torch.ones(2)})


@pytest.mark.parametrize("dtype", DTYPES)
def test_capture_and_replay(device: str, dtype: torch.dtype) -> None:
    """Lengths and scales may change between replays."""
    if device == "cpu":
        pytest.skip("a CUDA Graph needs a GPU")
    call = random_attention(
        13, prefix_lens=[1500, 400, 90], rows=[6, 6, 6], head_dim=64, dtype=dtype, window="bits",
        scales=2,
    )  # fmt: skip
    static = {name: to_device(value, device) for name, value in call.items()}
    out = run(static, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.verify_attention(**static, out=out)
    for seed in range(4):
        fresh = torch.Generator().manual_seed(seed)
        lens = torch.randint(0, 90, (3,), generator=fresh, dtype=torch.int32)
        scale = torch.rand(2, generator=fresh)
        static["prefix_lens"].copy_(lens)
        static["value_scale"].copy_(scale)
        graph.replay()
        changed = call | {"prefix_lens": lens, "value_scale": scale}
        assert_close(out, changed)
        assert torch.equal(out, run(changed, device))


def test_opcheck(device: str) -> None:
    call = random_attention(14, prefix_lens=[70, 9], rows=[3, 2], head_dim=64, scales=1)
    # Not the check of the schema, which compares arguments in an arithmetic that float8 lacks.
    assert_opcheck(
        lambda: run(call, device),
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )
