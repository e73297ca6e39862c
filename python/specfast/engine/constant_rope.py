"""Rotary embeddings whose frequencies transformers would choose by the positions of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

_BY_POSITION = ("dynamic", "longrope")


class ConstantRope:
    """Holds such frequencies at those of the original length, which no position of ours exceeds.

    Past that length they would change for every request of the batch, and against keys that are
    stored. transformers looks for the largest position on the host, which waits for the device and
    cannot be captured; a length that somebody else ran the model at would be met as well.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        modules: list[Any] = [m for m in model.modules() if hasattr(m, "original_inv_freq")]
        self._frequencies = [
            (module, module.original_inv_freq.to(model.device))
            for module in modules
            if isinstance(module.rope_type, str) and _is_by_position(module.rope_type)
        ]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The model is as it was afterwards."""
        before = [(m, m.rope_type, m.inv_freq) for m, _ in self._frequencies]
        try:
            for module, frequencies in self._frequencies:
                module.rope_type, module.inv_freq = "default", frequencies
            yield
        finally:
            for module, rope_type, frequencies in before:
                module.rope_type, module.inv_freq = rope_type, frequencies


def _is_by_position(rope_type: str) -> bool:
    return any(name in rope_type for name in _BY_POSITION)
