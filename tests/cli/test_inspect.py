"""``specfast inspect``: everything that was understood, or one sentence and exit code 2."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from drafters.block_files import BlockCase, dflash2_cases, dflash_cases, dspark_cases
from drafters.eagle_files import EagleCase, eagle3_cases, eagle_cases
from specfast.cli import app
from specfast.drafters.checkpoint import CheckpointFiles, read_spec
from typer.testing import CliRunner, Result

CASES = {case.name: case for case in [*eagle3_cases(), *eagle_cases()]}


BLOCKS = {case.name: case for case in [*dflash_cases(), *dspark_cases(), *dflash2_cases()]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def target_of(path: Path, **changes: int) -> Path:
    path.mkdir()
    config = {"hidden_size": 12, "vocab_size": 40, "num_hidden_layers": 12, **changes}
    (path / "config.json").write_text(json.dumps(config))
    return path


def cells(result: Result) -> dict[str, str]:
    rows = [line.split("│", 1) for line in result.stdout.splitlines() if "│" in line]
    return {name.strip(): value.strip() for name, value in rows}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_says_what_it_understood(case: EagleCase, tmp_path: Path) -> None:
    path = case.write(tmp_path / "drafter")
    result = run(path, "--model", target_of(tmp_path / "target"))
    assert result.exit_code == 0, result.stderr
    table = cells(result)
    assert table["family"] == case.family
    assert table["dialect"].startswith(case.dialect)
    assert f"theta {case.sizes.theta:g}" in table["rotary"]
    assert table["vocabulary"].startswith("40")
    assert ("drafts 17" in table["vocabulary"]) == case.mapped
    expected = f"after layers {list(case.taps)}" if case.taps else "after the final norm"
    assert expected in table["reads"]
    for reading in read_spec(CheckpointFiles(path)).readings:
        assert f"- {reading}" in result.stdout


@pytest.mark.parametrize("case", BLOCKS.values(), ids=BLOCKS)
def test_says_what_a_block_is(case: BlockCase, tmp_path: Path) -> None:
    path = case.write(tmp_path / "drafter")
    result = run(path, "--model", target_of(tmp_path / "target"))
    assert result.exit_code == 0, result.stderr
    table = cells(result)
    assert (table["family"], table["dialect"].split(" ")[0]) == (case.family, case.dialect)
    assert f"after layers {list(case.taps)}" in table["reads"]
    proposals = case.num_rows - (not case.from_anchor)
    assert table["block"].startswith(f"{case.num_rows} rows, {proposals} proposals")
    assert table["mask token"].startswith("33")
    assert ("Markov head" in table) == (case.markov is not None)
    assert ("confidence head" in table) == (case.confidence is not None)
    assert ("selector" in table) == (case.selector is not None)


def test_without_a_target_defaults_stay_open(tmp_path: Path) -> None:
    result = run(CASES["safeailab"].write(tmp_path))
    assert "by the target's depth" in cells(result)["reads"]


def test_json(tmp_path: Path) -> None:
    path, out = CASES["speculators"].write(tmp_path / "drafter"), tmp_path / "out.json"
    assert run(path, "--json", out).exit_code == 0
    report = json.loads(out.read_text())
    assert report["drafter"] == json.loads(json.dumps(asdict(read_spec(CheckpointFiles(path)))))
    assert report["drafter"]["eagle3"]["norm_before_residual"] is True


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 16}, "hidden size 12, this one has 16"),
        ({"vocab_size": 41}, "vocabulary 40, this one has 41"),
        ({"num_hidden_layers": 9}, "layers [2, 6, 11]"),
    ],
)
def test_another_target(changes: dict[str, int], words: str, tmp_path: Path) -> None:
    path = CASES["nested-aux-ids"].write(tmp_path / "drafter")
    refused(run(path, "--model", target_of(tmp_path / "target", **changes)), words)


def test_other_tokens(tmp_path: Path) -> None:
    path = CASES["nested-aux-ids"].write(tmp_path / "drafter")
    target = target_of(tmp_path / "target")
    for directory, token in ((path, "a"), (target, "b")):
        content = json.dumps({"model": {"vocab": {token: 7}}})
        (directory / "tokenizer.json").write_text(content)
    refused(run(path, "--model", target), "'a' at id 7, the target's 'b'")


def test_bad_input(tmp_path: Path) -> None:
    refused(run(tmp_path / "none"), f"specfast: {tmp_path / 'none'} does not exist")
    path = CASES["nested-aux-ids"].write(tmp_path / "drafter")
    refused(run(path, "--model", tmp_path), "cannot read the target's")
    refused(run(path, "--json", tmp_path / "no" / "file"), "cannot write")
    (path / "config.json").write_text("{}")
    refused(run(path), "is missing")


def refused(result: Result, words: str) -> None:
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
