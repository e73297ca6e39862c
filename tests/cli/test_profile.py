"""``specfast profile``: a table that a planner takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from late_copies import LateCopies
from specfast.cli import app
from specfast.engine.step_timer import StepTimer
from specfast.planner import ConfidenceRelay, SpsTable, Tiers, VerifyPlanner, choose_budget
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
    assert (table.model, table.commit) == (str(model_path), "abc")
    assert table.card.startswith("CPU") == (device == "cpu")
    assert table.backend == f"sdpa, eager, {'fp32' if device == 'cpu' else 'bf16'}"
    assert table.conditions["context_len"] == 20
    table.require(card=table.card, model=str(model_path), backend=table.backend, tiers=(2, 4, 6))
    # A line per tier: rows, requests.
    cells = [[cell.strip() for cell in line.split("│")] for line in result.stdout.splitlines()]
    assert [line[:2] for line in cells if line[0].isdigit()] == [["2", "2"], ["4", "2"], ["6", "2"]]


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


def test_the_median_counts(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two steps of warm-up, then three that count, per tier.
    steps = iter([9.0, 9.0, 0.5, 7.0, 0.25, 9.0, 9.0, 1.0, 2.0, 4.0])
    rows_of_steps = []

    def seconds(self: StepTimer, num_rows: int) -> float:
        rows_of_steps.append(num_rows)
        return next(steps)

    monkeypatch.setattr(StepTimer, "seconds", seconds)
    out = tmp_path / "sps.json"
    result = run(out, "--model", model_path, "--tiers", "5,1", *SMALL)
    assert result.exit_code == 0, result.stderr
    assert rows_of_steps == [1] * 5 + [5] * 5
    table = SpsTable.read(out)
    assert [table.rate(2, tier) for tier in (1, 5)] == [2.0, 0.5]
    lines = [line.split("│") for line in result.stdout.splitlines() if "█" in line]
    bars = [len(line[5].strip()) for line in lines]
    assert bars == [10, 40]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--tiers", "7"), "--tiers must lie in [1, 6] for 2 requests of 3 rows, got '7'"),
        (("--tiers", "0,2"), "--tiers must lie in [1, 6] for 2 requests of 3 rows, got '0,2'"),
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
