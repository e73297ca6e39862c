"""Engines of commands that decode: with a drafter, and plain."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from specfast.cli.decoding import Decoding, OnRound, decode
from specfast.cli.errors import CliError
from specfast.cli.graph_mode import graph_mode
from specfast.cli.options import GraphMode
from specfast.cli.planning import planned_tiers
from specfast.cli.target import TargetModel
from specfast.drafters import (
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    Drafter,
    DrafterError,
    DraftTarget,
    NgramDrafter,
    TrainedDrafter,
    TreeDrafter,
    load_drafter,
    why_not_on_device,
)
from specfast.drafters.checkpoint import DrafterSpec
from specfast.drafters.eagle import EagleModel
from specfast.engine import Engine, Float8Kv, RoundOutput, VerifyTiers
from specfast.engine.layer_kv import has_scales
from specfast.ops.attention import MAX_ATTENTION_REQUESTS
from specfast.planner import Planning, read_temperatures
from specfast.sampling_params import SamplingParams

_logger = logging.getLogger(__name__)

DRAFTERS = ("ngram", "none")
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class EngineOptions:
    """How the engines of one command are made.

    drafter : one of DRAFTERS, or a directory
    drawn : whether the nodes of EAGLE's trees are drawn, for requests that sample
    tiers : batch sizes that rounds are padded to; None: powers of two up to the batch
    sts : file of temperatures for the drafter's confidences
    planning : by the table of --sps
    float8_kv : whether keys and values are kept in float8
    """

    drafter: str
    tree: bool
    drawn: bool
    verify_width: int
    page_size: int
    max_batch_size: int
    check_invariants: bool
    graphs: GraphMode = GraphMode.OFF
    tiers: tuple[int, ...] | None = None
    sts: str | None = None
    planning: Planning | None = None
    float8_kv: bool = False

    def __post_init__(self) -> None:
        if self.drafter not in DRAFTERS and not Path(self.drafter).is_dir():
            if Path(self.drafter).exists():
                raise CliError(f"drafter {self.drafter} is not a directory")
            if len(Path(self.drafter).parts) > 1:
                raise CliError(f"drafter {self.drafter}: there is no such directory")
            raise CliError(
                f"unknown drafter {self.drafter!r}: choose from {', '.join(DRAFTERS)}, or name the "
                "directory of one"
            )
        if self.tree and self.drafter == "none":
            raise CliError("--tree needs a drafter, and --drafter is none")
        if self.drawn and (not self.tree or self.drafter in DRAFTERS):
            raise CliError("--drawn is for --tree with a drafter of EAGLE")
        if self.drawn and self.planning is not None:
            raise CliError("--sps is for a drafter with confidences, drawn trees have none")
        if self.sts is not None and (self.tree or self.drafter in DRAFTERS):
            which = "trees have" if self.tree else f"{self.drafter} has"
            raise CliError(f"--sts is for a drafter with confidences, {which} none")
        if self.planning is not None and self.drafter in DRAFTERS:
            raise CliError(f"--sps is for a drafter with confidences, {self.drafter} has none")
        if self.planning is not None and self.tiers is not None:
            raise CliError("--sps brings its tiers: leave out --tiers")


def make_drafter(
    target: TargetModel, options: EngineOptions, *, on_host: bool = False
) -> Drafter | None:
    """The drafter of ``options``; None is for plain decoding.

    ``on_host``: its drafts are no part of a captured round, so that what it does can be measured.
    """
    if options.drafter == "none":
        return None
    if options.tree and target.is_recurrent:
        raise CliError(
            f"--tree cannot be used: {target.name} has recurrent layers, which take chains"
        )
    num_drafts = options.verify_width - 1
    if options.drafter == "ngram":
        return NgramDrafter(num_drafts=num_drafts, tree=options.tree)
    try:
        draft_target = DraftTarget.of(target.model)
        loaded = load_drafter(options.drafter, draft_target, target.dtype.torch_dtype)
    except DrafterError as error:
        raise CliError(str(error)) from error
    if not options.tree:
        if options.planning is not None and loaded.spec.confidence is None:
            raise CliError(f"--sps is for a drafter with confidences, {options.drafter} has none")
        temperatures = _temperatures(options, loaded.spec)
        if not on_host and _pads(target, options):
            why_not = why_not_on_device(loaded)
            if why_not is None:
                return DeviceTrainedDrafter(loaded, num_drafts, temperatures=temperatures)
            _logger.info("drafts are made on the host: %s", why_not)
        return TrainedDrafter(loaded, num_drafts, temperatures=temperatures)
    if not isinstance(loaded, EagleModel):
        family = loaded.spec.family
        raise CliError(
            f"--tree is for ngram and EAGLE: a drafter of the family {family} has chains"
        )
    in_round = not on_host and _pads(target, options)
    kind = DeviceTreeDrafter if in_round else TreeDrafter
    return kind(loaded, max(options.verify_width, 2), drawn=options.drawn)


def _pads(target: TargetModel, options: EngineOptions) -> bool:
    """A round that is padded to a tier is captured with its drafts, where that is possible."""
    return _tiers(target, options, batch_size=1, width=options.verify_width) is not None


def _temperatures(options: EngineOptions, spec: DrafterSpec) -> list[float] | None:
    if options.sts is None:
        return None
    if spec.confidence is None or spec.block is None:
        raise CliError(f"--sts is for a drafter with confidences, {options.drafter} has none")
    try:
        return read_temperatures(Path(options.sts), spec.block.num_proposals)
    except OSError as error:
        raise CliError(f"cannot read STS file {options.sts}: {error.strerror}") from error
    except ValueError as error:
        raise CliError(str(error)) from error


def check_graphs(target: TargetModel, options: EngineOptions, num_prompts: int) -> None:
    """Refuse graphs or tiers that cannot be had, before anything is printed."""
    batch_size = min(options.max_batch_size, num_prompts)
    _tiers(target, options, batch_size, options.verify_width)


def run_speculative(
    target: TargetModel,
    options: EngineOptions,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    on_round: OnRound,
) -> Decoding:
    """Decode with the drafter of ``options``."""
    engine = warm_engine(target, make_drafter(target, options), options, prompts, params)
    return decode(engine, prompts, params, on_round)


def run_plain(
    target: TargetModel,
    options: EngineOptions,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    console: Console,
) -> Decoding:
    """Decode without drafts, everything else being equal; a bar on ``console`` shows how far."""
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Plain decoding", total=len(prompts) * params.max_new_tokens)

        def show(index: int, output: RoundOutput) -> None:
            progress.advance(task, len(output.token_ids))

        engine = warm_engine(target, None, options, prompts, params)
        return decode(engine, prompts, params, show)


def warm_engine(
    target: TargetModel,
    drafter: Drafter | None,
    options: EngineOptions,
    prompts: Sequence[list[int]],
    params: SamplingParams,
) -> Engine:
    """An engine with room for ``prompts`` that has decoded a few tokens of the first."""
    batch_size = min(options.max_batch_size, len(prompts))
    planning = None if drafter is None else options.planning
    tiers = _tiers(target, options, batch_size, 1 if drafter is None else options.verify_width)
    try:
        engine = Engine(
            target.probed,
            drafter,
            max_batch_size=batch_size,
            page_size=options.page_size,
            num_pages=_num_pages(target, options, prompts, params),
            verify_width=options.verify_width,
            tokenizer=target.tokenizer,
            tiers=tiers,
            planning=planning,
            float8_kv=_float8_kv(target) if options.float8_kv else None,
            check_invariants=options.check_invariants,
        )
    except ValueError as error:
        if planning is None and not options.float8_kv:
            raise
        # The table is of another setting, or the scales are of another model.
        raise CliError(str(error)) from error
    # What happens once per process or per engine is no decoding speed.
    short = min(params.max_new_tokens, WARM_UP_TOKENS)
    decode(engine, prompts[:1], replace(params, max_new_tokens=short, min_new_tokens=0))
    return engine


def _float8_kv(target: TargetModel) -> Float8Kv:
    """With the scales in the model's directory; those of a hub id are not looked for."""
    directory = Path(str(target.model.name_or_path))
    return Float8Kv.of_checkpoint(directory) if has_scales(directory) else Float8Kv()


