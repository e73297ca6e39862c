"""How one request is sampled, and the seeds of those that bring none."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

LogprobsMode = Literal["raw", "processed"]

# Below it the ops take a request as greedy.
GREEDY_TEMPERATURE = 1e-5
# Ids and counts reach the ops as int32.
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class SamplingParams:
    """How one request chooses its tokens and when it ends. Greedy by default.

    A row of logits goes through ``logit_bias``, the penalties, ``temperature``, ``top_k``,
    ``top_p`` and ``min_p``, in this order (docs/numerics.md). Penalties see the drafts before a
    token as they see emitted tokens.

    temperature : in [0, 3.4e38]; below 1e-5 every token is the argmax
    top_k : keep the k largest values; 0 or -1: all, 1: greedy
    top_p : in (0, 1]; keep the fewest largest whose share of what top_k kept is at least this
    min_p : in [0, 1]; keep what has at least this share of the largest probability
    repetition_penalty : > 0; values > 0 of tokens in prompt or output are divided by it, others
                         multiplied
    presence_penalty : taken from the values of tokens in the output, once
    frequency_penalty : the same per occurrence
    logit_bias : token id to what is added to its value; -inf forbids it
    seed : of the request's random numbers, in [0, 2^64). Equal logits and drafts give equal tokens
           in every batch and slot. None: the engine gives each request its own
    logprobs : natural log-probability of every token: "raw" under softmax(logits), "processed"
               under what it was drawn from; None: none
    max_new_tokens : emitted tokens at most; the model's context may end the request earlier
    min_new_tokens : before so many, neither EOS nor a stop id nor a stop string ends the request
    stop : strings that end the request with reason STOP where the text first holds one. Needs an
           engine with a tokenizer
    stop_token_ids : end the request with reason STOP
    eos_token_ids : end the request with reason EOS, unless ``ignore_eos``
    ignore_eos : ``eos_token_ids`` end nothing

    Raises ValueError for a value out of its range (as float32, which the ops compute in) or of
    another kind: "expected ARGUMENT ..., got ...".
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    # Without a hash, as a dict is; equal params still have equal hashes.
    logit_bias: Mapping[int, float] = field(default_factory=dict, hash=False)
    seed: int | None = None
    logprobs: LogprobsMode | None = None
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    eos_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        self._check_sampling()
        self._check_ends()

    @property
    def is_greedy(self) -> bool:
        """Whether every token is the argmax of its row, once biased and penalised."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether earlier tokens of the request change its rows."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def is_plain_greedy(self) -> bool:
        """Whether every token is the argmax of the target's own row."""
        return self.is_greedy and not self.has_penalties and not self.logit_bias

    def _check_sampling(self) -> None:
        self._expect("temperature", "in [0, 3.4e38]", lambda t: t >= 0)
        if not isinstance(self.top_k, Integral) or not -1 <= self.top_k <= _INT32_MAX:
            raise _refusal("top_k", "-1, 0 or a count < 2^31", self.top_k)
        self._expect("top_p", "in (0, 1]", lambda p: 0 < p <= 1)
        self._expect("min_p", "in [0, 1]", lambda p: 0 <= p <= 1)
        self._expect("repetition_penalty", "in (0, 3.4e38]", lambda r: r > 0)
        self._expect("presence_penalty", "within +-3.4e38", lambda _: True)
        self._expect("frequency_penalty", "within +-3.4e38", lambda _: True)
        if not isinstance(self.logit_bias, Mapping):
            raise _refusal("logit_bias", "as a mapping of ids to numbers", self.logit_bias)
        _check_ids("logit_bias", tuple(self.logit_bias))
        for bias in self.logit_bias.values():
            if not isinstance(bias, Real) or math.isnan(bias):
                raise _refusal("logit_bias", "of numbers", bias)
        # The caller's mapping may change later.
        object.__setattr__(self, "logit_bias", dict(self.logit_bias))
        if self.seed is not None and not (
            isinstance(self.seed, Integral) and 0 <= self.seed < 2**64
        ):
            raise _refusal("seed", "in [0, 2^64) or None", self.seed)
        if self.logprobs not in (None, "raw", "processed"):
            raise _refusal("logprobs", '"raw", "processed" or None', self.logprobs)

    def _check_ends(self) -> None:
        if self.max_new_tokens < 1:
            raise _refusal("max_new_tokens", ">= 1", self.max_new_tokens)
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise _refusal("min_new_tokens", f"in [0, {self.max_new_tokens}]", self.min_new_tokens)
        if self.min_new_tokens > _INT32_MAX:
            raise _refusal("min_new_tokens", "< 2^31", self.min_new_tokens)
        # A text by itself would be taken as a sequence of characters.
        if isinstance(self.stop, str) or not all(isinstance(s, str) and s for s in self.stop):
            raise _refusal("stop", "as a tuple of strings that are not empty", self.stop)
        _check_ids("eos_token_ids", self.eos_token_ids)
        _check_ids("stop_token_ids", self.stop_token_ids)

    def _expect(self, name: str, expected: str, holds: Callable[[float], bool]) -> None:
        value = getattr(self, name)
        if isinstance(value, Real):
            rounded = _as_float32(float(value))
            if math.isfinite(rounded) and holds(rounded):
                return
        raise _refusal(name, expected, value)


def derived_seed(engine_seed: int, request_number: int) -> int:
    """The seed of the request ``request_number`` that brings none of its own; in [0, 2^64).

    Output ``request_number`` of the generator SplitMix64 started at ``engine_seed``. One engine
    never gives a seed twice: the state steps by an odd number, and the mixing is a bijection.
    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    z = (engine_seed + (request_number + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _as_float32(value: float) -> float:
    """What the ops will see."""
    try:
        (rounded,) = struct.unpack("f", struct.pack("f", value))
    except OverflowError:
        return math.inf
    return float(rounded)


def _check_ids(name: str, ids: tuple[int, ...]) -> None:
    if not all(isinstance(i, Integral) and 0 <= i <= _INT32_MAX for i in ids):
        raise _refusal(name, "in [0, 2^31)", ids)


def _refusal(name: str, expected: str, got: object) -> ValueError:
    return ValueError(f"expected {name} {expected}, got {got!r}")
