"""Random requests for minutes: equal to plain decoding, no page leaked, memory that stays."""

from __future__ import annotations

import argparse
import ast
import gc
import inspect
import json
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from specfast.engine import Engine
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.engine.shapes import SHAPES, random_model
from benchmarks.models import ModelRefusedError, load_model
from benchmarks.options import choice, count, device, number, output_file, several
from benchmarks.soak.phase import DRAFTERS, Phase
from benchmarks.soak.texts import Texts

_T = TypeVar("_T")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Allocators settle over the first phases; after that memory may grow by this much.
SETTLING_SHARE = 0.5
# Resident are kernels, too, each from when it is first met.
GROWTH_BYTES = {"resident_bytes": 512 << 20, "device_bytes": 64 << 20}
FEWEST_PHASES = 10
# Of the seconds of a phase, in the first phases of all drafters: time may run out.
FIRST_LAP = 1 / 3
# Of an engine: each phase has its own.
NOT_GIVEN = ("target", "drafter", "seed", "tiers", "planning")


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    torch.set_float32_matmul_precision("highest")
    logging.disable_progress_bar()
    start = time.monotonic()
    try:
        targets = [Target.of(options, DTYPES[name]) for name in options.dtypes]
    except ModelRefusedError as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    phases: list[dict[str, Any]] = []
    while not phases or time.monotonic() - start < options.seconds:
        number, left = len(phases), max(options.seconds - (time.monotonic() - start), 0.1)
        kind, target = turn(number, options.drafters, targets)
        seconds = options.phase_seconds
        if number < len(options.drafters):
            seconds *= FIRST_LAP
        phases.append(_phase(target, kind, options, number, min(seconds, left)))
        console.print(_line(phases[-1], time.monotonic() - start), markup=False)
        failures = _failures(phases)
        if options.json is not None:  # after each, in case that time runs out
            seconds = round(time.monotonic() - start)
            report = _report(options, phases, failures, seconds)
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print(dict(_totals(phases)))
    console.print("\n".join(failures) or "no failure", markup=False)
    return 1 if failures else 0


def turn(number: int, drafters: Sequence[str], targets: Sequence[_T]) -> tuple[str, _T]:
    """The drafter and the target of a phase: all drafters, then all with the next target."""
    lap, place = divmod(number, len(drafters))
    return drafters[place], targets[(place + lap) % len(targets)]


@dataclass(frozen=True)
class Target:
    """A model and the texts that plain decoding gives it."""

    model: PreTrainedModel
    texts: Texts

    @classmethod
    def of(cls, options: argparse.Namespace, dtype: torch.dtype) -> Target:
        if options.model is None:
            model = random_model(options.shape, options.device, dtype)
        else:
            model = load_model(options.model, options.device, dtype)
        texts = Texts(model, options.prompts, options.longest_prompt, options.tokens, options.seed)
        return cls(model, texts)


def _phase(
    target: Target, kind: str, options: argparse.Namespace, number: int, seconds: float
) -> dict[str, Any]:
    found: dict[str, Any] = {"drafter": kind, "seed": options.seed + number}
    counts: Counter[str] = Counter()
    failures: list[str] = []
    try:
        phase = Phase(
            target.model,
            target.texts,
            kind,
            options.seed + number,
            options.graphs,
            dict(options.engine),
        )
        found, counts, failures = phase.conditions, phase.counts, phase.failures
        phase.run(seconds)
        del phase
    except Exception as error:  # a phase that ends early is a failure, and the soak goes on
        failures.append(f"{type(error).__name__}: {error}")
        traceback.print_exc()
    return {
        **found,
        "counts": dict(counts),
        "failures": failures,
        "memory": _memory(options.device),
    }


def _failures(phases: list[dict[str, Any]]) -> list[str]:
    failures = [f"phase {i}: {f}" for i, p in enumerate(phases) for f in p["failures"]]
    failures += _growth([phase["memory"] for phase in phases])
    if not _totals(phases)["equal to plain decoding"]:
        failures.append("no greedy request was compared")
    return failures


