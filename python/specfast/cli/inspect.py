"""``specfast inspect``: what a drafter's files are, as far as they were understood."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from specfast.cli.errors import CliError, ends_cleanly
from specfast.cli.options import DeviceOption, DtypeOption
from specfast.cli.probe import print_probe, probe_readings
from specfast.cli.report import check_writable, write_report
from specfast.cli.target import choose_device, load_target
from specfast.drafters.checkpoint import (
    CheckpointFiles,
    DrafterError,
    DrafterSpec,
    TargetSizes,
    match_target,
    match_tokenizers,
    read_spec,
)


@ends_cleanly
def inspect(
    drafter: Annotated[Path, typer.Argument(metavar="DRAFTER", help="Directory of the drafter.")],
    model: Annotated[
        Path | None,
        typer.Option(help="Directory of the target: compare the two."),
    ] = None,
    probe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Decode these prompts (JSON lines) with every reading that the files allow.",
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Per prompt of --probe.")] = 64,
    verify_width: Annotated[
        int, typer.Option(min=2, max=1024, help="Rows per round of --probe.")
    ] = 8,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Write what was understood to this file.")
    ] = None,
) -> int:
    """Say what a drafter is, and refuse it where loading would.

    Family, dialect, sizes, taps, heads, and every default and ambiguity
    with the reading that was taken. Weights are loaded for --probe only,
    which measures how much of each reading the target accepts.
    """
    console = Console(highlight=False, markup=False)
    if probe is not None and model is None:
        raise CliError("--probe decodes with the target: name one with --model")
    if json_path is not None:
        check_writable(json_path)
    try:
        files = CheckpointFiles(drafter)
    except DrafterError as error:
        raise CliError(str(error)) from error
    try:
        spec = read_spec(files)
        if model is not None:
            spec = match_target(spec, TargetSizes.read(model))
            match_tokenizers(drafter, model)
    except DrafterError as error:
        raise CliError(f"{drafter}: {error}") from error
    summaries = {}
    if probe is not None:
        progress = Console(stderr=True, highlight=False, markup=False)
        target = load_target(str(model), choose_device(device), dtype, progress)
        summaries = probe_readings(drafter, target, probe, max_new_tokens, verify_width)
    dtypes = ", ".join(sorted({entry.dtype for entry in files.entries.values()}))
    if json_path is not None:
        report = {"path": str(drafter), "dtypes": dtypes, "drafter": asdict(spec)}
        if probe is not None:
            report["probe"] = {name: asdict(summary) for name, summary in summaries.items()}
        write_report(json_path, report)
    _print_spec(console, spec, len(files.entries), dtypes)
    if probe is not None:
        print_probe(console, summaries)
    return 0


def _print_spec(console: Console, spec: DrafterSpec, num_tensors: int, dtypes: str) -> None:
    table = Table(show_edge=False, show_header=False)
    for name, value in _rows(spec):
        table.add_row(name, value)
    table.add_row("tensors", f"{num_tensors}, all known; {dtypes}")
    console.print(table)
    if spec.readings:
        console.print("\nRead as follows, since the files leave it open:")
    for reading in spec.readings:
        console.print(f"- {reading}")


def _rows(spec: DrafterSpec) -> Iterator[tuple[str, str]]:
    sizes, rope = spec.backbone, spec.backbone.rope
    yield "family", spec.family
    yield "dialect", f"{spec.dialect} ({spec.architecture})"
    yield "layers", f"{sizes.num_layers}, hidden {sizes.hidden_size}, MLP {sizes.intermediate_size}"
    heads = f"{sizes.num_heads} / {sizes.num_kv_heads} of {sizes.head_dim}"
    yield "heads", heads + (", normalised q and k" if sizes.qk_norm else "")
    yield "rotary", f"{rope.rope_type}, theta {rope.theta:g}, {rope.rotary_dim} channels"
    reduced = spec.draft_vocab_size < spec.vocab_size
    mapped = f", of which it drafts {spec.draft_vocab_size} (d2t)" if reduced else ""
    yield "vocabulary", f"{spec.vocab_size}{mapped}"
    if spec.taps is None:
        yield "reads", "the target's last hidden state, after the final norm"
    else:
        layers = spec.taps.layers
        where = "by the target's depth" if layers is None else f"layers {list(layers)}"
        yield "reads", f"the target after {where}, {spec.taps.width} wide"
        yield "layer ids", spec.taps.source
    if spec.eagle3 is not None:
        yield "switches", _switched_on(asdict(spec.eagle3))
    if (block := spec.block) is not None:
        first = "the anchor's row drafts" if block.sample_from_anchor else "row 0 drafts nothing"
        yield "block", f"{block.num_rows} rows, {block.num_proposals} proposals; {first}"
        own = ", with an embedding of its own" if block.own_mask_embedding else ""
        yield "mask token", f"{block.mask_token_id}{own}"
        spans = [
            ("causal" if span.causal else "both ways")
            + (f" within {span.window}" if span.window else "")
            for span in block.spans
        ]
        yield "attention", ", ".join(spans) if len(set(spans)) > 1 else f"{spans[0]}, every layer"
    for name, head in (
        ("Markov head", spec.markov),
        ("confidence head", spec.confidence),
        ("convolutions", spec.convolution),
        ("selector", spec.selector),
    ):
        if head is not None:
            yield name, ", ".join(f"{key} {value}" for key, value in asdict(head).items())


def _switched_on(switches: dict[str, bool]) -> str:
    return ", ".join(name for name, on in switches.items() if on) or "none"
