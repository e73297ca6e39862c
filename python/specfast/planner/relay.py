"""Survivals of earlier rounds, brought to the host without waiting for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class CopyDone(Protocol):
    """Says whether a copy has arrived; a ``torch.cuda.Event`` is one."""

    def query(self) -> bool: ...


class HostCopies(Protocol):
    """Copies from the device to the host that the host does not wait for."""

    def host_buffer(self, like: Tensor) -> Tensor:
        """A tensor of the same shape that a copy may go to."""
        ...

    def start(self, source: Tensor, target: Tensor) -> CopyDone:
        """Copy once all that was enqueued so far has run."""
        ...

    def finish_before_next_write(self, copy: CopyDone) -> None:
        """Let what is enqueued from now on, on the device, run after this copy."""
        ...


class CudaCopies:
    """On a stream of their own, to pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def host_buffer(self, like: Tensor) -> Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)

    def start(self, source: Tensor, target: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record(self._stream)
        return done

    def finish_before_next_write(self, copy: CopyDone) -> None:
        assert isinstance(copy, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(copy)


class _Arrived:
    def query(self) -> bool:
        return True


class DirectCopies:
    """Between tensors of the host, at once."""

    def host_buffer(self, like: Tensor) -> Tensor:
        return torch.empty_like(like)

    def start(self, source: Tensor, target: Tensor) -> CopyDone:
        target.copy_(source)
        return _Arrived()

    def finish_before_next_write(self, copy: CopyDone) -> None:
        pass


@dataclass(frozen=True)
class LaggedSurvival:
    """Survivals of an earlier round, for the requests of this one.

    survival : float32 [B, gamma]   all 1 where the request has none of its own
    num_stale : requests of which that is so
    """

    survival: Tensor
    num_stale: int


@dataclass
class _Publication:
    survival: Tensor  # [pool_size + 1, gamma] on the host, once `done`
    generations: list[int]
    done: CopyDone


class ConfidenceRelay:
    """A ring of copies of one device buffer; the host reads the copy of ``lag`` rounds ago.

    A request has a row of the buffer, that of its place in the request pool, as long as it lives.
    Whoever gets the place next has another *generation*, so that nobody is planned by the
    survivals of somebody else.

    Two things can be missing, and mean different things. A *stale row*: the copy is there, but
    holds nothing of this request, which is new or took a place over; it counts as sure of its
    drafts, and the others keep their own. A *missing copy*: none of that round was made, or it
    has not arrived yet; then nothing is known of anybody, and :meth:`read` gives None. Neither
    waits.

    Parameters
    ----------
    pool_size : int
        Places of requests.
    num_drafts : int
        gamma.
    device : torch.device
        Where survivals are published from.
    lag : int
        Rounds between a publication and its reading, whether or not rounds overlap. At least 1: a
        budget must not depend on its own round's drafts. With 2, the copy of a round has all of
        the next one to arrive in.
    copies : HostCopies, optional
        How copies are made.

    Raises
    ------
    ValueError
        A lag below 1.
    """

    def __init__(
        self,
        pool_size: int,
        num_drafts: int,
        device: torch.device,
        *,
        lag: int = 2,
        copies: HostCopies | None = None,
    ) -> None:
        if not isinstance(lag, int) or lag < 1:
            raise ValueError(f"expected a lag of at least 1 round, a whole number, got {lag}")
        self.lag = lag
        self.num_published = 0
        self._since = 0
        if copies is None:
            copies = CudaCopies(device) if device.type == "cuda" else DirectCopies()
        self._copies = copies
        # One row more: that of padded slots.
        self._current = torch.ones(pool_size + 1, num_drafts, device=device)
        self._generations = [0] * pool_size
        # While copy n is on its way, the host may read copy n + 1 - lag.
        self._buffers = [copies.host_buffer(self._current) for _ in range(lag + 1)]
        self._ring: list[_Publication | None] = [None] * (lag + 1)  # None: no such round yet

    @property
    def padding_place(self) -> int:
        """Place of padded slots in ``places_on_device``."""
        return len(self._generations)

    def forget(self) -> None:
        """Give nothing of what was published so far to a reader.

        For a round that is drafted again: its coins, and so its drafts, are those of the first
        time, and a budget must not depend on them.
        """
        self._since = self.num_published

    def publish(
        self,
        survival: Tensor,
        places_on_device: Tensor,
        places: Sequence[int],
        generations: Sequence[int],
    ) -> None:
        """Take over this round's survivals, and start their copy.

        Parameters
        ----------
        survival : float32 [B, gamma]
            On the device, as ``schedule_verify_lens`` leaves them.
        places_on_device : int64 [B]
            Places of the requests, padded slots at ``padding_place``.
        places, generations : ints
            Places of the requests that are there, and who has them: numbers above 0, another one
            for each request.
        """
        if self.num_published > 0:
            pending = self._ring[(self.num_published - 1) % len(self._ring)]
            assert pending is not None
            self._copies.finish_before_next_write(pending.done)
        self._current.index_copy_(0, places_on_device, survival)
        for place, generation in zip(places, generations, strict=True):
            self._generations[place] = generation
        turn = self.num_published % len(self._ring)
        done = self._copies.start(self._current, self._buffers[turn])
        self._ring[turn] = _Publication(self._buffers[turn], list(self._generations), done)
        self.num_published += 1

    def read(self, places: Sequence[int], generations: Sequence[int]) -> LaggedSurvival | None:
        """What was published ``lag`` rounds ago of these requests, if it is here.

        A round reads before it publishes.
        """
        number = self.num_published - self.lag
        publication = self._ring[number % len(self._ring)]
        if number < self._since or publication is None or not publication.done.query():
            return None
        survival = publication.survival[list(places)]
        stale = [
            publication.generations[place] != generation
            for place, generation in zip(places, generations, strict=True)
        ]
        survival[torch.tensor(stale, dtype=torch.bool)] = 1.0
        return LaggedSurvival(survival, sum(stale))
