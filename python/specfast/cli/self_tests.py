"""A quick test of every op: one call on seeded inputs, against the op's definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import specfast
from specfast.cli import drafter_self_tests
from specfast.cli.self_test_inputs import BATCH, NODES, TOPK, VOCAB
from specfast.cli.self_test_inputs import anchors as _anchors
from specfast.cli.self_test_inputs import candidates as _candidates
from specfast.cli.self_test_inputs import drafts as _drafts
from specfast.cli.self_test_inputs import logits as _logits
from specfast.cli.self_test_inputs import parents as _parents
from specfast.cli.self_test_inputs import prefix_lens as _prefix_lens
from specfast.cli.self_test_inputs import rng as _rng
from specfast.cli.storage_self_tests import (
    Outputs,
    commit_state,
    inject_context_kv,
    relocate_kv,
)

# Called with specfast.ops or specfast.reference, and the device of all tensors.
SelfTest = Callable[[Any, str], Outputs]


def first_difference(op: str, device: str) -> str | None:
    """Name an output of ``op`` on ``device`` that is not what specfast.reference says, or None."""
    got = SELF_TESTS[op](specfast.ops, device)
    expected = SELF_TESTS[op](specfast.reference, "cpu")
    for name, value in expected.items():
        mine = got[name]
        if value is None or mine is None:
            if value is not mine:
                return name
        elif not _agree(name, mine.cpu(), value):
            return name
    return None


def _agree(name: str, mine: Tensor, expected: Tensor) -> bool:
    # The definition takes logarithms from the C library; but for these two all is bit-equal.
    if name == "logprobs":
        return torch.allclose(mine, expected, rtol=1e-5, atol=1e-6)
    # Tensor cores take weights rounded to bfloat16.
    if name == "attended":
        return torch.allclose(mine.float(), expected.float(), rtol=2**-7, atol=2**-7)
    return torch.equal(mine, expected)


def _accept_chain(impl: Any, device: str) -> Outputs:
    logits = _logits()
    drafts = _drafts(logits, torch.arange(NODES - 1).expand(BATCH, -1))
    record = impl.accept_chain(
        drafts.to(device), _prefix_lens().to(device), target_logits=logits.to(device)
    )
    return {**vars(record)}


def _accept_tree(impl: Any, device: str) -> Outputs:
    logits = _logits()
    parents = _parents()
    drafts = _drafts(logits, parents[:, 1:])
    tree = specfast.reference.tree_from_parents(drafts, parents, _prefix_lens())
    record = impl.accept_tree(
        drafts.to(device),
        tree.retrieve_next_token.to(device),
        tree.retrieve_next_sibling.to(device),
        _prefix_lens().to(device),
        width=NODES,
        target_logits=logits.to(device),
    )
    return {**vars(record)}


def _select_draft_tokens(impl: Any, device: str) -> Outputs:
    scores, _, parent_list = _candidates()
    selected, status = impl.select_draft_tokens(
        scores.to(device), parent_list.to(device), topk=TOPK, num_nodes=NODES
    )
    return {"selected_index": selected, "status": status}


def _build_tree(impl: Any, device: str) -> Outputs:
    scores, tokens, parent_list = _candidates()
    selected, _ = specfast.reference.select_draft_tokens(
        scores, parent_list, topk=TOPK, num_nodes=NODES
    )
    record = impl.build_tree(
        _anchors().to(device),
        tokens.gather(1, selected.long()).to(device),
        parent_list.to(device),
        selected.to(device),
        _prefix_lens().to(device),
        topk=TOPK,
    )
    return {**vars(record)}


def _select_and_build_tree(impl: Any, device: str) -> Outputs:
    scores, tokens, parent_list = (tensor.to(device) for tensor in _candidates())
    record = impl.select_and_build_tree(
        _anchors().to(device),
        scores,
        tokens,
        parent_list,
        _prefix_lens().to(device),
        topk=TOPK,
        num_nodes=NODES,
    )
    return {**vars(record)}


def _tree_from_parents(impl: Any, device: str) -> Outputs:
    drafts = _drafts(_logits(), _parents()[:, 1:])
    record = impl.tree_from_parents(
        drafts.to(device), _parents().to(device), _prefix_lens().to(device)
    )
    return {**vars(record)}


def _accept_target_only(impl: Any, device: str) -> Outputs:
    logits = 4 * _logits()  # sure enough that paths have several tokens
    parents = _parents()
    drafts = _drafts(logits, parents[:, 1:])
    tree = specfast.reference.tree_from_parents(drafts, parents, _prefix_lens())
    record = impl.accept_tree(
        drafts.to(device),
        tree.retrieve_next_token.to(device),
        tree.retrieve_next_sibling.to(device),
        _prefix_lens().to(device),
        width=NODES,
        target_logits=logits.to(device),
        rule="target_only",
        sampling=_sampling(device, edited=True),
        logprobs="processed",
    )
    return {**vars(record)}


def _accept_drawn_chain(impl: Any, device: str, rule: str) -> Outputs:
    """A chain whose drafts were drawn from logits near the target's."""
    logits = _logits()
    near = logits.float() + 0.3 * torch.randn(logits.shape, generator=_rng())
    drawn = _sample(specfast.reference, near, "cpu")
    drafts = torch.cat([_anchors()[:, None], drawn.tokens.view(BATCH, NODES)[:, :-1]], dim=1)
    record = impl.accept_chain(
        drafts.to(device),
        _prefix_lens().to(device),
        target_logits=logits.to(device),
        rule=rule,
        sampling=_sampling(device),
        proposal=specfast.Proposal(
            logits=near.to(device), records=specfast.RowRecord(drawn.records.packed.to(device))
        ),
        logprobs="raw",
    )
    return {**vars(record)}


