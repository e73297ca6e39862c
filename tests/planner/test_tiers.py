"""Tiers, and their rows over the slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specfast.planner import CaptureSlots, Tiers


def test_the_smallest_tier_that_holds_the_rows() -> None:
    tiers = Tiers([32, 8, 16, 8])
    assert tiers.rows == (8, 16, 32)
    assert [tiers.holding(rows) for rows in (0, 8, 9, 12, 32, 33)] == [8, 8, 16, 16, 32, None]


@pytest.mark.parametrize("tiers", [[], [0, 4], [-1]])
def test_no_tiers_are_refused(tiers: list[int]) -> None:
    with pytest.raises(ValueError, match="expected tiers of at least 1 row"):
        Tiers(tiers)


def test_slots_are_uneven() -> None:
    assert CaptureSlots.even(42, 8, 6).lens == (6, 6, 5, 5, 5, 5, 5, 5)
    assert CaptureSlots.even(48, 8, 6).lens == (6,) * 8
    assert CaptureSlots.even(8, 8, 6).lens == (1,) * 8


@given(num_slots=st.integers(1, 20), width=st.integers(1, 9), data=st.data())
def test_all_rows_are_in_a_slot(num_slots: int, width: int, data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(num_slots, num_slots * width))
    lens = CaptureSlots.even(num_rows, num_slots, width).lens
    assert sum(lens) == num_rows
    assert len(lens) == num_slots
    assert max(lens) <= width
    assert max(lens) - min(lens) <= 1
    assert list(lens) == sorted(lens, reverse=True)


@pytest.mark.parametrize(("rows", "slots", "width"), [(7, 8, 6), (49, 8, 6), (0, 0, 6)])
def test_rows_that_do_not_fit_are_refused(rows: int, slots: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"of {slots} slots, got {rows} rows"):
        CaptureSlots.even(rows, slots, width)
