"""A drafter that is one in part is refused, and not taken for another kind."""

from __future__ import annotations

from typing import Any

import pytest
from engine.models import tiny_model
from specfast import SamplingParams
from specfast.drafters import DraftSlots, NgramDrafter, PlainDecoding
from specfast.engine import Engine, VerifyTiers


class Observing(NgramDrafter):
    tap_layers = (0,)

    def observe(self, requests: object, taps: object) -> None:
        pass


@pytest.mark.parametrize(
    ("base", "lacking"),
    [
        *((NgramDrafter, name) for name in ("propose", "release")),
        *((Observing, name) for name in ("tap_layers", "observe")),
        *(
            (PlainDecoding, name)
            for name in ("drafts_trees", "attach", "begin", "draft", "committed", "release")
        ),
    ],
)
def test_incomplete_drafter(base: type, lacking: str) -> None:
    members: dict[str, Any] = {}
    for parent in base.__mro__[-2::-1]:
        members.update(vars(parent))
    del members[lacking]
    whole = {name: member for name, member in members.items() if name[:2] != "__"}
    drafter: Any = type("Partial", (), whole)()
    with pytest.raises(ValueError, match=f"with propose, release.* got Partial without {lacking}$"):
        Engine(tiny_model(), drafter)


def test_whole_ones_are_taken() -> None:
    for drafter in (NgramDrafter(), Observing(), PlainDecoding()):
        assert Engine(tiny_model(), drafter).drafter is drafter


class Silent(PlainDecoding):
    def draft(self, slots: DraftSlots) -> Any:
        super().draft(slots)


def test_a_draft_that_returns_nothing() -> None:
    tiers = VerifyTiers([1], 8, capture=False)
    engine = Engine(tiny_model(head_dim=64), Silent(), tiers=tiers)
    with pytest.raises(RuntimeError, match="expected draft to return DeviceDrafts, got NoneType"):
        engine.generate([[1, 2]], SamplingParams(max_new_tokens=4))
