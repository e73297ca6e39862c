"""``--sps`` and ``--sts``: rounds of a command that are planned, and what cannot be planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.test_evaluate import dspark_with_confidence, run
from cli.test_generate import prompt_file as prompt_file
from cli.test_trained_drafter import PROMPT
from drafters.families import dspark, sizes_of

WIDTH = 5


@pytest.fixture
def drafter(model_path: Path, tmp_path: Path) -> Path:
    """As sure of all drafts: 4 of 5 times, given those before."""
    return dspark_with_confidence(tmp_path / "drafter", sizes_of(model_path))


@pytest.fixture
def sps(model_path: Path, tmp_path: Path) -> Path:
    """A table of two requests whose rows cost as much as rounds do."""
    out = tmp_path / "sps.json"
    sizes = ("--max-batch-size", 2, "--verify-width", WIDTH, "--context-len", 20, "--repeats", 1)
    result = run("profile", out, "--model", model_path, "--graphs", "padded", *sizes)
    assert result.exit_code == 0, result.stderr
    table = json.loads(out.read_text())
    table["steps_per_second"] = [1 / (1 + rows) for rows in table["tiers"]]
    out.write_text(json.dumps(table))
    return out


def proposed(model_path: Path, out: Path, *options: object, command: str = "generate") -> int:
    shared = ("--model", model_path, "--graphs", "padded", "--verify-width", WIDTH, "--json", out)
    shared += ("--max-new-tokens", 30, "--ignore-eos")
    result = run(command, *shared, *options)
    assert result.exit_code == 0, result.stderr
    report = json.loads(out.read_text())
    summary = report["summary" if command == "generate" else "evaluation"]
    counts: dict[str, int] = summary.get("summary", summary)
    return counts["drafts_proposed"]


def test_drafts_that_do_not_pay_are_left_out(
    model_path: Path, drafter: Path, sps: Path, prompt_file: Path, tmp_path: Path
) -> None:
    out, sts = tmp_path / "out.json", tmp_path / "sts.json"
    chosen = ("--drafter", drafter)
    texts = (PROMPT, "index of the key", "--check")
    everything = proposed(model_path, out, *texts, *chosen)
    planned = proposed(model_path, out, *texts, *chosen, "--sps", sps)
    # Two requests at 1 / (1 + rows): one draft of each pays, a second one does not.
    assert 0.2 * everything < planned < 0.5 * everything
    # Less sure than that a row is paid for: 1 / (1 + exp(-1.5 / 10)).
    sts.write_text('{"temperatures": [10, 10, 10, 10]}')
    less = proposed(model_path, out, *texts, *chosen, "--sps", sps, "--sts", sts)
    assert less < 0.5 * planned
    evaluated = ("--prompts", prompt_file, "--max-batch-size", 2, *chosen)
    everything = proposed(model_path, out, *evaluated, command="eval")
    assert proposed(model_path, out, *evaluated, "--sps", sps, command="eval") < 0.5 * everything


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sps", "SPS"), "--sps is for a drafter with confidences, ngram has none"),
        (("--drafter", "SURE", "--tree", "--drawn", "--sps", "SPS"), "drawn trees have none"),
        (("--drafter", "PLAIN", "--sps", "SPS"), "--sps is for a drafter with confidences"),
        (("--drafter", "SURE", "--sps", "SPS", "--graphs", "off"), "--sps is for --graphs on or"),
        (("--drafter", "SURE", "--sps", "SPS", "--tiers", "2"), "leave out --tiers"),
        (("--drafter", "SURE", "--sts", "STS"), "name its table with --sps"),
        (("--drafter", "SURE", "--sps", "NONE"), "cannot read SPS table"),
        (("--drafter", "SURE", "--sps", "STS"), "SPS table"),
        (
            ("--drafter", "SURE", "--sps", "SPS", "--verify-width", 4),
            "the SPS table is of up to 10 rows for 2 requests: expected --verify-width 5, as",
        ),
        (("a", "b", "--drafter", "SURE", "--sps", "SPS"), "--max-batch-size 2 or less for a batch"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    options: tuple[object, ...],
    message: str,
    model_path: Path,
    drafter: Path,
    sps: Path,
    tmp_path: Path,
) -> None:
    sts = tmp_path / "sts.json"
    sts.write_text('{"temperatures": [1, 1, 1, 1]}')
    places = {"SPS": sps, "STS": sts, "SURE": drafter, "NONE": tmp_path / "none"}
    if "PLAIN" in options:
        places["PLAIN"] = dspark(tmp_path / "plain", sizes_of(model_path))
    given = [places.get(option, option) for option in options]
    shared = (PROMPT, "--model", model_path, "--graphs", "padded", "--verify-width", WIDTH)
    result = run("generate", *shared, *given)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
