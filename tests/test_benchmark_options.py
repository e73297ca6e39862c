"""Options that a benchmark cannot follow are refused in a sentence, before anything is run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TINY = ("--model", "MODEL")
REFUSED = [
    ("draft_steps", ("--batches", "0"), "whole number in [1, 1024], got '0'"),
    ("draft_steps", ("--batches", "1,x"), "whole number in [1, 1024], got 'x'"),
    ("draft_steps", ("--num-nodes", "1"), "whole number in [2, 128], got '1'"),
    ("draft_steps", ("--context", "-1"), "whole number >= 0, got '-1'"),
    ("draft_steps", ("--device", "nope"), "choose from cpu, cuda, got 'nope'"),
    ("draft_steps", ("--json", "/nowhere/steps.json"), "/nowhere/steps.json cannot be written"),
    ("engine", ("--points", "0x8"), "whole number >= 1, got '0'"),
    ("engine", ("--points", "8"), "whole number >= 1, got ''"),
    (
        "engine",
        ("--points", "foo:2x9"),
        "choose from table, poor, eagle3, dflash, dspark, got 'foo'",
    ),
    ("engine", (*TINY, "--points", "table:2x9"), "choose from ngram, ngram-tree, trained, got"),
    ("engine", (*TINY, "--points", "trained:2x9"), "expected --drafter for the drafter trained"),
    ("engine", (*TINY, "--drafter", "/nowhere"), "there is no directory /nowhere"),
    ("engine", ("--output", "0"), "whole number >= 1, got '0'"),
    ("engine", ("--acceptance", "0.5,nan"), "number in [0, 1], got 'nan'"),
    ("engine", ("--acceptance", "2"), "number in [0, 1], got '2'"),
    ("engine", ("--temperature", "-1"), "number >= 0, got '-1'"),
    ("engine", ("--device", "nope"), "choose from cpu, cuda, got 'nope'"),
    ("engine", ("--json", "/"), "/ cannot be written"),
    ("soak", ("--seconds", "nan"), "number >= 0, got 'nan'"),
    ("soak", ("--prompts", "0"), "whole number >= 1, got '0'"),
    ("soak", ("--longest-prompt", "0"), "whole number >= 1, got '0'"),
    ("soak", ("--tokens", "0"), "whole number >= 1, got '0'"),
    ("soak", ("--seed", "-5"), "whole number >= 0, got '-5'"),
    ("soak", ("--drafters", "chain,foo"), "choose from dspark planned, tree,"),
    ("soak", ("--engine", "page_size"), "value as in Python for page_size, got ''"),
    ("soak", ("--engine", "foo=1"), "choose from max_batch_size, page_size,"),
    ("soak", ("--graphs", "graphs"), "graphs are for --device cuda"),
    ("soak", ("--json", "/nowhere/soak.json"), "/nowhere/soak.json cannot be written"),
    ("drafters", (*TINY, "--families", "eagle,foo"), "choose from eagle, eagle3,"),
    ("drafters", (*TINY, "--tokens", "0"), "whole number >= 1, got '0'"),
    ("drafters", (*TINY, "--prompts", "/nowhere"), "there is no file /nowhere"),
    ("drafters", ("--model", "/nowhere"), "there is no file /nowhere/config.json"),
]


@pytest.mark.parametrize(("name", "arguments", "sentence"), REFUSED)
def test_refused(
    name: str,
    arguments: tuple[str, ...],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    (tmp_path / "config.json").write_text("{}")
    words = [str(tmp_path) if word == "MODEL" else word for word in arguments]
    monkeypatch.setattr(sys, "argv", [name, *words])
    try:
        module = importlib.import_module(f"benchmarks.{name}.__main__")
        with pytest.raises(SystemExit) as refusal:
            module._options()
    finally:
        for loaded in [loaded for loaded in sys.modules if loaded.startswith("benchmarks")]:
            del sys.modules[loaded]
    assert refusal.value.code == 2
    assert sentence in capsys.readouterr().err.splitlines()[-1]
