"""The benchmark of draft steps runs every way of drafting."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from specfast.drafters import DeviceTrainedDrafter, DeviceTreeDrafter, DraftSlots

ROOT = Path(__file__).parents[1]


@pytest.fixture
def draft_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.draft_steps import __main__ as module

    yield module
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def test_every_step_drafts(
    draft_steps: Any, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[str, int, bool]] = set()
    for kind in (DeviceTrainedDrafter, DeviceTreeDrafter):
        draft = kind.draft

        def noted(self: Any, slots: DraftSlots, draft: Any = draft) -> object:
            drafts = draft(self, slots)
            if device == "cpu":
                assert slots.verify_lens.tolist() == [min(slots.tokens.shape[1], 8)] * 2
                assert int(slots.tokens[:, 1:].min()) >= 0
            seen.add((type(self).__name__, slots.tokens.shape[1], drafts.proposal is not None))
            return drafts

        monkeypatch.setattr(kind, "draft", noted)
    out = tmp_path / "steps.json"
    arguments = ["--shape", "tiny", "--device", device, "--batches", "2", "--context", "40"]
    arguments += ["--num-nodes", "7", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["draft_steps", *arguments])
    assert draft_steps.main() == 0
    trees = {("DeviceTreeDrafter", 7, is_drawn) for is_drawn in (False, True)}
    assert seen == {("DeviceTrainedDrafter", 8, True), *trees}
    results = json.loads(out.read_text())["results"]
    assert len(results) == (0 if device == "cpu" else 9)
    assert all(0 < result["overhead"] < 1 for result in results)
