"""What the engine has to be told of recurrent layers: their states, and how rows change them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specfast.engine.rows import RowBatch
from specfast.records import VerifyWindow


@dataclass(frozen=True)
class StateItem:
    """One tensor of a layer's state, as one request has it: a recurrent state, a window ..."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class ChainRows:
    """Which rows of a forward follow each other: R rows of B requests, at most W of each.

    qo_indptr : int32 [B + 1]     request b owns rows qo_indptr[b] .. qo_indptr[b + 1], a chain; a
                                  padded slot owns none, and rows from qo_indptr[B] on are padding
    row_index : int64 [B, W]      the row at each place of a padded view; a place that the request
                                  does not have repeats some row
    place_of_row : int64 [R]      b * W + i of each row, anything in padding
    starts_empty : bool           every request is at its first token
    last_only : bool              the rows are the tokens of one request, all of them committed
    """

    qo_indptr: Tensor
    row_index: Tensor
    place_of_row: Tensor
    starts_empty: bool = False
    last_only: bool = False

    @property
    def width(self) -> int:
        return self.row_index.shape[1]

    @classmethod
    def of_batch(cls, rows: RowBatch, *, last_only: bool = False) -> ChainRows:
        return cls(rows.qo_indptr, rows.row_index, rows.place_of_row, rows.starts_empty, last_only)

    @classmethod
    def of_window(cls, window: VerifyWindow, width: int) -> ChainRows:
        """At most ``width`` rows of each request; nothing is read on the host."""
        indptr, num_rows = window.qo_indptr, len(window.window_index)
        steps = torch.arange(width, device=indptr.device)
        row_index = (indptr[:-1, None] + steps).clamp(max=num_rows - 1)
        return cls(indptr, row_index, window.window_index.clamp(min=0).long())

    def by_request(self, rows: Tensor) -> Tensor:
        """[R, ...] to [B, W, ...]; places that a request does not have hold some row."""
        return rows[self.row_index]

    def by_row(self, padded: Tensor) -> Tensor:
        """[B, W, ...] to [R, ...]."""
        return padded.flatten(0, 1)[self.place_of_row]


class StateAdapter(Protocol):
    """Runs a target's recurrent layers for the engine, which keeps their states.

    Both methods are asked about the modules that :meth:`state_items` names. Inside a forward of
    the engine such a module is not called: :meth:`advance` answers for it. It must take
    ``hidden_states`` first or by name and return them; what else it is called with does not reach
    the adapter.
    """

    def state_items(self, model: PreTrainedModel) -> Mapping[str, Sequence[StateItem]]:
        """The state of each recurrent module, by the module's name in ``model``.

        A request's state is zero before its first token.
        """

    def advance(
        self, module: nn.Module, hidden_states: Tensor, states: Sequence[Tensor], rows: ChainRows
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Let every request's rows follow its state.

        Parameters
        ----------
        module : nn.Module
        hidden_states : [R, H]
        states : one [B, \\*item] per item
            Before the first row of each request; copies, which may be changed.
        rows : ChainRows

        Returns
        -------
        [R, H]
            What the module would return.
        one [R, \\*item] per item
            The state after each row, itself included; with ``rows.last_only`` that after the last
            row alone, [1, \\*item]: a prompt has many rows.

        Notes
        -----
        What is computed for padding does not matter, but it must not fail. In a captured round
        (docs/engine.md) nothing may be read on the host, and nothing may depend on a length.
        """
