"""sample_markov_block in plain torch: a block of drafts whose logits wait for the token before."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.reference.float32 import fma
from specfast.reference.sample import sample_rows
from specfast.reference.sigmoid import sigmoid, tanh
from specfast.sampling import DraftedBlock, RowKind, SamplingRules
from specfast.status import Status

_NUM_SUMS = 8


def sample_markov_block(
    logits: Tensor,
    w1: Tensor,
    w2: Tensor,
    anchors: Tensor,
    sampling: SamplingRules,
    prefix_lens: Tensor,
    *,
    kind: str = "vanilla",
    projection: Tensor | None = None,
    hidden_rows: Tensor | None = None,
    d2t: Tensor | None = None,
) -> DraftedBlock:
    """Correct the logits in place and draw from them, step by step; see the op."""
    batch_size, num_steps, _ = logits.shape
    block = DraftedBlock.empty(batch_size, num_steps, "cpu")
    records = block.records.packed.view(batch_size, num_steps, 8)
    block.status[:] = 0
    previous = anchors.tolist()
    states = torch.zeros(batch_size, w1.shape[1])
    for step in range(num_steps):
        for b in range(batch_size):
            if int(anchors[b]) < 0:
                block.tokens[b, step] = -1
                records[b, step] = torch.tensor([0, 0, 0, -1, 0, 0, -1, RowKind.UNUSABLE])
            elif 0 <= previous[b] < len(w1):
                mixed = w1[previous[b]]
                if projection is not None:
                    assert hidden_rows is not None
                    joined = torch.cat([states[b], mixed.float()]) if kind == "rnn" else mixed
                    z = hidden_rows[b, step] + low_rank_bias(projection, joined)
                    mixed, states[b] = _mixed(kind, z, mixed, states[b])
                bias = low_rank_bias(w2, mixed)
                logits[b, step] = (logits[b, step].float() + bias).to(logits.dtype)
            else:
                block.status[b] |= Status.BAD_TOKEN
        drawn = sample_rows(logits[:, step], sampling, prefix_lens, level=step)
        for b in range(batch_size):
            if int(anchors[b]) < 0:
                continue
            token = int(drawn.tokens[b, 0])
            if d2t is not None:
                token += int(d2t[token])
                token = token if 0 <= token < 2**31 - 1 else -1
            block.tokens[b, step] = token
            records[b, step] = drawn.records.packed[b]
            block.status[b] |= drawn.status[b]
            previous[b] = token
    return block


def _mixed(kind: str, z: Tensor, embedded: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """What w2 is applied to, in the dtype of ``embedded``, and the next state."""
    if kind == "gated":
        return (sigmoid(z) * embedded.float()).to(embedded.dtype), state
    gate, candidate, output = z.chunk(3)
    gate = sigmoid(gate)
    state = gate * state + (1.0 - gate) * tanh(candidate)
    return tanh(output).to(embedded.dtype), state


def low_rank_bias(w2: Tensor, embedded: Tensor) -> Tensor:
    """``w2`` [V, r] times ``embedded`` [r] in float32, in the order that the op adds up in."""
    sums = [torch.zeros(len(w2)) for _ in range(_NUM_SUMS)]
    for k, factor in enumerate(embedded.float().tolist()):
        sums[k % _NUM_SUMS] = fma(w2[:, k].float(), factor, sums[k % _NUM_SUMS])
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [low + high for low, high in zip(sums[:half], sums[half:], strict=True)]
    return sums[0]
