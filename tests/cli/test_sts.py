"""Temperatures of a drafter's confidences: ``specfast eval --fit-sts`` and ``--sts``."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from cli.test_evaluate import dspark_with_confidence, run
from cli.test_generate import prompt_file as prompt_file
from drafters.families import dspark, sizes_of
from round_outputs import generation, round_output
from specfast.cli.decoding import Decoding
from specfast.cli.errors import CliError
from specfast.cli.fit_sts import fit_sts
from typer.testing import Result

PREFILL = round_output([5])


@pytest.fixture
def drafter(model_path: Path, tmp_path: Path) -> Path:
    """Its confidence head is a bias of 1.5 alone."""
    return dspark_with_confidence(tmp_path / "drafter", sizes_of(model_path))


@pytest.fixture
def arguments(model_path: Path, prompt_file: Path) -> tuple[object, ...]:
    shared = ("--model", model_path, "--prompts", prompt_file)
    return (*shared, "--max-new-tokens", 30, "--ignore-eos")


def predicted(result: Result, out: Path) -> list[float]:
    assert result.exit_code == 0, result.stderr
    calibration: dict[str, Any] = json.loads(out.read_text())["evaluation"]["calibration"]
    return [one["predicted"] for one in calibration["by_position"]]


def test_what_one_run_fits_another_one_uses(
    drafter: Path, arguments: tuple[object, ...], prompt_file: Path, tmp_path: Path
) -> None:
    sts, out = tmp_path / "sts.json", tmp_path / "out.json"
    result = run("eval", *arguments, "--drafter", drafter, "--fit-sts", sts)
    assert result.exit_code == 0, result.stderr
    written = json.loads(sts.read_text())
    temperatures = written["temperatures"]
    assert len(temperatures) == len(written["ece_before"]) == len(written["ece_after"]) == 4
    assert written["dataset"] == str(prompt_file)
    # A random drafter is hardly ever right, and a temperature above 1 moves 1.5 towards a half.
    assert temperatures[0] == pytest.approx(10.0)
    assert "at position 1" in result.stdout
    assert f"Temperatures written to {sts};" in result.stdout
    result = run("eval", *arguments, "--drafter", drafter, "--sts", sts, "--json", out)
    survival, expected = 1.0, []
    for temperature in temperatures:
        survival /= 1 + math.exp(-1.5 / temperature)
        expected.append(survival)
    assert predicted(result, out) == pytest.approx(expected, abs=1e-5)


def test_samples_are_those_that_were_decided() -> None:
    rounds = (
        round_output([1, 2], accepted=1, proposed=2),
        round_output([4], accepted=0, proposed=2),
        # The text ends at an accepted draft: the second one is not decided.
        round_output([4], accepted=1, proposed=2, last=True),
    )
    decoding = Decoding([generation(PREFILL, *rounds)], [0], 1.0)
    half = [0.0, 0.0]
    fit = fit_sts(decoding, [[[], half, half, half]], 3)
    assert fit.num_samples == 3
    # 2 of 3 against a half, then 0 of 2 against a quarter, then nothing.
    assert fit.ece_before == pytest.approx([2 / 3 - 1 / 2, 1 / 4, 0.0])
    with pytest.raises(CliError, match="no round with drafts"):
        fit_sts(Decoding([generation(PREFILL)], [0], 1.0), [[[]]], 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read STS file"),
        ("{}", 'expected "temperatures" to be a list of numbers'),
        ('{"temperatures": [1.0]}', "expected temperatures of 4 drafts, got 1"),
        ('{"temperatures": [1.0, 1.0, 0.0, 1.0]}', "above 0 and finite as float32, got 0.0"),
        ('{"temperatures": [1.0, 1.0, 1e-50, 1.0]}', "above 0 and finite as float32, got 1e-50"),
        (f'{{"temperatures": [1{"0" * 400}, 1, 1, 1]}}', "finite as float32, got 1000"),
    ],
)
def test_files_that_do_not_fit(
    content: str | None,
    message: str,
    drafter: Path,
    arguments: tuple[object, ...],
    tmp_path: Path,
) -> None:
    sts = tmp_path / "sts.json"
    if content is not None:
        sts.write_text(content)
    result = run("eval", *arguments, "--drafter", drafter, "--sts", sts)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--drafter", "ngram", "--sts", "FILE"), "--sts is for a drafter with confidences, ngram"),
        (("--drafter", "ngram", "--fit-sts", "FILE"), "--fit-sts needs a drafter with confidences"),
        (("--drafter", "PLAIN", "--sts", "FILE"), "--sts is for a drafter with confidences"),
        (("--drafter", "PLAIN", "--fit-sts", "FILE"), "--fit-sts needs a drafter with confidences"),
        (("--drafter", "SURE", "--tree", "--sts", "FILE"), "confidences, trees have none"),
        (("--drafter", "SURE", "--sts", "STS", "--fit-sts", "FILE"), "leave out --sts"),
        (
            ("--drafter", "SURE", "--graphs", "padded", "--sps", "STS", "--fit-sts", "FILE"),
            "--fit-sts has to see what becomes of all drafts: leave out --sps",
        ),
        (
            ("--drafter", "SURE", "--json", "FILE", "--fit-sts", "FILE"),
            "--json and --fit-sts are the same file",
        ),
        (
            ("--drafter", "SURE", "--fit-sts", "FILE", "--verify-width", 4),
            "needs all 4 drafts of a block: --verify-width 5 or more, got 4",
        ),
    ],
)
def test_options_that_do_not_go_together(
    options: tuple[str, ...],
    message: str,
    drafter: Path,
    arguments: tuple[object, ...],
    model_path: Path,
    tmp_path: Path,
) -> None:
    out, sts = tmp_path / "out.json", tmp_path / "sts.json"
    sts.write_text('{"temperatures": [1, 1, 1, 1]}')
    places = {"FILE": out, "STS": sts, "SURE": drafter}
    if "PLAIN" in options:
        places["PLAIN"] = dspark(tmp_path / "plain", sizes_of(model_path))
    result = run("eval", *arguments, *(places.get(option, option) for option in options))
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize("graphs", ["padded", "off"])
def test_padded_rounds_show_their_confidences(
    graphs: str, drafter: Path, arguments: tuple[object, ...], tmp_path: Path
) -> None:
    sts, out = tmp_path / "sts.json", tmp_path / "out.json"
    shared = (*arguments, "--drafter", drafter, "--graphs", graphs)
    result = run("eval", *shared, "--fit-sts", sts, "--json", out)
    survivals = [(1 + math.exp(-1.5)) ** -n for n in range(1, 5)]
    assert predicted(result, out) == pytest.approx(survivals, abs=1e-5)
    assert len(json.loads(sts.read_text())["temperatures"]) == 4
    assert json.loads(out.read_text())["drafter"]["family"] == "dspark"
