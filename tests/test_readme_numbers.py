"""The README's numbers are the committed ones."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SIZES = {
    ("select_and_build_tree", "", 64): [1, 8, 64, 256],
    ("accept_tree", "greedy, logits, cold", 64): [1, 8, 64, 256],
    ("accept_tree", "greedy, logits, warm", 64): [1, 8],
    ("accept_tree", "greedy, logits, cold", 16): [64],
    ("accept_chain", "greedy, logits, cold", 8): [1, 8, 64, 256],
    ("accept_chain", "greedy, logits, warm", 8): [1, 8],
    ("accept_target_only", "tree, T, cold", 64): [64, 256],
    ("accept_target_only", "tree, T, warm", 64): [1],
    ("accept_target_only", "tree, T top-k top-p, cold", 64): [64, 256],
    ("accept_target_only", "tree, T top-k top-p, warm", 64): [1],
    ("accept_rejection", "chain rows at once, T, q dense, cold", 8): [8, 64],
    ("accept_rejection", "chain rows at once, T, q dense, warm", 8): [1],
    ("accept_block", "chain, T, q dense, cold", 8): [64],
    ("accept_block", "chain rows at once, T, q dense, cold", 8): [8],
    ("accept_block", "chain rows at once, T, q dense, warm", 8): [1],
    ("schedule_verify_lens", "logits", 8): [256],
    ("build_verify_window", "pages of 16 slots", 8): [256],
    ("relocate_kv", "64 buffers x 2048 B", 64): [64],
    ("relocate_kv", "61 buffers x 1152 B", 64): [64],
}


def update_readme(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/update_readme"), "--root", str(root), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def measured_rows() -> list[dict[str, object]]:
    """A result file of made-up times, all different."""
    return [
        {
            "op": op,
            "variant": variant,
            "nodes": nodes,
            "batch": batch,
            "us": 3.25 + 17 * number + batch,
            "floor_us": 1.5 + number,
            "rows_mean": 2.5 if op.startswith("accept") else 0,
            "rows_max": 7 if op.startswith("accept") else 0,
            "card": "NVIDIA H200",
            "driver": "580",
            "cuda": "13.0",
            "commit": "0123456789abcdef",
            "date": "2026-01-01T00:00:00Z",
        }
        for number, ((op, variant, nodes), batches) in enumerate(SIZES.items())
        for batch in batches
    ]


def write_results(root: Path, folder: str, rows: list[dict[str, object]]) -> None:
    path = root / "benchmarks/results" / folder / "bench.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def engine_result(drafter: str, batch: int, context: int, output: int) -> dict[str, object]:
    us = 1000.0 * batch
    return {
        "drafter": drafter,
        "batch": batch,
        "context": context,
        "output": output,
        "ttft_ms": 34.4,
        "plain": {"tpot_us": 4 * us},
        "speculative": {
            "tokens_per_round": 3.5,
            "tpot_us": 2 * us,
            "tokens_per_second": 1e6 * batch / us,
            "split_us": {"draft": 10, "layout": 20, "verify": 4 * us, "accept + commit": 50},
            "profile": {"phases": {"between": 7.4}},
        },
        "speedup": 2.0,
        "of_ideal": 0.96,
    }


ENGINE_CONDITIONS = {
    "shape": "qwen3-8b",
    "weights": "random",
    "dtype": "bfloat16",
    "acceptance": [0.9, 0.5],
    "poor_acceptance": 0.3,
    "card": "NVIDIA H200",
    "driver": "580",
    "torch": "2.11",
    "commit": "0123456789abcdef",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The README and the field's figures beside made-up results, brought up to date."""
    (tmp_path / "benchmarks").mkdir()
    for name in ("README.md", "benchmarks/field.json"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    write_results(tmp_path, "2026-01-01-h200", measured_rows())
    assert update_readme(tmp_path).returncode == 0
    return tmp_path


def test_readme_holds_the_committed_numbers() -> None:
    result = update_readme(ROOT, "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_row_shows_its_own_time(checkout: Path) -> None:
    text = (checkout / "README.md").read_text()
    accept_tree = {
        row["batch"]: row["us"]
        for row in measured_rows()
        if row["variant"] == f"greedy, logits, {'warm' if row['batch'] == 1 else 'cold'}"
        and row["nodes"] == 64
    }
    line = next(line for line in text.splitlines() if "greedy accept of 64-node trees" in line)
    cells = [cell.strip() for cell in line.strip("|").split("|")[1:]]
    assert [cell.split(" / ")[0] for cell in cells] == [
        f"**{accept_tree[batch]:.{1 if accept_tree[batch] < 100 else 0}f}**"
        for batch in (1, 8, 64, 256)
    ]
    assert cells[2].endswith(" / 2.50 / 631 SGLang")
    assert "2.5 to 2.5 rows per request on average and 7 at most" in text
    assert update_readme(checkout, "--check").returncode == 0


def test_an_edited_number_is_found(checkout: Path) -> None:
    readme = checkout / "README.md"
    readme.write_text(readme.read_text().replace("**4.25**", "**3.25**"))
    result = update_readme(checkout, "--check")
    assert result.returncode == 1
    assert "**3.25**" in result.stdout


def test_newer_results_make_the_readme_stale(checkout: Path) -> None:
    rows = measured_rows()
    for row in rows:
        row["us"] = 9.75
    write_results(checkout, "2026-02-01-h200", rows)
    assert update_readme(checkout, "--check").returncode == 1
    assert update_readme(checkout).returncode == 0
    assert "2026-02-01-h200" in (checkout / "README.md").read_text()


def test_a_missing_row_is_an_error(checkout: Path) -> None:
    rows = measured_rows()
    failed = next(row for row in rows if row["op"] == "relocate_kv")
    failed["error"] = "out_tokens[3]: the kernel wrote 5, the CPU body 7"
    write_results(checkout, "2026-01-01-h200", rows)
    result = update_readme(checkout, "--check")
    assert result.returncode == 2
    assert "relocate_kv" in result.stderr


def test_what_a_run_did_not_measure_is_of_the_one_before(checkout: Path) -> None:
    before = (checkout / "README.md").read_text()
    rows = [row | {"commit": "fedcba9876543210"} for row in measured_rows()]
    rows = [row for row in rows if row["op"] != "relocate_kv"]
    for row in rows:
        row["us"] = 2.25
    write_results(checkout, "2026-02-01-h200", rows)
    assert update_readme(checkout).returncode == 0
    after = (checkout / "README.md").read_text()
    (old,) = [line for line in before.splitlines() if line.startswith("| move accepted KV, 64")]
    label, _, cells = old.partition(" | ")
    assert f"{label}¹ | {cells}" in after
    assert "commit fedcba9876: [`benchmarks/results/2026-02-01-h200" in after
    assert "¹ of commit 0123456789: [`benchmarks/results/2026-01-01-h200" in after
    # A kernel that was wrong was measured.
    rows.append(measured_rows()[-1] | {"commit": "fedcba9876543210", "error": "wrong"})
    write_results(checkout, "2026-02-01-h200", rows)
    assert update_readme(checkout).returncode == 2


def test_rows_of_several_runs_are_refused(checkout: Path) -> None:
    rows = measured_rows()
    rows[0]["commit"] = "fedcba9876543210"
    write_results(checkout, "2026-01-01-h200", rows)
    assert update_readme(checkout, "--check").returncode == 2


@pytest.mark.parametrize("name", ["bench.jsonl", "engine.json"])
def test_results_that_were_cut_short_are_refused(name: str, checkout: Path) -> None:
    (checkout / "benchmarks/results/2026-01-01-h200" / name).write_text('{"card": "NV')
    result = update_readme(checkout)
    assert result.returncode == 2
    assert f"{name} is no JSON" in result.stderr
    assert result.stderr.count("\n") == 1


def test_an_empty_file_is_called_so(checkout: Path) -> None:
    (checkout / "benchmarks/results/2026-01-01-h200/bench.jsonl").write_text("")
    result = update_readme(checkout)
    assert result.returncode == 2
    assert "bench.jsonl is empty" in result.stderr


def test_a_folder_without_a_readme_is_refused(tmp_path: Path) -> None:
    result = update_readme(tmp_path)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1


def test_the_newest_points_of_the_engine(checkout: Path) -> None:
    before = (checkout / "README.md").read_text()
    results = [
        engine_result("table", 8, 1024, 256),
        engine_result("table", 8, 1024, 16),
        engine_result("dflash", 8, 1024, 256),
        {"drafter": "table", "batch": 64, "context": 1024, "skipped": "no time was left"},
    ]
    for folder, shape in (("2026-01-01-h200", "smollm2-135m"), ("2026-01-02-h200", "qwen3-8b")):
        path = checkout / "benchmarks/results" / folder / "engine.json"
        path.parent.mkdir(exist_ok=True)
        conditions = {**ENGINE_CONDITIONS, "shape": shape}
        path.write_text(json.dumps({"conditions": conditions, "results": results}))
    assert update_readme(checkout, "--check").returncode == 1
    assert update_readme(checkout).returncode == 0
    added = set((checkout / "README.md").read_text().splitlines()) - set(before.splitlines())
    rows = sorted(line for line in added if line.startswith(("| table", "| dflash")))
    assert rows == [
        "| dflash | 8 | 1024 | 34 | 3.50 | 32.00, 16.00 | **2.00** (0.96) "
        "| 0.01 + 0.02 + 32.00 + 0.05 | 7 | 1000 |",
        "| table | 8 | 1024 | 34 | 3.50 | 32.00, 16.00 | **2.00** (0.96) "
        "| 0.01 + 0.02 + 32.00 + 0.05 | 7 | 1000 |",
    ]
    (about,) = [line for line in added if line.startswith("Rounds of the engine")]
    for condition in ("qwen3-8b", "0.9, 0.5", "256 tokens per request", "commit 0123456789"):
        assert condition in about
    assert "2026-01-02-h200/engine.json" in about


def test_the_readme_has_room_for_every_point(checkout: Path) -> None:
    points = [("table", b, c) for b in (1, 8, 64, 128) for c in (1024, 8192, 32768)]
    points += [(name, 8, 1024) for name in ("eagle3", "dflash", "dspark")]
    points.append(("poor", 64, 1024))
    report = {
        "conditions": ENGINE_CONDITIONS,
        "results": [engine_result(*point, 256) for point in points],
    }
    path = checkout / "benchmarks/results/2026-01-01-h200/engine.json"
    path.write_text(json.dumps(report))
    assert update_readme(checkout).returncode == 0
    assert (checkout / "README.md").read_text().count("\n") <= 150


def test_the_benchmark_writes_what_the_readme_reads(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = checkout / "benchmarks/results/2026-01-01-h200/engine.json"
    command = [sys.executable, "-m", "benchmarks.engine", "--shape", "tiny", "--device", "cpu"]
    command += ["--points", "1x1024", "--output", "4", "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert update_readme(checkout).returncode == 0
    assert "| table | 1 | 1024 |" in (checkout / "README.md").read_text()
