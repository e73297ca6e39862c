"""Requests: what is asked, what each round gives, what is left at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from specfast.engine.detokenizer import StoppingDetokenizer
from specfast.engine.edits import EditList
from specfast.sampling_params import SamplingParams
from specfast.status import FinishReason, Status


@dataclass(frozen=True)
class RoundOutput:
    """What one round gave one request.

    token_ids : emitted tokens; the first ``num_accepted`` of them were drafts
    num_proposed : drafts that were verified
    finish_reason : NOT_FINISHED while the request goes on
    status : what the ops met in this request's data
    logprobs : natural log-probability of each token, if the request's params ask for them
    """

    request_id: int
    token_ids: list[int]
    num_accepted: int
    num_proposed: int
    finish_reason: FinishReason
    status: Status
    logprobs: list[float] | None = None


@dataclass
class Generation:
    """One request from prompt to end; ``rounds[0]`` is the prefill, which had no drafts.

    ``logprobs`` has one entry per token, or none at all if the request did not ask for them.
    """

    request_id: int
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    rounds: list[RoundOutput] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def append(self, output: RoundOutput) -> None:
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or []
        self.finish_reason = output.finish_reason
        self.rounds.append(output)


@dataclass
class Request:
    """A request inside the engine.

    token_ids : prompt and output; the last one is the anchor, which has no KV yet
    committed_len : positions whose KV is final, ``len(token_ids) - 1`` once prefilled
    pages : of the KV pool, in order of position; they hold ``len(pages) * page_size`` positions,
            the *allocated* length, which never shrinks before the request ends
    slot : row of the page table
    seed : of its random numbers, its own or the engine's choice
    text : looks for stop strings, if there are any
    edits : of its rows: biases, and what penalties count
    """

    request_id: int
    params: SamplingParams
    token_ids: list[int]
    num_prompt_tokens: int
    max_len: int
    reserved_pages: int
    committed_len: int = 0
    pages: list[int] = field(default_factory=list)
    slot: int = -1
    seed: int = 0
    text: StoppingDetokenizer | None = None
    edits: EditList = field(init=False)

    def __post_init__(self) -> None:
        self.edits = EditList(self.params, self.num_prompt_tokens)

    @property
    def generation(self) -> int:
        """Of its slot, for the planner's relay, in which 0 is a slot that nobody has had."""
        return self.request_id + 1

    @property
    def num_new_tokens(self) -> int:
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def tokens_left(self) -> int:
        return self.max_len - len(self.token_ids)

    @property
    def min_tokens_left(self) -> int:
        return max(self.params.min_new_tokens - self.num_new_tokens, 0)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return () if self.params.ignore_eos else self.params.eos_token_ids

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """All ids that end this request."""
        return (*self.eos_token_ids, *self.params.stop_token_ids)

    def finish_reason(self, reason: int, token_ids: list[int]) -> FinishReason:
        """Name an end by one of ``end_token_ids`` after the list that it comes from."""
        if reason == FinishReason.STOP and token_ids[-1] in self.eos_token_ids:
            return FinishReason.EOS
        return FinishReason(reason)
