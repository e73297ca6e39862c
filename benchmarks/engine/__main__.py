"""What a round of the engine costs, and what speculation gains by it, under stated conditions."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from specfast.cli.errors import first_line
from transformers import AutoTokenizer

from benchmarks.engine.drafter_shapes import DRAFTERS
from benchmarks.engine.measure import (
    PAGE_SIZE,
    Results,
    Setting,
    measure,
    release_memory,
    ttft_ms,
)
from benchmarks.engine.prescribed import expected_length
from benchmarks.engine.shapes import SHAPES, random_model
from benchmarks.engine.tables import COLUMNS, cells, console_table, half_rows, turnaround
from benchmarks.engine.work import (
    POOR,
    REAL_DRAFTERS,
    TABLE,
    TEXTS,
    PrescribedWork,
    RealWork,
    Work,
)
from benchmarks.models import ModelRefusedError, load_model
from benchmarks.options import count, device, number, output_file, several

# Drafter, batch and context, what says most first: time may run out.
DEFAULT_POINTS = (
    "table:8x1024,table:64x1024,table:8x32768,dspark:8x1024,table:64x8192,dflash:64x1024,"
    "table:1x8192,table:128x1024,eagle3:8x1024,dflash:1x1024,table:1x32768,poor:64x1024,"
    "table:1x1024,dflash:8x1024,table:8x8192"
)
REAL_POINTS = "ngram:8x1024,ngram:1x1024,ngram:64x1024,ngram-tree:8x1024"
# What a point takes at most, so that the last one ends in time.
POINT_SECONDS = 12.0
# Of each draft of the table "poor".
POOR_ACCEPTANCE = 0.3
# Beside the KV: activations of a prefill, graphs, logits.
SPARE_BYTES = 8 << 30

PRESCRIBED = (TABLE, POOR, *DRAFTERS)

Point = tuple[str, int, int]


def main() -> int:
    begin = time.monotonic()
    options = _options()
    console = Console(highlight=False)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    try:
        setting = _setting(options, dtype)
    except ModelRefusedError as error:
        print(f"engine: {error}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {"conditions": _conditions(options, dtype), "results": []}
    console.print(", ".join(f"{k} {v}" for k, v in report["conditions"].items()) + "\n")
    console.print(f"model made after {time.monotonic() - begin:.0f} s")
    prefills: dict[int, float] = {}
    plains: dict[tuple[int, int], Results] = {}
    for point in options.points:
        started = time.monotonic()
        results = _results(setting, options, point, prefills, plains, started - begin)
        for result in results:
            console.print(
                f"{time.monotonic() - begin:4.0f} s  "
                + ", ".join(
                    f"{name} {text}"
                    for name, text in zip(COLUMNS, cells(result), strict=False)
                    if text != "-"
                ),
                soft_wrap=True,
            )
        # The same for all lengths of texts.
        for name, text in (
            ("turnaround µs", turnaround(results[0])),
            ("half rows, ms", half_rows(results[0])),
        ):
            if text:
                console.print(f"        {name}: {text}", soft_wrap=True, markup=False)
        report["results"] += results
        if options.json is not None:  # after each, in case that time runs out
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print()
    console.print(console_table(report["results"]))
    return 1 if any("failed" in result for result in report["results"]) else 0


def _setting(options: argparse.Namespace, dtype: torch.dtype) -> Setting:
    """Raises ModelRefusedError, also for points that the model has no positions for."""
    work: Work = PrescribedWork(tuple(options.acceptance), POOR_ACCEPTANCE)
    width = len(options.acceptance) + 1
    if options.model is None:
        model = random_model(options.shape, options.device, dtype)
    else:
        model = load_model(options.model, options.device, dtype)
        width = options.width
        try:
            tokenizer = AutoTokenizer.from_pretrained(options.model)
            work = RealWork.of_checkout(tokenizer, width - 1, options.drafter)
        except Exception as error:  # loaders of a hundred tokenizers: anything may come
            raise ModelRefusedError(
                f"cannot load the tokenizer of {options.model}: {first_line(error)}"
            ) from error
    setting = Setting(model, work, width, options.temperature, options.graphs)
    positions = model.config.get_text_config().max_position_embeddings
    room = positions - setting.tokens_after(options.output)
    longest = max(context for _, _, context in options.points)
    if longest > room:
        raise ModelRefusedError(
            f"expected contexts of at most {room} tokens, {positions} positions less those of the "
            f"output, got {longest}"
        )
    return setting


def _results(
    setting: Setting,
    options: argparse.Namespace,
    point: Point,
    prefills: dict[int, float],
    plains: dict[tuple[int, int], Results],
    seconds: float,
) -> list[dict[str, Any]]:
    drafter, batch, context = point
    where = {"drafter": drafter, "batch": batch, "context": context}
    if options.seconds is not None and seconds + POINT_SECONDS > options.seconds:
        return [{**where, "skipped": "no time was left"}]
    kv_bytes = setting.kv_bytes_per_token * batch * (context + max(options.output) + 256)
    if setting.on_gpu:
        free = torch.cuda.mem_get_info()[0]
        if kv_bytes + SPARE_BYTES > free:
            return [{**where, "skipped": f"{kv_bytes / 2**30:.0f} GiB of KV do not fit"}]
    try:
        if context not in prefills:
            prefills[context] = ttft_ms(setting, context)
            release_memory(setting)
        found = measure(setting, drafter, batch, context, options.output, plains)
        results = [{**result, "ttft_ms": prefills[context]} for result in found]
    except Exception as error:  # the other points are worth having
        results = [{**where, "failed": f"{type(error).__name__}: {error}"}]
    release_memory(setting)
    return results


def _conditions(options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    on_gpu = options.device == "cuda"
    text: dict[str, Any] = {
        "shape": options.shape,
        "weights": "random",
        "acceptance": options.acceptance,
        "expected_tokens_per_round": expected_length(options.acceptance),
        "poor_acceptance": POOR_ACCEPTANCE,
    }
    if options.model is not None:
        text = {
            "model": Path(options.model).name,
            "trained": None if options.drafter is None else options.drafter.name,
            "width": options.width,
            "prompts": f"windows of {', '.join(TEXTS)}",
        }
    return {
        **text,
        "dtype": str(dtype).removeprefix("torch."),
        "temperature": options.temperature,
        "graphs": options.graphs,
        "page_size": PAGE_SIZE,
        "card": torch.cuda.get_device_name() if on_gpu else "cpu",
        "driver": _driver() if on_gpu else None,
        "torch": torch.__version__,
        "commit": options.commit,
    }


def _driver() -> str:
    query = ["nvidia-smi", "--id=0", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _points(text: str) -> list[Point]:
    """Of "drafter:batch x context"; no drafter is the first that there is."""
    points = []
    for word in text.split(","):
        drafter, _, sizes = word.rpartition(":")
        batch, _, context = sizes.partition("x")
        points.append((drafter, count()(batch), count()(context)))
    return points


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--model", help="directory or hub id: real weights, nothing is prescribed")
    parser.add_argument(
        "--drafter", type=Path, help="directory of the drafter of points trained:BxCONTEXT"
    )
    parser.add_argument("--width", type=count(), default=8, help="rows per request, with --model")
    parser.add_argument(
        "--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--points", type=_points, metavar="[DRAFTER:]BxCONTEXT,...",
        help=f"batches and tokens of context; drafters are {', '.join(PRESCRIBED)}, with --model "
        f"{', '.join(REAL_DRAFTERS)}",
    )  # fmt: skip
    parser.add_argument(
        "--output", type=several(count()), default=[256, 16], help="tokens per request"
    )
    parser.add_argument("--seconds", type=number(0), help="begin no point that would end later")
    parser.add_argument(
        "--acceptance",
        type=several(number(0, 1)),
        default=[0.8, 0.75, 0.7, 0.7, 0.65, 0.65, 0.6],
        help="of each draft, given those before it",
    )
    parser.add_argument("--temperature", type=number(0), default=0.0)
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    known, points = PRESCRIBED, DEFAULT_POINTS
    if options.model is not None:
        known, points = REAL_DRAFTERS, REAL_POINTS
    named = options.points or _points(points)
    options.points = [(drafter or known[0], *sizes) for drafter, *sizes in named]
    for drafter, _, _ in options.points:
        if drafter not in known:
            parser.error(f"argument --points: choose from {', '.join(known)}, got {drafter!r}")
        if drafter == "trained" and options.drafter is None:
            parser.error("argument --points: expected --drafter for the drafter trained")
    if options.drafter is not None and not options.drafter.is_dir():
        parser.error(f"argument --drafter: there is no directory {options.drafter}")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
