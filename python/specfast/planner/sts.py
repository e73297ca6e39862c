"""Temperatures of sequential temperature scaling, one per draft position."""

from __future__ import annotations

import json
import math
from pathlib import Path


def read_temperatures(path: Path, num_drafts: int) -> list[float]:
    """The ``temperatures`` of a calibration file, for ``schedule_verify_lens``.

    Raises
    ------
    ValueError
        They are of another number of positions, or one is not above 0.
    """
    temperatures = [float(value) for value in json.loads(path.read_text())["temperatures"]]
    if len(temperatures) != num_drafts:
        raise ValueError(
            f"STS file {path}: expected temperatures of {num_drafts} drafts, "
            f"got {len(temperatures)}"
        )
    for value in temperatures:
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"STS file {path}: expected temperatures above 0, got {value}")
    return temperatures
