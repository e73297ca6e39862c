"""``specfast profile``: a table that a planner takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from late_copies import LateCopies
from specfast.cli import app
from specfast.engine import Engine, VerifyTiers
from specfast.engine.step_timer import StepTimer
from specfast.planner import (
    ConfidenceRelay,
    Planning,
    SpsTable,
    Tiers,
    VerifyPlanner,
    choose_budget,
)
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner, Result

SMALL = ("--max-batch-size", 2, "--verify-width", 3, "--context-len", 20, "--repeats", 3)


def run(out: Path, *arguments: object, device: str = "cpu") -> Result:
    words = ["profile", str(out), *map(str, arguments), "--device", device]
    return CliRunner().invoke(app, words)


def test_the_table(model_path: Path, tmp_path: Path, device: str) -> None:
    out = tmp_path / "sps.json"
    result = run(out, "--model", model_path, "--commit", "abc", *SMALL, device=device)
    assert result.exit_code == 0, result.stderr
    table = SpsTable.read(out)
    assert table.tiers == (2, 4, 6)
    assert table.commit == "abc"
    setting = table.setting
    assert setting.model.startswith(f"{model_path.name} (LlamaForCausalLM, ")
    assert setting.card.startswith("CPU") == (device == "cpu")
    backends = {"cpu": "sdpa, eager, fp32", "cuda": "verify_attention, graphs, bf16"}
    assert setting.backend == backends[device]
    assert setting.num_requests == 2
    assert table.conditions["context_len"] == 20
    # A line per tier: rows, requests.
    cells = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    assert [line[:2] for line in cells if line[0].isdigit()] == [["2", "2"], ["4", "2"], ["6", "2"]]


def test_an_engine_takes_the_table_of_its_tiers(model_path: Path, tmp_path: Path) -> None:
    """And another way of running the same rounds does not."""
    out = tmp_path / "sps.json"
    result = run(out, "--model", model_path, "--graphs", "padded", "--tiers", "2,5", *SMALL)
    assert result.exit_code == 0, result.stderr
    planning = Planning("compact", SpsTable.read(out))
    model = AutoModelForCausalLM.from_pretrained(model_path)
    options = {"max_batch_size": 2, "verify_width": 3, "planning": planning}
    tiers = VerifyTiers([2], 3, [2, 5], capture=False)
    Engine(model, tiers=tiers, **options)
    with pytest.raises(ValueError, match=re.escape("with tiers (2, 4, 6), got (2, 5, 6)")):
        Engine(model, tiers=VerifyTiers([2], 3, [2, 4], capture=False), **options)
    assert run(out, "--model", model_path, "--tiers", "2,5,6", *SMALL).exit_code == 0
    eager = Planning("compact", SpsTable.read(out))
    message = "with backend 'verify_attention, padded, fp32', got 'sdpa, eager, fp32'"
    with pytest.raises(ValueError, match=message):
        Engine(model, tiers=tiers, **{**options, "planning": eager})


def test_a_planner_takes_it(model_path: Path, tmp_path: Path) -> None:
    """Late copy, reused place, stale generation: each means what it means, at measured rates."""
    out = tmp_path / "sps.json"
    assert run(out, "--model", model_path, "--tiers", "2,3,4,5,6", *SMALL).exit_code == 0
    table = SpsTable.read(out)
    copies, tiers = LateCopies(), Tiers(table.tiers)
    relay = ConfidenceRelay(4, 2, torch.device("cpu"), copies=copies)
    planner = VerifyPlanner(relay, tiers, table)
    survival = torch.tensor([[0.9, 0.5], [0.7, 0.1]])
    for _ in range(2):
        schedule = planner.schedule(planner.plan([3, 0], [1, 2], [3, 3]), survival)
        planner.publish(schedule, torch.tensor([3, 0]), [3, 0], [1, 2])
    late = planner.plan([3, 0], [1, 2], [3, 3])
    assert (late.budget, late.tier) == (None, 6)
    copies.started[0].arrive()
    sure = torch.ones(2)
    for generations, expected in [
        ([1, 2], survival),
        ([1, 5], torch.stack([survival[0], sure])),
        ([7, 8], torch.stack([sure, sure])),
    ]:
        plan = planner.plan([3, 0], generations, [3, 3])
        assert plan.budget == choose_budget(expected, [3, 3], table, tiers)
        assert plan.budget is not None
        assert plan.tier == tiers.holding(2 + plan.budget)


@pytest.mark.parametrize(("draft_ms", "expected"), [(0, [2.0, 0.5]), (500, [1.0, 0.4])])
def test_the_median_counts(
    draft_ms: int,
    expected: list[float],
    model_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Two steps of warm-up, then three that count, per tier.
    steps = iter([9.0, 9.0, 0.5, 7.0, 0.25, 9.0, 9.0, 1.0, 2.0, 4.0])
    rows_of_steps = []

    def seconds(self: StepTimer, num_rows: int, num_steps: int) -> list[float]:
        rows_of_steps.append((num_rows, num_steps))
        return [next(steps) for _ in range(num_steps)]

    monkeypatch.setattr(StepTimer, "seconds", seconds)
    out = tmp_path / "sps.json"
    arguments = ("--model", model_path, "--tiers", "5,1", "--draft-ms", draft_ms, *SMALL)
    result = run(out, *arguments)
    assert result.exit_code == 0, result.stderr
    assert rows_of_steps == [(1, 5), (5, 5)]
    table = SpsTable.read(out)
    assert [table.rate(2, tier) for tier in (1, 5)] == pytest.approx(expected)
    assert table.conditions["draft_ms"] == draft_ms
    lines = [line.split("│") for line in result.stdout.splitlines() if "█" in line]
    bars = [len(line[5].strip()) for line in lines]
    assert bars == [20 * expected[1] / expected[0], 20]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tiers", "7"), "--tiers must lie in [1, 6] for 2 requests of 3 rows, got 7"),
        (("--tiers", "0,2"), "--tiers must be 1 or more, got '0,2'"),
        (
            ("--tiers", "1,4", "--graphs", "padded"),
            "--tiers must lie in [2, 6] for 2 requests of 3 rows, got 1, 4",
        ),
        (("--draft-ms", "inf"), "--draft-ms must be finite, got inf"),
        (("--graphs", "on"), "--graphs on needs a GPU, and the device is cpu"),
        (
            ("--graphs", "padded", "--verify-width", 200),
            "--graphs padded cannot be used: 200 rows per request; at most 128 are known",
        ),
        (
            ("--graphs", "padded", "--max-batch-size", 1025),
            "--graphs padded cannot be used: 1025 requests at once; at most 1024 are known",
        ),
        (("--tiers", "2;4"), "--tiers takes numbers separated by commas, got '2;4'"),
        (("--context-len", 94), "expected at most 93 committed tokens before 3 rows, got 94"),
    ],
)
def test_unusable_input(
    model_path: Path, tmp_path: Path, arguments: tuple[object, ...], message: str
) -> None:
    out = tmp_path / "sps.json"
    result = run(out, "--model", model_path, *SMALL, *arguments)
    assert result.exit_code == 2
    assert result.stderr.strip() == f"specfast: {message}"
    assert not out.exists()


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    result = run(tmp_path / "missing" / "sps.json")
    assert result.exit_code == 2
    assert "does not exist" in result.stderr
