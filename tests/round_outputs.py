"""Rounds and generations written by hand."""

from __future__ import annotations

from specfast.engine import Generation, RoundOutput
from specfast.status import FinishReason, Status


def round_output(
    token_ids: list[int],
    *,
    accepted: int = 0,
    proposed: int = 0,
    last: bool = False,
    status: Status = Status.OK,
) -> RoundOutput:
    reason = FinishReason.LENGTH if last else FinishReason.NOT_FINISHED
    return RoundOutput(0, token_ids, accepted, proposed, reason, status)


def generation(*rounds: RoundOutput) -> Generation:
    token_ids = [token for output in rounds for token in output.token_ids]
    return Generation(0, [1], token_ids, rounds[-1].finish_reason, list(rounds))
