"""``specfast generate --drafter DIRECTORY``: a trained drafter of this target, or one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drafters.by_formula import Sizes
from drafters.eagle_files import eagle3_cases
from drafters.families import FAMILIES, MOST_DRAFTS, dspark, eagle, eagle3, sizes_of
from specfast.cli import app
from specfast.drafters import DeviceDrafts, DeviceTrainedDrafter, DeviceTreeDrafter, DraftSlots
from typer.testing import CliRunner, Result

PROMPT = "the key of the slot of the key of the slot"


def run(*arguments: object, device: str = "cpu") -> Result:
    return CliRunner().invoke(app, ["generate", *map(str, arguments), "--device", device])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [(), ("--dtype", "bf16"), ("--verify-width", "3")])
def test_output_is_that_of_plain_decoding(
    family: str,
    options: tuple[str, ...],
    model_path: Path,
    tmp_path: Path,
    device: str,
) -> None:
    drafter = FAMILIES[family](tmp_path / "drafter", sizes_of(model_path))
    out = tmp_path / "out.json"
    arguments: tuple[Any, ...] = ("--model", model_path, "--drafter", drafter, "--json", out)
    arguments += ("--max-new-tokens", 24, "--ignore-eos", "--check", *options)
    result = run(PROMPT, *arguments, device=device)
    assert result.exit_code == 0, result.stderr + result.stdout
    report = json.loads(out.read_text())
    assert report["params"]["drafter"] == str(drafter)
    proposed = [r["num_proposed"] for r in report["prompts"][0]["rounds"][1:]]
    assert max(proposed) == (2 if "--verify-width" in options else MOST_DRAFTS[family])


@pytest.mark.parametrize(
    ("write", "kind", "options", "most"),
    [(FAMILIES[family], DeviceTrainedDrafter, (), MOST_DRAFTS[family]) for family in FAMILIES]
    + [
        (eagle, DeviceTreeDrafter, ("--tree",), 7),
        (eagle3, DeviceTreeDrafter, ("--tree", "--temperature", 0.7), 7),
        (eagle, DeviceTreeDrafter, ("--tree", "--drawn", "--temperature", 0.7), 7),
        (eagle, DeviceTreeDrafter, ("--tree", "--drawn"), 7),
    ],
)
def test_padded_rounds_draft_on_the_device(
    write: Callable[[Path, Sizes], Path],
    kind: type[DeviceTrainedDrafter],
    options: tuple[object, ...],
    most: int,
    model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes, with_q = [], set()
    draft = kind.draft

    def noted(self: DeviceTrainedDrafter, slots: DraftSlots) -> DeviceDrafts:
        sizes.append(tuple(slots.tokens.shape))
        drafts = draft(self, slots)
        with_q.add(drafts.proposal is not None)
        return drafts

    monkeypatch.setattr(kind, "draft", noted)
    drafter, out = write(tmp_path / "drafter", sizes_of(model_path)), tmp_path / "out.json"
    arguments = ("--model", model_path, "--drafter", drafter, "--json", out, "--ignore-eos")
    options += ("--graphs", "padded", "--max-new-tokens", 24)
    if "--temperature" not in options:
        options += ("--check",)
    result = run(PROMPT, *arguments, *options)
    assert result.exit_code == 0, result.stderr + result.stdout
    proposed = [r["num_proposed"] for r in json.loads(out.read_text())["prompts"][0]["rounds"][1:]]
    assert set(sizes) == {(1, 8)}
    assert with_q == {"--drawn" in options and "--temperature" in options}
    assert max(proposed) == most


def test_sampled(model_path: Path, tmp_path: Path, device: str) -> None:
    drafter = dspark(tmp_path / "drafter", sizes_of(model_path))
    arguments = ("--model", model_path, "--drafter", drafter, "--temperature", 0.8, "--seed", 3)
    result = run(PROMPT, *arguments, "--max-new-tokens", 12, device=device)
    assert result.exit_code == 0, result.stderr


def test_drawn_trees_on_the_host(model_path: Path, tmp_path: Path, device: str) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}))
    drafter, out = eagle(tmp_path / "drafter", sizes_of(model_path)), tmp_path / "out.json"
    options = ("--tree", "--drawn", "--temperature", 0.8, "--seed", 3, "--max-new-tokens", 12)
    arguments = ("--model", model_path, "--drafter", drafter, *options, "--json", out)
    arguments = ("eval", *arguments, "--prompts", prompts, "--device", device)
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.stderr
    assert json.loads(out.read_text())["params"]["drawn"]


def test_of_another_target(model_path: Path, tmp_path: Path) -> None:
    drafter = eagle3_cases()[0].write(tmp_path)
    result = run(PROMPT, "--model", model_path, "--drafter", drafter)
    assert result.exit_code == 2
    assert "hidden size 12, this one has 32" in result.stderr
    assert result.stderr.count("\n") == 1


def test_trees_are_of_eagle(model_path: Path, tmp_path: Path, device: str) -> None:
    shared = (PROMPT, "--model", model_path, "--tree", "--max-new-tokens", 12, "--check")
    drafter = eagle(tmp_path / "eagle", sizes_of(model_path))
    result = run(*shared, "--drafter", drafter, device=device)
    assert result.exit_code == 0, result.stderr
    drafter = dspark(tmp_path / "dspark", sizes_of(model_path))
    result = run(*shared, "--drafter", drafter)
    assert result.exit_code == 2
    assert "a drafter of the family dspark has chains" in result.stderr
