"""Requests: what is asked, what each round gives, what is left at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from specfast.status import FinishReason, Status

# Ids and counts reach the ops as int32.
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class GenerationParams:
    """How long one request may go on. Decoding is greedy.

    max_new_tokens : emitted tokens at most; the model's context may end the request earlier
    min_new_tokens : before so many, neither EOS nor a stop id ends the request
    eos_token_ids : end the request with reason EOS, unless ``ignore_eos``
    stop_token_ids : end the request with reason STOP
    ignore_eos : ``eos_token_ids`` end nothing

    Raises ValueError for a length out of range or a negative id.
    """

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    eos_token_ids: tuple[int, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"expected max_new_tokens >= 1, got {self.max_new_tokens}")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise ValueError(
                f"expected min_new_tokens in [0, {self.max_new_tokens}], got {self.min_new_tokens}"
            )
        if self.min_new_tokens > _INT32_MAX:
            raise ValueError(f"expected min_new_tokens < 2^31, got {self.min_new_tokens}")
        for name in ("eos_token_ids", "stop_token_ids"):
            if not all(0 <= token <= _INT32_MAX for token in getattr(self, name)):
                raise ValueError(f"expected {name} in [0, 2^31), got {getattr(self, name)}")


@dataclass(frozen=True)
class RoundOutput:
    """What one round gave one request.

    token_ids : emitted tokens; the first ``num_accepted`` of them were drafts
    num_proposed : drafts that were verified
    finish_reason : NOT_FINISHED while the request goes on
    status : what the ops met in this request's data
    """

    request_id: int
    token_ids: list[int]
    num_accepted: int
    num_proposed: int
    finish_reason: FinishReason
    status: Status


@dataclass
class Generation:
    """One request from prompt to end; ``rounds[0]`` is the prefill, which had no drafts."""

    request_id: int
    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason = FinishReason.NOT_FINISHED
    rounds: list[RoundOutput] = field(default_factory=list)

    def append(self, output: RoundOutput) -> None:
        self.token_ids += output.token_ids
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
    """

    request_id: int
    params: GenerationParams
    token_ids: list[int]
    num_prompt_tokens: int
    max_len: int
    reserved_pages: int
    committed_len: int = 0
    pages: list[int] = field(default_factory=list)
    slot: int = -1

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
