"""What requests of the benchmark say, and how they come to be in the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from specfast.drafters import (
    DeviceTrainedDrafter,
    Drafter,
    DraftTarget,
    NgramDrafter,
    TrainedDrafter,
    load_drafter,
    why_not_on_device,
)
from specfast.engine import Engine
from specfast.sampling_params import SamplingParams
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from benchmarks.engine.prescribed import prescribe_text, prescribed_drafter
from benchmarks.engine.seats import fill_kv, seat

POOR = "poor"
TABLE = "table"
REAL_DRAFTERS = ("ngram", "ngram-tree", "trained")
TEXTS = ("README.md", "CONTRIBUTING.md", "docs/*.md")


class Work(Protocol):
    """Of one model."""

    def drafter(self, name: str, model: PreTrainedModel, num_slots: int) -> Drafter: ...

    def prepare(self, engine: Engine) -> None:
        """Once, before the first request."""

    def seat(self, engine: Engine, number: int, context: int, params: SamplingParams) -> None:
        """Add request ``number`` of a batch, with so many tokens before its first new one."""

    def prompt(self, context: int) -> list[int]:
        """One of that length, for the time to a first token."""


@dataclass(frozen=True)
class PrescribedWork:
    """A prescribed text and acceptance after random keys and values."""

    acceptance: tuple[float, ...]
    poor_acceptance: float

    def drafter(self, name: str, model: PreTrainedModel, num_slots: int) -> Drafter:
        acceptance = self.acceptance
        if name == POOR:
            acceptance = (self.poor_acceptance,) * len(acceptance)
        return prescribed_drafter(name, acceptance, model, num_slots)

    def prepare(self, engine: Engine) -> None:
        prescribe_text(engine)
        fill_kv(engine)

    def seat(self, engine: Engine, number: int, context: int, params: SamplingParams) -> None:
        seat(engine, _length(number, context), params)

    def prompt(self, context: int) -> list[int]:
        return [1] * context


@dataclass(frozen=True)
class RealWork:
    """Real weights go on with windows of a text, wherever they go; nothing is prescribed.

    token_ids : of the text; begins anew at its end
    """

    token_ids: tuple[int, ...]
    num_drafts: int
    drafter_path: Path | None

    @classmethod
    def of_checkout(
        cls, tokenizer: PreTrainedTokenizerBase, num_drafts: int, drafter_path: Path | None
    ) -> RealWork:
        """The text is what the checkout says about itself."""
        root = Path(__file__).parents[2]
        files = [path for pattern in TEXTS for path in sorted(root.glob(pattern))]
        text = "\n".join(path.read_text() for path in files)
        ids: Sequence[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return cls(tuple(ids), num_drafts, drafter_path)

    def drafter(self, name: str, model: PreTrainedModel, num_slots: int) -> Drafter:
        if name != "trained":
            return NgramDrafter(num_drafts=self.num_drafts, tree=name.endswith("tree"))
        assert self.drafter_path is not None
        loaded = load_drafter(self.drafter_path, DraftTarget.of(model), model.dtype)
        kind = DeviceTrainedDrafter if why_not_on_device(loaded) is None else TrainedDrafter
        return kind(loaded, self.num_drafts)

    def prepare(self, engine: Engine) -> None:
        pass

    def seat(self, engine: Engine, number: int, context: int, params: SamplingParams) -> None:
        engine.add_request(self._window(number, _length(number, context)), params)

    def prompt(self, context: int) -> list[int]:
        return self._window(0, context)

    def _window(self, number: int, length: int) -> list[int]:
        count = len(self.token_ids)
        first = 997 * number % count
        repeated = self.token_ids * (2 + (length - 1) // count)
        return list(repeated[first : first + length])


def _length(number: int, context: int) -> int:
    """Requests of a batch end at different places of their pages."""
    return context - 7 * number % min(context, 97)
