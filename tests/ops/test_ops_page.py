"""The examples of docs/ops.md run as they stand, and mean what they say."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import specfast
import torch
import torch.distributed as dist
from specfast import AcceptRecord, Proposal, SamplingRules, ops
from torch import Tensor

PAGE = (Path(__file__).parents[2] / "docs/ops.md").read_text()
BATCH, DRAFTS, VOCAB = 2, 3, 40
PREFIX_LENS = torch.tensor([5, 9], dtype=torch.int32)
ANCHORS = torch.tensor([3, 4], dtype=torch.int32)
RULES = SamplingRules(torch.tensor([0.7, 0.9]), torch.tensor([1, 2]))


def run(section: str, number: int = 0, **names: Any) -> dict[str, Any]:
    """The names that an example of the section leaves behind."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    example = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]
    names = {"torch": torch, "specfast": specfast, "prefix_lens": PREFIX_LENS, **names}
    exec(example, names)
    return names


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


def accepted(
    drafts: Tensor, proposal: Proposal, said: Tensor, prefix_lens: Tensor = PREFIX_LENS
) -> list[int]:
    """How many are, by a target that says what the drafter said: all of them, if q was right."""
    logits = torch.cat([said, random(9, BATCH, 1, VOCAB)], dim=1)
    record = ops.accept_chain(
        torch.cat([ANCHORS[:, None], drafts], dim=1),
        prefix_lens,
        target_logits=logits.flatten(0, 1),
        rule="rejection",
        sampling=RULES,
        proposal=proposal,
    )
    assert record.status.tolist() == [0] * BATCH
    return record.num_correct_drafts.tolist()


def chain_record() -> AcceptRecord:
    """Of four rows each: three of the first request are committed, one of the second."""
    drafts = torch.tensor([[3, 5, 6, 7], [4, 8, 8, 8]], dtype=torch.int32)
    said = torch.tensor([5, 6, 1, 1, 9, 1, 1, 1], dtype=torch.int32)
    return ops.accept_chain(drafts, PREFIX_LENS, target_predict=said)


def test_expand_frontier() -> None:
    """With k = V all paths of two tokens are candidates, and some of three."""
    table = random(1, 3, 3).log_softmax(-1)
    names = run(
        "expand_frontier",
        logits=table[None, :1],
        drafter=lambda tokens, parents: table[tokens.long()],
        anchors=torch.zeros(1, dtype=torch.int32),
        prefix_lens=PREFIX_LENS[:1],
        depth=3,
        k=3,
        d2t=None,
        num_nodes=12,
    )
    scores: dict[tuple[int, ...], float] = {(a,): table[0, a].item() for a in range(3)}
    for a, b in itertools.product(range(3), repeat=2):
        scores[a, b] = scores[a,] + table[a, b].item()
    frontier = sorted((path for path in scores if len(path) == 2), key=scores.__getitem__)[-3:]
    for path, c in itertools.product(frontier, range(3)):
        scores[(*path, c)] = scores[path] + table[path[-1], c].item()
    best = sorted(scores, key=scores.__getitem__)[-11:]
    tree = names["tree"]
    tokens, parents = tree.draft_tokens[0].tolist(), tree.parents[0].tolist()
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, 12):
        paths.append((*paths[parents[node]], tokens[node]))
    assert sorted(paths[1:]) == sorted(best)


def test_sampled_rules() -> None:
    draft_logits = random(2, BATCH * DRAFTS, VOCAB)
    rows = torch.arange(BATCH * DRAFTS, dtype=torch.int32)
    drawn = ops.sample_rows(
        draft_logits,
        RULES,
        PREFIX_LENS,
        request_of_row=rows // DRAFTS,
        slot_of_row=rows % DRAFTS,
    )
    allowed = torch.zeros(BATCH * 4, 2, dtype=torch.int32)
    allowed[:, 0] = 1 << 7
    floats = {
        name: torch.full((BATCH,), value)
        for name, value in [
            ("repetition", 1.1),
            ("presence", 0.1),
            ("frequency", 0.2),
            ("top_p", 0.9),
        ]
    }
    names = run(
        "Sampled rules",
        **floats,
        temperature=RULES.temperature,
        seeds=RULES.seeds,
        top_k=torch.tensor([0, 5], dtype=torch.int32),
        min_p=torch.tensor([0.0, 0.1]),
        indptr=torch.tensor([0, 0, 1], dtype=torch.int32),
        ids=torch.tensor([3], dtype=torch.int32),
        counts=torch.tensor([1], dtype=torch.int32),
        biases=torch.tensor([0.5]),
        bitmask=allowed,
        draft_tokens=torch.cat([ANCHORS[:, None], drawn.tokens.view(BATCH, DRAFTS)], dim=1),
        logits=random(3, BATCH * 4, VOCAB),
        draft_logits=draft_logits,
        drawn=drawn,
    )
    record = names["record"]
    assert record.status.tolist() == [0] * BATCH
    emitted = record.out_tokens[record.out_tokens >= 0]
    assert set(emitted.tolist()) == {7}


