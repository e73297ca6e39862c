"""Random requests for minutes: equal to plain decoding, no page leaked, memory that stays."""

from __future__ import annotations

import argparse
import ast
import gc
import json
import secrets
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from specfast.engine import VerifyTiers
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.engine.shapes import SHAPES, random_model
from benchmarks.soak.phase import DRAFTERS, Phase
from benchmarks.soak.texts import Texts

TIE_GAPS = {torch.float32: 1e-3, torch.bfloat16: 0.25}
# Allocators settle over the first phases; after that memory may grow by this much.
SETTLING_SHARE = 0.3
GROWTH_BYTES = 64 << 20


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    dtype = torch.bfloat16 if options.dtype == "bf16" else torch.float32
    torch.set_float32_matmul_precision("highest")
    model = _model(options, dtype)
    texts = Texts(model, options.prompts, options.longest_prompt, options.tokens, options.seed)
    tie_gap = TIE_GAPS[dtype] if options.tie_gap is None else options.tie_gap
    start = time.monotonic()
    phases: list[dict[str, Any]] = []
    totals: Counter[str] = Counter()
    while (elapsed := time.monotonic() - start) < 60 * options.minutes:
        number = len(phases)
        kind = options.drafters[number % len(options.drafters)]
        phase = Phase(model, texts, kind, options.seed + number, tie_gap, _engine_options(options))
        phase.run(min(options.phase_seconds, 60 * options.minutes - elapsed))
        totals.update(phase.counts)
        found = {"counts": dict(phase.counts), "failures": phase.failures}
        conditions = phase.conditions
        del phase
        phases.append({**conditions, **found, "memory": _memory(options.device)})
        console.print(f"{time.monotonic() - start:6.0f} s  {conditions}  {phases[-1]['memory']}")
    failures = [f"phase {i}: {f}" for i, p in enumerate(phases) for f in p["failures"]]
    failures += _growth([phase["memory"] for phase in phases])
    if not totals["equal to plain decoding"]:
        failures.append("no greedy request was compared")
    report = {
        "conditions": {
            "model": Path(options.model).name if options.model else f"random {options.shape}",
            "card": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
            "dtype": options.dtype,
            "torch": torch.__version__,
            "commit": options.commit,
            "seed": options.seed,
            "seconds": round(time.monotonic() - start),
            "engine": options.engine,
            "tiers": options.tiers,
            "tie_gap": tie_gap,
        },
        "totals": dict(totals),
        "failures": failures,
        "phases": phases,
    }
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    console.print(dict(totals))
    console.print("\n".join(failures) or "no failure", markup=False)
    return 1 if failures else 0


def _model(options: argparse.Namespace, dtype: torch.dtype) -> PreTrainedModel:
    if options.model is None:
        return random_model(options.shape, options.device, dtype)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=dtype)
    return model.to(options.device).eval()


def _engine_options(options: argparse.Namespace) -> dict[str, Any]:
    given = {}
    for text in options.engine:
        name, _, value = text.partition("=")
        given[name] = ast.literal_eval(value)
    if options.tiers is not None:
        # Widths and batches of a phase have to be those of the tiers.
        width = given.setdefault("verify_width", 8)
        given.setdefault("max_batch_size", max(options.tiers))
        capture = {"on": True, "padded": False, "auto": None}[options.graphs]
        given["tiers"] = VerifyTiers(options.tiers, width, capture=capture)
    return given


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
    """What has grown since the allocators settled."""
    settled = memory[int(len(memory) * SETTLING_SHARE)]
    before = {name: max(m[name] for m in memory[: int(len(memory) * SETTLING_SHARE) + 1])
              for name in settled}  # fmt: skip
    return [
        f"{name} grew from {before[name]} to {last}"
        for name, last in memory[-1].items()
        if last > before[name] + GROWTH_BYTES
    ]


def _options() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def kinds(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--phase-seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--model", help="directory or hub id; absent: random weights")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="tiny")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--longest-prompt", type=int, default=120)
    parser.add_argument("--tokens", type=int, default=48, help="of a text at most")
    parser.add_argument("--drafters", type=kinds, default=list(DRAFTERS), metavar="KIND,...")
    parser.add_argument(
        "--engine", action="append", default=[], metavar="NAME=VALUE",
        help="an argument of Engine, the value as in Python; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--tiers", type=numbers, metavar="B,...", help="pad rounds to these batches"
    )
    parser.add_argument("--graphs", choices=("auto", "on", "padded"), default="auto")
    parser.add_argument("--tie-gap", type=float, help="logits so close may fall either way")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
