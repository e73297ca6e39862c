"""Copies that run, and are seen to have arrived, when the test says so."""

from __future__ import annotations

import torch
from torch import Tensor


class LateCopy:
    """Runs once, and reads its source as it is then; that it has run is seen once it arrived."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._source, self._target = source, target
        self._has_run = False
        self._arrived = False

    def run(self) -> None:
        if not self._has_run:
            self._target.copy_(self._source)
            self._has_run = True

    def arrive(self) -> None:
        self.run()
        self._arrived = True

    def query(self) -> bool:
        return self._arrived


class LateCopies:
    """A device whose copies lag behind, in order; whoever waits for one makes it run."""

    def __init__(self) -> None:
        self.started: list[LateCopy] = []

    def host_buffer(self, like: Tensor) -> Tensor:
        return torch.full_like(like, torch.nan)

    def start(self, source: Tensor, target: Tensor) -> LateCopy:
        self.started.append(LateCopy(source, target))
        return self.started[-1]

    def finish_before_next_write(self, copy: LateCopy) -> None:
        copy.run()