def test_sample_rows_as_siblings() -> None:
    """q = p, so the first sibling is accepted."""
    logits = random(4, BATCH, VOCAB)
    names = run("sample_rows", draft_logits=logits, rules=RULES, step=0, k=3)
    parents = torch.tensor([[-1, 0, 0, 0]] * BATCH, dtype=torch.int32)
    tokens = torch.cat([ANCHORS[:, None], names["drawn"].tokens], dim=1)
    tree = ops.tree_from_parents(tokens, parents, PREFIX_LENS)
    record = ops.accept_tree(
        tree.draft_tokens,
        tree.retrieve_next_token,
        tree.retrieve_next_sibling,
        PREFIX_LENS,
        width=2,
        target_logits=logits.repeat_interleave(4, 0),
        rule="rejection",
        sampling=RULES,
        proposal=Proposal(
            logits=logits,
            records=names["proposal"].records,
            row_of_node=torch.tensor([[0, -1, -1, -1], [1, -1, -1, -1]], dtype=torch.int32),
            without_replacement=names["proposal"].without_replacement,
        ),
    )
    assert record.accept_index.tolist() == [[0, 1], [4, 5]]


@pytest.mark.parametrize("round_number", range(8))
def test_sample_rows_as_a_chain(round_number: int) -> None:
    table, prefix_lens, read = random(5, VOCAB, VOCAB), PREFIX_LENS + 4 * round_number, []

    def drafter(last: Tensor) -> Tensor:
        assert last.shape == (BATCH,)
        read.append(last)
        return table[last.long()]

    names = run(
        "sample_rows",
        1,
        drafter=drafter,
        rules=RULES,
        num_drafts=DRAFTS,
        tokens=ANCHORS,
        prefix_lens=prefix_lens,
    )
    drafts = torch.stack([*read[1:], names["tokens"]], dim=1)
    said = torch.stack([table[tokens.long()] for tokens in read], dim=1)
    assert accepted(drafts, names["proposal"], said, prefix_lens) == [DRAFTS] * BATCH


def test_sample_markov_block() -> None:
    logits = random(6, BATCH, DRAFTS, VOCAB)
    w1, w2 = random(7, VOCAB, 8), random(8, VOCAB, 8)
    names = run("sample_markov_block", logits=logits, w1=w1, w2=w2, anchors=ANCHORS, rules=RULES)
    drafts = names["block"].tokens
    assert torch.equal(names["drafts"][:, 1:], drafts)
    assert accepted(drafts, names["proposal"], logits) == [DRAFTS] * BATCH


def test_walk_selector() -> None:
    order = random(10, BATCH, DRAFTS, VOCAB).argsort(-1).int()
    candidates = order[..., :4].contiguous()
    unary, keys = random(11, BATCH, DRAFTS, 4), random(12, BATCH, DRAFTS, 8)
    before, after = random(13, VOCAB, 8), random(14, VOCAB, 8)
    names = run(
        "walk_selector",
        candidates=candidates,
        unary=unary,
        keys=keys,
        before=before,
        after=after,
        anchors=ANCHORS,
        rules=RULES,
    )
    after_anchor = (before[ANCHORS.long()] * keys[:, 0])[:, None] * after[candidates[:, 0].long()]
    scores = (unary[:, 0] + after_anchor.sum(-1)) / RULES.temperature[:, None]
    torch.testing.assert_close(names["walk"].q[:, 0], scores.softmax(-1))
    q = torch.zeros(BATCH, DRAFTS, VOCAB).scatter(2, candidates.long(), names["walk"].q)
    said = q.log() * RULES.temperature[:, None, None]
    assert accepted(names["walk"].tokens, names["proposal"], said) == [DRAFTS] * BATCH


def test_row_stats() -> None:
    rules = SamplingRules(RULES.temperature, RULES.seeds, top_k=torch.tensor([5, 9]).int())
    tokens = torch.randint(0, VOCAB, (BATCH, 4), generator=torch.Generator().manual_seed(1)).int()
    parents = torch.tensor([[-1, 0, 0, 1]] * BATCH, dtype=torch.int32)
    tree = ops.tree_from_parents(tokens, parents, PREFIX_LENS)
    logits = random(15, BATCH * 4, VOCAB)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        names = run(
            "row_stats",
            draft_tokens=tokens,
            shard_logits=logits,
            rules=rules,
            vocab_size=VOCAB,
            shard_size=VOCAB,
            rank=0,
            world_size=1,
            num_rows=BATCH * 4,
            device="cpu",
            next_token=tree.retrieve_next_token,
            next_sibling=tree.retrieve_next_sibling,
            width=3,
        )
    finally:
        dist.destroy_process_group()
    whole = ops.accept_target_only(
        tokens,
        PREFIX_LENS,
        logits,
        rules,
        retrieve_next_token=tree.retrieve_next_token,
        retrieve_next_sibling=tree.retrieve_next_sibling,
        width=3,
    )
    assert torch.equal(names["record"].out_tokens, whole.out_tokens)


