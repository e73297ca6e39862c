"""The pages of running requests: more as they grow, all returned when they end."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakValueDictionary

from specfast.drafters.base import DeviceDrafter, Drafter, DraftPages
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.requests import Request


class RequestPages:
    """Moves pages between the pool, the requests and their rows of the page table.

    A drafter on the device keeps what it knows of a position in that position's page.
    """

    def __init__(self, pool: PagedKvPool, page_table: PageTable, drafter: Drafter) -> None:
        self._pool = pool
        self._page_table = page_table
        self._drafter = drafter
        if isinstance(drafter, DeviceDrafter):
            _served[id(drafter)] = self
            drafter.attach(DraftPages(page_table.pages, page_table.page_size, pool.num_pages))

    def require_drafter(self) -> None:
        """Raise RuntimeError where the drafter has been attached to the pages of another engine."""
        if isinstance(self._drafter, DeviceDrafter) and _served.get(id(self._drafter)) is not self:
            raise RuntimeError(
                "drafter: expected one that serves this engine, got one that has since been given "
                "to another; a drafter on the device serves one engine at a time"
            )

    def allocate(self, request: Request, num_tokens: int) -> None:
        """Let the request's pages reach ``num_tokens`` positions."""
        missing = self._pool.pages_for(num_tokens) - len(request.pages)
        if missing > 0:
            pages = self._pool.allocate(missing)
            self._page_table.write(request.slot, len(request.pages), pages)
            request.pages += pages

    def reserve(self, requests: Sequence[Request], rows: int) -> None:
        """Pages for so many rows after the committed ones, as far as a request may ever go."""
        for request in requests:
            most = request.reserved_pages * self._pool.page_size
            self.allocate(request, min(request.committed_len + rows, most))
        self._page_table.flush()

    def release(self, request: Request) -> None:
        """Take back all that an ended request has."""
        self._pool.release(request.pages)
        request.pages = []
        self._page_table.return_row(request.slot)


# By the drafter's id, which is nobody else's as long as the pages live.
_served: WeakValueDictionary[int, RequestPages] = WeakValueDictionary()
