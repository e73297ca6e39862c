"""Captures the hidden states that a drafter reads, while the target runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from specfast.drafters.checkpoint.target import decoder_layers

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TapRecorder:
    """Hidden states after decoder layers of a transformers model, as a context manager.

    The tuple that models return with ``output_hidden_states`` will not do: its last entry is
    behind the final norm.

    Parameters
    ----------
    model : PreTrainedModel
    layers : sequence of int, or None
        k is the output of decoder layer k, from 0; -1 the input of the first. None: the last
        hidden state, after the final norm.
    """

    def __init__(self, model: PreTrainedModel, layers: Sequence[int] | None) -> None:
        self._layers = None if layers is None else tuple(layers)
        self._modules = decoder_layers(model)
        self._base_model = model.base_model
        self._handles: list[RemovableHandle] = []
        self._captured: dict[int | None, Tensor] = {}

    def __enter__(self) -> TapRecorder:
        if self._layers is None:
            handle = self._base_model.register_forward_hook(self._on_output(None))
            self._handles.append(handle)
        for layer in self._layers or ():
            if layer == -1:
                handle = self._modules[0].register_forward_pre_hook(self._on_input)
            else:
                handle = self._modules[layer].register_forward_hook(self._on_output(layer))
            self._handles.append(handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def taps(self) -> Tensor:
        """Of the last forward: [batch, rows, num_taps * width], in the order asked for."""
        layers = (None,) if self._layers is None else self._layers
        return torch.cat([self._captured[layer] for layer in layers], dim=-1)

    def _on_input(self, module: torch.nn.Module, arguments: tuple[Any, ...]) -> None:
        self._captured[-1] = arguments[0]

    def _on_output(self, layer: int | None) -> Any:
        def record(module: torch.nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
            # A layer returns a tensor or a tuple, a model something that is indexed like one.
            self._captured[layer] = output if isinstance(output, Tensor) else output[0]

        return record


def recording(recorder: TapRecorder | None) -> AbstractContextManager[object]:
    """Around a forward of the target; without a recorder, nothing."""
    return nullcontext() if recorder is None else recorder
