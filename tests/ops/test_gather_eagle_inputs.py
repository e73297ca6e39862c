"""gather_eagle_inputs: the embedding of a token beside the features of its parent."""

from __future__ import annotations

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
WIDTHS = (16, 13, 4104)
VOCAB, DRAFT_VOCAB = 30, 20


def random_call(seed: int) -> dict[str, Any]:
    """Some tokens and parents are none."""
    rng = torch.Generator().manual_seed(seed)
    dtype, width = FLOATS[seed % 3], WIDTHS[seed // 3 % 3]
    batch, count = seed % 4, 1 + seed % 5
    is_tree, is_draft, is_normed = seed % 2 == 1, seed % 4 > 1, seed % 8 > 3

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=rng).to(dtype)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng)

    num_features = count + 2 if is_tree else count
    tokens = integers(-1, DRAFT_VOCAB + 1 if is_draft else VOCAB + 1, batch, 2 * count)[:, count:]
    return {
        "tokens": tokens if seed % 3 else tokens.int(),
        "embedding": normal(VOCAB, width),
        "features": normal(batch, num_features + 1, width)[:, 1:],
        "parents": integers(-1, num_features + 1, batch, count) if is_tree else None,
        "d2t": integers(0, VOCAB - DRAFT_VOCAB + 2, DRAFT_VOCAB) if is_draft else None,
        "embedding_norm_weight": normal(width) if is_normed else None,
        "features_norm_weight": normal(width) if is_normed else None,
        "eps": 1e-5,
    }


def on(call: dict[str, Any], device: str) -> dict[str, Any]:
    return {k: v.to(device) if isinstance(v, Tensor) else v for k, v in call.items()}


def assert_equals_the_reference(seed: int, device: str) -> None:
    call = random_call(seed)
    batch, count = call["tokens"].shape
    width, dtype = call["features"].shape[-1], call["features"].dtype
    want_features = torch.zeros(batch, count, width, dtype=dtype)
    want = reference.gather_eagle_inputs(**call, gathered=want_features)
    there = on(call, device)
    for fill in (0x5C, 0x11):
        memory = GuardedMemory(device, fill)
        out = memory.empty(batch, count, 2 * width, dtype=dtype)
        gathered = memory.empty(batch, count, width, dtype=dtype)
        with unchanged(*(value for value in there.values() if isinstance(value, Tensor))):
            got = ops.gather_eagle_inputs(**there, out=out, gathered=gathered)
        memory.check()
        assert torch.equal(got.cpu(), want)
        assert torch.equal(gathered.cpu(), want_features)


def test_equals_the_reference(device: str) -> None:
    for seed in range(48):
        assert_equals_the_reference(seed, device)


@settings(max_examples=30)
@given(seed=st.integers(0, 2**31 - 1))
def test_any_call_equals_the_reference(seed: int) -> None:
    assert_equals_the_reference(seed, "cpu")


def hand_drawn(device: str) -> dict[str, Any]:
    call = {
        "tokens": torch.tensor([[1, 0], [2, -1]], dtype=torch.int32),
        "embedding": torch.tensor([[10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]),
        "features": torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0], [7.0, 8.0]]]),
    }
    return on(call, device)


def test_rows_side_by_side(device: str) -> None:
    call = hand_drawn(device)
    assert ops.gather_eagle_inputs(**call).tolist() == [
        [[20.0, 21.0, 1.0, 2.0], [10.0, 11.0, 3.0, 4.0]],
        [[30.0, 31.0, 5.0, 6.0], [0.0, 0.0, 7.0, 8.0]],
    ]
    call["parents"] = torch.tensor([[1, 1], [2, 0]], device=device)
    call["d2t"] = torch.tensor([1, 1, 1], device=device)
    assert ops.gather_eagle_inputs(**call).tolist() == [
        [[30.0, 31.0, 3.0, 4.0], [20.0, 21.0, 3.0, 4.0]],
        [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 6.0]],
    ]


def test_norms_are_those_of_rows(device: str) -> None:
    call = on({**random_call(3), "parents": None}, device)
    call["features"] = call["features"][:, : call["tokens"].shape[1]]
    call["tokens"] = call["tokens"].clamp(0, DRAFT_VOCAB - 1)
    width = call["features"].shape[-1]
    weight = torch.randn(width, device=device).to(call["features"].dtype)
    halves = {"embedding_norm_weight": weight, "features_norm_weight": weight * 2}
    got = ops.gather_eagle_inputs(**{**call, **halves})
    rows = call["embedding"][call["tokens"] + call["d2t"][call["tokens"]]]
    embedded, _ = ops.fused_add_rms_norm(rows, None, weight, eps=1e-5)
    features, _ = ops.fused_add_rms_norm(call["features"], None, weight * 2, eps=1e-5)
    assert torch.equal(got, torch.cat([embedded, features], -1))


def test_a_request_does_not_depend_on_its_batch(device: str) -> None:
    call = on(random_call(7), device)
    together = ops.gather_eagle_inputs(**call)
    assert len(together) == 3
    for b in range(3):
        one = {name: call[name][b : b + 1] for name in ("tokens", "features", "parents")}
        assert torch.equal(ops.gather_eagle_inputs(**{**call, **one}), together[b : b + 1])


def test_schema_and_fake(device: str) -> None:
    call = on(random_call(7), device)
    assert_opcheck(lambda: ops.gather_eagle_inputs(**call))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "tokens of float": ({"tokens": torch.zeros(2, 2)}, "tokens of dtype int32 or int64"),
    "features of fewer nodes": (
        {"features": torch.zeros(2, 1, 2)},
        r"features of shape \[B=2, n=2, W\], got \[2, 1, 2\]",
    ),
    "an embedding of another width": (
        {"embedding": torch.zeros(3, 4)},
        r"embedding of shape \[V, W=2\], got \[3, 4\]",
    ),
    "an embedding of another dtype": (
        {"embedding": torch.zeros(3, 2).half()},
        "embedding of dtype float32, got float16",
    ),
    "parents of other nodes": (
        {"parents": torch.zeros(2, 3).long()},
        r"parents of shape \[B=2, n=2\], got \[2, 3\]",
    ),
    "d2t of int": ({"d2t": torch.zeros(3).int()}, "d2t of dtype int64, got int32"),
    "a norm of another width": (
        {"embedding_norm_weight": torch.zeros(3)},
        r"embedding_norm_weight of shape \[W=2\], got \[3\]",
    ),
    "eps": ({"eps": -0.5}, r"eps in \[0, 1\], got -0.5"),
    "a buffer of one half": (
        {"out": torch.zeros(2, 2, 2)},
        r"out of shape \[B=2, n=2, columns=4\], got \[2, 2, 2\]",
    ),
    "a buffer with gaps": (
        {"gathered": torch.zeros(2, 2, 4)[..., :2]},
        "gathered to be contiguous",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str) -> None:
    changed, sentence = REFUSED[name]
    with pytest.raises(RuntimeError, match=f"gather_eagle_inputs: expected .*{sentence}"):
        ops.gather_eagle_inputs(**{**hand_drawn("cpu"), **changed})


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_capture_and_replay(device: str) -> None:
    call = on(random_call(7), device)
    out = ops.gather_eagle_inputs(**call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.gather_eagle_inputs(**call, out=out)
    for _ in range(3):
        call["features"].normal_()
        call["tokens"].random_(-1, DRAFT_VOCAB + 1)
        graph.replay()
        assert torch.equal(out.cpu(), reference.gather_eagle_inputs(**on(call, "cpu")))
