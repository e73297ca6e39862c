"""expand_frontier: the likeliest children of each node, and the best of all of them.

       R
  A .6     B .3            k = 2, probabilities after A and B over the ids 0 to 3
0 .5 1 .25   1 .9 2 .05
.30  .15     .27  .015     candidates 2, 3, 4, 5; the best two are 2 and 4
"""

from __future__ import annotations

import math

import pytest
import torch
from accept_batches import int32, to_device
from guards import assert_written_whole
from hypothesis import given, settings
from hypothesis import strategies as st
from registered_ops import assert_opcheck
from sampled_batches import Dice
from specfast import ExpandedFrontier, Status, ops, reference

FAULTS = [math.nan, math.inf, -math.inf, -0.0, 0.0]


def hand_drawn(device: str, count: int = 1) -> dict:
    rows = torch.tensor([[[0.5, 0.25, 0.125, 0.125], [0.025, 0.9, 0.05, 0.025]]])
    scores = torch.tensor([[0.6, 0.3]])
    return {
        "logits": rows.log().repeat(count, 1, 1).to(device),
        "scores": scores.log().repeat(count, 1).to(device),
        "topk": 2,
        "first_candidate": 2,
    }


def random_call(seed: int, vocab: int, *, unsound: bool) -> dict:
    """Rows of any stride and scale, many with ties; a frontier of fewer nodes than children."""
    dice = Dice(seed)
    topk = min(vocab, int(dice.some_of([1, 2, 4, 8, 8, 10, 32])))
    num_nodes = int(dice.integers(1, topk + 1))
    dtype = (torch.float32, torch.bfloat16, torch.float16)[seed % 3]
    scale = dice.some_of([0, 0.1, 1, 5, 40], 3, num_nodes, 1)
    logits = (dice.normal(3, num_nodes, vocab + 3) * scale).to(dtype)
    if dice.happens(0.4):
        logits = logits.round()
    scores = -dice.uniform(3, num_nodes) * 9
    if unsound:
        logits = dice.with_faults(logits.float(), FAULTS, 0.2).to(dtype)
        logits[dice.uniform(3, num_nodes) < 0.2] = -math.inf
        logits[dice.uniform(3, num_nodes) < 0.1] = math.nan
        scores = dice.with_faults(scores, [math.nan, math.inf, -math.inf, -0.0], 0.2)
    call = {
        "logits": logits[..., 1 : vocab + 2],
        "scores": scores,
        "topk": topk,
        "first_candidate": int(dice.integers(0, 100)),
        "vocab_size": vocab,
    }
    if dice.happens(0.3):
        del call["scores"]
    if dice.happens(0.3):
        call["d2t"] = dice.integers(0, 50, vocab + 1).long()
        if unsound:
            call["d2t"][dice.uniform(vocab + 1) < 0.2] = int(dice.some_of([-(2.0**40), 2.0**31]))
    return call


def run(call: dict, device: str, **more) -> ExpandedFrontier:
    return ops.expand_frontier(**{k: to_device(v, device) for k, v in call.items()}, **more)


def assert_equals_the_reference(call: dict, device: str) -> None:
    got, expected = run(call, device), reference.expand_frontier(**call)
    for name, theirs in vars(expected).items():
        mine = getattr(got, name).cpu()
        assert torch.equal(mine, theirs), f"{name}: expected\n{theirs}\ngot\n{mine}"


def test_a_level(device: str) -> None:
    level = ops.expand_frontier(**hand_drawn(device))
    assert level.candidate_tokens.tolist() == [[0, 1, 1, 2]]
    expected = torch.tensor([[0.30, 0.15, 0.27, 0.015]])
    torch.testing.assert_close(level.candidate_scores.cpu().exp(), expected)
    assert level.parent_list.tolist() == [[2, 4]]
    assert level.parents.tolist() == [[0, 1]]
    assert level.tokens.tolist() == [[0, 1]]
    assert torch.equal(level.scores, level.candidate_scores[:, [0, 2]])
    assert level.status.tolist() == [[Status.OK, Status.OK]]


