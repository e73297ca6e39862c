"""Which reading of a drafter's files the target accepts most of."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from specfast.cli.decoding import decode
from specfast.cli.errors import CliError
from specfast.cli.prompts import read_prompt_file, tokenize
from specfast.cli.summary import Summary, summarize
from specfast.cli.target import TargetModel
from specfast.drafters import DrafterError, DraftTarget, TrainedDrafter, load_readings
from specfast.engine import Engine
from specfast.sampling_params import SamplingParams


def probe_readings(
    drafter: Path, target: TargetModel, prompt_file: Path, max_new_tokens: int, verify_width: int
) -> dict[str, Summary]:
    """Decode the prompts with each reading, greedily: the text is one, only acceptance differs."""
    prompts = [tokenize(prompt, target, raw=False) for prompt in read_prompt_file(prompt_file)]
    params = SamplingParams(
        max_new_tokens=max_new_tokens, eos_token_ids=tuple(target.eos_token_ids)
    )
    try:
        readings = load_readings(drafter, DraftTarget.of(target.model), target.dtype.torch_dtype)
    except DrafterError as error:
        raise CliError(str(error)) from error
    summaries = {}
    for name, model in readings.items():
        engine = Engine(
            target.probed,
            TrainedDrafter(model, verify_width - 1),
            verify_width=verify_width,
        )
        summaries[name] = summarize(decode(engine, prompts, params))
    return summaries


def print_probe(console: Console, summaries: dict[str, Summary]) -> None:
    """A row per reading, and which of them the target accepts most of."""
    table = Table(show_edge=False)
    table.add_column("reading")
    for name in ("accepted", "proposed", "tokens per round", "at position 1"):
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        first = summary.acceptance_by_position[:1] or [0.0]
        table.add_row(
            name,
            f"{summary.drafts_accepted}",
            f"{summary.drafts_proposed}",
            f"{summary.tokens_per_round:.2f}",
            f"{first[0]:.0%}",
        )
    console.print()
    console.print(table)
    if len(summaries) == 1:
        console.print("\nThe files leave nothing open that acceptance could tell.")
        return
    best, second = sorted(summaries, key=lambda name: -summaries[name].tokens_per_round)[:2]
    if summaries[best].tokens_per_round == summaries[second].tokens_per_round:
        console.print("\nWhat was accepted does not tell the readings apart.")
    else:
        console.print(f"\nMost tokens per round: {best}.")
