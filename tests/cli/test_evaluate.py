"""``specfast eval`` from its arguments to its exit code."""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.test_evaluation import CHAINS
from cli.test_generate import prompt_file as prompt_file
from drafters.by_formula import Sizes
from drafters.families import dflash, dflash2, dspark, eagle, eagle3, sizes_of
from safetensors.torch import load_file, save_file
from specfast.cli import app
from specfast.cli.calibration import Calibration, SurvivalBin
from specfast.cli.chart import check_chart, write_chart
from specfast.cli.draft_meter import DraftMeter
from specfast.cli.engines import warm_engine
from specfast.cli.errors import CliError
from specfast.engine import Engine
from typer.testing import CliRunner, Result


def run(command: str, *arguments: object, device: str = "cpu") -> Result:
    return CliRunner().invoke(app, [command, *map(str, arguments), "--device", device])


def drafted_rounds(report: dict[str, Any]) -> list[dict[str, int]]:
    rounds = [r for prompt in report["prompts"] for r in prompt["rounds"][1:]]
    return [r for r in rounds if r["num_proposed"] > 0]


def cells(result: Result) -> dict[str, str]:
    rows = [line.split("│") for line in result.stdout.splitlines() if line.count("│") == 1]
    return {name.strip(): value.strip() for name, value in rows}


def dspark_behind_anchor(path: Path, sizes: Sizes) -> Path:
    """As DFlash has it: the anchor's row drafts nothing."""
    config = json.loads((dspark(path, sizes) / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "sample_from_anchor": False}))
    return path


def dspark_with_confidence(path: Path, sizes: Sizes) -> Path:
    config = json.loads((dspark(path, sizes) / "config.json").read_text())
    changed = {"enable_confidence_head": True, "confidence_head_with_markov": False}
    (path / "config.json").write_text(json.dumps({**config, **changed}))
    tensors = load_file(path / "model.safetensors")
    tensors["confidence_head.proj.weight"] = torch.zeros(1, sizes.hidden)
    tensors["confidence_head.proj.bias"] = torch.tensor([1.5])
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize("options", [(), ("--tree",), ("--temperature", 0.7, "--seed", 3)])
def test_counts_are_those_of_the_rounds_that_generate_writes(
    options: tuple[object, ...],
    model_path: Path,
    prompt_file: Path,
    tmp_path: Path,
    device: str,
) -> None:
    out, rounds_out = tmp_path / "out.json", tmp_path / "rounds.json"
    shared = ("--model", model_path, "--drafter", "ngram", "--max-new-tokens", 40, "--dtype")
    shared += ("fp32", "--ignore-eos", *options)
    result = run("eval", *shared, "--prompts", prompt_file, "--json", out, device=device)
    assert result.exit_code == 0, result.stderr
    plain = ("--no-plain", "--prompt-file", prompt_file, "--json", rounds_out)
    assert run("generate", *shared, *plain, device=device).exit_code == 0
    report = json.loads(out.read_text())
    evaluation, rounds = report["evaluation"], drafted_rounds(json.loads(rounds_out.read_text()))
    accepted = [r["num_accepted"] for r in rounds]
    assert sum(accepted) > 0
    assert evaluation["acceptance_length"] == pytest.approx(sum(accepted) / len(rounds))
    emitted = sum(r["num_tokens"] for r in rounds)
    assert evaluation["acceptance_length_with_bonus"] == pytest.approx(emitted / len(rounds))
    proposed = sum(r["num_proposed"] for r in rounds)
    assert evaluation["acceptance_rate"] == pytest.approx(sum(accepted) / proposed)
    if "--tree" not in options:
        by_position = [sum(r["num_proposed"] >= p for r in rounds) for p in range(1, 8)]
        assert evaluation["proposed_by_position"] == by_position
    histogram = evaluation["length_histogram"]
    assert histogram == [accepted.count(n) for n in range(len(histogram))]
    cost = evaluation["cost"]
    assert sum(cost.values()) == pytest.approx(evaluation["summary"]["seconds"])
    assert min(cost.values()) > 0
    assert cells(result)["acceptance length"] == f"{evaluation['acceptance_length']:.3f}"
    assert cells(result)["acceptance rate"].startswith(f"{sum(accepted)}/{proposed} = ")
    assert all(f"Hint: {hint}" in result.stdout for hint in report["hints"])
    assert report["drafter"] is None


