"""The soak goes through every drafter, writes what it saw, and notices what it is there for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
Soak = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Soak]:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.soak import __main__ as module

    def run(*arguments: str) -> tuple[int, dict[str, Any]]:
        out = tmp_path / "soak.json"
        few = ["--prompts", "3", "--longest-prompt", "9", "--tokens", "12", "--seed", "3"]
        short = ["--phase-seconds", "0.2", "--json", str(out)]
        monkeypatch.setattr(sys, "argv", ["soak", *few, *short, *arguments])
        return module.main(), json.loads(out.read_text())

    yield run
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def test_every_drafter(soak: Soak) -> None:
    from benchmarks.soak.phase import DRAFTERS

    code, report = soak("--seconds", "12")
    assert report["failures"] == []
    assert code == 0
    seen = {phase["drafter"] for phase in report["phases"]}
    assert seen == set(DRAFTERS)
    assert report["totals"]["accepted drafts"] > 0
    assert {phase["rounds"] for phase in report["phases"]} == {"padded", "eager"}


def test_a_page_that_is_kept(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    from specfast.engine import Engine

    cancel = Engine.cancel

    def keeping(self: Engine, request_id: int) -> bool:
        self.pool.allocate(1)
        return cancel(self, request_id)

    monkeypatch.setattr(Engine, "cancel", keeping)
    code, report = soak("--seconds", "2", "--drafters", "ngram", "--phase-seconds", "0.05")
    assert code == 1
    assert any("KV page was lost" in failure for failure in report["failures"])


def test_another_text(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    from specfast.engine.round_inputs import RoundInputs

    load = RoundInputs.load

    def one_further(self: RoundInputs, *arguments: Any) -> None:
        load(self, *arguments)
        self.prefix_lens.add_(1)

    monkeypatch.setattr(RoundInputs, "load", one_further)
    code, report = soak("--seconds", "1", "--drafters", "none", "--graphs", "padded")
    assert code == 1
    assert report["failures"]
