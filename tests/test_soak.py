"""The soak goes through every drafter, writes what it saw, and notices what it is there for."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from specfast import SamplingParams
from specfast.engine import Engine, VerifyTiers

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


KINDS = (
    *("chain", "tree", "ngram", "ngram tree", "none", "eagle", "eagle3", "dflash", "dspark"),
    *("dflash2", "eagle trees", "eagle3 drawn trees", "dspark planned", "eagle trees planned"),
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_drafter(kind: str, soak: Soak) -> None:
    from benchmarks.soak.phase import DRAFTERS

    assert set(KINDS) == set(DRAFTERS)
    code, report = soak("--seconds", "0.2", "--drafters", kind, "--graphs", "padded")
    assert report["failures"] == []
    assert code == 0
    assert {phase["drafter"] for phase in report["phases"]} == {kind}
    assert report["totals"]["equal to plain decoding"] > 0


@pytest.mark.parametrize("tiers", [None, VerifyTiers([4], 5, capture=False)])
def test_hints_are_accepted(soak: Soak, tiers: VerifyTiers | None) -> None:
    from benchmarks.engine.shapes import random_model
    from benchmarks.soak.texts import Texts
    from benchmarks.soak.trained import trained_drafter

    model = random_model("tiny", "cpu", torch.float32)
    texts = Texts(model, 4, 9, 20, seed=1)
    drafter = trained_drafter("dspark", model, texts, 4)
    engine = Engine(model, drafter, verify_width=5, tiers=tiers)
    generations = engine.generate(texts.prompts, SamplingParams(max_new_tokens=20))
    assert [g.token_ids for g in generations] == texts.plain
    assert {r.num_accepted for g in generations for r in g.rounds} >= {0, 1, 2, 3}


def test_a_page_that_is_kept(soak: Soak, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("num_drafters", [1, 4, 7])
def test_every_drafter_comes_before_any_comes_again(num_drafters: int, soak: Soak) -> None:
    from benchmarks.soak.__main__ import turn

    drafters, targets = [str(i) for i in range(num_drafters)], ["fp32", "bf16"]
    came = [turn(number, drafters, targets) for number in range(2 * num_drafters)]
    assert [drafter for drafter, _ in came] == drafters * 2
    # Each with every target, and every target early.
    assert len(set(came)) == len(came)
    assert {target for _, target in came[:2]} == set(targets)


@pytest.mark.parametrize("content", [None, "{}"])
def test_a_model_that_cannot_be_loaded(
    soak: Soak, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    (tmp_path / "soak.json").write_text("null")
    code, _ = soak("--model", str(tmp_path))
    assert code == 2
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("soak:")] == said
    assert len(said) == 1
    assert f"soak: cannot load the model {tmp_path}: " in said[0]
