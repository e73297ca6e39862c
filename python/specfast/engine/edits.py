"""Which values of its rows a request edits: logit biases, and the counts behind penalties."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specfast.sampling import LogitEdits
from specfast.sampling_params import SamplingParams

# A token that was neither in the prompt nor in the output: only its bias counts.
_UNSEEN = -1


class EditList:
    """The edits of one request, kept up to date as it grows.

    Penalties need every token of prompt and output; without them only biases are listed.
    """

    def __init__(self, params: SamplingParams, num_prompt_tokens: int) -> None:
        self._biases = params.logit_bias
        self._counts_tokens = params.has_penalties
        self._num_prompt_tokens = num_prompt_tokens
        self._counts = dict.fromkeys(self._biases, _UNSEEN)
        self._num_counted = 0

    def entries(self, token_ids: Sequence[int]) -> list[tuple[int, int, float]]:
        """(id, count, bias) by ascending id, for prompt and output ``token_ids``.

        count : occurrences in the output, the anchor among them; 0 in the prompt only, -1 in
                neither. ``token_ids`` are those of the last call, or more.
        """
        if self._counts_tokens:
            for position in range(self._num_counted, len(token_ids)):
                token = token_ids[position]
                emitted = int(position >= self._num_prompt_tokens)
                self._counts[token] = max(self._counts.get(token, 0), 0) + emitted
            self._num_counted = len(token_ids)
        return [
            (token, count, self._biases.get(token, 0.0))
            for token, count in sorted(self._counts.items())
        ]


def batch_edits(
    entries: Sequence[Sequence[tuple[int, int, float]]], device: torch.device
) -> LogitEdits | None:
    """The edits of a batch, or None if no request has one; two copies to the device."""
    flat = [entry for of_request in entries for entry in of_request]
    if not flat:
        return None
    ends = [0]
    for of_request in entries:
        ends.append(ends[-1] + len(of_request))
    ids, counts, biases = zip(*flat, strict=True)
    packed = torch.tensor([*ends, *ids, *counts], dtype=torch.int32, device=device)
    indptr, packed_ids, packed_counts = torch.split(packed, [len(ends), len(flat), len(flat)])
    has_biases = any(bias != 0.0 for bias in biases)
    return LogitEdits(
        indptr=indptr,
        ids=packed_ids,
        counts=packed_counts,
        biases=torch.tensor(biases, dtype=torch.float32, device=device) if has_biases else None,
    )
