"""Tiers: the numbers of rows that a forward of the target is captured for."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass


class Tiers:
    """Ascending row counts; a batch of fewer rows is padded to the smallest that holds it.

    Raises
    ------
    ValueError
        No tier at all, or one below 1.
    """

    def __init__(self, tiers: Iterable[int]) -> None:
        self.rows = tuple(sorted(set(tiers)))
        if not self.rows or self.rows[0] < 1:
            raise ValueError(f"expected tiers of at least 1 row, got {list(self.rows)}")

    @property
    def largest(self) -> int:
        return self.rows[-1]

    def holding(self, num_rows: int) -> int | None:
        """The smallest tier of at least ``num_rows`` rows; None if there is none."""
        place = bisect.bisect_left(self.rows, num_rows)
        return self.rows[place] if place < len(self.rows) else None


@dataclass(frozen=True)
class CaptureSlots:
    """Rows of a tier over its request slots: what a step of the tier is measured with.

    lens : rows of each slot, at most one apart, the longer ones first. They are legal lengths to
           capture with as well; a replay brings its own.
    """

    lens: tuple[int, ...]

    @classmethod
    def even(cls, num_rows: int, num_slots: int, width: int) -> CaptureSlots:
        """``num_rows`` rows over ``num_slots`` slots of at most ``width`` rows each.

        Raises
        ------
        ValueError
            The rows do not fit the slots, or a slot would have none.
        """
        if num_slots < 1 or not num_slots <= num_rows <= num_slots * width:
            raise ValueError(
                f"expected between 1 and {width} rows for each of {num_slots} slots, "
                f"got {num_rows} rows"
            )
        base, longer = divmod(num_rows, num_slots)
        return cls(tuple(base + (slot < longer) for slot in range(num_slots)))