@pytest.mark.parametrize(
    ("write", "lengths"),
    [
        (eagle, (None, 7, 8)),
        (eagle3, (None, 7, 8)),
        (dflash, (6, 5, 6)),
        (dspark, (4, 4, 5)),
        (dspark_behind_anchor, (4, 3, 4)),
        (dflash2, (6, 5, 6)),
    ],
    ids=["eagle", "eagle3", "dflash", "dspark", "dspark-behind-anchor", "dflash2"],
)
def test_trained_drafters(
    write: Callable[[Path, Sizes], Path],
    lengths: tuple[int | None, int, int],
    model_path: Path,
    prompt_file: Path,
    tmp_path: Path,
    device: str,
) -> None:
    drafter, out = write(tmp_path / "drafter", sizes_of(model_path)), tmp_path / "out.json"
    arguments = ("--model", model_path, "--drafter", drafter, "--prompts", prompt_file)
    arguments += ("--max-new-tokens", 60, "--ignore-eos", "--json", out)
    result = run("eval", *arguments, device=device)
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    measured = report["evaluation"]["lengths"]
    names = ("train_block", "proposals", "verify_rows")
    assert tuple(measured[name] for name in names) == lengths
    assert ("train block" in result.stdout) == (lengths[0] is not None)
    # Random weights know nothing of the target.
    assert "Position 1 is accepted in" in result.stdout
    assert report["drafter"]["family"] == write.__name__.partition("_")[0]


def test_a_drafter_of_padded_rounds_is_measured_on_the_host(
    model_path: Path, prompt_file: Path, tmp_path: Path
) -> None:
    """In ``generate`` it would be a part of the round."""
    figures = []
    for graphs in ("off", "padded"):
        out = tmp_path / f"{graphs}.json"
        arguments = ("--model", model_path, "--prompts", prompt_file, "--graphs", graphs)
        arguments += ("--drafter", dspark(tmp_path / graphs, sizes_of(model_path)), "--json", out)
        result = run("eval", *arguments, "--max-new-tokens", 20, "--ignore-eos")
        assert result.exit_code == 0, result.stderr
        evaluation = json.loads(out.read_text())["evaluation"]
        figures.append((evaluation["proposed_by_position"], evaluation["length_histogram"]))
        assert evaluation["cost"]["draft"] > 0
    assert figures[0] == figures[1]


def test_report_is_drawn(model_path: Path, prompt_file: Path, tmp_path: Path, device: str) -> None:
    pytest.importorskip("matplotlib")
    chart = tmp_path / "chart.png"
    arguments = ("--model", model_path, "--drafter", "ngram", "--prompts", prompt_file)
    result = run("eval", *arguments, "--max-new-tokens", 8, "--report", chart, device=device)
    assert result.exit_code == 0, result.stderr
    assert chart.read_bytes().startswith(b"\x89PNG\r\n")


