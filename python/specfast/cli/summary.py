"""What a decoding cost and what the drafts were worth."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from specfast.cli.decoding import Decoding
from specfast.status import Status


@dataclass(frozen=True)
class Summary:
    """Figures of one decoding; a prefill is no round, and its token is counted in none.

    rounds : target forwards after the prefill, summed over the prompts
    drafted_rounds : those among them that verified at least one draft
    tokens_per_round : emitted tokens per round, the mean; 0 without a round
    acceptance_by_position : share of the drafted rounds that accepted at least 1, 2, … drafts
    tokens_per_second : all tokens over the time inside the engine, prefill included
    """

    tokens: int
    rounds: int
    drafted_rounds: int
    drafts_proposed: int
    drafts_accepted: int
    tokens_per_round: float
    acceptance_by_position: list[float]
    seconds: float
    tokens_per_second: float


def summarize(decoding: Decoding) -> Summary:
    tokens = sum(len(generation.token_ids) for generation in decoding.generations)
    rounds = [output for g in decoding.generations for output in g.rounds[1:]]
    drafted = [output for output in rounds if output.num_proposed > 0]
    deepest = max((output.num_accepted for output in drafted), default=0)
    return Summary(
        tokens=tokens,
        rounds=len(rounds),
        drafted_rounds=len(drafted),
        drafts_proposed=sum(output.num_proposed for output in drafted),
        drafts_accepted=sum(output.num_accepted for output in drafted),
        tokens_per_round=sum(len(r.token_ids) for r in rounds) / max(len(rounds), 1),
        acceptance_by_position=[
            sum(output.num_accepted >= position for output in drafted) / len(drafted)
            for position in range(1, deepest + 1)
        ],
        seconds=decoding.seconds,
        tokens_per_second=tokens / decoding.seconds,
    )


def faults(decoding: Decoding) -> list[str]:
    """What the ops flagged in the data, one line per prompt concerned."""
    lines = []
    for number, generation in enumerate(decoding.generations, start=1):
        flags = Counter(
            flag.name for r in generation.rounds for flag in Status if flag and flag in r.status
        )
        for name, count in flags.items():
            lines.append(f"prompt {number}: {name} in {count} of {len(generation.rounds)} rounds")
    return lines


def print_summary(
    console: Console, title: str, speculative: Summary, plain: Summary | None
) -> None:
    """One column for the speculative run, one for plain decoding if it was measured."""
    columns = [speculative] if plain is None else [speculative, plain]
    table = Table(show_edge=False)
    table.add_column("")
    table.add_column("speculative", justify="right")
    if plain is not None:
        table.add_column("plain", justify="right")
    table.add_row("tokens", *(f"{s.tokens}" for s in columns))
    table.add_row("rounds", *(f"{s.rounds}" for s in columns))
    rates = (f"{s.tokens_per_round:.2f}" if s.rounds else "-" for s in columns)
    table.add_row("tokens per round", *rates)
    table.add_row("drafts accepted", f"{speculative.drafts_accepted}/{speculative.drafts_proposed}")
    for position, share in enumerate(speculative.acceptance_by_position, start=1):
        table.add_row(f"  at position {position}", f"{share:.0%}")
    table.add_row("seconds", *(f"{s.seconds:.2f}" for s in columns))
    table.add_row("tokens/s", *(f"{s.tokens_per_second:.1f}" for s in columns))
    if plain is not None:
        table.add_row("speed-up", f"{speculative.tokens_per_second / plain.tokens_per_second:.2f}x")
    console.print(Text(f"\n{title}\n", "bold"))
    console.print(table)
    console.print(
        "\nPrefills are no rounds. tokens/s: all tokens over the time inside the engine, prefills "
        "included."
    )
    if speculative.acceptance_by_position:
        console.print(
            "At position n: of the rounds with drafts "
            f"({speculative.drafted_rounds}), those that accepted n or more."
        )
    if plain is not None:
        console.print("Plain: the same engine without drafts, on the same prompts.")
