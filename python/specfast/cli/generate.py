"""``specfast generate``: decode speculatively, show it, and say what it was worth."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from specfast.cli.decoding import Decoding
from specfast.cli.engines import EngineOptions, check_graphs, run_plain, run_speculative
from specfast.cli.errors import FAILED, CliError, ends_cleanly
from specfast.cli.lossless import LosslessCheck, check_lossless
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
from specfast.cli.prompts import collect_prompts, tokenize
from specfast.cli.report import check_writable, conditions, prompt_reports, title, write_report
from specfast.cli.summary import faults, print_summary, summarize
from specfast.cli.target import TargetModel, choose_device, load_target
from specfast.cli.transcript import Transcript
from specfast.cli.verdict import print_verdict
from specfast.sampling_params import SamplingParams


@ends_cleanly
def generate(
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", show_default=False)
    ] = None,
    model: ModelOption = None,
    drafter: DrafterOption = "ngram",
    tree: TreeOption = False,
    drawn: DrawnOption = False,
    prompt_file: Annotated[
        Path | None,
        typer.Option(help='One JSON object per line with "prompt" or "messages".'),
    ] = None,
    max_new_tokens: MaxNewTokensOption = 128,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
    temperature: TemperatureOption = None,
    top_k: TopKOption = 0,
    top_p: TopPOption = 1.0,
    min_p: MinPOption = 0.0,
    repetition_penalty: Annotated[
        float, typer.Option(help="Divides values of tokens in prompt and output.")
    ] = 1.0,
    presence_penalty: Annotated[
        float, typer.Option(help="Taken from values of tokens in the output.")
    ] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="The same, once per occurrence.")] = 0.0,
    seed: SeedOption = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(help="End a text before this string; may be repeated.", show_default=False),
    ] = None,
    logprobs: Annotated[
        str | None,
        typer.Option(
            help="Log-probabilities in the --json file: raw, or processed by the options above.",
            show_default="none",
        ),
    ] = None,
    raw: RawOption = False,
    ignore_eos: IgnoreEosOption = False,
    check: Annotated[
        bool,
        typer.Option("--check", help="Exit with 1 unless the output is plain decoding's."),
    ] = False,
    no_plain: Annotated[
        bool, typer.Option("--no-plain", help="Do not measure plain decoding as well.")
    ] = False,
    json_path: JsonOption = None,
    verify_width: VerifyWidthOption = 8,
    page_size: PageSizeOption = 16,
    max_batch_size: MaxBatchSizeOption = 8,
    graphs: GraphsOption = GraphMode.AUTO,
    tiers: TiersOption = None,
    float8_kv: Float8KvOption = False,
    sps: SpsOption = None,
    sts: StsOption = None,
) -> int:
    """Decode PROMPT speculatively and compare with plain decoding.

    The text streams as it is decided, accepted drafts underlined.
    Then come tokens per round, acceptance by position, and the speed
    beside plain decoding of the same prompts.
    """
    params = sampling_params(
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        logprobs=logprobs,
        max_new_tokens=max_new_tokens,
        ignore_eos=ignore_eos,
    )
    if check and not params.is_plain_greedy:
        raise CliError(
            "--check compares with greedy decoding token by token, and a sampled or penalised text "
            "need not be the same: leave out --check"
        )
    if check and stop:
        raise CliError("--check looks for ends by EOS or a limit: leave out --stop")
    if logprobs is not None and json_path is None:
        raise CliError("--logprobs go to the result file: name one with --json")
    if check and no_plain:
        raise CliError("--check compares with plain decoding: leave out --no-plain")
    if check and float8_kv:
        raise CliError(
            "--check holds tokens against the model itself, whose keys and values are not in "
            "float8: leave out --float8-kv"
        )
    if sts is not None and sps is None:
        raise CliError("--sts changes which drafts a plan has verified: name its table with --sps")
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
        check_invariants=check,
    )
    prompts = collect_prompts(prompt or [], prompt_file)
    if json_path is not None:
        check_writable(json_path)

    stdout = Console(highlight=False, markup=False)
    stderr = Console(stderr=True, highlight=False, markup=False)
    target = load_target(model, choose_device(device), dtype, stderr)
    check_graphs(target, options, len(prompts))
    prompt_ids = [tokenize(p, target, raw=raw) for p in prompts]
    params = replace(params, eos_token_ids=target.eos_token_ids)

    transcript = Transcript(stdout, target.tokenizer, [p.title for p in prompts], params)
    speculative = run_speculative(target, options, prompt_ids, params, transcript.add)
    plain = None if no_plain else run_plain(target, options, prompt_ids, params, stderr)
    summary = summarize(speculative)
    plain_summary = None if plain is None else summarize(plain)
    checks = _check_all(target, speculative, plain, params, stderr) if check and plain else None

    print_summary(stdout, title(target), summary, plain_summary)
    for line in faults(speculative):
        stderr.print(line)
    passed = checks is None or print_verdict(stdout, target, prompts, checks)
    if json_path is not None:
        write_report(
            json_path,
            {
                **conditions(target),
                "params": {**asdict(options), **asdict(params), "raw": raw},
                "prompts": prompt_reports(target, prompts, speculative, params),
                "summary": asdict(summary),
                "plain": None if plain_summary is None else asdict(plain_summary),
                "check": None if checks is None else [asdict(c) for c in checks],
            },
        )
    return 0 if passed else FAILED


def _check_all(
    target: TargetModel,
    speculative: Decoding,
    plain: Decoding,
    params: SamplingParams,
    console: Console,
) -> list[LosslessCheck]:
    pairs = list(zip(speculative.generations, plain.generations, strict=True))
    return [
        check_lossless(target, ours.prompt_ids, ours.token_ids, theirs.token_ids, params)
        for ours, theirs in track(pairs, "Checking", console=console, transient=True)
    ]
