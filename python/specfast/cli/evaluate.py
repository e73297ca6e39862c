"""``specfast eval``: what a drafter is worth on given prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from specfast.cli.calibration import calibrate
from specfast.cli.chart import check_chart, write_chart
from specfast.cli.decoding import decode
from specfast.cli.draft_meter import metered
from specfast.cli.engines import EngineOptions, make_drafter, warm_engine
from specfast.cli.errors import CliError, ends_cleanly
from specfast.cli.evaluation import Evaluation, evaluate_rounds
from specfast.cli.fit_sts import check_can_fit, check_fits_alone, fit_sts, sts_file
from specfast.cli.hints import hints
from specfast.cli.options import (
    DeviceOption,
    DrafterOption,
    DrawnOption,
    DtypeOption,
    Float8KvOption,
    GraphMode,
    GraphsOption,
    IgnoreEosOption,
    JsonOption,
    MaxBatchSizeOption,
    MaxNewTokensOption,
    MinPOption,
    ModelOption,
    PageSizeOption,
    RawOption,
    SeedOption,
    SpsOption,
    StsOption,
    TemperatureOption,
    TiersOption,
    TopKOption,
    TopPOption,
    TreeOption,
    VerifyWidthOption,
    parsed_tiers,
    sampling_params,
)
from specfast.cli.planning import read_planning
from specfast.cli.prompts import read_prompt_file, tokenize
from specfast.cli.report import check_apart, check_writable, conditions, title, write_report
from specfast.cli.summary import faults
from specfast.cli.target import choose_device, load_target
from specfast.drafters import TrainedDrafter
from specfast.engine import RoundOutput
from specfast.planner import StsFit


@ends_cleanly
def evaluate(
    drafter: DrafterOption,
    prompts: Annotated[
        Path,
        typer.Option(metavar="FILE", help='One JSON object per line: "prompt" or "messages".'),
    ],
    model: ModelOption = None,
    tree: TreeOption = False,
    drawn: DrawnOption = False,
    max_new_tokens: MaxNewTokensOption = 128,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    seed: SeedOption = None,
    raw: RawOption = False,
    ignore_eos: IgnoreEosOption = False,
    json_path: JsonOption = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="PNG", help="Draw acceptance and lengths; needs matplotlib."),
    ] = None,
    verify_width: VerifyWidthOption = 8,
    page_size: PageSizeOption = 16,
    max_batch_size: MaxBatchSizeOption = 8,
    graphs: GraphsOption = GraphMode.AUTO,
    tiers: TiersOption = None,
    float8_kv: Float8KvOption = False,
    sps: SpsOption = None,
    sts: StsOption = None,
    fit_sts_path: Annotated[
        Path | None,
        typer.Option(
            "--fit-sts",
            metavar="OUT",
            help="Fit the temperatures that --sts reads, and write them to this file.",
        ),
    ] = None,
) -> int:
    """Decode prompts and say how much of the drafts the target accepts.

    Acceptance length with and without the target's own token, acceptance
    by position, what rounds cost, and hints where the figures point to a
    usual fault.
    """
    if drafter == "none":
        raise CliError("there is nothing to evaluate: --drafter is none")
    params = sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
    )
    if fit_sts_path is not None:
        check_fits_alone(sts=sts, sps=sps)
    options = EngineOptions(
        drafter=drafter,
        tree=tree,
        drawn=drawn,
        verify_width=verify_width,
        page_size=page_size,
        max_batch_size=max_batch_size,
        graphs=graphs,
        tiers=parsed_tiers(tiers),
        planning=None if sps is None else read_planning(sps),
        sts=None if sts is None else str(sts),
        float8_kv=float8_kv,
        check_invariants=False,
    )
    texts = read_prompt_file(prompts)
    check_apart(prompts=prompts, json=json_path, fit_sts=fit_sts_path, report=report)
    for path in (json_path, fit_sts_path):
        if path is not None:
            check_writable(path)
    if report is not None:
        check_chart(report)

    stdout = Console(highlight=False, markup=False)
    stderr = Console(stderr=True, highlight=False, markup=False)
    target = load_target(model, choose_device(device), dtype, stderr)
    prompt_ids = [tokenize(text, target, raw=raw) for text in texts]
    params = replace(params, eos_token_ids=target.eos_token_ids)

    made = make_drafter(target, options, on_host=True)
    assert made is not None
    spec = made.model.spec if isinstance(made, TrainedDrafter) else None
    if fit_sts_path is not None:
        check_can_fit(spec, options)
    meter = metered(made, target.device)
    engine = warm_engine(target, meter, options, prompt_ids, params)
    meter.seconds = 0.0
    depths: list[list[int]] = [[] for _ in prompt_ids]
    survivals: list[list[list[float]]] = [[] for _ in prompt_ids]
    confidences: list[list[list[float]]] = [[] for _ in prompt_ids]
    with Progress(console=stderr, transient=True) as progress:
        task = progress.add_task("Decoding", total=len(texts) * max_new_tokens)

        def note(index: int, output: RoundOutput) -> None:
            depths[index].append(meter.depth(output.request_id, output.num_proposed))
            survivals[index].append(meter.survival(output.request_id, output.num_proposed))
            confidences[index].append(meter.confidence(output.request_id, output.num_proposed))
            progress.advance(task, len(output.token_ids))

        decoding = decode(engine, prompt_ids, params, note)
    train_block = None if spec is None or spec.block is None else spec.block.num_rows
    evaluation = evaluate_rounds(decoding, depths, meter.seconds, train_block)
    evaluation = replace(evaluation, calibration=calibrate(decoding, survivals))
    sentences = list(hints(evaluation, spec, verify_width))

    where = f"{drafter}{' trees' if tree else ''} for {title(target)}"
    _print_evaluation(stdout, where, evaluation, sentences)
    for line in faults(decoding):
        stderr.print(line)
    if fit_sts_path is not None and spec is not None and spec.block is not None:
        fit = fit_sts(decoding, confidences, spec.block.num_proposals)
        setting = {**conditions(target), "drafter": drafter, **asdict(params)}
        write_report(fit_sts_path, sts_file(fit, str(prompts), setting))
        _print_fit(stdout, fit, fit_sts_path)
    if report is not None:
        write_chart(report, where, evaluation)
    if json_path is not None:
        write_report(
            json_path,
            {
                **conditions(target),
                "params": {**asdict(options), **asdict(params), "raw": raw},
                "prompts": len(texts),
                "seeds": decoding.seeds,
                "drafter": None if spec is None else asdict(spec),
                "evaluation": asdict(evaluation),
                "hints": sentences,
            },
        )
    return 0


def _print_evaluation(
    console: Console, where: str, evaluation: Evaluation, sentences: list[str]
) -> None:
    table = Table(show_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in _rows(evaluation):
        table.add_row(name, value)
    by_position = Table(show_edge=False)
    for name in ("position", "proposed", "accepted", "if all before are", "rounds that end here"):
        by_position.add_column(name, justify="right")
    by_position.add_row("0", "", "", "", f"{evaluation.length_histogram[0]}")
    columns = zip(
        evaluation.proposed_by_position,
        evaluation.acceptance_by_position,
        evaluation.conditional_acceptance,
        evaluation.length_histogram[1:],
        strict=True,
    )
    for position, (proposed, accepted, conditional, count) in enumerate(columns, start=1):
        given = "-" if conditional is None else f"{conditional:.1%}"
        by_position.add_row(f"{position}", f"{proposed}", f"{accepted:.1%}", given, f"{count}")
    console.print(Text(f"{where}\n", "bold"))
    console.print(table)
    console.print()
    console.print(by_position)
    console.print("\nA prefill is no round, and its token is counted in none.")
    for sentence in sentences:
        console.print(f"Hint: {sentence}")


def _print_fit(console: Console, fit: StsFit, path: Path) -> None:
    table = Table(show_edge=False)
    for name in ("position", "temperature", "calibration error before", "and after"):
        table.add_column(name, justify="right")
    columns = zip(fit.temperatures, fit.ece_before, fit.ece_after, strict=True)
    for position, (temperature, before, after) in enumerate(columns, start=1):
        table.add_row(f"{position}", f"{temperature:.3g}", f"{before:.3f}", f"{after:.3f}")
    console.print()
    console.print(table)
    if fit.positions_at_limit:
        where = ", ".join(map(str, fit.positions_at_limit))
        console.print(
            f"\nThe best temperature at position {where} is an end of what is tried: such "
            "confidences say little, or there were few samples."
        )
    console.print(f"\nTemperatures written to {path}; --sts reads them.", soft_wrap=True)


def _rows(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    summary, lengths, cost = evaluation.summary, evaluation.lengths, evaluation.cost
    yield "acceptance length", f"{evaluation.acceptance_length:.3f}"
    yield "  with bonus", f"{evaluation.acceptance_length_with_bonus:.3f}"
    yield "rounds with drafts", f"{summary.drafted_rounds} of {summary.rounds}"
    yield "tokens per target forward", f"{summary.tokens_per_round:.3f}"
    counts = f"{summary.drafts_accepted}/{summary.drafts_proposed}"
    yield "acceptance rate", f"{counts} = {evaluation.acceptance_rate:.1%}"
    yield "repetition rate", f"{evaluation.repetition_rate:.1%}"
    if lengths.train_block is not None:
        yield "train block", f"{lengths.train_block}"
    yield "proposals m, at most", f"{lengths.proposals}"
    yield "verify rows m + 1, at most", f"{lengths.verify_rows}"
    yield "outputs, at most", f"{lengths.outputs}"
    if evaluation.calibration is not None:
        yield "survival calibration error", f"{evaluation.calibration.error:.3f}"
    for name, seconds in (("draft", cost.draft), ("verify + accept", cost.verify_accept)):
        per_round = 1000 * seconds / max(summary.rounds, 1)
        share = seconds / max(cost.draft + cost.verify_accept, 1e-9)
        yield f"{name}, ms per round", f"{per_round:.2f} ({share:.0%})"
    yield "prefill, seconds", f"{cost.prefill:.2f}"
    yield "tokens/s", f"{summary.tokens_per_second:.1f}"
