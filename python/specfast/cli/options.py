"""Options that several commands have."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from specfast.cli.errors import CliError
from specfast.cli.target import DeviceName, DtypeName
from specfast.sampling_params import SamplingParams

ModelOption = Annotated[
    str | None,
    typer.Option(help="Directory or hub id.", show_default="SmolLM2-135M-Instruct"),
]
DeviceOption = Annotated[DeviceName | None, typer.Option(show_default="cuda where it can be used")]
DtypeOption = Annotated[DtypeName | None, typer.Option(show_default="fp32 on cpu, bf16 on cuda")]
PageSizeOption = Annotated[
    int, typer.Option(min=1, max=2**20, help="Tokens per page of the KV pool.")
]
DrafterOption = Annotated[
    str, typer.Option(help="Who drafts: ngram, none, or the directory of a trained drafter.")
]
TreeOption = Annotated[bool, typer.Option("--tree", help="Draft trees instead of chains.")]
DrawnOption = Annotated[
    bool,
    typer.Option("--drawn", help="Draw the nodes of EAGLE's trees, where the text is sampled."),
]
VerifyWidthOption = Annotated[
    int, typer.Option(min=2, max=1024, help="Rows per round: the anchor and its drafts.")
]
StsOption = Annotated[
    Path | None,
    typer.Option(
        "--sts",
        metavar="FILE",
        help="Temperatures of the drafter's confidences, as eval --fit-sts writes them.",
        show_default=False,
    ),
]
SpsOption = Annotated[
    Path | None,
    typer.Option(
        "--sps",
        metavar="FILE",
        help="Verify as many drafts as pay, by this table of specfast profile.",
        show_default=False,
    ),
]
MaxBatchSizeOption = Annotated[int, typer.Option(min=1, help="Prompts decoded at once.")]


class GraphMode(str, Enum):
    """Whether verify rounds are padded to tiers, and replayed as CUDA Graphs."""

    AUTO = "auto"
    ON = "on"
    PADDED = "padded"
    OFF = "off"


GraphsOption = Annotated[
    GraphMode,
    typer.Option(
        help="Replay rounds as CUDA Graphs. auto: where that is possible. padded: the same rounds "
        "at the same sizes, kernel by kernel. off: each round at its own size."
    ),
]
TiersOption = Annotated[
    str | None,
    typer.Option(
        help="Batch sizes that rounds are padded to, separated by commas.",
        show_default="1, 2, 4 ... to the batch",
    ),
]
Float8KvOption = Annotated[
    bool,
    typer.Option(
        "--float8-kv",
        help="Keep keys and values in float8, by the scales of the checkpoint, or 1 without any.",
    ),
]
MaxNewTokensOption = Annotated[int, typer.Option(min=1, help="Per prompt.")]
TemperatureOption = Annotated[float | None, typer.Option(help="0: greedy.", show_default="0")]
TopKOption = Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0: all.")]
TopPOption = Annotated[float, typer.Option(help="Keep the likeliest with this share.")]
MinPOption = Annotated[
    float, typer.Option(help="Keep tokens with this share of the likeliest one's.")
]
SeedOption = Annotated[
    int | None,
    typer.Option(help="Of every prompt's random numbers.", show_default="drawn per prompt"),
]
RawOption = Annotated[bool, typer.Option("--raw", help="Leave out the chat template.")]
IgnoreEosOption = Annotated[bool, typer.Option("--ignore-eos", help="Go on to the limit.")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write everything to this file.")]


def sampling_params(temperature: float | None, **options: Any) -> SamplingParams:
    """``SamplingParams`` of a command's options.

    Filters without a temperature change nothing, which stderr is told: who asks for greedy text by
    ``--temperature 0`` knows.
    """
    try:
        params = SamplingParams(temperature=0.0 if temperature is None else temperature, **options)
    except ValueError as error:
        raise CliError(str(error)) from error
    idle = {"--top-k": params.top_k > 1, "--top-p": params.top_p < 1, "--min-p": params.min_p > 0}
    given = [name for name, is_given in idle.items() if is_given]
    if temperature is None and given:
        verb = "has" if len(given) == 1 else "have"
        names = " and ".join(given)
        print(f"specfast: {names} {verb} no effect without --temperature", file=sys.stderr)
    return params


def parsed_tiers(text: str | None) -> tuple[int, ...] | None:
    """The numbers of ``--tiers``; None if it was not given."""
    if text is None:
        return None
    try:
        sizes = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        raise CliError(f"--tiers takes numbers separated by commas, got {text!r}") from None
    if sizes[0] < 1:
        raise CliError(f"--tiers must be 1 or more, got {text!r}")
    return sizes
