"""Rounds that follow each other without the host: captured once, replayed many times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from chi_square import assert_follows
from hand_written_rounds import ids, log, one_hot_q
from specfast import AcceptRecord, SampledRows, ops, reference
from toy_models import plain_sampling

NUM_ROUNDS = 400
P = (0.4, 0.6)


def repeated(device: str, call: Callable[[], object], reset: Callable[[], object]) -> Callable:
    """What runs ``call`` once more: a replay of its graph, or on a CPU the call itself."""
    if device == "cpu":
        return call
    call()
    reset()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


@pytest.mark.parametrize("num_drafts", [0, 2])
@pytest.mark.parametrize("rule", ["target_only", "rejection", "block"])
def test_b28_every_replay_has_its_own_coins(device: str, rule: str, num_drafts: int) -> None:
    drafts = ids([0, 1, 0][: num_drafts + 1])
    logits = log(list(P)).repeat(num_drafts + 1, 1)
    q = {} if rule == "target_only" else {"proposal": one_hot_q(drafts, 2)}
    lens = ids([5])[0]
    expected = []
    for _ in range(NUM_ROUNDS):
        out = reference.accept_chain(
            drafts, lens, target_logits=logits, rule=rule, sampling=plain_sampling(1), **q
        )
        expected.append(out.out_tokens[0].tolist())
        lens = out.new_seq_lens

    record = AcceptRecord.empty(1, num_drafts + 1, num_drafts + 1, device)
    tokens, rows, lens = drafts.to(device), logits.to(device), ids([5])[0].to(device)
    sampling = plain_sampling(1, device)
    q = {} if rule == "target_only" else {"proposal": one_hot_q(drafts.to(device), 2)}

    def call() -> None:
        ops.accept_chain(
            tokens, lens, target_logits=rows, rule=rule, sampling=sampling, out=record, **q
        )
        lens.copy_(record.new_seq_lens)

    again = repeated(device, call, lambda: lens.fill_(5))
    outputs = []
    for _ in range(NUM_ROUNDS):
        again()
        outputs.append(record.out_tokens[0].tolist())
    assert outputs == expected
    assert_follows(Counter(out[0] for out in outputs), dict(enumerate(P)))


def test_b28_every_replay_draws_anew(device: str) -> None:
    rows, lens = log(list(P)).to(device), ids([5])[0].to(device)
    sampling = plain_sampling(1, device)
    out = ops.sample_rows(rows, sampling, lens)
    at_once = ops.sample_rows(
        log(list(P)).repeat(NUM_ROUNDS, 1),
        plain_sampling(NUM_ROUNDS, seeds=torch.zeros(NUM_ROUNDS, dtype=torch.int64)),
        torch.arange(5, 5 + NUM_ROUNDS, dtype=torch.int32),
    )

    def call() -> SampledRows:
        drawn = ops.sample_rows(rows, sampling, lens, out=out)
        lens.add_(1)
        return drawn

    again = repeated(device, call, lambda: lens.fill_(5))
    tokens = []
    for _ in range(NUM_ROUNDS):
        again()
        tokens.append(out.tokens.item())
    assert tokens == at_once.tokens.flatten().tolist()
    assert_follows(Counter(tokens), dict(enumerate(P)))
