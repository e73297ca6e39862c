"""Survivals against outcomes, counted by hand."""

from __future__ import annotations

import pytest
from round_outputs import generation, round_output
from specfast.cli.calibration import SurvivalBin, calibrate
from specfast.cli.decoding import Decoding

PREFILL = round_output([5])


def test_bins_and_positions() -> None:
    rounds = (
        round_output([1, 2], accepted=1, proposed=2),
        round_output([4], accepted=0, proposed=2),
        # The text ends at an accepted draft: the second one is not decided.
        round_output([4], accepted=1, proposed=2, last=True),
    )
    decoding = Decoding([generation(PREFILL, *rounds)], [0], 1.0)
    survivals = [[], [0.95, 0.49], [0.94, 0.52, 0.44], [1.0, 0.3]]
    calibration = calibrate(decoding, [survivals])
    assert calibration is not None
    low, high = calibration.bins
    assert low == SurvivalBin(2, pytest.approx(0.505), 0.0)
    assert high == SurvivalBin(3, pytest.approx(2.89 / 3), pytest.approx(2 / 3))
    first, second = calibration.by_position
    assert (first.count, second.count) == (3, 2)
    assert second == SurvivalBin(2, pytest.approx(0.505), 0.0)
    assert calibration.error == pytest.approx((1.01 + 0.89) / 5)


def test_without_survivals() -> None:
    decoding = Decoding([generation(PREFILL, round_output([1], proposed=3))], [0], 1.0)
    assert calibrate(decoding, [[[], []]]) is None
