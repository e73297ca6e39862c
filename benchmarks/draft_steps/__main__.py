"""What a draft step costs in a graph, and how much of it is neither a product nor attention.

Drafters have random weights at sizes that are usual for the target; every step drafts behind the
same committed rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from specfast import SamplingRules
from specfast.drafters import (
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    DraftPages,
    DraftSlots,
)
from specfast.drafters.eagle import EagleModel
from specfast.drafters.loader import DrafterModel
from specfast.drafters.paged_drafter import PagedDrafter
from specfast.ops.attention import MAX_ATTENTION_REQUESTS, MAX_ATTENTION_ROWS
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.drafter_shapes import DRAFTERS, random_drafter
from benchmarks.engine.shapes import SHAPES, random_model
from benchmarks.options import count, device, output_file, several

# The drafters read no layer of the target, only how many there are.
NUM_LAYERS = 8
FAMILIES = ("eagle", *DRAFTERS, "dflash2")
PAGE_SIZE = 16
# One behind the other, so that what a launch takes is not counted.
PER_GROUP, NUM_GROUPS = 8, 7
KINDS = {
    "products": ("gemm", "gemv", "nvjet", "cutlass", "splitk", "cublas"),
    "attention": ("verify_attention",),
    "ops": ("specfast::",),
}


@dataclass(frozen=True)
class Case:
    """A way of drafting: so many rows, and how its drafter is made of a model."""

    name: str
    width: int
    is_sampled: bool
    make: Callable[[DrafterModel], PagedDrafter]


@dataclass(frozen=True)
class Step:
    """Times in microseconds: of a replay among others, and of its kernels by what they do.

    ops : those of the library but attention
    others : of torch
    overhead : share of the replay outside of products and attention
    """

    drafter: str
    batch: int
    replay: float
    products: float
    attention: float
    ops: float
    others: float
    num_kernels: int
    overhead: float


def main() -> int:
    options = _options()
    console = Console(highlight=False)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    model = random_model(options.shape, options.device, dtype, num_layers=NUM_LAYERS)
    steps = []
    for family in FAMILIES:
        drafter = random_drafter(family, model, num_drafts=7)
        for case in _cases(family, drafter, options.num_nodes):
            for batch in options.batches:
                step = _measure(drafter, case, batch, options.context)
                if step is not None:
                    steps.append(step)
    console.print(_table(steps))
    if options.json is not None:
        on_gpu = options.device == "cuda"
        conditions = {
            "shape": options.shape,
            "context": options.context,
            "num_nodes": options.num_nodes,
            "card": torch.cuda.get_device_name() if on_gpu else "cpu",
            "torch": torch.__version__,
            "commit": options.commit,
        }
        results = [asdict(step) for step in steps]
        text = json.dumps({"conditions": conditions, "results": results}, indent=1)
        options.json.write_text(text + "\n")
    return 0


def _cases(family: str, model: DrafterModel, num_nodes: int) -> list[Case]:
    cases = [Case(f"{family} chain", 8, True, lambda m: DeviceTrainedDrafter(m, 7))]
    if isinstance(model, EagleModel):

        def trees(drawn: bool) -> Callable[[DrafterModel], PagedDrafter]:
            return lambda _: DeviceTreeDrafter(model, num_nodes, drawn=drawn)

        cases.append(Case(f"{family} tree", num_nodes, False, trees(False)))
        cases.append(Case(f"{family} drawn tree", num_nodes, True, trees(True)))
    return cases


@torch.inference_mode()
def _measure(model: DrafterModel, case: Case, batch: int, context: int) -> Step | None:
    """None without a GPU: the step has been run once."""
    drafter, device = case.make(model), model.device
    pages = -(-(context + case.width) // PAGE_SIZE)
    table = torch.randperm(batch * pages, device=device).int().view(batch, pages)
    drafter.attach(DraftPages(table, PAGE_SIZE, table.numel()))
    for storage in _storage(drafter):
        storage.normal_()

    def each(value: int) -> Tensor:
        return torch.full((batch,), value, dtype=torch.int32, device=device)

    tokens = torch.full((batch, case.width), -1, dtype=torch.int32, device=device)
    tokens[:, 0] = 7
    rules = SamplingRules(
        torch.full((batch,), 0.8, device=device), torch.arange(batch, device=device)
    )
    slots = DraftSlots(
        tokens=tokens,
        verify_lens=each(case.width),
        tokens_left=each(1000),
        prefix_lens=each(context),
        page_table_rows=torch.arange(batch, dtype=torch.int32, device=device),
        sampling=rules,
        is_sampled=case.is_sampled,
        parents=torch.full_like(tokens, -1) if drafter.drafts_trees else None,
    )
    drafter.draft(slots)
    if device.type == "cpu":
        return None
    return _timed(case.name, batch, lambda: drafter.draft(slots))


def _storage(drafter: PagedDrafter) -> list[Tensor]:
    chains = drafter._of_engine
    last = [chains.last] if hasattr(chains, "last") else []
    return [*chains.rows.keys, *chains.rows.values, *last]  # type: ignore[attr-defined]


def _timed(name: str, batch: int, draft: Callable[[], object]) -> Step:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        draft()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = draft()
    replays = []
    for _ in range(NUM_GROUPS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(PER_GROUP):
            graph.replay()
        end.record()
        end.synchronize()
        replays.append(1e3 * begin.elapsed_time(end) / PER_GROUP)
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        graph.replay()
        torch.cuda.synchronize()
    del kept
    parts = dict.fromkeys((*KINDS, "others"), 0.0)
    kernels = [event for event in recorded.events() if event.device_time > 0]
    for kernel in kernels:
        parts[_kind(kernel.name)] += kernel.device_time
    replay = median(replays)
    outside = 1 - (parts["products"] + parts["attention"]) / replay
    return Step(name, batch, replay, **parts, num_kernels=len(kernels), overhead=outside)


def _kind(kernel: str) -> str:
    for kind, words in KINDS.items():
        if any(word in kernel.lower() for word in words):
            return kind
    return "others"


def _table(steps: list[Step]) -> Table:
    table = Table(title="a draft step, us")
    columns = ("replay", "products", "attention", "ops", "others")
    for column in ("drafter", "batch", *columns, "kernels", "overhead"):
        table.add_column(column, justify="left" if column == "drafter" else "right")
    for step in steps:
        times = [f"{getattr(step, column):.0f}" for column in columns]
        table.add_row(
            step.drafter, str(step.batch), *times, str(step.num_kernels), f"{step.overhead:.0%}"
        )
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.draft_steps", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument(
        "--device", type=device, default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--batches", type=several(count(1, MAX_ATTENTION_REQUESTS)), default=[1, 8, 64]
    )
    parser.add_argument(
        "--context", type=count(0), default=1024, help="committed rows of a request"
    )
    parser.add_argument(
        "--num-nodes",
        type=count(2, MAX_ATTENTION_ROWS),
        default=60,
        help="of trees, the anchor included",
    )
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
