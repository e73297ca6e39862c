"""What draws need of a batch of requests, as the ops take it: rules, and prefix lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from specfast.drafters.base import DraftRequest
from specfast.sampling import SamplingRules
from specfast.sampling_params import SamplingParams

_FILTERS = {"top_p": 1.0, "min_p": 0.0}


def sampling_rules(requests: Sequence[DraftRequest], device: torch.device) -> SamplingRules:
    """Temperatures, filters and seeds of ``requests``, on ``device``; no penalties, no biases.

    For drafters that draw from logits of their own with ``ops.sample_rows``. A draft's proposal is
    what it was drawn from, so a drafter is free to change them.
    """
    params = [request.params for request in requests]
    columns = float_columns(params, _FILTERS, device)
    temperature = [float(p.temperature) for p in params]
    top_k = [p.top_k for p in params]
    any_top_k = any(k > 0 for k in top_k)
    seeds = [seed_word(request.seed) for request in requests]
    return SamplingRules(
        temperature=torch.tensor(temperature, dtype=torch.float32, device=device),
        seeds=torch.tensor(seeds, dtype=torch.int64, device=device),
        top_k=torch.tensor(top_k, dtype=torch.int32, device=device) if any_top_k else None,
        top_p=columns["top_p"],
        min_p=columns["min_p"],
    )


def prefix_lens_of(requests: Sequence[DraftRequest], device: torch.device) -> Tensor:
    """int32 [B]: committed KV lengths, which are the positions of the anchors."""
    lens = [len(request.token_ids) - 1 for request in requests]
    return torch.tensor(lens, dtype=torch.int32, device=device)


def seed_word(seed: int) -> int:
    """The int64 of the same 64 bits, which the ops read as they are."""
    return seed - (seed >> 63 << 64)


def float_columns(
    params: Sequence[SamplingParams], neutral: Mapping[str, float], device: torch.device
) -> dict[str, Tensor | None]:
    """float32 [B] of each parameter that ``neutral`` names, None where no request departs from it.

    One copy to the device for all of them.
    """
    values = {name: [float(getattr(p, name)) for p in params] for name in neutral}
    used = [name for name in neutral if any(v != neutral[name] for v in values[name])]
    packed = torch.tensor([values[name] for name in used], dtype=torch.float32, device=device)
    return {**dict.fromkeys(neutral, None), **dict(zip(used, packed, strict=True))}
