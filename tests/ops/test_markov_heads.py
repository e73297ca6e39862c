"""sample_markov_block with gated and recurrent heads: what they make of the token before.

gated   x * sigmoid(z)         z = hidden + G x
rnn     tanh(o)                g, c, o = hidden + J (s, x)
                               s' = sigmoid(g) s + (1 - sigmoid(g)) tanh(c)
"""

from __future__ import annotations

import math

import pytest
import torch
from accept_batches import int32, to_device
from hypothesis import given, settings
from hypothesis import strategies as st
from markov_batches import assert_equals_the_reference, greedy, hand_drawn, random_call, run
from registered_ops import assert_opcheck
from specfast import DraftedBlock, Status, ops
from torch import Tensor

KINDS = ("gated", "rnn")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, kind: str, unsound: bool) -> None:
    for seed in range(16):
        vocab = (2, 7, 33, 300)[seed % 4]
        call = random_call(seed, vocab, unsound=unsound, kind=kind)
        assert_equals_the_reference(call, device)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31 - 1),
    vocab=st.integers(1, 40),
    kind=st.sampled_from(KINDS),
    unsound=st.booleans(),
)
def test_any_call_equals_the_reference(seed: int, vocab: int, kind: str, unsound: bool) -> None:
    assert_equals_the_reference(random_call(seed, vocab, unsound=unsound, kind=kind), "cpu")


def by_the_formulas(call: dict, tokens: Tensor) -> Tensor:
    """Corrected logits in float64, after these drafts."""
    w1, w2, projection = (call[name].double() for name in ("w1", "w2", "projection"))
    corrected = call["logits"].double().clone()
    for b in range(len(corrected)):
        state = torch.zeros(w1.shape[1], dtype=torch.float64)
        previous = int(call["anchors"][b])
        for step, row in enumerate(corrected[b]):
            x = w1[previous]
            if call["kind"] == "gated":
                mixed = x * (projection @ x + call["hidden_rows"][b, step].double()).sigmoid()
            else:
                z = projection @ torch.cat([state, x]) + call["hidden_rows"][b, step].double()
                gate, candidate, output = z.chunk(3)
                state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
                mixed = output.tanh()
            row += w2 @ mixed
            previous = int(tokens[b, step])
    return corrected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [5, 32])
def test_close_to_the_formulas(device: str, kind: str, rank: int) -> None:
    call = random_call(3, 50, unsound=False, rank=rank, kind=kind)
    call.pop("d2t", None)
    call["w1"] = torch.randn(50, rank, generator=torch.Generator().manual_seed(1))
    assert call["logits"].dtype == torch.float32
    block, left = run(call, device)
    expected = by_the_formulas(call, block.tokens.cpu())
    torch.testing.assert_close(left.cpu().double(), expected, rtol=1e-5, atol=1e-5)


def of_zeros(kind: str, device: str, count: int = 1) -> dict:
    """``hand_drawn`` with a projection and hidden rows of zeros."""
    inputs, outputs = (1, 1) if kind == "gated" else (2, 3)
    more = {
        "projection": torch.zeros(3 * outputs, 3 * inputs),
        "hidden_rows": torch.zeros(count, 3, 3 * outputs),
    }
    more = {name: value.to(device) for name, value in more.items()}
    return {**hand_drawn(device, count=count), "kind": kind, **more}


def test_a_gate_halves_and_shuts(device: str) -> None:
    """Of number 2, the embedding of the anchor: a gate of 1/2, then one of 0 in step 1."""
    call = of_zeros("gated", device)
    call["hidden_rows"][0, 1] = -1000
    ops.sample_markov_block(**call)
    assert call["logits"].tolist() == [[[2.5, 0, 0], [0, 0, 0], [0, 2.5, 0]]]


def test_a_state_goes_from_step_to_step(device: str) -> None:
    """The state is taken over whole in step 0 and shows in step 1, a half of it in step 2."""
    call = of_zeros("rnn", device)
    hidden = call["hidden_rows"].view(3, 3, 3)  # step, third, number
    hidden[0, 0], hidden[0, 1, 1] = -1000, math.atanh(0.5)
    hidden[1, 1] = 0
    call["projection"][6:, :3] = torch.eye(3, device=device)  # o = s
    ops.sample_markov_block(**call)
    # w2 column 1 makes token 1 likely, by 5. Step 0 has no state yet.
    expected = [0.0, 5 * math.tanh(0.5), 5 * math.tanh(0.25)]
    torch.testing.assert_close(call["logits"][0, :, 1].tolist(), expected, rtol=1e-5, atol=1e-6)


