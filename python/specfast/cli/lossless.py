"""Is the speculative output what greedy decoding of the target gives?

Two questions are asked of every output.

*Is it the output of plain decoding?* In fp32 it has to be, token by token. Two decodings that run
other numbers of rows at once round differently, so a first difference is forgiven where it is a
tie: both tokens within ``TIE`` of the largest logit of the row.

*Is every token the target's choice?* One teacher-forced pass over prompt and output, without the
engine, gives the row of logits behind every token. The token's gap to the row's maximum has to stay
within a tolerance. In fp32 that is ``TIE``. In bf16, where this question alone decides, it follows
from the rounding to 8 significant bits: each of the 2 L additions to the residual stream of L
layers is off by up to 2^-9 for its own rounding, and by about as much for that of its summand.
Independent errors add up like a random walk, to 2^-8 sqrt(2 L) relative to the row's largest
magnitude; the gap compares two passes, which doubles it. (On SmolLM2-135M, plain bf16 decoding by
transformers reaches 0.37 of this tolerance in 640 tokens; the second-best token exceeds it in 64 %
of all rows, so a fault does not hide for long.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from specfast.cli.target import DtypeName, TargetModel
from specfast.sampling_params import SamplingParams

TIE = 1e-4


@dataclass(frozen=True)
class Difference:
    """The first position at which plain decoding has another token; None past an output's end.

    ``gap`` is how far the lower of the two tokens lies under the largest logit of the
    teacher-forced row; None where one of them is missing.
    """

    position: int
    token_id: int | None
    plain_token_id: int | None
    gap: float | None

    @property
    def is_tie(self) -> bool:
        return self.gap is not None and self.gap <= TIE


@dataclass(frozen=True)
class LosslessCheck:
    """The verdict on one output.

    num_different : positions at which it and plain decoding differ
    num_not_largest : tokens with a gap at all
    worst_position, worst_gap, worst_tolerance : the token with the largest gap, in tolerances
    failure : why this is not the target's greedy output; None if it is
    """

    num_different: int
    first_difference: Difference | None
    num_not_largest: int
    worst_position: int
    worst_gap: float
    worst_tolerance: float
    failure: str | None


def check_lossless(
    target: TargetModel,
    prompt_ids: list[int],
    token_ids: list[int],
    plain_token_ids: list[int],
    params: SamplingParams,
) -> LosslessCheck:
    """Judge the output ``token_ids``, which plain decoding gave as ``plain_token_ids``."""
    logits = teacher_forced_logits(target, prompt_ids, token_ids)
    gaps = _gaps(logits, token_ids)
    tolerances = gap_tolerances(target, logits)
    worst = int((gaps / tolerances).argmax())
    difference = _first_difference(token_ids, plain_token_ids, logits)
    failure = None
    if _ends_wrongly(token_ids, target.room_after(prompt_ids), params):
        failure = f"it ends after {len(token_ids)} tokens, where nothing ends it"
    elif target.dtype is DtypeName.FP32 and difference is not None and not difference.is_tie:
        failure = f"plain decoding differs at token {difference.position}, and it is no tie"
    elif gaps[worst] > tolerances[worst]:
        failure = f"token {worst} is not the target's choice"
    return LosslessCheck(
        num_different=sum(a != b for a, b in zip_longest(token_ids, plain_token_ids)),
        first_difference=difference,
        num_not_largest=int((gaps > 0).sum()),
        worst_position=worst,
        worst_gap=float(gaps[worst]),
        worst_tolerance=float(tolerances[worst]),
        failure=failure,
    )


@torch.inference_mode()
def teacher_forced_logits(
    target: TargetModel, prompt_ids: list[int], token_ids: list[int]
) -> Tensor:
    """fp32 [len(token_ids), V]: row i is what the target says before token i."""
    ids = torch.tensor([prompt_ids + token_ids[:-1]], device=target.device)
    out = target.model(input_ids=ids, use_cache=False, logits_to_keep=len(token_ids))
    logits: Tensor = out.logits[0]
    return logits.float()


def gap_tolerances(target: TargetModel, logits: Tensor) -> Tensor:
    """How far each row's token may lie under the row's maximum, fp32 [rows]."""
    if target.dtype is DtypeName.FP32:
        return torch.full((len(logits),), TIE, device=logits.device)
    num_layers = target.model.config.get_text_config().num_hidden_layers
    largest = logits.abs().amax(dim=1).nan_to_num(nan=0.0, posinf=0.0)
    return (2.0**-7 * math.sqrt(2 * num_layers) * largest).clamp(min=TIE)


def _gaps(logits: Tensor, token_ids: list[int]) -> Tensor:
    """Distance of each token to the maximum of its row, fp32 [rows]."""
    chosen = torch.tensor(token_ids, device=logits.device)
    gaps = logits.amax(dim=1) - logits.gather(1, chosen[:, None])[:, 0]
    # A row with NaN vouches for no token; still a number, so that it can be reported.
    return gaps.nan_to_num(nan=torch.finfo(torch.float32).max)


def _first_difference(
    token_ids: list[int], plain_token_ids: list[int], logits: Tensor
) -> Difference | None:
    pairs = zip_longest(token_ids, plain_token_ids)
    for position, (token_id, plain_token_id) in enumerate(pairs):
        if token_id == plain_token_id:
            continue
        gap = None
        if token_id is not None and plain_token_id is not None:
            row = logits[position].expand(2, -1)
            gap = float(_gaps(row, [token_id, plain_token_id]).max())
        return Difference(position, token_id, plain_token_id, gap)
    return None


def _ends_wrongly(token_ids: list[int], room: int, params: SamplingParams) -> bool:
    """Is the output anything but all tokens up to the first EOS or the limit?"""
    limit = min(params.max_new_tokens, room)
    ends = () if params.ignore_eos else params.eos_token_ids
    first_end = next((i + 1 for i, token in enumerate(token_ids) if token in ends), limit)
    return len(token_ids) != min(first_end, limit)
