"""``specfast profile``: what a step of the target costs, by the rows that it verifies."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specfast.cli.errors import CliError, ends_cleanly
from specfast.cli.graph_mode import graph_mode
from specfast.cli.options import (
    DeviceOption,
    DtypeOption,
    GraphMode,
    GraphsOption,
    ModelOption,
    PageSizeOption,
    parsed_tiers,
)
from specfast.cli.report import check_writable, write_report
from specfast.cli.target import choose_device, load_target
from specfast.engine.sps_setting import WayOfRounds
from specfast.engine.step_timer import StepTimer
from specfast.planner import SpsTable, TierRates

WARM_UP_STEPS = 2
BAR_CHARACTERS = 20  # beside the figures, within 80 columns
WAYS: dict[GraphMode, WayOfRounds] = {
    GraphMode.OFF: "eager",
    GraphMode.PADDED: "padded",
    GraphMode.ON: "graphs",
}


@ends_cleanly
def profile(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The table, as JSON.")],
    model: ModelOption = None,
    tiers: Annotated[
        str | None,
        typer.Option(
            help="Rows of a step in all, separated by commas.",
            show_default="1 to all rows per request",
        ),
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    verify_width: Annotated[
        int, typer.Option(min=1, max=1024, help="Rows per request: the anchor and its drafts.")
    ] = 8,
    context_len: Annotated[int, typer.Option(min=0, help="Tokens before the rows.")] = 512,
    draft_ms: Annotated[
        float,
        typer.Option(min=0, help="What drafting adds to a step, as eval shows it."),
    ] = 0.0,
    repeats: Annotated[int, typer.Option(min=1, help="Steps per tier; the median counts.")] = 20,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    page_size: PageSizeOption = 16,
    graphs: GraphsOption = GraphMode.AUTO,
    commit: Annotated[str, typer.Option(help="What to record as the version.")] = "unknown",
) -> int:
    """Measure the SPS table of a planner: steps per second of each tier.

    A step is a round of this engine without its drafter: layout of the
    rows, forward of the target, accept, record on the host. With
    --graphs on or padded it is a planned round at the tier, launched one
    ahead. Requests share a tier's rows as evenly as they go.

    The longer drafting takes, the more drafts are worth a row: with
    --draft-ms the table is that of whole rounds.
    """
    console = Console(highlight=False, markup=False)
    check_writable(out)
    if not math.isfinite(draft_ms):
        raise CliError(f"--draft-ms must be finite, got {draft_ms}")
    rows_asked = parsed_tiers(tiers)
    target = load_target(model, choose_device(device), dtype, console)
    mode = graph_mode(target, graphs, max_batch_size, verify_width)
    try:
        timer = StepTimer(
            target.probed,
            num_requests=max_batch_size,
            width=verify_width,
            tiers=_rows_of_tiers(rows_asked, mode, max_batch_size, verify_width),
            context_len=context_len,
            page_size=page_size,
            rounds=WAYS[mode],
        )
    except ValueError as error:
        raise CliError(str(error)) from error
    rates = []
    for rows in track(timer.setting.tiers, "Measuring", console=console, transient=True):
        seconds = timer.seconds(rows, WARM_UP_STEPS + repeats)
        rates.append(1 / (statistics.median(seconds[WARM_UP_STEPS:]) + draft_ms / 1000))
    table = SpsTable(
        timer.setting,
        commit,
        TierRates(timer.setting.tiers, tuple(rates)),
        conditions={
            "verify_width": verify_width,
            "context_len": context_len,
            "page_size": page_size,
            "draft_ms": draft_ms,
            "repeats": repeats,
        },
    )
    write_report(out, table.as_json())
    _print_table(console, table, timer)
    return 0


def _rows_of_tiers(
    asked: tuple[int, ...] | None, mode: GraphMode, max_batch_size: int, verify_width: int
) -> tuple[int, ...]:
    most = max_batch_size * verify_width
    if asked is None:
        return tuple(range(max_batch_size, most + 1, max_batch_size))
    # At a tier every request has its anchor.
    least = 1 if mode is GraphMode.OFF else max_batch_size
    if not least <= asked[0] <= asked[-1] <= most:
        raise CliError(
            f"--tiers must lie in [{least}, {most}] for {max_batch_size} requests of "
            f"{verify_width} rows, got {', '.join(map(str, asked))}"
        )
    return asked


def _print_table(console: Console, table: SpsTable, timer: StepTimer) -> None:
    """A row per tier; the bar is the time of a step."""
    rates = [table.rate(0, tier) for tier in table.tiers]
    slowest = min(rates)
    grid = Table(show_edge=False)
    for name in ("rows", "requests", "ms", "steps/s", "rows/s"):
        grid.add_column(name, justify="right")
    grid.add_column("ms")
    for tier, rate in zip(table.tiers, rates, strict=True):
        grid.add_row(
            f"{tier}",
            f"{timer.requests_of(tier)}",
            f"{1000 / rate:.2f}",
            f"{rate:.1f}",
            f"{tier * rate:.0f}",
            "█" * max(1, round(BAR_CHARACTERS * slowest / rate)),
        )
    setting = table.setting
    console.print(f"{setting.model} on {setting.card}, {setting.backend}\n")
    console.print(grid)