def _totals(phases: list[dict[str, Any]]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for phase in phases:
        totals.update(phase["counts"])
    return totals


def _line(phase: dict[str, Any], seconds: float) -> str:
    names = ("drafter", "dtype", "rounds", "max_batch_size", "verify_width", "page_size")
    counts = phase["counts"]
    return (
        f"{seconds:6.0f} s  {', '.join(str(phase.get(name)) for name in names)}: "
        f"{counts.get('steps', 0)} steps, {counts.get('tokens', 0)} tokens, "
        f"{counts.get('accepted drafts', 0)} of them drafts, "
        f"{counts.get('equal to plain decoding', 0)} greedy texts equal, "
        f"{counts.get('other way at a tie', 0)} at a tie, {len(phase['failures'])} failures"
    )


def _report(
    options: argparse.Namespace,
    phases: list[dict[str, Any]],
    failures: list[str],
    seconds: int,
) -> dict[str, Any]:
    return {
        "conditions": {
            "model": Path(options.model).name if options.model else f"random {options.shape}",
            "card": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "torch": torch.__version__,
            "commit": options.commit,
            "seed": options.seed,
            "seconds": seconds,
            "of_seconds": options.seconds,
            "engine": [f"{name}={value!r}" for name, value in options.engine],
        },
        "totals": dict(_totals(phases)),
        "failures": failures,
        "phases": phases,
    }


def _engine_option(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    known = [name for name in inspect.signature(Engine).parameters if name not in NOT_GIVEN]
    if name not in known:
        raise argparse.ArgumentTypeError(f"choose from {', '.join(known)}, got {name!r}")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        raise argparse.ArgumentTypeError(
            f"expected a value as in Python for {name}, got {value!r}"
        ) from None


def _memory(device: str) -> dict[str, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = {"resident_bytes": pages * 4096}
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        memory["device_bytes"] = torch.cuda.memory_allocated()
    return memory


def _growth(memory: list[dict[str, int]]) -> list[str]:
    """What has grown since allocators settled and kernels were loaded."""
    if len(memory) < FEWEST_PHASES:
        return []
    settling = memory[: int(len(memory) * SETTLING_SHARE) + 1]
    before = {name: max(m[name] for m in settling) for name in memory[0]}
    return [
        f"{name} grew from {before[name]} to {last}"
        for name, last in memory[-1].items()
        if last > before[name] + GROWTH_BYTES[name]
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--seconds", type=number(0), default=60.0)
    parser.add_argument("--phase-seconds", type=number(0), help="default: 10, on a GPU 15")
    parser.add_argument("--seed", type=count(0), default=secrets.randbits(31))
    parser.add_argument("--model", help="directory or hub id; absent: random weights")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--device", type=device, default="cpu")
    parser.add_argument(
        "--dtypes",
        type=several(choice(*DTYPES)),
        metavar="fp32,bf16",
        help="default: fp32, on a GPU both",
    )
    parser.add_argument("--prompts", type=count(), default=12)
    parser.add_argument("--longest-prompt", type=count(), default=120)
    parser.add_argument("--tokens", type=count(), default=48, help="of a text at most")
    parser.add_argument(
        "--drafters", type=several(choice(*DRAFTERS)), default=list(DRAFTERS), metavar="KIND,..."
    )
    parser.add_argument(
        "--engine", action="append", type=_engine_option, default=[], metavar="NAME=VALUE",
        help="an argument of Engine, the value as in Python; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--graphs", type=several(choice("graphs", "padded", "eager")), metavar="WAY,...",
        help="ways to run rounds, one of which each phase draws; default: padded,eager, and on a "
        "GPU graphs, more often than those",
    )  # fmt: skip
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.device == "cpu" and "graphs" in (options.graphs or []):
        parser.error("argument --graphs: graphs are for --device cuda")
    on_gpu = options.device == "cuda"
    options.phase_seconds = options.phase_seconds or (15.0 if on_gpu else 10.0)
    options.dtypes = options.dtypes or (list(DTYPES) if on_gpu else ["fp32"])
    graphs = ["graphs"] * 4 if on_gpu else []
    options.graphs = options.graphs or [*graphs, "padded", "eager"]
    return options


if __name__ == "__main__":
    raise SystemExit(main())
