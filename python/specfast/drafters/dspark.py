"""DSpark: the backbone of DFlash, a sequential head over its rows, and a confidence head.

DeepSpec's own DFlash files have this layout without the heads.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specfast import ops
from specfast.drafters.block_context import Contexts
from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.weights import EMBEDDING, Weights
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import ChainDrafts, DraftSampler, as_ops_take


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
        logits = self.logits(hidden)
        if self.markov is None:
            tokens = self._drawn(logits, sampler)
        else:
            logits = as_ops_take(logits)
            tokens = self.markov.draw(hidden, logits, anchors, sampler)
        confidence = self._confidence(hidden, tokens, anchors)
        return ChainDrafts(tokens, logits, confidence=confidence)

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
        self._workspace = ops.markov_workspace(weights[EMBEDDING].device)

    def draw(
        self, hidden: Tensor, logits: Tensor, anchors: Tensor, sampler: DraftSampler
    ) -> Tensor:
        """Target ids int64 [B, m] of rows ``hidden`` [B, m, hidden] behind ``anchors`` [B].

        ``logits`` [B, m, draft vocabulary] are corrected in place.
        """
        w1, w2 = (self._weights[f"markov_head.markov_{name}.weight"] for name in ("w1", "w2"))
        projection, hidden_rows = self._split(hidden)
        return sampler.draw_block(
            logits,
            w1,
            w2,
            anchors,
            kind=self._spec.kind,
            projection=projection,
            hidden_rows=hidden_rows,
            d2t=self._weights.get("d2t"),
            workspace=self._workspace,
        )

    def _split(self, hidden: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The projection without the columns of the hidden state, and what these say of each row.

        Hidden states wait for no token, so their part is one product for the block.
        """
        if self._spec.kind == "vanilla":
            return None, None
        width = hidden.shape[-1]
        if self._spec.kind == "gated":
            name = "gate_proj"
            columns = self._weights[f"markov_head.{name}.weight"]
            of_hidden, of_tokens = columns[:, :width], columns[:, width:]
        else:
            name = "joint_proj"
            columns = self._weights[f"markov_head.{name}.weight"]
            of_hidden, of_tokens = columns[:, -width:], columns[:, :-width]
        bias = self._weights.get(f"markov_head.{name}.bias")
        return of_tokens, functional.linear(hidden, of_hidden, bias).float()
