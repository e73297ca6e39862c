"""A target's recurrent layers: which they are, and who answers for them in a forward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from torch import Tensor, nn
from transformers import PreTrainedModel

from specfast.engine.state_adapter import StateAdapter, StateItem


class StateLayers(Protocol):
    """What answers the recurrent layers of one forward."""

    def advance(self, name: str, module: nn.Module, hidden_states: Tensor) -> Tensor:
        """What the module ``name`` makes of rows [R, H]."""


class RecurrentLayers:
    """The modules of ``model`` that ``adapter`` names; none without one.

    items : their states, by name

    Raises
    ------
    ValueError
        An adapter that names no module, one that the model has not, or one without a state.
    """

    def __init__(self, model: PreTrainedModel, adapter: StateAdapter | None) -> None:
        self.adapter = adapter
        self.items: Mapping[str, Sequence[StateItem]] = {}
        self._modules: dict[str, nn.Module] = {}
        if adapter is None:
            return
        self.items = dict(adapter.state_items(model))
        modules = dict(model.named_modules())
        for name, items in self.items.items():
            if name not in modules:
                raise ValueError(
                    f"state adapter: expected names of modules of {type(model).__name__}, "
                    f"got {name!r}"
                )
            if not items or not all(item.shape and min(item.shape) > 0 for item in items):
                raise ValueError(
                    f"state adapter: expected items, each with a dimension and an element, for "
                    f"{name!r}, got {[item.shape for item in items]}"
                )
            self._modules[name] = modules[name]
        if not self.items:
            raise ValueError("state adapter: expected at least one recurrent module, got none")

    @contextmanager
    def answered_by(self, states: StateLayers | None) -> Iterator[None]:
        """Inside, calls of these modules go to ``states``; afterwards to the modules again."""
        if not self._modules:
            yield
            return
        assert states is not None
        before = {name: module.__dict__.get("forward") for name, module in self._modules.items()}
        try:
            for name, module in self._modules.items():
                module.__dict__["forward"] = _Answer(states, name, module)
            yield
        finally:
            for name, module in self._modules.items():
                module.__dict__.pop("forward", None)
                if before[name] is not None:
                    module.__dict__["forward"] = before[name]


class _Answer:
    """Stands in for a module's ``forward``."""

    def __init__(self, states: StateLayers, name: str, module: nn.Module) -> None:
        self._states = states
        self._name = name
        self._module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        hidden_states: Tensor = args[0] if args else kwargs["hidden_states"]
        # One sequence of all rows, as attention has them.
        return self._states.advance(self._name, self._module, hidden_states[0])[None]
