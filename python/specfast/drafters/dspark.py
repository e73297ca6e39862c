"""DSpark: the backbone of DFlash, a sequential head over its rows, and a confidence head.

DeepSpec's own DFlash files have this layout without the heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import BlockContext, BlockDrafts, DFlashModel


class DSparkModel(DFlashModel):
    """The heads of DSpark over tensors of one request."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        super().__init__(spec, weights)
        self.markov = None if spec.markov is None else MarkovHead(spec, weights)

    def draft(self, context: BlockContext, anchor: int) -> BlockDrafts:
        """As :meth:`DFlashModel.draft`, left to right: a draft changes the logits of the next."""
        hidden = self.proposal_rows(self.block(context, anchor))
        logits = self.logits(hidden)
        if self.markov is not None:
            logits, tokens = self._walk(self.markov, hidden, logits, anchor)
        else:
            tokens = self.target_ids(logits.argmax(-1))
        return BlockDrafts(tokens, logits, self._confidence(hidden, tokens, anchor))

    def _walk(
        self, markov: MarkovHead, hidden: Tensor, logits: Tensor, anchor: int
    ) -> tuple[Tensor, Tensor]:
        """Corrected logits and the drafts that are their argmax."""
        state = markov.first_state()
        rows, tokens = [], [torch.tensor([anchor], device=hidden.device)]
        for row, own in zip(torch.split(hidden, 1), torch.split(logits, 1), strict=True):
            bias, state = markov.bias(tokens[-1], row, state)
            rows.append(own + bias)
            tokens.append(self.target_ids(rows[-1].argmax(-1)))
        return torch.cat(rows), torch.cat(tokens[1:])

    def _confidence(self, hidden: Tensor, tokens: Tensor, anchor: int) -> Tensor | None:
        if self.spec.confidence is None:
            return None
        inputs = hidden
        if self.spec.confidence.with_markov:
            previous = torch.cat([tokens.new_tensor([anchor]), tokens[:-1]])
            inputs = torch.cat([hidden, self.weights["markov_head.markov_w1.weight"][previous]], -1)
        return self.weights.linear("confidence_head.proj", inputs)[:, 0]


class MarkovHead:
    """The bias that the token before adds to a row's logits."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        if spec.markov is None:
            raise ValueError("MarkovHead: expected a spec with a Markov head")
        self._spec = spec.markov
        self._weights = weights

    def first_state(self) -> Tensor:
        w1 = self._weights["markov_head.markov_w1.weight"]
        return w1.new_zeros(1, self._spec.rank)

    def bias(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """For ``hidden`` [1, hidden] after target id ``previous`` [1]: the bias, the next state.

        Only "rnn" has a state.
        """
        embedded = self._weights["markov_head.markov_w1.weight"][previous]
        if self._spec.kind == "gated":
            joined = torch.cat([hidden, embedded], dim=-1)
            gate = self._weights.linear("markov_head.gate_proj", joined).sigmoid()
            embedded = gate * embedded
        elif self._spec.kind == "rnn":
            joined = torch.cat([state, embedded, hidden], dim=-1)
            joint = self._weights.linear("markov_head.joint_proj", joined)
            gate, candidate, output = joint.chunk(3, dim=-1)
            state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
            embedded = output.tanh()
        return self._weights.linear("markov_head.markov_w2", embedded), state
