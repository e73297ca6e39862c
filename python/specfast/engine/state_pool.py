"""The states of recurrent layers: one slot per request, and a round's states after each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from specfast import ops
from specfast.engine.state_adapter import ChainRows, StateAdapter, StateItem
from specfast.engine.target import Target
from specfast.ops.state import MAX_STATE_BUFFERS
from specfast.records import AcceptRecord


class StatePool:
    """A slot for the state of each request, in all recurrent layers.

    ``states[name]`` holds one tensor [num_slots, \\*item] per item of the module's state.

    The storage is uninitialised: a request that starts empty does not read its slot, and its first
    commit writes all of it.
    """

    def __init__(
        self,
        adapter: StateAdapter,
        items: Mapping[str, Sequence[StateItem]],
        num_slots: int,
        device: torch.device,
    ) -> None:
        self.adapter = adapter
        self.states = {
            name: [torch.empty(num_slots, *i.shape, dtype=i.dtype, device=device) for i in of_layer]
            for name, of_layer in items.items()
        }

    @classmethod
    def of(cls, target: Target, num_slots: int) -> StatePool | None:
        """None for a target without recurrent layers."""
        recurrent = target.recurrent
        if recurrent.adapter is None:
            return None
        return cls(recurrent.adapter, recurrent.items, num_slots, target.device)

    def clear(self) -> None:
        """Make all states zeros."""
        for of_layer in self.states.values():
            for states in of_layer:
                states.zero_()

    def over(self, rows: ChainRows, slots: Tensor) -> RowStates:
        """For one forward of ``rows``, whose requests have ``slots`` int32 or int64 [B]."""
        return RowStates(self, rows, slots)


class RowStates:
    """Answers one forward's recurrent layers, and keeps their states after each of its rows."""

    def __init__(self, pool: StatePool, rows: ChainRows, slots: Tensor) -> None:
        self._pool = pool
        self._rows = rows
        self._slots = slots
        self._after: dict[str, Sequence[Tensor]] = {}

    def advance(self, name: str, module: nn.Module, hidden_states: Tensor) -> Tensor:
        """[R, H] to [R, H]."""
        before = [self._before(states) for states in self._pool.states[name]]
        out, self._after[name] = self._pool.adapter.advance(
            module, hidden_states, before, self._rows
        )
        return out

    def commit(self, record: AcceptRecord) -> None:
        """Bring the requests to where the target agreed; ``record.accept_index`` names rows."""
        states = [s.contiguous()[None] for name in self._pool.states for s in self._after[name]]
        pools = [p[None] for of_layer in self._pool.states.values() for p in of_layer]
        for first in range(0, len(states), MAX_STATE_BUFFERS):
            ops.commit_state(
                states[first : first + MAX_STATE_BUFFERS],
                pools[first : first + MAX_STATE_BUFFERS],
                record.accept_index,
                record.commit_lens,
                self._slots,
                status=record.status,
                accumulate_status=True,
            )
        self._after.clear()

    def _before(self, states: Tensor) -> Tensor:
        if self._rows.starts_empty:
            # Whatever the slot's last request left there.
            return states.new_zeros(len(self._slots), *states.shape[1:])
        return states.index_select(0, self._slots)