def test_relocate_kv() -> None:
    """Rows 0, 2 and 3 of the first request come to the front of its window."""
    record = chain_record()
    record.accept_index[:] = torch.tensor([[0, 2, 3, -1], [64, -1, -1, -1]])
    pools = [torch.arange(200.0).view(200, 1, 1).clone() for _ in range(4)]
    hidden = torch.arange(128.0)[:, None]
    run(
        "relocate_kv",
        keys=pools[:2],
        values=pools[2:],
        hidden=hidden,
        record=record,
        out_cache_loc=torch.arange(128) + 50,
    )
    assert record.status.tolist() == [0, 0]
    for pool in pools:
        assert pool[50:54, 0, 0].tolist() == [50.0, 52.0, 53.0, 53.0]
    assert hidden[:4, 0].tolist() == [0.0, 2.0, 3.0, 3.0]


def test_commit_state() -> None:
    states, windows = random(16, 2, 8, 2, 3, 4), random(17, 2, 8, 6, 3)
    pools = torch.zeros(2, 5, 2, 3, 4), torch.zeros(2, 5, 6, 3)
    run(
        "commit_state",
        row_states=states,
        row_windows=windows,
        state_pool=pools[0],
        window_pool=pools[1],
        record=chain_record(),
        state_slots=torch.tensor([1, 3], dtype=torch.int32),
    )
    for rows, pool in zip((states, windows), pools, strict=True):
        assert torch.equal(pool[:, [1, 3]], rows[:, [2, 4]])


def test_inject_context_kv() -> None:
    layers, heads, channels = 2, 2, 8
    caches = [[torch.zeros(64, heads, channels) for _ in range(layers)] for _ in "kv"]
    rows = random(18, 8, layers * 2 * heads * channels)
    run(
        "inject_context_kv",
        keys=caches[0],
        values=caches[1],
        rows=rows,
        batch=BATCH,
        width=4,
        num_layers=layers,
        kv_heads=heads,
        head_dim=channels,
        record=chain_record(),
        page_table=torch.tensor([[0, 1], [2, 3]], dtype=torch.int32),
        cos=torch.ones(64, channels // 2),
        sin=torch.zeros(64, channels // 2),
        norms=torch.ones(layers, channels),
    )
    of_layers = rows.view(8, layers, 2, heads, channels)
    for layer, (keys, values) in enumerate(zip(*caches, strict=True)):
        assert torch.equal(values[[5, 6, 7, 32 + 9]], of_layers[[0, 1, 2, 4], layer, 1])
        assert keys.flatten(1).any(1).nonzero().flatten().tolist() == [5, 6, 7, 41]


def test_rows_of_a_drafter() -> None:
    int32 = {"dtype": torch.int32}
    places = run(
        "place_draft_rows",
        page_table=torch.tensor([[5, 7, 6]]),
        page_table_rows=torch.zeros(1, **int32),
        prefix_lens=torch.tensor([3], **int32),
        counts=torch.tensor([2], **int32),
    )["places"]
    assert places.pages.tolist() == [[5, 7, 8, 9, -1]]
    assert places.slots.T.tolist() == [[15, 16, -1]]
    keys, values = torch.zeros(20, 2, 4), torch.zeros(20, 2, 4)
    heads, angles = random(20, 1, 3, 8, 4), torch.zeros(6, 2)
    queries = run(
        "rope_append_kv",
        places=places,
        rows=heads.flatten(2),
        keys=keys,
        values=values,
        cos=1 + angles,
        sin=angles,
        norm=None,
    )["queries"]
    assert torch.equal(queries, heads[:, :, :4])
    assert torch.equal(keys[15:17], heads[0, :2, 4:6])
    assert torch.equal(values[15:17], heads[0, :2, 6:])


def test_layers_of_a_drafter() -> None:
    embedding, features = random(21, 9, 16), random(22, 1, 2, 16)
    names = {"embedding": embedding, "features": features, "weight": None, "d2t": None}
    tokens, parents = torch.tensor([[4, 8]]), torch.tensor([[1, 1]])
    rows = run("gather_eagle_inputs", tokens=tokens, parents=parents, **names)["rows"]
    assert torch.equal(rows, torch.cat([embedding[tokens], features[:, [1, 1]]], -1))
    inner = run("silu_and_mul", rows=rows)["inner"]
    gate, up = rows.chunk(2, -1)
    torch.testing.assert_close(inner, torch.nn.functional.silu(gate) * up)
    weight = random(23, 16)
    names = run("fused_add_rms_norm", x=inner, residual=up, weight=weight)
    assert torch.equal(names["total"], inner + up)
    expected = torch.nn.functional.rms_norm(inner + up, (16,), weight, eps=1e-6)
    torch.testing.assert_close(names["normed"], expected)


def test_grouped_dynamic_conv() -> None:
    x, base, dynamic = random(24, 1, 3, 8), random(25, 2, 8), random(26, 1, 3, 2, 4)
    rows = run("grouped_dynamic_conv", x=x, base=base, dynamic=dynamic)["rows"]
    taps = base + dynamic.repeat_interleave(2, -1)
    expected = taps[:, :, 0] * x
    expected[:, 1:] += taps[:, 1:, 1] * x[:, :-1]
    torch.testing.assert_close(rows, expected)