def _accept_rejection(impl: Any, device: str) -> Outputs:
    return _accept_drawn_chain(impl, device, "rejection")


def _accept_block(impl: Any, device: str) -> Outputs:
    return _accept_drawn_chain(impl, device, "block")


def _sample_rows(impl: Any, device: str) -> Outputs:
    rows = _sample(impl, _logits(), device, num_draws=3)
    return {"tokens": rows.tokens, "records": rows.records.packed, "status": rows.status}


def _sample(impl: Any, logits: Tensor, device: str, num_draws: int = 1) -> specfast.SampledRows:
    rows = torch.arange(BATCH * NODES, dtype=torch.int32)
    drawn: specfast.SampledRows = impl.sample_rows(
        logits.to(device),
        _sampling(device),
        _prefix_lens().to(device),
        request_of_row=(rows // NODES).to(device),
        slot_of_row=(rows % NODES).to(device),
        num_draws=num_draws,
    )
    return drawn


def _sample_markov_block(impl: Any, device: str) -> Outputs:
    # Weights on a grid on which no sum is rounded, in whatever order.
    def grid(rows: int) -> Tensor:
        return (torch.randint(-4, 5, (rows, 64), generator=_rng()) / 8).bfloat16().to(device)

    outputs: Outputs = {}
    for kind, rows, columns in (("vanilla", 0, 0), ("gated", 1, 1), ("rnn", 3, 2)):
        # A rank at which CUDA adds up as the CPU does, for what a head mixes is on no grid.
        rank = 64 if kind == "vanilla" else 24
        logits = _logits().view(BATCH, NODES, VOCAB).to(device)
        w1, w2 = grid(VOCAB)[:, :rank].contiguous(), grid(VOCAB)[:, :rank].contiguous()
        hidden_rows = torch.randn(BATCH, NODES, rows * rank, generator=_rng()).to(device)
        block = impl.sample_markov_block(
            logits,
            w1,
            w2,
            _anchors().to(device),
            _sampling(device),
            _prefix_lens().to(device),
            kind=kind,
            projection=grid(rows * rank)[:, : columns * rank] if rows else None,
            hidden_rows=hidden_rows if rows else None,
        )
        packed = block.records.packed
        for name, value in (("logits", logits), ("tokens", block.tokens), ("records", packed)):
            outputs[f"{name} of a {kind} head"] = value
        outputs[f"status of a {kind} head"] = block.status
    return outputs


def _expand_frontier(impl: Any, device: str) -> Outputs:
    level = impl.expand_frontier(
        _logits()[: BATCH * TOPK].view(BATCH, TOPK, VOCAB).to(device),
        -torch.rand(BATCH, TOPK, generator=_rng()).to(device),
        topk=TOPK,
        first_candidate=TOPK,
    )
    return {**vars(level)}


def _walk_selector(impl: Any, device: str) -> Outputs:
    predecessor, successor = torch.randn(2, VOCAB, 24, generator=_rng()).bfloat16().to(device)
    walk = impl.walk_selector(
        torch.randperm(VOCAB, generator=_rng())[: BATCH * NODES * TOPK]
        .view(BATCH, NODES, TOPK)
        .to(device),
        torch.randn(BATCH, NODES, TOPK, generator=_rng()).to(device),
        torch.randn(BATCH, NODES, 24, generator=_rng()).to(device) / 4,
        predecessor,
        successor,
        _anchors().to(device),
        _sampling(device),
        _prefix_lens().to(device),
    )
    return {**vars(walk)}


def _schedule_verify_lens(impl: Any, device: str) -> Outputs:
    # Coarse logits: some survivals tie at the cut.
    logits = torch.randn(BATCH, NODES - 1, generator=_rng()).round() + 1
    schedule = impl.schedule_verify_lens(
        logits.to(device),
        torch.tensor([9], dtype=torch.int32).to(device),
        form="logits",
        temperatures=torch.linspace(0.8, 1.4, NODES - 1).to(device),
        max_lens=torch.tensor([NODES, 3, 0, NODES], dtype=torch.int32).to(device),
    )
    return {**vars(schedule)}


def _build_verify_window(impl: Any, device: str) -> Outputs:
    pages = torch.randperm(BATCH * 70, generator=_rng()).view(BATCH, 70).int()
    window = impl.build_verify_window(
        _drafts(_logits(), _parents()[:, 1:]).to(device),
        _prefix_lens().to(device),
        pages.to(device),
        num_rows=BATCH * NODES,
        page_size=16,
        anchors=_anchors().to(device),
        verify_lens=torch.tensor([NODES, 2, 0, 5], dtype=torch.int32).to(device),
    )
    return {**vars(window)}


def _verify_attention(impl: Any, device: str) -> Outputs:
    page_size, num_pages = 16, 70
    tree = specfast.reference.tree_from_parents(
        _drafts(_logits(), _parents()[:, 1:]), _parents(), _prefix_lens()
    )
    assert tree.mask is not None
    pages = torch.randperm(BATCH * num_pages, generator=_rng()).view(BATCH, num_pages).int()
    keys, values = (
        torch.randn(BATCH * num_pages * page_size, 2, 64, generator=_rng()).bfloat16()
        for _ in range(2)
    )
    query = torch.randn(BATCH * NODES, 6, 64, generator=_rng()).bfloat16()
    attended = impl.verify_attention(
        query.to(device),
        keys.to(device),
        values.flip(0).to(device),
        pages.to(device),
        _prefix_lens().to(device),
        page_size=page_size,
        qo_indptr=torch.arange(0, BATCH * NODES + 1, NODES, dtype=torch.int32).to(device),
        window_mask=tree.mask.to(device),
    )
    return {"attended": attended}


def _row_stats(impl: Any, device: str) -> Outputs:
    drafts, sampling = _sharded_round(device)
    stats = _shard(impl, drafts, sampling, 1, device)
    return {"packed": stats.packed}


def _merge_row_stats(impl: Any, device: str) -> Outputs:
    drafts, sampling = _sharded_round("cpu")
    shards = [_shard(specfast.reference, drafts, sampling, i, "cpu").packed for i in range(2)]
    stats = specfast.RowStats(torch.stack(shards).to(device), 1, 20)
    _, sampling = _sharded_round(device)
    merged = impl.merge_row_stats(stats, _prefix_lens().to(device), sampling, vocab_size=VOCAB)
    return {"target_predict": merged.target_predict, "status": merged.status}


def _sharded_round(device: str) -> tuple[Tensor, specfast.SamplingRules]:
    """Chains, and rules that shards can follow."""
    drafts = _drafts(_logits(), torch.arange(NODES - 1).expand(BATCH, -1))
    rules = _sampling(device)
    rules.top_p = torch.tensor([1.0, 1.0, 0.8, 1.0]).to(device)
    return drafts.to(device), rules


def _shard(
    impl: Any, drafts: Tensor, sampling: specfast.SamplingRules, number: int, device: str
) -> specfast.RowStats:
    """One of two shards of unequal size."""
    offsets = (0, 400, VOCAB)
    columns = slice(offsets[number], offsets[number + 1])
    stats: specfast.RowStats = impl.row_stats(
        drafts,
        _prefix_lens().to(device),
        _logits()[:, columns].to(device),
        sampling,
        vocab_size=VOCAB,
        max_candidates=1,
        max_top_k=20,
        vocab_offset=offsets[number],
    )
    return stats


def _sampling(device: str, edited: bool = False) -> specfast.SamplingRules:
    """Four ways to sample, the last one greedy; ``edited``: with a penalty and a bias."""
    rules = specfast.SamplingRules(
        temperature=torch.tensor([1.0, 0.5, 0.7, 0.0]).to(device),
        seeds=torch.tensor([1, -2, 1 << 40, 4]).to(device),
        top_k=torch.tensor([0, 5, 20, 0], dtype=torch.int32).to(device),
        top_p=torch.tensor([0.9, 1.0, 0.8, 1.0]).to(device),
    )
    if edited:
        rules.repetition_penalty = torch.full([BATCH], 1.2).to(device)
        rules.edits = specfast.LogitEdits(
            indptr=torch.arange(BATCH + 1, dtype=torch.int32).to(device),
            ids=torch.tensor([7, 8, 9, 1000], dtype=torch.int32).to(device),
            counts=torch.tensor([0, 2, -1, 1], dtype=torch.int32).to(device),
            biases=torch.tensor([3.0, -1.0, 2.0, 0.5]).to(device),
        )
    return rules


SELF_TESTS: dict[str, SelfTest] = {
    "accept_block": _accept_block,
    "accept_chain": _accept_chain,
    "accept_rejection": _accept_rejection,
    "accept_target_only": _accept_target_only,
    "accept_tree": _accept_tree,
    "build_tree": _build_tree,
    "build_verify_window": _build_verify_window,
    "commit_state": commit_state,
    "expand_frontier": _expand_frontier,
    "fused_add_rms_norm": drafter_self_tests.fused_add_rms_norm,
    "gather_eagle_inputs": drafter_self_tests.gather_eagle_inputs,
    "grouped_dynamic_conv": drafter_self_tests.grouped_dynamic_conv,
    "inject_context_kv": inject_context_kv,
    "merge_row_stats": _merge_row_stats,
    "place_draft_rows": drafter_self_tests.place_draft_rows,
    "relocate_kv": relocate_kv,
    "rope_append_kv": drafter_self_tests.rope_append_kv,
    "row_stats": _row_stats,
    "sample_markov_block": _sample_markov_block,
    "sample_rows": _sample_rows,
    "schedule_verify_lens": _schedule_verify_lens,
    "select_and_build_tree": _select_and_build_tree,
    "select_draft_tokens": _select_draft_tokens,
    "silu_and_mul": drafter_self_tests.silu_and_mul,
    "tree_from_parents": _tree_from_parents,
    "walk_selector": _walk_selector,
    "verify_attention": _verify_attention,
}
