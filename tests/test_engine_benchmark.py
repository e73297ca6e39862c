"""The engine benchmark decodes the text and accepts the drafts that it prescribes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def engine_benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.engine import __main__ as module

    yield module
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("acceptance", "tokens_per_round"), [("1,1,1", 4.0), ("0,1,1", 1.0), ("1,0,1", 2.0)]
)
def test_acceptance_is_as_prescribed(
    acceptance: str,
    tokens_per_round: float,
    tmp_path: Path,
    engine_benchmark: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "engine.json"
    arguments = ["--shape", "tiny", "--device", "cpu", "--points", "2x9"]
    arguments += ["--output", "16", "--acceptance", acceptance, "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["engine", *arguments])
    assert engine_benchmark.main() == 0  # type: ignore[attr-defined]
    (result,) = json.loads(out.read_text())["results"]
    # The last round of a text may be cut short; the first record comes one step late.
    assert result["speculative"]["tokens_per_round"] == pytest.approx(tokens_per_round, rel=0.1)
    assert result["plain"]["tokens_per_round"] == 1.0


@pytest.mark.parametrize("drafter", ["eagle3", "dflash", "dspark"])
def test_a_drafter_that_is_paid_for(
    drafter: str, tmp_path: Path, engine_benchmark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps are run, and the table's drafts are taken."""
    from specfast.drafters import DeviceTrainedDrafter

    from benchmarks.engine.prescribed import PaidDrafter

    calls = []
    draft = DeviceTrainedDrafter.draft

    def noted(self: DeviceTrainedDrafter, slots: Any) -> Any:
        assert isinstance(self, PaidDrafter)
        drafts = draft(self, slots)
        calls.append(bool((slots.tokens[:, 1:] >= 0).all()))
        return drafts

    monkeypatch.setattr(DeviceTrainedDrafter, "draft", noted)
    out = tmp_path / "engine.json"
    arguments = ["--shape", "tiny", "--device", "cpu", "--points", f"{drafter}:2x9"]
    arguments += ["--output", "16", "--acceptance", "1,1,1", "--json", str(out)]
    monkeypatch.setattr(sys, "argv", ["engine", *arguments])
    assert engine_benchmark.main() == 0  # type: ignore[attr-defined]
    (result,) = json.loads(out.read_text())["results"]
    assert result["speculative"]["tokens_per_round"] == pytest.approx(4.0, rel=0.1)
    assert len(calls) > 4
    assert all(calls)


def test_no_point_begins_too_late(
    tmp_path: Path, engine_benchmark: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "engine.json"
    arguments = ["--shape", "tiny", "--device", "cpu", "--points", "2x9", "--seconds", "11"]
    monkeypatch.setattr(sys, "argv", ["engine", *arguments, "--json", str(out)])
    assert engine_benchmark.main() == 0  # type: ignore[attr-defined]
    (result,) = json.loads(out.read_text())["results"]
    assert result["skipped"] == "no time was left"


def test_phases_of_a_round(engine_benchmark: object) -> None:
    """What a drafter multiplies and draws is not the target's."""
    from benchmarks.engine.kernels import RoundProfile, _phases, _rounds

    def round_at(start: int, launch: int) -> list[tuple[int, int, str, int]]:
        names = ["sampled_kernel", "build_verify_window_kernel", "attention_kernel", "nvjet_head"]
        names += ["scatter", "specfast::accept_kernel<4>", "nvjet_context", *["copy"] * 4]
        return [
            (start + 1000 * i, start + 1000 * i + 900, name, launch) for i, name in enumerate(names)
        ]

    copy_of_record = [(12_000, 12_100, "Memcpy DtoH", 2)]
    rounds = _rounds([*round_at(0, 1), *copy_of_record, *round_at(20_000, 3)])
    assert [len(kernels) for kernels in rounds] == [11, 11]
    phases = _phases(*rounds)
    expected = {"draft": 1.0, "layout": 0.9, "verify": 2.0, "accept + commit": 7.0, "between": 9.1}
    assert phases == pytest.approx(expected)
    profile = RoundProfile(20.0, phases, {}, 16.1, [], {}, {}, {})
    assert profile.split_of(21.8)["verify"] == pytest.approx(4.0)


def test_steps_of_a_turnaround(engine_benchmark: object) -> None:
    """What other rounds have more of, or in another order, is not mixed with the usual."""
    from benchmarks.engine.kernels import _median_steps, _turnaround_steps, short_name

    def round_at(start: int, launch: int) -> list[tuple[int, int, str, int]]:
        names = ["build_verify_window_kernel", "nvjet_head", "scatter", "accept_kernel"]
        return [
            (start + 1000 * i, start + 1000 * i + 900, name, launch) for i, name in enumerate(names)
        ]

    rounds = [round_at(start, start) for start in (0, 10_000, 20_000)]
    copies = [(5_000, 5_200, "Memcpy DtoH (Device -> Pinned)", 1), (9_000, 9_050, "fill", 2)]
    kernels = sorted(kernel for group in [*rounds, copies] for kernel in group)
    steps = _turnaround_steps(kernels, rounds[1], rounds[2])
    names = ["scatter", "accept_kernel", "build_verify_window_kernel"]
    assert [name for name, _, _ in steps] == names
    assert [times for _, *times in steps] == [
        pytest.approx(times) for times in ([0.1, 0.9], [0.1, 0.9], [6.1, 0.9])
    ]
    longer = _turnaround_steps(kernels, rounds[0], rounds[1])
    assert [name for name, _, _ in longer] == [
        *names[:2], "Memcpy DtoH (Device -> Pinned)", "fill", names[2]
    ]  # fmt: skip
    slower = [(name, idle, us + 2) for name, idle, us in steps]
    assert _median_steps([steps, longer, slower])[0] == pytest.approx(("scatter", 0.1, 1.9))
    assert (
        short_name("void specfast::(anonymous namespace)::a_kernel<4, A<b>>(Params)") == "a_kernel"
    )
    copy = (
        "void at::native::elementwise_kernel<128, at::native::direct_copy_kernel_cuda(at::I&)>(int)"
    )
    assert short_name(copy) == "elementwise_kernel(direct_copy_kernel_cuda)"
