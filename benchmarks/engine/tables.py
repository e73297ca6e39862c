"""Results as tables: for a terminal, and for the README."""

from __future__ import annotations

from typing import Any

from rich.table import Table

COLUMNS = (
    "drafter",
    "B",
    "context",
    "output",
    "TTFT ms",
    "tokens/round",
    "plain ms",
    "round ms",
    "launch ms",
    "draft",
    "layout",
    "verify",
    "accept + commit",
    "turnaround µs",
    "half rows",
    "launches",
    "waits",
    "tok/s",
    "speed-up",
    "of ideal",
)


def cells(result: dict[str, Any]) -> list[str]:
    """What stands under ``COLUMNS``; times of the phases are in ms, too."""
    head = [str(result.get(name, "-")) for name in ("drafter", "batch", "context", "output")]
    why_not = result.get("failed") or result.get("skipped")
    if why_not:
        return [*head, why_not]
    plain, spec = result["plain"], result["speculative"]
    split, profile = spec["split_us"] or {}, spec["profile"] or {}
    phases = ("draft", "layout", "verify", "accept + commit")
    half = spec["half_launch_us"]
    return [
        *head,
        f"{result['ttft_ms']:.1f}",
        f"{spec['tokens_per_round']:.2f}",
        _ms(plain["round_us"]),
        _ms(spec["round_us"]),
        _ms(spec["launch_us"]),
        *(_ms(split.get(name)) for name in phases),
        f"{profile['turnaround']:.0f}" if profile else "-",
        "-" if half is None else f"{half / spec['launch_us']:.2f}",
        _counts(profile.get("launches")),
        _counts(profile.get("waits")),
        f"{spec['tokens_per_second']:.0f}",
        f"{result['speedup']:.2f}",
        "-" if result["of_ideal"] is None else f"{result['of_ideal']:.2f}",
    ]


def turnaround(result: dict[str, Any]) -> str:
    """What runs in it, in order: each with its time, and before it the idle time."""
    profile = result.get("speculative", {}).get("profile") or {}
    steps = profile.get("turnaround_steps", [])
    return ", ".join(f"{idle:.1f} + {name} {us:.1f}" for name, idle, us in steps)


def half_rows(result: dict[str, Any]) -> str:
    """What half of the rows save, by kinds of kernels; each whole and half, in ms."""
    spec = result.get("speculative", {})
    whole, half = (spec.get("profile") or {}).get("parts"), spec.get("half_parts_us")
    if not whole or not half:
        return ""
    return ", ".join(f"{part} {_ms(us)} to {_ms(half[part])}" for part, us in whole.items())


def console_table(results: list[dict[str, Any]]) -> Table:
    table = Table(show_edge=False, padding=(0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(*cells(result))
    return table


def _ms(us: float | None) -> str:
    return "-" if us is None else f"{us / 1e3:.3f}"


def _counts(calls: dict[str, float] | None) -> str:
    """Calls of the host per round, all kinds together."""
    return "-" if calls is None else f"{sum(calls.values()):g}"
