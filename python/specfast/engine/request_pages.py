"""The pages of running requests: more as they grow, all returned when they end."""

from __future__ import annotations

from collections.abc import Sequence

from specfast.drafters.base import DeviceDrafter, Drafter, DraftPages
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.requests import Request


class RequestPages:
    """Moves pages between the pool, the requests and their rows of the page table."""

    def __init__(self, pool: PagedKvPool, page_table: PageTable) -> None:
        self._pool = pool
        self._page_table = page_table

    def allocate(self, request: Request, num_tokens: int) -> None:
        """Let the request's pages reach ``num_tokens`` positions."""
        missing = self._pool.pages_for(num_tokens) - len(request.pages)
        if missing > 0:
            pages = self._pool.allocate(missing)
            self._page_table.write(request.slot, len(request.pages), pages)
            request.pages += pages

    def attach(self, drafter: Drafter) -> None:
        """Let a drafter on the device keep what it knows of a position in that position's page."""
        if isinstance(drafter, DeviceDrafter):
            table, pool = self._page_table, self._pool
            drafter.attach(DraftPages(table.pages, table.page_size, pool.num_pages))

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
