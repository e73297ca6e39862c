"""``specfast eval --fit-sts``: temperatures of a drafter's confidences out of what it was told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specfast.cli.calibration import is_decided
from specfast.cli.decoding import Decoding
from specfast.cli.engines import EngineOptions
from specfast.cli.errors import CliError
from specfast.drafters.checkpoint import DrafterSpec
from specfast.planner import StsFit, fit_temperatures


def check_fits_alone(*, sts: Path | None, sps: Path | None) -> None:
    """Refuse options that change what is fitted."""
    if sts is not None:
        raise CliError("--fit-sts starts from confidences as they are: leave out --sts")
    if sps is not None:
        raise CliError("--fit-sts has to see what becomes of all drafts: leave out --sps")


def check_can_fit(spec: DrafterSpec | None, options: EngineOptions) -> None:
    """Refuse drafters and widths that leave positions without confidences."""
    if spec is None or spec.block is None or spec.confidence is None:
        raise CliError(f"--fit-sts needs a drafter with confidences, {options.drafter} has none")
    if options.verify_width <= spec.block.num_proposals:
        raise CliError(
            f"--fit-sts needs all {spec.block.num_proposals} drafts of a block: --verify-width "
            f"{spec.block.num_proposals + 1} or more, got {options.verify_width}"
        )


def fit_sts(
    decoding: Decoding, confidences: Sequence[Sequence[Sequence[float]]], num_drafts: int
) -> StsFit:
    """``confidences[g][r]`` are those of the drafts of round r, before the sigmoid."""
    rounds = [
        (output, given)
        for generation, of_rounds in zip(decoding.generations, confidences, strict=True)
        for output, given in zip(generation.rounds, of_rounds, strict=True)
        if output.num_proposed > 0
    ]
    if not rounds:
        raise CliError("--fit-sts found no round with drafts: give longer texts")
    logits = torch.zeros(len(rounds), num_drafts, dtype=torch.float64)
    outcomes = torch.full((len(rounds), num_drafts), -1)
    for row, (output, given) in enumerate(rounds):
        for place in range(output.num_proposed):
            logits[row, place] = given[place]
            if is_decided(output, place + 1):
                outcomes[row, place] = int(output.num_accepted > place)
    return fit_temperatures(logits, outcomes)


def sts_file(fit: StsFit, dataset: str, conditions: dict[str, Any]) -> dict[str, Any]:
    """What the file holds, the first five fields as others read and write them."""
    return {
        "temperatures": fit.temperatures,
        "dataset": dataset,
        "num_samples": fit.num_samples,
        "ece_before": fit.ece_before,
        "ece_after": fit.ece_after,
        "conditions": conditions,
    }
