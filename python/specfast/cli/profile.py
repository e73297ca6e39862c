"""``specfast profile``: what a step of the target costs, by the rows that it verifies."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from specfast.cli.errors import CliError, ends_cleanly
from specfast.cli.options import DeviceOption, DtypeOption, ModelOption, PageSizeOption
from specfast.cli.report import check_writable, write_report
from specfast.cli.target import choose_device, load_target
from specfast.cli.versions import device_name
from specfast.engine.step_timer import StepTimer
from specfast.planner import SpsTable, TierRates

WARM_UP_STEPS = 2
BAR_CHARACTERS = 40


@ends_cleanly
def profile(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The table, as JSON.")],
    model: ModelOption = None,
    tiers: Annotated[
        str | None,
        typer.Option(
            help="Rows of a step, separated by commas.", show_default="1 to all rows per request"
        ),
    ] = None,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    verify_width: Annotated[
        int, typer.Option(min=1, max=1024, help="Rows per request: the anchor and its drafts.")
    ] = 8,
    context_len: Annotated[int, typer.Option(min=0, help="Tokens before the rows.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Steps per tier; the median counts.")] = 20,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    page_size: PageSizeOption = 16,
    commit: Annotated[str, typer.Option(help="What to record as the version.")] = "unknown",
) -> int:
    """Measure the SPS table of a planner: steps per second of each tier.

    A step is a round of this engine without its drafter: layout of the
    rows, forward of the target, accept, record on the host. Requests
    share a tier's rows as evenly as they go.
    """
    console = Console(highlight=False, markup=False)
    check_writable(out)
    rows_of_tiers = _parsed_tiers(tiers, max_batch_size, verify_width)
    target = load_target(model, choose_device(device), dtype, console)
    try:
        timer = StepTimer(
            target.model,
            num_requests=max_batch_size,
            width=verify_width,
            context_len=context_len,
            page_size=page_size,
        )
    except ValueError as error:
        raise CliError(str(error)) from error
    rates = []
    for rows in track(rows_of_tiers, "Measuring", console=console, transient=True):
        for _ in range(WARM_UP_STEPS):
            timer.seconds(rows)
        rates.append(1 / statistics.median(timer.seconds(rows) for _ in range(repeats)))
    table = SpsTable(
        card=device_name(target.device),
        model=target.name,
        backend=f"sdpa, eager, {target.dtype.value}",
        commit=commit,
        tiers=rows_of_tiers,
        cost=TierRates(rows_of_tiers, tuple(rates)),
        conditions={
            "max_batch_size": max_batch_size,
            "verify_width": verify_width,
            "context_len": context_len,
            "page_size": page_size,
            "repeats": repeats,
        },
    )
    write_report(out, table.as_json())
    _print_table(console, table, timer)
    return 0


def _parsed_tiers(text: str | None, max_batch_size: int, verify_width: int) -> tuple[int, ...]:
    most = max_batch_size * verify_width
    if text is None:
        return tuple(range(max_batch_size, most + 1, max_batch_size))
    try:
        tiers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise CliError(f"--tiers takes numbers separated by commas, got {text!r}") from None
    if not 1 <= tiers[0] <= tiers[-1] <= most:
        raise CliError(
            f"--tiers must lie in [1, {most}] for {max_batch_size} requests of {verify_width} "
            f"rows, got {text!r}"
        )
    return tuple(tiers)


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
    console.print(f"{table.model} on {table.card}, {table.backend}\n")
    console.print(grid)
