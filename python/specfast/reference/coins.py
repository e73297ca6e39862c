"""The random numbers of one request: given as coins, or from its seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.reference.philox import Purpose, random_words
from specfast.sampling import Coins
from specfast.status import Status

LARGEST_COIN = 1 - 2.0**-24


@dataclass
class RequestCoins:
    """Decisions of request ``b``; ``status`` collects what was wrong with given coins."""

    b: int
    seed: int
    prefix_len: int
    given: Coins | None
    status: Status = Status.OK

    def accept(self, node: int, lane: int, column: int) -> float:
        """A number of [0, 1) in float32; ``column`` is where given coins have it."""
        if self.given is not None and self.given.accept is not None:
            return self._clamped(self.given.accept[self.b, column])
        word = random_words(self.seed, Purpose.ACCEPT, node, lane, self.prefix_len)[0]
        return (word >> 8) * 2.0**-24

    def final(self, node: int, total: int) -> int:
        """A number of [0, total)."""
        if self.given is not None and self.given.final is not None:
            numerator, denominator = self._clamped(self.given.final[self.b]).as_integer_ratio()
            return numerator * total // denominator
        return self.drawn(Purpose.FINAL, node, 0, total)

    def drawn(self, purpose: Purpose, node: int, lane: int, total: int) -> int:
        """A number of [0, total) from the seed."""
        words = random_words(self.seed, purpose, node, lane, self.prefix_len)
        return ((words[0] | words[1] << 32) * total) >> 64

    def _clamped(self, coin: Tensor) -> float:
        value = float(coin)
        if math.isnan(value):
            self.status |= Status.BAD_PARAM
            return 0.0
        return min(max(value, 0.0), LARGEST_COIN)


def token_at(masses: Tensor, position: int) -> int:
    """The smallest id whose running sum of masses is above ``position``."""
    return int(torch.searchsorted(masses.cumsum(0), position, right=True))
