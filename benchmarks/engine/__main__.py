"""What a round of the engine costs, and what speculation gains by it, under stated conditions."""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from specfast.drafters import Drafter, PlainDecoding
from specfast.engine import Engine, VerifyTiers
from specfast.sampling_params import SamplingParams
from transformers import PreTrainedModel

from benchmarks.engine.kernels import profile_rounds
from benchmarks.engine.prescribed import PrescribedDrafter, expected_length, prescribe_text
from benchmarks.engine.seats import clear_kv, seat
from benchmarks.engine.shapes import SHAPES, random_model

WARM_UP_ROUNDS = 4
PROFILED_ROUNDS = 12
REPLAYS = 4
PAGE_SIZE = 16


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = random_model(options.shape, options.device, dtype)
    results = []
    cases = [(b, c, o) for b in options.batch for c in options.context for o in options.output]
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Decoding", total=len(cases))
        for batch, context, output in cases:
            try:
                results.append(_measure(model, options, batch, context, output))
            except torch.OutOfMemoryError:
                results.append({**_conditions(batch, context, output), "failed": "out of memory"})
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
            report = {"conditions": _all_conditions(options, dtype), "results": results}
            if options.json is not None:  # after each, in case that time runs out
                options.json.write_text(json.dumps(report, indent=1) + "\n")
            progress.advance(task)
    _print(console, report)
    return 0


def _measure(
    model: PreTrainedModel, options: argparse.Namespace, batch: int, context: int, output: int
) -> dict[str, Any]:
    vocab_size = model.config.vocab_size
    ttft_ms = _ttft_ms(model, options, context)
    acceptance = options.acceptance
    width = len(acceptance) + 1
    drafter = PrescribedDrafter(acceptance, vocab_size, options.device)
    plain = _decode(model, PlainDecoding(), options, batch, context, output, 1)
    speculative = _decode(model, drafter, options, batch, context, output, width)
    tau = speculative["tokens_per_round"]
    launch_us = speculative["launch_us"]
    ideal = None if launch_us is None else tau * plain["round_us"] / launch_us
    speedup = plain["tpot_us"] / speculative["tpot_us"]
    return {
        **_conditions(batch, context, output),
        "ttft_ms": ttft_ms,
        "plain": plain,
        "speculative": speculative,
        "speedup": speedup,
        "of_ideal": None if ideal is None else speedup / ideal,
    }