def test_report_shows_positions_and_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    savefig = figure.Figure.savefig

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        drawn.append(self)
        savefig(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", noted)
    write_chart(tmp_path / "chart.png", "a name with $_$ is no formula", CHAINS)
    assert (tmp_path / "chart.png").exists()
    by_position, lengths = drawn[0].axes
    assert [bar.get_height() for bar in by_position.patches] == [3 / 4, 2 / 4, 1 / 4]
    assert list(by_position.lines[0].get_ydata()) == [3 / 4, 1.0, 1 / 2]
    assert [bar.get_height() for bar in lengths.patches] == [1, 1, 1, 1]


def test_report_shows_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    savefig = figure.Figure.savefig

    def noted(self: Any, *arguments: Any, **options: Any) -> None:
        drawn.append(self)
        savefig(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", noted)
    bins = [SurvivalBin(3, 0.25, 0.0), SurvivalBin(5, 0.75, 0.5)]
    calibrated = replace(CHAINS, calibration=Calibration(bins, bins, 0.25))
    write_chart(tmp_path / "chart.png", "a drafter with confidences", calibrated)
    line = drawn[0].axes[2].lines[1]
    assert list(line.get_xdata()) == [0.25, 0.75]
    assert list(line.get_ydata()) == [0.0, 0.5]


def test_survivals_come_from_the_drafter(
    model_path: Path, prompt_file: Path, tmp_path: Path
) -> None:
    drafter = dspark_with_confidence(tmp_path / "drafter", sizes_of(model_path))
    out = tmp_path / "out.json"
    arguments = ("--model", model_path, "--drafter", drafter, "--prompts", prompt_file)
    arguments += ("--max-new-tokens", 30, "--ignore-eos", "--json", out)
    result = run("eval", *arguments)
    assert result.exit_code == 0, result.stderr
    evaluation = json.loads(out.read_text())["evaluation"]
    calibration = evaluation["calibration"]
    # The head is a bias alone: a draft survives the one before with the same chance.
    chance = 1 / (1 + math.exp(-1.5))
    predicted = [one["predicted"] for one in calibration["by_position"]]
    assert predicted == pytest.approx([chance**n for n in range(1, len(predicted) + 1)], abs=1e-5)
    first = calibration["by_position"][0]
    assert first["count"] == evaluation["decided_by_position"][0]
    assert first["accepted"] == pytest.approx(evaluation["conditional_acceptance"][0])
    assert sum(one["count"] for one in calibration["bins"]) == sum(
        one["count"] for one in calibration["by_position"]
    )
    assert cells(result)["survival calibration error"] == f"{calibration['error']:.3f}"


def test_warming_up_is_no_part_of_the_cost(
    model_path: Path, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, module = tmp_path / "out.json", importlib.import_module("specfast.cli.evaluate")

    def warmed(target: Any, meter: DraftMeter, *arguments: Any) -> Engine:
        engine = warm_engine(target, meter, *arguments)
        meter.seconds += 1e9
        return engine

    monkeypatch.setattr(module, "warm_engine", warmed)
    arguments = ("--model", model_path, "--drafter", "ngram", "--prompts", prompt_file)
    assert run("eval", *arguments, "--json", out).exit_code == 0
    assert 0 < json.loads(out.read_text())["evaluation"]["cost"]["draft"] < 1e9


def test_nothing_drafted(model_path: Path, prompt_file: Path, tmp_path: Path) -> None:
    """One new token leaves no round."""
    pytest.importorskip("matplotlib")
    arguments = ("--model", model_path, "--drafter", "ngram", "--prompts", prompt_file)
    arguments += ("--max-new-tokens", 1, "--report", tmp_path / "chart.png")
    result = run("eval", *arguments)
    assert result.exit_code == 0, result.stderr
    assert "nothing was measured" in result.stdout


def test_bad_input(
    model_path: Path, prompt_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(words: str, *changes: object) -> None:
        arguments = ("--model", model_path, "--drafter", "ngram", "--prompts", prompt_file)
        result = run("eval", *arguments, *changes)
        assert result.exit_code == 2
        assert words in result.stderr
        assert result.stderr.count("\n") == 1
        assert result.stdout == ""

    refused("--drafter is none", "--drafter", "none")
    refused("unknown drafter 'absent'", "--drafter", "absent")
    refused("cannot read the prompt file", "--prompts", tmp_path / "absent")
    refused("temperature", "--temperature", -1)
    refused("cannot write", "--json", tmp_path / "absent" / "out.json")
    refused("has no config.json", "--drafter", tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused("pip install matplotlib", "--report", tmp_path / "chart.png")


def test_bad_name_of_a_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    check_chart(tmp_path / "chart.PNG")
    for name, words in (("chart.svg", "ending in .png"), ("absent/chart.png", "does not exist")):
        with pytest.raises(CliError, match=words):
            check_chart(tmp_path / name)
