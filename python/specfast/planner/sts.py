"""Sequential temperature scaling: makes survivals as large as the share of drafts that survive."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from specfast.ops.plan import is_temperature

# Temperatures that a fit tries, evenly spaced by their logarithm; those near 1 first.
_GRID = sorted((10 ** (step / 20) for step in range(-20, 21)), key=lambda t: abs(math.log(t)))
# Of predicted survivals, over which calibration errors are means.
CALIBRATION_BINS = 15


@dataclass(frozen=True)
class StsFit:
    """Temperatures by position, and the calibration error of the survivals before and after.

    num_samples : rounds that it was fitted on
    ece_before, ece_after : expected calibration error by position, 0 where nothing was decided
    """

    temperatures: list[float]
    num_samples: int
    ece_before: list[float]
    ece_after: list[float]

    @property
    def positions_at_limit(self) -> list[int]:
        """Positions, from 1, whose best temperature is the lowest or the highest that is tried."""
        ends = (min(_GRID), max(_GRID))
        return [i for i, t in enumerate(self.temperatures, start=1) if t in ends]


def fit_temperatures(confidence: Tensor, outcomes: Tensor) -> StsFit:
    """Find the temperatures of the positions one after the other, those before being fixed.

    Each is the one of a grid from 0.1 to 10 under which the survivals, products of confidences so
    far, have the least expected calibration error; among equals the nearest to 1, which is also
    what a position without samples gets.

    Parameters
    ----------
    confidence : float [R, gamma]
        Of R rounds on held-out text, before the sigmoid.
    outcomes : integer [R, gamma]
        1 where the draft and all before it were accepted, 0 where not, -1 where nobody decided it
        or there was none; nothing is decided behind an undecided one.

    Raises
    ------
    ValueError
        Other shapes.

    Notes
    -----
    Source: the sequential temperature scaling of DSpark.
    """
    if confidence.dim() != 2 or confidence.shape != outcomes.shape:
        raise ValueError(
            "fit_temperatures: expected confidence and outcomes [R, gamma], got "
            f"{list(confidence.shape)} and {list(outcomes.shape)}"
        )
    # A confidence that is no number promises nothing.
    logits = torch.where(confidence.isnan(), -math.inf, confidence).double()
    survival = torch.ones(len(logits), dtype=torch.float64)
    raw = logits.sigmoid().cumprod(1)
    fit = StsFit([], len(logits), [], [])
    for position in range(logits.shape[1]):
        decided = outcomes[:, position] >= 0
        accepted = outcomes[decided, position].double()
        tried = [survival * (logits[:, position] / t).sigmoid() for t in _GRID]
        errors = [_calibration_error(one[decided], accepted) for one in tried]
        best = errors.index(min(errors))
        survival = tried[best]
        fit.temperatures.append(_GRID[best])
        fit.ece_before.append(_calibration_error(raw[decided, position], accepted))
        fit.ece_after.append(errors[best])
    return fit


def _calibration_error(predicted: Tensor, accepted: Tensor) -> float:
    """Mean distance of predictions and outcomes within bins of equal width, weighted by samples."""
    if len(predicted) == 0:
        return 0.0
    bins = (predicted * CALIBRATION_BINS).long().clamp(max=CALIBRATION_BINS - 1)
    distance = torch.bincount(bins, weights=predicted - accepted, minlength=CALIBRATION_BINS)
    return float(distance.abs().sum()) / len(predicted)


def read_temperatures(path: Path, num_drafts: int) -> list[float]:
    """The ``temperatures`` of a calibration file, for ``schedule_verify_lens``.

    Raises
    ------
    ValueError
        The file is no JSON with a list of numbers of that name; they are of another number of
        positions, or one is not above 0 and finite as float32.
    """
    try:
        fields = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"STS file {path} is not JSON: {error}") from error
    given = fields.get("temperatures") if isinstance(fields, dict) else None
    if not isinstance(given, list) or not all(type(value) in (int, float) for value in given):
        raise ValueError(f'STS file {path}: expected "temperatures" to be a list of numbers')
    if len(given) != num_drafts:
        raise ValueError(
            f"STS file {path}: expected temperatures of {num_drafts} drafts, got {len(given)}"
        )
    for value in given:
        if not is_temperature(value):
            raise ValueError(
                f"STS file {path}: expected temperatures above 0 and finite as float32, "
                f"got {str(value)[:40]}"
            )
    return [float(value) for value in given]
