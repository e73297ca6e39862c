"""Outputs on their way to whoever asked for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from specfast.engine.requests import RoundOutput
from specfast.status import FinishReason, Status


class OutputStreams:
    """The streams of one engine: each gets its requests' outputs, whoever runs the step.

    Parameters
    ----------
    step, cancel : callables
        The engine's. What they decide comes back through :meth:`deliver` and :meth:`abort`.
    """

    def __init__(self, step: Callable[[], object], cancel: Callable[[int], object]) -> None:
        self._step = step
        self._cancel = cancel
        self._streams: dict[int, _Stream] = {}
        self._untold: list[RoundOutput] = []
        self._is_in_step = False
        self._to_cancel: list[int] = []

    @contextmanager
    def in_step(self) -> Iterator[None]:
        """Inside, a stream that ends cancels nothing yet: Python may end one at any time."""
        self._is_in_step = True
        try:
            yield
        finally:
            self._is_in_step = False
            self._cancel_closed()

    @contextmanager
    def cancelled_if_it_fails(self, request_ids: Iterable[int]) -> Iterator[None]:
        """Inside, an exception cancels these requests: nobody is left who waits for them."""
        try:
            yield
        except BaseException:
            for request_id in request_ids:
                self._cancel(request_id)
            raise

    def read(self, request_ids: Sequence[int]) -> Iterator[RoundOutput]:
        """The outputs of these requests; open from now on, and until it is closed or at its end."""
        stream = _Stream(set(request_ids))
        self._streams.update(dict.fromkeys(request_ids, stream))
        outputs = self._read(stream)
        # A generator that has not started forgets what to do at its end.
        next(outputs)
        return outputs  # type: ignore[return-value]

    def _read(self, stream: _Stream) -> Iterator[RoundOutput | None]:
        try:
            yield None
            while stream.outputs or stream.unfinished:
                while stream.outputs:
                    yield stream.outputs.popleft()
                if stream.unfinished:
                    self._step()
        finally:
            self._to_cancel += sorted(stream.unfinished)
            if not self._is_in_step:
                self._cancel_closed()

    def _cancel_closed(self) -> None:
        while self._to_cancel:
            self._cancel(self._to_cancel.pop(0))

    def deliver(self, outputs: Sequence[RoundOutput]) -> None:
        """Give outputs to the streams that are open for them."""
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.outputs.append(output)
            if stream is not None and output.finish_reason:
                stream.unfinished.remove(output.request_id)
                del self._streams[output.request_id]

    def abort(self, request_id: int) -> None:
        """Make the last output of a request that was cancelled: no tokens."""
        output = RoundOutput(request_id, [], 0, 0, FinishReason.ABORT, Status.OK)
        self._untold.append(output)
        self.deliver([output])

    def keep(self, outputs: Sequence[RoundOutput]) -> None:
        """What was delivered, but not returned by its step, which failed."""
        self._untold += outputs

    @property
    def has_untold(self) -> bool:
        """Whether no step has returned yet what was aborted or kept."""
        return bool(self._untold)

    def take_untold(self) -> list[RoundOutput]:
        """The outputs of :meth:`abort` and :meth:`keep`, each once."""
        untold, self._untold = self._untold, []
        return untold


class _Stream:
    """Outputs that wait to be read, and the requests whose last one has not come yet."""

    def __init__(self, unfinished: set[int]) -> None:
        self.unfinished = unfinished
        self.outputs: deque[RoundOutput] = deque()
