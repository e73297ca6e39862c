"""Prints what ``--check`` found."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from specfast.cli.lossless import Difference, LosslessCheck
from specfast.cli.prompts import Prompt
from specfast.cli.target import DtypeName, TargetModel


def print_verdict(
    console: Console,
    target: TargetModel,
    prompts: Sequence[Prompt],
    checks: Sequence[LosslessCheck],
) -> bool:
    """Say what differs, how far a token is from the target's choice, and whether all passed."""
    identical = sum(check.num_different == 0 for check in checks)
    different = sum(check.num_different for check in checks)
    console.print(
        f"\nCheck in {target.dtype.value}: {identical} of {len(checks)} outputs are those of plain "
        f"decoding, {different} tokens differ."
    )
    judged = list(zip(prompts, checks, strict=True))
    for prompt, check in judged:
        if check.first_difference is not None and target.dtype is DtypeName.FP32:
            console.print(
                f"  {prompt.source}: {_describe(check.first_difference, target.tokenizer)}"
            )
    num_not_largest = sum(check.num_not_largest for check in checks)
    if num_not_largest == 0:
        console.print("In a teacher-forced pass every token is its row's maximum.")
    else:
        prompt, worst = max(judged, key=lambda pair: pair[1].worst_gap / pair[1].worst_tolerance)
        console.print(
            f"In a teacher-forced pass {num_not_largest} tokens are not their row's maximum; the "
            f"worst lies {worst.worst_gap:.2g} under it, allowed are {worst.worst_tolerance:.2g} "
            f"({prompt.source}, token {worst.worst_position})."
        )
    failures = [f"  {p.source}: {c.failure}" for p, c in judged if c.failure is not None]
    if failures:
        lines = [f"Check FAILED for {len(failures)} of {len(checks)} outputs:", *failures]
        console.print(Text("\n".join(lines), "bold red"))
    else:
        console.print(Text("Check passed.", "bold green"))
    return not failures


def _describe(difference: Difference, tokenizer: PreTrainedTokenizerBase) -> str:
    def shown(token_id: int | None) -> str:
        return "nothing" if token_id is None else f"{token_id} {tokenizer.decode([token_id])!r}"

    gap = "" if difference.gap is None else f", {difference.gap:.2g} under the row's maximum"
    kind = "a tie" if difference.is_tie else "no tie"
    return (
        f"token {difference.position} is {shown(difference.token_id)}, plain decoding has "
        f"{shown(difference.plain_token_id)}: {kind}{gap}"
    )