def _tiers(
    target: TargetModel, options: EngineOptions, batch_size: int, width: int
) -> VerifyTiers | None:
    mode = graph_mode(target, options.graphs, batch_size, options.verify_width)
    if mode is GraphMode.OFF:
        if options.tiers is not None:
            raise CliError("--tiers are for --graphs on or padded")
        if options.planning is not None:
            raise CliError("--sps is for --graphs on or padded")
        return None
    capture = mode is GraphMode.ON
    if options.planning is not None and width > 1:
        return planned_tiers(options.planning, batch_size, width, capture)
    if options.tiers is None:
        return VerifyTiers.up_to(batch_size, width, capture=capture)
    if options.tiers[-1] < batch_size:
        raise CliError(
            f"--tiers must hold the batch of {batch_size} prompts, got {options.tiers[-1]} at most"
        )
    if options.tiers[-1] > MAX_ATTENTION_REQUESTS:
        raise CliError(f"--tiers must be {MAX_ATTENTION_REQUESTS} or less, got {options.tiers[-1]}")
    return VerifyTiers(options.tiers, width, capture=capture)


def _num_pages(
    target: TargetModel,
    options: EngineOptions,
    prompts: Sequence[list[int]],
    params: SamplingParams,
) -> int:
    """Room for the longest requests that can run at once: a whole context may be far too much."""
    longest = sorted((len(ids) for ids in prompts), reverse=True)[: options.max_batch_size]
    extra = params.max_new_tokens + options.verify_width
    limit = target.room_after([])
    lengths = (min(length + extra, limit) for length in longest)
    return sum(-(-length // options.page_size) for length in lengths)
