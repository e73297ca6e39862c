"""SPS tables: written, read, and refused where they are true of something else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from specfast.planner import AdditiveSeconds, SpsSetting, SpsTable, TierRates

SETTING = SpsSetting(
    card="NVIDIA H200",
    model="Qwen3-8B",
    backend="verify_attention, graphs, bf16",
    num_requests=8,
    tiers=(8, 16),
)
TABLE = SpsTable(
    SETTING, "a0ea1f3", TierRates((8, 16), (120.5, 80.0)), conditions={"context_len": 512}
)
ADDITIVE = replace(
    TABLE, cost=AdditiveSeconds(0.002, ((1, 0.0), (64, 0.001)), ((8, 0.003), (16, 0.005)))
)


@pytest.mark.parametrize("table", [TABLE, ADDITIVE])
def test_what_is_written_is_read(table: SpsTable, tmp_path: Path) -> None:
    path = tmp_path / "sps.json"
    path.write_text(json.dumps(table.as_json()))
    assert SpsTable.read(path) == table
    assert SpsTable.read(path).rate(3, 16) == table.rate(3, 16)


def test_a_tier_has_its_own_rate() -> None:
    assert (TABLE.rate(5, 8), TABLE.rate(5, 16)) == (120.5, 80.0)


def test_a_table_of_this_setting_is_taken() -> None:
    TABLE.require(SETTING)
    replace(TABLE, commit="another").require(SETTING)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("card", "NVIDIA H100"),
        ("model", "Qwen3-4B"),
        ("backend", "verify_attention, padded, bf16"),
        ("num_requests", 4),
        ("tiers", (8, 16, 32)),
        ("tiers", (8,)),
    ],
)
def test_a_table_of_another_setting_is_refused(name: str, other: Any) -> None:
    message = f"expected one measured with {name} {other!r}, got {getattr(SETTING, name)!r}"
    with pytest.raises(ValueError, match=re.escape(message)):
        TABLE.require(replace(SETTING, **{name: other}))


REFUSED: dict[str, dict[str, Any]] = {
    "steps_per_second of 2 tiers, got 1": {"steps_per_second": [1.0]},
    "steps_per_second above 0 and finite, got 0.0": {"steps_per_second": [1.0, 0.0]},
    "steps_per_second above 0 and finite, got nan": {"steps_per_second": [1.0, float("nan")]},
    r"ascending tiers, got \[16, 8\]": {"tiers": [16, 8]},
    "one of steps_per_second and seconds": {"seconds": {}},
    "a number is missing or none: int too large": {"steps_per_second": [1, 10**400]},
    "a whole number of more than 64 bits": {"num_requests": 10**400},
    "expected card, model": {"card": None},
    "expected card, model, backend, commit, num_requests": {"num_requests": None},
    "num_requests >= 1, got 0": {"num_requests": 0},
    "expected a whole number, got 8.5": {"tiers": [8.5, 16]},
    "expected a whole number, got '8'": {"num_requests": "8"},
    "a number is missing or none": {"tiers": 8},
    "expected a number, got None": {"steps_per_second": [None, 1.0]},
    "expected a number, got '9'": {"steps_per_second": ["9", 1.0]},
    "int too large to convert": {"steps_per_second": [10**400, 1.0]},
}


@pytest.mark.parametrize("message", REFUSED)
def test_broken_tables_are_refused(message: str, tmp_path: Path) -> None:
    path = tmp_path / "sps.json"
    table = {**TABLE.as_json(), **REFUSED[message]}
    path.write_text(json.dumps({k: v for k, v in table.items() if v is not None}))
    with pytest.raises(ValueError, match=message):
        SpsTable.read(path)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        ("seconds.bias above 0", {"bias": 0.0}),
        (r"ascending points in seconds.by_rows, got \[2, 1\]", {"by_rows": ((2, 0.1), (1, 0.1))}),
        (r"ascending points in seconds.by_requests, got \[\]", {"by_requests": ()}),
        ("seconds.by_rows of at least 0", {"by_rows": ((1, -0.1),)}),
    ],
)
def test_broken_sums_are_refused(message: str, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ADDITIVE.cost, **change)


@pytest.mark.parametrize(
    "seconds",
    [
        {},
        [],
        {"bias": 1.0, "by_requests": [1], "by_rows": [[1, 0.1]]},
        {"bias": None},
        {"bias": 1.0, "by_requests": [[1, 0.1], [10**400, 0.1]], "by_rows": [[1, 0.1]]},
    ],
)
def test_half_a_sum_is_refused(seconds: Any, tmp_path: Path) -> None:
    path = tmp_path / "sps.json"
    path.write_text(json.dumps({**ADDITIVE.as_json(), "seconds": seconds}))
    with pytest.raises(ValueError, match=re.escape(f"SPS table {path}: a number is missing")):
        SpsTable.read(path)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\udc80", "[]", "7"])
def test_what_is_no_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sps.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=re.escape(f"SPS table {path}")):
        SpsTable.read(path)


def test_rates_of_other_tiers_are_no_table() -> None:
    with pytest.raises(ValueError, match=r"rates of the tiers \[8, 32\], got those of \[8, 16\]"):
        replace(TABLE, setting=replace(SETTING, tiers=(8, 32)))