@settings(max_examples=100)
@given(seed=st.integers(0, 2**31 - 1), vocab=st.integers(2, 60))
def test_the_definition_is_softmax_and_sort(seed: int, vocab: int) -> None:
    call = random_call(seed, vocab, unsound=False)
    call.pop("d2t", None)
    topk, level = call["topk"], reference.expand_frontier(**call)
    logs = call["logits"][..., :vocab].double().log_softmax(-1)
    order = call["logits"][..., :vocab].float().sort(descending=True, stable=True, dim=-1)
    tokens = order.indices[..., :topk]
    assert torch.equal(level.candidate_tokens.long(), tokens.flatten(1))
    scores = logs.gather(2, tokens) + call.get("scores", torch.zeros(())).unsqueeze(-1)
    torch.testing.assert_close(
        level.candidate_scores, scores.flatten(1).float(), rtol=1e-6, atol=2e-6
    )
    chosen = level.candidate_scores.sort(descending=True, stable=True).indices[:, :topk]
    assert torch.equal(level.parent_list, call["first_candidate"] + chosen.int())
    assert torch.equal(level.parents, chosen.int() // topk)
    assert torch.equal(level.tokens, level.candidate_tokens.gather(1, chosen))


def test_scores_are_right_to_six_millionths(device: str) -> None:
    """Rows of several tiles: usual ones, flat ones, one token before all, one tile before all."""
    generator = torch.Generator().manual_seed(5)
    logits = 4 * torch.randn(4, 1, 5000, generator=generator)
    logits[1] /= 1000
    logits[2, 0, 4321] = 30
    logits[3, 0, :1024] += 200
    level = ops.expand_frontier(logits.to(device), topk=8)
    expected = logits.double().log_softmax(-1).topk(8).values.flatten(1)
    error = level.candidate_scores.cpu().double() - expected
    # Both the logarithm and what is rounded to float32.
    assert error.abs().max() < 6e-6 + 2**-24 * expected.abs().max()


@pytest.mark.parametrize("vocab", [1, 2, 7, 33, 1030, 3000])
@pytest.mark.parametrize("unsound", [False, True])
def test_equals_the_reference(device: str, vocab: int, unsound: bool) -> None:
    for seed in range(16):
        assert_equals_the_reference(random_call(seed, vocab, unsound=unsound), device)


@settings(max_examples=100)
@given(seed=st.integers(0, 2**31 - 1), vocab=st.integers(1, 40), unsound=st.booleans())
def test_any_call_equals_the_reference(seed: int, vocab: int, unsound: bool) -> None:
    assert_equals_the_reference(random_call(seed, vocab, unsound=unsound), "cpu")


@pytest.mark.parametrize("row", ["equal", "rising", "falling", "two values", "nothing", "NaN"])
@pytest.mark.parametrize("topk", [1, 8, 32])
def test_rows_whose_best_tokens_are_hard_to_bound(device: str, row: str, topk: int) -> None:
    vocab = 20000
    rows = {
        "equal": torch.zeros(vocab),
        "rising": torch.arange(vocab) / 64,
        "falling": -torch.arange(vocab) / 64,
        "two values": (torch.arange(vocab) % 3 == 0).float(),
        "nothing": torch.full((vocab,), -math.inf),
        "NaN": torch.where(torch.arange(vocab) % 7 == 0, math.nan, torch.arange(vocab) % 5),
    }
    call = {"logits": rows[row].expand(1, 1, -1).contiguous(), "topk": topk}
    assert_equals_the_reference(call, device)


def test_ties_go_to_the_lower_id_and_the_lower_number(device: str) -> None:
    level = ops.expand_frontier(torch.zeros(1, 3, 9, device=device), topk=3)
    assert level.candidate_tokens.tolist() == [[0, 1, 2] * 3]
    assert level.parent_list.tolist() == [[0, 1, 2]]
    assert level.parents.tolist() == [[0, 0, 0]]


def test_bad_rows_of_one_request(device: str) -> None:
    """NaN, nothing, +inf, a node that cannot be reached."""
    logits = torch.zeros(1, 4, 6, device=device)
    logits[0, 0, 1] = math.nan
    logits[0, 1] = -math.inf
    logits[0, 2, 3:5] = math.inf
    scores = torch.tensor([[-1.0, -1.0, -1.0, -math.inf]], device=device)
    level = ops.expand_frontier(logits, scores, topk=4)
    tokens = level.candidate_tokens.view(4, 4).tolist()
    assert tokens == [[0, 2, 3, 4], [0, 1, 2, 3], [3, 4, 0, 1], [0, 1, 2, 3]]
    rows = level.candidate_scores.view(4, 4).tolist()
    assert rows[0] == pytest.approx([-1 - math.log(5)] * 4)
    assert rows[1] == [-math.inf] * 4
    assert rows[2] == [-1.0, *[-math.inf] * 3]
    assert rows[3] == [-math.inf] * 4
    assert level.parent_list.tolist() == [[8, 0, 1, 2]]
    assert level.status.tolist() == [[Status.NAN_LOGITS, Status.EMPTY_SUPPORT, 0, 0]]


def test_ids_of_the_target(device: str) -> None:
    call = hand_drawn(device)
    call["d2t"] = torch.tensor([10, 20, -3, 0], device=device)
    level = ops.expand_frontier(**call)
    assert level.candidate_tokens.tolist() == [[10, 21, 21, -1]]
    assert level.tokens.tolist() == [[10, 21]]


def test_levels_side_by_side_are_a_tree(device: str) -> None:
    """Every path of three tokens out of three, by a law of the last token: the best come out."""
    topk = vocab = 3
    law = torch.rand(vocab + 1, vocab, generator=torch.Generator().manual_seed(3)).to(device)
    tokens = torch.full((1, 21), -1, dtype=torch.int32, device=device)
    scores = torch.full((1, 21), math.nan, device=device)
    parent_list = torch.full((1, 7), -1, dtype=torch.int32, device=device)
    frontier, above, first = torch.full((1, 1), vocab, device=device), None, 0
    for level in range(3):
        end = first + frontier.shape[1] * topk
        out = ExpandedFrontier.empty(1, frontier.shape[1], topk, device)
        out.candidate_tokens, out.candidate_scores = tokens[:, first:end], scores[:, first:end]
        if level < 2:
            out.parent_list = parent_list[:, 1 + level * topk :][:, :topk]
        ops.expand_frontier(law[frontier], above, topk=topk, first_candidate=first, out=out)
        frontier, above, first = out.tokens.long(), out.scores, end
    tree = ops.select_and_build_tree(
        int32([7], device=device), scores, tokens, parent_list, int32([0], device=device),
        topk=topk, num_nodes=10,
    )  # fmt: skip
    assert tree.status.tolist() == [Status.OK]
    nodes = tree.draft_tokens[0].tolist()
    paths = [()]
    for token, parent in zip(nodes[1:], tree.parents[0, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    logs = law.cpu().double().log_softmax(-1).tolist()
    worth = {(): 0.0}
    for path in [(a,) for a in range(3)]:
        worth[path] = logs[vocab][path[0]]
    for a in range(3):
        for b in range(3):
            worth[a, b] = worth[a,] + logs[a][b]
    for path in sorted((p for p in worth if len(p) == 2), key=worth.__getitem__)[-topk:]:
        for c in range(3):
            worth[(*path, c)] = worth[path] + logs[path[1]][c]
    assert set(paths) == set(sorted(worth, key=worth.__getitem__)[-10:])


def test_a_request_does_not_depend_on_its_batch(device: str) -> None:
    for seed in range(6):
        call = random_call(seed, 200, unsound=seed % 2 == 1)
        whole = run(call, device)
        for b in range(3):
            one = dict(call)
            one["logits"] = call["logits"][b : b + 1]
            if "scores" in call:
                one["scores"] = call["scores"][b : b + 1]
            alone = run(one, device)
            for name, value in vars(alone).items():
                assert torch.equal(value[0], getattr(whole, name)[b]), name


def test_replays_of_a_graph(device: str) -> None:
    call = hand_drawn(device, count=9)
    out = ExpandedFrontier.empty(9, 2, 2, device)

    def again() -> None:
        ops.expand_frontier(**call, out=out)

    if device == "cuda":
        again()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            ops.expand_frontier(**call, out=out)
        again = graph.replay
    for number in range(3):
        call["logits"].copy_(call["logits"].roll(1, 2) + number)
        again()
        expected = reference.expand_frontier(**{k: to_device(v, "cpu") for k, v in call.items()})
        for name, value in vars(expected).items():
            assert torch.equal(getattr(out, name).cpu(), value), name


def test_guards_sentinels_and_inputs(device: str) -> None:
    for seed in range(8):
        call = random_call(seed, 50, unsound=seed > 3)
        call = {k: to_device(v, device) for k, v in call.items()}
        inputs = [value for value in call.values() if isinstance(value, torch.Tensor)]
        assert_written_whole(
            lambda out, call=call: ops.expand_frontier(**call, out=out),
            ops.expand_frontier(**call),
            device,
            *inputs,
        )


def test_no_requests(device: str) -> None:
    level = ops.expand_frontier(torch.zeros(0, 2, 5, device=device), topk=3)
    assert level.candidate_tokens.shape == (0, 6)


def test_opcheck(device: str) -> None:
    assert_opcheck(lambda: ops.expand_frontier(**hand_drawn(device)))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"logits": torch.zeros(2, 4)}, r"logits of shape \[B, n, V\], got \[2, 4\]"),
        ({"logits": torch.zeros(1, 2, 4).int()}, "logits of dtype float32 or bfloat16 or float16"),
        ({"logits": torch.zeros(1, 4, 2).mT}, "logits with a dense last dimension"),
        ({"logits": torch.zeros(1, 3, 4)}, r"number of nodes n of logits in \[1, 2\], got 3"),
        ({"logits": torch.zeros(1, 0, 4)}, r"number of nodes n of logits in \[1, 2\], got 0"),
        ({"topk": 0}, r"topk in \[1, 32\], got 0"),
        ({"topk": 33}, r"topk in \[1, 32\], got 33"),
        ({"topk": 2**62}, r"topk in \[1, 32\], got 4611686018427387904"),
        ({"topk": 5}, r"topk, children of a node out of vocab_size tokens, in \[1, 4\], got 5"),
        ({"vocab_size": 1}, r"out of vocab_size tokens, in \[1, 1\], got 2"),
        ({"vocab_size": 5}, r"vocab_size in \[1, 4\], got 5"),
        ({"first_candidate": -1}, "first_candidate in .*, got -1"),
        ({"scores": torch.zeros(1, 3)}, r"scores of shape \[B=1, n=2\], got \[1, 3\]"),
        ({"scores": torch.zeros(1, 2).half()}, "scores of dtype float32, got float16"),
        ({"d2t": torch.zeros(4).int()}, "d2t of dtype int64, got int32"),
        ({"d2t": torch.zeros(3).long()}, r"d2t of shape \[V=4\], got \[3\]"),
        (
            {"out": ExpandedFrontier.empty(1, 2, 3, "cpu")},
            r"out.candidate_tokens of shape \[B=1, n k=4\], got \[1, 6\]",
        ),
        (
            {"out": ExpandedFrontier.empty(1, 1, 4, "cpu")},
            r"out.parent_list of shape \[B=1, k=2\], got \[1, 4\]",
        ),
    ],
)
def test_wrong_arguments(wrong: dict, message: str) -> None:
    with pytest.raises(RuntimeError, match=f"expand_frontier: .*{message}"):
        ops.expand_frontier(**{**hand_drawn("cpu"), **wrong})


@pytest.mark.parametrize("name", ["candidate_tokens", "candidate_scores", "parent_list"])
def test_rows_that_share_memory_are_not_written(name: str) -> None:
    out = ExpandedFrontier.empty(2, 2, 2, "cpu")
    setattr(out, name, getattr(out, name)[:1].expand(2, -1))
    with pytest.raises(
        RuntimeError, match=rf"out.{name} with rows of their own, got strides \[0, 1"
    ):
        ops.expand_frontier(**hand_drawn("cpu", count=2), out=out)
