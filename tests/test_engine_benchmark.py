"""The engine benchmark decodes the text and accepts the drafts that it prescribes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.engine import __main__ as module

    yield module
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("acceptance", "tokens_per_round"), [("1,1,1", 4.0), ("0,1,1", 1.0), ("1,0,1", 2.0)]
)
def test_acceptance_is_as_prescribed(
    acceptance: str,
    tokens_per_round: float,
    tmp_path: Path,
    benchmark: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "engine.json"
    arguments = ["--shape", "tiny", "--device", "cpu", "--batch", "2", "--context", "9"]
    arguments += ["--output", "16", "--acceptance", acceptance, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["engine", *arguments])
    assert benchmark.main() == 0  # type: ignore[attr-defined]
    (result,) = json.loads(out.read_text())["results"]
    # The last round of a text may be cut short; the first record comes one step late.
    assert result["speculative"]["tokens_per_round"] == pytest.approx(tokens_per_round, rel=0.1)
    assert result["plain"]["tokens_per_round"] == 1.0
