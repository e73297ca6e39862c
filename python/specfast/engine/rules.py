"""Which accept rule a batch is verified by, and its arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from specfast.drafters.sampling import float_columns, sampling_rules
from specfast.engine.edits import batch_edits
from specfast.engine.requests import Request
from specfast.records import AcceptRecord
from specfast.sampling import Proposal, SamplingRules
from specfast.sampling_params import LogprobsMode

Rule = Literal["greedy", "target_only", "rejection"]

_NEUTRAL_PENALTIES = {
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}


@dataclass(frozen=True)
class BatchRule:
    """The accept rule of one batch; ``logprobs[b]`` is what request b asks for."""

    rule: Rule
    sampling: SamplingRules | None
    proposal: Proposal | None
    logprobs: list[LogprobsMode | None]

    @property
    def wants_logprobs(self) -> bool:
        return any(self.logprobs)

    def decide(self, accept: Callable[..., object], record: AcceptRecord) -> None:
        """Call the op ``accept`` so that it fills ``record``.

        One call has one kind of log-probabilities. A batch that wants both is decided twice: equal
        random numbers give equal decisions.
        """
        if self.rule == "greedy":
            accept(out=record)
            return
        arguments: dict[str, Any] = {"rule": self.rule, "sampling": self.sampling, "out": record}
        if self.proposal is not None:
            arguments["proposal"] = self.proposal
        modes = sorted({mode for mode in self.logprobs if mode is not None})
        accept(**arguments, logprobs=modes[0] if modes else None)
        if len(modes) > 1:
            assert record.logprobs is not None
            first = record.logprobs.clone()
            accept(**arguments, logprobs=modes[1])
            wants_first = [mode == modes[0] for mode in self.logprobs]
            mask = torch.tensor(wants_first, device=first.device)
            record.logprobs.copy_(torch.where(mask[:, None], first, record.logprobs))


def choose_rule(
    requests: Sequence[Request], proposal: Proposal | None, device: torch.device
) -> BatchRule:
    """The greedy rule if it is enough for every request, else the sampled rule of the drafts.

    Greedy requests of a sampled batch are point masses there, and accept what they would accept
    alone. Drafts with a proposal are tested by p / q. Without one they are verified target-only,
    which is exact for all drafts that were made without the coins of this round.
    """
    params = [request.params for request in requests]
    logprobs = [p.logprobs for p in params]
    if all(p.is_plain_greedy for p in params) and not any(logprobs):
        return BatchRule("greedy", None, None, logprobs)
    entries = [request.edits.entries(request.token_ids) for request in requests]
    penalties = float_columns(params, _NEUTRAL_PENALTIES, device)
    sampling = replace(
        sampling_rules(requests, device),
        repetition_penalty=penalties["repetition_penalty"],
        presence_penalty=penalties["presence_penalty"],
        frequency_penalty=penalties["frequency_penalty"],
        edits=batch_edits(entries, device),
    )
    rule: Rule = "target_only" if proposal is None else "rejection"
    return BatchRule(rule, sampling, proposal, logprobs)