def _decode(
    model: PreTrainedModel,
    drafter: Drafter,
    options: argparse.Namespace,
    batch: int,
    context: int,
    output: int,
    width: int,
) -> dict[str, Any]:
    """Tokens as a user gets them, then launches alone, then a profile."""
    rounds = WARM_UP_ROUNDS + PROFILED_ROUNDS + REPLAYS
    longest = context + 1 + max(output, rounds * width) + 2 * width
    engine = Engine(
        model,
        drafter,
        max_batch_size=batch,
        page_size=PAGE_SIZE,
        num_pages=batch * -(-longest // PAGE_SIZE),
        verify_width=width,
        tiers=VerifyTiers([batch], width, capture=None if options.graphs else False),
        check_invariants=False,
    )
    prescribe_text(engine)
    clear_kv(engine)
    on_gpu = options.device == "cuda"

    def seat_all(max_new_tokens: int) -> None:
        for number in range(batch):
            params = SamplingParams(
                max_new_tokens=max_new_tokens, temperature=options.temperature, seed=number
            )
            # Other positions have other drafts: requests accept at their own pace.
            seat(engine, context - 7 * number % min(context, 97), params)

    seat_all(WARM_UP_ROUNDS)
    while engine.has_unfinished:
        engine.step()
    seat_all(output)
    if on_gpu:
        torch.cuda.synchronize()
    begin, emitted, steps = time.perf_counter(), 0, 0
    while engine.has_unfinished:
        emitted += sum(len(o.token_ids) for o in engine.step())
        steps += 1
    seconds = time.perf_counter() - begin
    result: dict[str, Any] = {
        "tokens_per_round": emitted / batch / steps,
        "round_us": seconds / steps * 1e6,
        "tpot_us": seconds / (emitted / batch) * 1e6,
        "tokens_per_second": emitted / seconds,
        "launch_us": None,
    }
    if on_gpu and options.graphs:
        seat_all((WARM_UP_ROUNDS + PROFILED_ROUNDS + REPLAYS) * width)
        for _ in range(WARM_UP_ROUNDS):
            engine.step()
        result["launch_us"] = _launch_us(engine)
        recorded = profile_rounds(engine.step, PROFILED_ROUNDS)
        result["profile"] = None if recorded is None else asdict(recorded)
    return result


def _ttft_ms(model: PreTrainedModel, options: argparse.Namespace, context: int) -> float:
    """From a prompt of so many tokens to its first token, alone; the better of two."""
    pages = -(-(context + 2) // PAGE_SIZE)
    engine = Engine(model, page_size=PAGE_SIZE, num_pages=pages, check_invariants=False)
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        engine.generate([[1] * context], SamplingParams(max_new_tokens=1))
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3


def _launch_us(engine: Engine) -> float:
    """A round alone: replays of the flight's graph one behind the other, without a host between."""
    assert engine._ahead is not None
    assert engine.graphs is not None
    flight = engine._ahead._flight
    assert flight is not None
    engine._pages.reserve(flight.requests, (2 + REPLAYS) * engine.graphs.tiers.width)
    captured = engine.graphs.at(flight.form, engine.graphs.tiers.of_size(flight.num_slots)[-1])
    inputs = captured.round.inputs
    before = inputs.snapshot()
    times = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(REPLAYS):
            captured.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / REPLAYS * 1e3)
        inputs.restore(before)
    return median(times)


def _conditions(batch: int, context: int, output: int) -> dict[str, int]:
    return {"batch": batch, "context": context, "output": output}


def _all_conditions(options: argparse.Namespace, dtype: torch.dtype) -> dict[str, Any]:
    on_gpu = options.device == "cuda"
    return {
        "shape": options.shape,
        "weights": "random",
        "dtype": str(dtype).removeprefix("torch."),
        "acceptance": options.acceptance,
        "expected_tokens_per_round": expected_length(options.acceptance),
        "temperature": options.temperature,
        "graphs": options.graphs,
        "page_size": PAGE_SIZE,
        "card": torch.cuda.get_device_name() if on_gpu else "cpu",
        "driver": _driver() if on_gpu else None,
        "torch": torch.__version__,
        "commit": options.commit,
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def _print(console: Console, report: dict[str, Any]) -> None:
    console.print(", ".join(f"{k} {v}" for k, v in report["conditions"].items()) + "\n")
    table = Table(show_edge=False)
    names = ("B", "context", "output", "TTFT ms", "tokens/round", "plain ms", "round ms")
    for name in (*names, "launch ms", "turnaround µs", "tok/s", "speed-up", "of ideal"):
        table.add_column(name, justify="right")
    for r in report["results"]:
        head = [str(r[name]) for name in ("batch", "context", "output")]
        if "failed" in r:
            table.add_row(*head, r["failed"])
            continue
        plain, spec = r["plain"], r["speculative"]
        profile = spec.get("profile")
        table.add_row(
            *head,
            f"{r['ttft_ms']:.1f}",
            f"{spec['tokens_per_round']:.2f}",
            f"{plain['round_us'] / 1e3:.3f}",
            f"{spec['round_us'] / 1e3:.3f}",
            f"{spec['launch_us'] / 1e3:.3f}" if spec["launch_us"] else "-",
            f"{profile['turnaround']:.1f}" if profile else "-",
            f"{spec['tokens_per_second']:.0f}",
            f"{r['speedup']:.2f}",
            f"{r['of_ideal']:.2f}" if r["of_ideal"] else "-",
        )
    console.print(table)


def _options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(word) for word in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=numbers, default=[1, 8, 64])
    parser.add_argument("--context", type=numbers, default=[1024])
    parser.add_argument("--output", type=numbers, default=[128], help="tokens per request")
    parser.add_argument(
        "--acceptance",
        type=lambda text: [float(word) for word in text.split(",")],
        default=[0.8, 0.75, 0.7, 0.7, 0.65, 0.65, 0.6],
        help="of each draft, given those before it",
    )
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