def test_a_state_passes_a_token_without_an_embedding(device: str) -> None:
    call = of_zeros("rnn", device)
    call["w1"] = call["w1"][:1].contiguous()
    call["anchors"] = int32([0], device=device)
    hidden = call["hidden_rows"].view(3, 3, 3)
    hidden[0, 0], hidden[0, 1, 1] = -1000, math.atanh(0.5)
    call["projection"][6:, :3] = torch.eye(3, device=device)
    call["logits"][0, 0, 2] = 1  # token 2 has no row in w1, and its step no bias
    call["logits"][0, 1, 0] = 1
    block = ops.sample_markov_block(**call)
    assert block.tokens.tolist() == [[2, 0, 1]]
    assert block.status.tolist() == [Status.BAD_TOKEN]
    assert call["logits"][0, 1].tolist() == [1, 0, 0]
    torch.testing.assert_close(float(call["logits"][0, 2, 1]), 5 * math.tanh(0.5))


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_does_not_depend_on_its_batch(device: str, kind: str) -> None:
    """In any slot, beside padding, in a batch of several launches; also in tensor cores."""
    one = random_call(2, 300, unsound=False, rank=64, kind=kind)
    one.pop("d2t", None)
    one["sampling"] = greedy(3, temperature=0.9)
    one["anchors"] = one["anchors"].int()
    alone, alone_logits = run(one, device)
    places = torch.tensor([0, 17, 33])
    steps = alone_logits.shape[1]
    many = {**one, "anchors": torch.full((40,), -1, dtype=torch.int32)}
    many["anchors"][places] = one["anchors"]
    for name in ("logits", "hidden_rows", "prefix_lens"):
        rows = torch.zeros(40, *one[name].shape[1:], dtype=one[name].dtype)
        rows[places] = one[name]
        many[name] = rows
    many["sampling"] = greedy(40, temperature=0.9)
    many["sampling"].seeds[places] = one["sampling"].seeds
    together, left = run(many, device)
    places = places.to(device)
    assert torch.equal(together.tokens[places], alone.tokens)
    assert torch.equal(left[places], alone_logits)
    records = together.records.packed.view(40, steps, 8)
    assert torch.equal(records[places].flatten(0, 1), alone.records.packed)


@pytest.mark.parametrize("kind", KINDS)
def test_replays_of_a_graph_begin_without_a_state(device: str, kind: str) -> None:
    call = random_call(5, 30, unsound=False, rank=8, kind=kind)
    call = {name: to_device(value, device) for name, value in call.items()}
    call["logits"] = call["logits"].contiguous()
    base = call["logits"].clone()
    out = DraftedBlock.empty(*base.shape[:2], device)
    workspace = ops.markov_workspace(device)

    def again() -> None:
        call["logits"].copy_(base)
        ops.sample_markov_block(**call, out=out, workspace=workspace)

    again()
    first, tokens = call["logits"].clone(), out.tokens.clone()
    if device == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again()
        again = graph.replay
    for _ in range(3):
        again()
        assert torch.equal(call["logits"], first)
        assert torch.equal(out.tokens, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_opcheck(device: str, kind: str) -> None:
    assert_opcheck(lambda: ops.sample_markov_block(**of_zeros(kind, device)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "lstm"}, 'expected kind "vanilla", "gated" or "rnn", got "lstm"'),
        ({"kind": "vanilla"}, 'kind "vanilla" with one of them'),
        ({"projection": None}, 'kind "gated" without one of them'),
        ({"hidden_rows": None}, 'kind "gated" without one of them'),
        ({"kind": "rnn"}, r"projection of shape \[outputs=9, inputs=6\], got \[3, 3\]"),
        ({"projection": torch.eye(3).bfloat16()}, "projection of the dtype of w1"),
        ({"projection": torch.zeros(3, 6)[:, ::2]}, "projection with a dense last dimension"),
        ({"hidden_rows": torch.zeros(1, 2, 3)}, r"hidden_rows of shape \[B=1, G=3, outputs=3\]"),
        ({"hidden_rows": torch.zeros(1, 3, 3).bfloat16()}, "hidden_rows of dtype float32"),
    ],
)
def test_wrong_arguments(wrong: dict, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"sample_markov_block: .*{message}"):
        ops.sample_markov_block(**{**of_zeros("gated", "cpu"), **wrong})
