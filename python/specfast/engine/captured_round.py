"""A verify round at a tier as it is launched: replayed, or kernel by kernel."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from specfast.engine.tier_round import TierRound
from specfast.engine.verified_round import VerifiedRound

# A round's record is read at the latest after the next round was launched.
_RECORDS_IN_FLIGHT = 2


class CapturedRound:
    """A round at a tier, its graph (None: it runs kernel by kernel), its records on the host.

    Everything is on the stream that is current on the round's device, which need not be the device
    that is current.
    """

    def __init__(self, round_: TierRound, graph: torch.cuda.CUDAGraph | None) -> None:
        self.round = round_
        self._graph = graph
        self._device = round_.packed.device
        self._on_gpu = self._device.type == "cuda"
        self._on_host = [
            torch.empty(round_.packed.shape, dtype=torch.int32, pin_memory=self._on_gpu)
            for _ in range(_RECORDS_IN_FLIGHT)
        ]
        self._num_launches = 0

    @classmethod
    def capture(cls, round_: TierRound, device: torch.device, memory_pool: Any) -> CapturedRound:
        """Captured on ``device``, a GPU; temporary tensors come from ``memory_pool``."""
        # With padded slots alone a run touches no request. The first ones load kernels. Rounds of
        # other forms, one in flight perhaps, share the inputs.
        before = round_.inputs.snapshot()
        round_.inputs.clear()
        stream = _capture_stream(device)
        current = torch.cuda.current_stream(device)
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(2):
                round_.run()
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory_pool, stream=stream), _no_collection():
            round_.run()
        round_.inputs.restore(before)
        return cls(round_, graph)

    def replay(self) -> None:
        """Run the round; its record stays on the device."""
        if self._graph is None:
            self.round.run()
        else:
            self._graph.replay()

    def launch(self) -> LaunchedRound:
        """Run the round, and start the copy of its record."""
        on_host = self._on_host[self._num_launches % _RECORDS_IN_FLIGHT]
        self._num_launches += 1
        self.replay()
        self.round.watch()
        on_host.copy_(self.round.packed, non_blocking=True)
        event = None
        if self._on_gpu:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
        return LaunchedRound(self.round, on_host, event)


@dataclass(frozen=True)
class LaunchedRound:
    """A round that is under way; its record can be read until the next but one is launched."""

    round: TierRound
    on_host: Tensor
    event: torch.cuda.Event | None

    def read(self) -> VerifiedRound:
        """Wait for the round to end; all slots of its tier."""
        if self.event is not None:
            self.event.synchronize()
        return self.round.unpack(self.on_host)


@cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One for all captures: cuBLAS keeps a workspace for each stream that it has seen, for good."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _no_collection() -> Iterator[None]:
    """Without Python's collector: a graph of another engine must not end during a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
