"""Drafters on the device for a soak: small random checkpoints, and texts that they are told."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from specfast.drafters import (
    DeviceDrafts,
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    DraftPages,
    DraftRequest,
    DraftSlots,
    DraftTarget,
    load_drafter,
)
from specfast.drafters.loader import DrafterModel
from specfast.drafters.paged_drafter import PagedDrafter
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.soak.texts import TextHints, Texts

FAMILIES = ("eagle", "eagle3", "dflash", "dspark", "dflash2")
# With confidences, by which rounds can be planned.
PLANNED = ("dspark planned", "eagle trees planned")
TRAINED = (*FAMILIES, "eagle trees", "eagle3 drawn trees", *PLANNED)


def trained_drafter(
    kind: str, model: PreTrainedModel, texts: Texts, num_drafts: int
) -> PagedDrafter:
    """A drafter of ``TRAINED`` for ``model``."""
    family, *words = kind.split()
    loaded = _load(family, model, "planned" in words)
    if "trees" in words:
        num_nodes = max(num_drafts + 1, 2)
        return DeviceTreeDrafter(loaded, num_nodes, 3, 4, drawn="drawn" in words)  # type: ignore[arg-type]
    return HintedDrafter(loaded, texts, num_drafts)


class HintedDrafter(DeviceTrainedDrafter):
    """Chains, with true tokens in front of the drafts of greedy requests."""

    def __init__(self, model: DrafterModel, texts: Texts, num_drafts: int) -> None:
        super().__init__(model, num_drafts)
        self._texts = texts
        self._hints: TextHints | None = None

    def attach(self, pages: DraftPages) -> None:
        super().attach(pages)
        self._hints = TextHints(self._texts, len(pages.table), self.model.device)

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        super().observe(requests, taps)
        assert self._hints is not None
        self._hints.know(requests)

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        drafts = super().draft(slots)
        assert self._hints is not None
        self._hints.hide(slots)
        return drafts


def _load(family: str, model: PreTrainedModel, with_confidence: bool) -> DrafterModel:
    """With the makers of the tests."""
    makers: Any = str(Path(__file__).parents[2] / "tests")
    if makers not in sys.path:
        sys.path.append(makers)
    from drafters.families import FAMILIES as WRITERS
    from drafters.families import sizes_for

    config = model.config.get_text_config()
    dtype: torch.dtype = model.dtype
    sizes = sizes_for(config.hidden_size, config.vocab_size)
    options = {"confidence": with_confidence} if family == "dspark" else {}
    with tempfile.TemporaryDirectory() as folder:
        path = WRITERS[family](Path(folder), sizes, **options)
        return load_drafter(path, DraftTarget.of(model), dtype)
