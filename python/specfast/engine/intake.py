"""Takes requests in: checks them, numbers them, and says how long they may become."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from specfast.engine.detokenizer import StoppingDetokenizer
from specfast.engine.requests import Request
from specfast.sampling_params import SamplingParams, derived_seed

# Beyond it sums of probabilities are not exact (docs/numerics.md).
_MAX_SAMPLED_VOCAB = 2**20


class RequestIntake:
    """Makes the requests of one engine.

    vocab_size, context_length : of the target, the latter no more than the pool holds
    verify_width, page_size, seed, tokenizer : the engine's
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        context_length: int,
        verify_width: int,
        page_size: int,
        seed: int,
        tokenizer: PreTrainedTokenizerBase | None,
    ) -> None:
        self._vocab_size = vocab_size
        self._context_length = context_length
        self._verify_width = verify_width
        self._page_size = page_size
        self._seed = seed
        self._tokenizer = tokenizer
        self._num_requests = 0

    def seed_of(self, request_id: int, params: SamplingParams) -> int:
        return derived_seed(self._seed, request_id) if params.seed is None else params.seed

    def new_request(self, prompt_ids: Sequence[int], params: SamplingParams | None) -> Request:
        """Raises ValueError for a prompt or params that the engine cannot follow."""
        params = params or SamplingParams()
        prompt = [operator.index(token) for token in prompt_ids]
        if not prompt:
            raise ValueError("expected a prompt of at least one token, got none")
        for token in prompt:
            if not 0 <= token < self._vocab_size:
                raise ValueError(f"expected prompt ids in [0, {self._vocab_size}), got {token}")
        if len(prompt) >= self._context_length:
            raise ValueError(
                f"expected a prompt of at most {self._context_length - 1} tokens "
                f"(the context holds {self._context_length}), got {len(prompt)}"
            )
        self._check_params(params)
        max_len = min(len(prompt) + params.max_new_tokens, self._context_length)
        longest = min(max_len + self._verify_width, self._context_length)
        self._num_requests += 1
        return Request(
            request_id=self._num_requests - 1,
            params=params,
            token_ids=prompt,
            num_prompt_tokens=len(prompt),
            max_len=max_len,
            reserved_pages=-(-longest // self._page_size),
            seed=self.seed_of(self._num_requests - 1, params),
            text=self._detokenizer(params),
        )

    def _check_params(self, params: SamplingParams) -> None:
        vocab_size = self._vocab_size
        for token in params.logit_bias:
            if token >= vocab_size:
                raise ValueError(f"expected logit_bias ids in [0, {vocab_size}), got {token}")
        needs_sampling = not params.is_plain_greedy or params.logprobs is not None
        if needs_sampling and vocab_size > _MAX_SAMPLED_VOCAB:
            raise ValueError(
                f"expected a vocabulary of at most {_MAX_SAMPLED_VOCAB} ids for sampling, "
                f"penalties and log-probabilities, got {vocab_size}"
            )
        if params.stop and self._tokenizer is None:
            raise ValueError("expected an engine with a tokenizer for stop strings, got none")

    def _detokenizer(self, params: SamplingParams) -> StoppingDetokenizer | None:
        if self._tokenizer is None or not params.stop:
            return None
        return StoppingDetokenizer(self._tokenizer, params.stop, params.min_new_tokens)
