"""Tiers of verify rounds: the batch sizes and row counts that rounds are padded to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class VerifyTier:
    """A size that a round is captured for; ordered by what it costs.

    num_rows : rows of the target's forward, padding included
    num_requests : slots, padded ones included
    """

    num_rows: int
    num_requests: int


class VerifyTiers:
    """The tiers of one engine.

    Parameters
    ----------
    batch_sizes : ints
        For each, a tier of so many requests that all verify ``width`` rows.
    width : int
        Rows of a request at most, the anchor included.
    total_rows : ints, optional
        For each batch size tiers of so many rows in all as well, where they are less than those of
        the whole batch and no less than its anchors: for ragged batches.
    capture : bool, optional
        Whether rounds are captured as CUDA Graphs, and replayed. False runs the same padded rounds
        one kernel at a time. Absent: where the device is a GPU.

    Raises
    ------
    ValueError
        No batch size, or a number below 1.
    """

    def __init__(
        self,
        batch_sizes: Iterable[int],
        width: int,
        total_rows: Iterable[int] = (),
        *,
        capture: bool | None = None,
    ) -> None:
        sizes, totals = sorted(set(batch_sizes)), sorted(set(total_rows))
        if not sizes or sizes[0] < 1:
            raise ValueError(f"expected batch sizes of at least 1 request, got {sizes}")
        if width < 1:
            raise ValueError(f"expected a width of at least 1 row, got {width}")
        if totals and totals[0] < 1:
            raise ValueError(f"expected tiers of at least 1 row, got {totals}")
        self.width = width
        self.capture = capture
        uniform = {VerifyTier(size * width, size) for size in sizes}
        ragged = {
            VerifyTier(rows, size)
            for size in sizes
            for rows in totals
            if size <= rows < size * width
        }
        self.tiers = tuple(sorted(uniform | ragged))

    @classmethod
    def up_to(cls, max_batch_size: int, width: int, *, capture: bool | None = None) -> VerifyTiers:
        """Batch sizes 1, 2, 4, ... and ``max_batch_size``."""
        powers = [1 << i for i in range(max_batch_size.bit_length())]
        return cls([*powers, max_batch_size], width, capture=capture)

    def of_size(self, num_requests: int) -> tuple[VerifyTier, ...]:
        """Those of exactly so many slots, by rows."""
        return tuple(tier for tier in self.tiers if tier.num_requests == num_requests)

    def holding(self, num_requests: int, num_rows: int) -> VerifyTier | None:
        """The cheapest tier of at least these; None if there is none."""
        for tier in self.tiers:
            if tier.num_requests >= num_requests and tier.num_rows >= num_rows:
                return tier
        return None
