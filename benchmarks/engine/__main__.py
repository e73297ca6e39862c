"""What a round of the engine costs, and what speculation gains by it, under stated conditions."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from typing import Any

import torch
from rich.console import Console

from benchmarks.engine.drafter_shapes import DRAFTERS
from benchmarks.engine.measure import PAGE_SIZE, Setting, measure, release_memory, ttft_ms
from benchmarks.engine.prescribed import expected_length
from benchmarks.engine.shapes import SHAPES, random_model
from benchmarks.engine.tables import COLUMNS, cells, console_table, turnaround
from benchmarks.options import count, device, number, output_file, several

# Drafter, batch and context, what matters most first: time may run out.
DEFAULT_POINTS = (
    "table:8x1024,table:1x1024,table:64x1024,dflash:8x1024,table:8x8192,poor:64x1024,"
    "table:64x8192,eagle3:8x1024,table:128x1024,table:8x32768,table:1x8192,table:1x32768,"
    "dspark:8x1024,dflash:64x1024,dflash:1x1024"
)
# What a point takes at most, so that the last one ends in time.
POINT_SECONDS = 12.0
# Of each draft of the table "poor".
POOR_ACCEPTANCE = 0.3
# Beside the KV: activations of a prefill, graphs, logits.
SPARE_BYTES = 8 << 30

Point = tuple[str, int, int]


def main() -> int:
    begin = time.monotonic()
    options = _options()
    console = Console(highlight=False)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = random_model(options.shape, options.device, dtype)
    report: dict[str, Any] = {"conditions": _conditions(options, dtype), "results": []}
    console.print(", ".join(f"{k} {v}" for k, v in report["conditions"].items()) + "\n")
    console.print(f"model made after {time.monotonic() - begin:.0f} s")
    prefills: dict[int, float] = {}
    for point in options.points:
        started = time.monotonic()
        results = _results(model, options, point, prefills, started - begin)
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
        if results and (steps := turnaround(results[0])):  # the same for all lengths of texts
            console.print(f"        turnaround µs: {steps}", soft_wrap=True, markup=False)
        report["results"] += results
        if options.json is not None:  # after each, in case that time runs out
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print()
    console.print(console_table(report["results"]))
    return 1 if any("failed" in result for result in report["results"]) else 0


def _results(
    model: Any,
    options: argparse.Namespace,
    point: Point,
    prefills: dict[int, float],
    seconds: float,
) -> list[dict[str, Any]]:
    drafter, batch, context = point
    acceptance = options.acceptance
    if drafter == "poor":
        acceptance = [POOR_ACCEPTANCE] * len(acceptance)
    setting = Setting(model, tuple(acceptance), options.temperature, options.graphs, drafter)
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
        found = measure(setting, batch, context, options.output)
        results = [{**result, "ttft_ms": prefills[context]} for result in found]
    except Exception as error:  # the other points are worth having
        results = [{**where, "failed": f"{type(error).__name__}: {error}"}]
    release_memory(setting)
    return results


def _conditions(options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    on_gpu = options.device == "cuda"
    return {
        "shape": options.shape,
        "weights": "random",
        "dtype": str(dtype).removeprefix("torch."),
        "acceptance": options.acceptance,
        "expected_tokens_per_round": expected_length(options.acceptance),
        "poor_acceptance": POOR_ACCEPTANCE,
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
    """Of "drafter:batch x context", the drafter "table" where none is named."""
    points = []
    for word in text.split(","):
        drafter, _, sizes = word.rpartition(":")
        batch, _, context = sizes.partition("x")
        if drafter not in ("", "table", "poor", *DRAFTERS):
            raise argparse.ArgumentTypeError(f"no drafter {drafter}")
        points.append((drafter or "table", count()(batch), count()(context)))
    return points


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument(
        "--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--points", type=_points, default=_points(DEFAULT_POINTS),
        metavar="[DRAFTER:]BxCONTEXT,...",
        help="batches and tokens of context; the drafter is table, poor, " + ", ".join(DRAFTERS),
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
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
