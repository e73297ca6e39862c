"""From the record of a round to what each request emitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specfast.engine.requests import Request, RoundOutput
from specfast.engine.verified_round import VerifiedRound
from specfast.status import FinishReason, Status


def round_outputs(requests: Sequence[Request], verified: VerifiedRound) -> list[RoundOutput]:
    """One output per request, stop strings not considered."""
    record = verified.record
    return [
        RoundOutput(
            request_id=request.request_id,
            token_ids=tokens[:commit_len],
            num_accepted=min(num_correct, commit_len),
            num_proposed=rows - 1,
            finish_reason=request.finish_reason(reason, tokens[:commit_len]),
            status=Status(status),
            logprobs=logprobs[:commit_len] if request.params.logprobs else None,
        )
        for request, rows, tokens, commit_len, num_correct, reason, status, logprobs in zip(
            requests,
            verified.verify_lens,
            record.out_tokens.tolist(),
            record.commit_lens.tolist(),
            record.num_correct_drafts.tolist(),
            record.finish_reason.tolist(),
            record.status.tolist(),
            [[]] * len(requests) if record.logprobs is None else record.logprobs.tolist(),
            strict=True,
        )
    ]


def until_stop_string(request: Request, output: RoundOutput) -> RoundOutput:
    """Drop what comes after a stop string; the request ends, so its KV does not matter."""
    length = None if request.text is None else request.text.push_all(output.token_ids)
    if length is None:
        return output
    reason = output.finish_reason
    if length < len(output.token_ids) or reason in (FinishReason.NOT_FINISHED, FinishReason.LENGTH):
        reason = FinishReason.STOP
    return replace(
        output,
        token_ids=output.token_ids[:length],
        logprobs=None if output.logprobs is None else output.logprobs[:length],
        num_accepted=min(output.num_accepted, length),
        finish_reason=reason,
    )
