"""DSpark: the backbone of DFlash, a sequential head over its rows, and a confidence head.

DeepSpec's own DFlash files have this layout without the heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.drafters.block_context import Contexts
from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler


class DSparkModel(DFlashModel):
    """The heads of DSpark over tensors of B requests."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        super().__init__(spec, weights)
        self.markov = None if spec.markov is None else MarkovHead(spec, weights)

    def draft(
        self, contexts: Contexts, anchors: Tensor, num_drafts: int, sampler: DraftSampler
    ) -> ChainDrafts:
        """As :meth:`DFlashModel.draft`, left to right: a draft changes the logits of the next.

        ``logits`` are corrected, so that they are what was drawn from.
        """
        hidden = self.draft_rows(contexts, anchors, num_drafts)
        logits, tokens = self._walk(hidden, self.logits(hidden), anchors, sampler)
        confidence = self._confidence(hidden, tokens, anchors)
        return ChainDrafts(tokens, logits, confidence=confidence)

    def _walk(
        self, hidden: Tensor, logits: Tensor, anchors: Tensor, sampler: DraftSampler
    ) -> tuple[Tensor, Tensor]:
        """Corrected logits, and the drafts drawn from them."""
        state = logits if self.markov is None else self.markov.first_state(len(anchors))
        rows, tokens = [], [anchors]
        for level, row in enumerate(logits.unbind(1)):
            if self.markov is not None:
                bias, state = self.markov.bias(tokens[-1], hidden[:, level], state)
                row = row + bias
            rows.append(row)
            tokens.append(self.target_ids(sampler.draw(row)))
        return torch.stack(rows, 1), torch.stack(tokens[1:], 1)

    def _confidence(self, hidden: Tensor, tokens: Tensor, anchors: Tensor) -> Tensor | None:
        if self.spec.confidence is None:
            return None
        inputs = hidden
        if self.spec.confidence.with_markov:
            previous = torch.cat([anchors[:, None], tokens[:, :-1]], 1)
            inputs = torch.cat([hidden, self.weights["markov_head.markov_w1.weight"][previous]], -1)
        return self.weights.linear("confidence_head.proj", inputs)[..., 0].float()


class MarkovHead:
    """The bias that the token before adds to a row's logits."""

    def __init__(self, spec: DrafterSpec, weights: Weights) -> None:
        if spec.markov is None:
            raise ValueError("MarkovHead: expected a spec with a Markov head")
        self._spec = spec.markov
        self._weights = weights

    def first_state(self, batch_size: int) -> Tensor:
        w1 = self._weights["markov_head.markov_w1.weight"]
        return w1.new_zeros(batch_size, self._spec.rank)

    def bias(self, previous: Tensor, hidden: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """For ``hidden`` [B, hidden] after target ids ``previous`` [B]: the bias, the next state.

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
