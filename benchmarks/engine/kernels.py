"""Where a round's time goes, and what the host does for it, from a profile."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_GEMM = re.compile(r"gemm|gemv|nvjet|cutlass|splitK|cublas", re.IGNORECASE)
_PARTS = {
    "attention": re.compile(r"attention|flash|fmha"),
    "gemm": _GEMM,
    "accept": re.compile(r"accept_kernel|sampled_kernel"),
    "layout": re.compile(r"verify_window|tree_from_parents|schedule_verify"),
    "relocate": re.compile(r"relocate"),
}
_WAITS = re.compile(r"Synchronize|StreamWait|Memcpy$")


Kernel = tuple[int, int, str, int]  # start and end in ns, name, launch


@dataclass(frozen=True)
class RoundProfile:
    """Medians over rounds, in microseconds, and counts per round.

    phases : draft, layout (rows, trees, plan), verify (to the end of the last GEMM before accept),
             accept + commit (to the round's last kernel, what the drafter makes of committed rows
             included), between (to the next round's first)
    parts : time of kernels by what they do
    turnaround : accept + commit + between
    turnaround_steps : kernels and copies of a turnaround in order: name, idle time before, duration
    launches, waits : calls of the host per round, by name
    nodes : kernels of one round, by name
    """

    round: float
    phases: dict[str, float]
    parts: dict[str, float]
    turnaround: float
    turnaround_steps: list[tuple[str, float, float]]
    launches: dict[str, float]
    waits: dict[str, float]
    nodes: dict[str, int]

    def split_of(self, launch_us: float) -> dict[str, float]:
        """``launch_us``, a round that nobody profiles, in the proportions of the phases.

        Profiled, each kernel of a graph begins a little later.
        """
        inside = {name: us for name, us in self.phases.items() if name != "between"}
        total = sum(inside.values())
        return {name: launch_us * us / total for name, us in inside.items()}


def profile_rounds(step: Callable[[], Any], num_rounds: int) -> RoundProfile | None:
    """Profile ``step`` so many times; None where too few rounds were seen (no CUPTI, no graphs)."""
    torch.cuda.synchronize()
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, acc_events=True) as recorded:
        for _ in range(num_rounds):
            step()
        torch.cuda.synchronize()
    kernels: list[Kernel] = []
    calls: Counter[str] = Counter()
    for event in recorded.profiler.kineto_results.events():  # type: ignore[union-attr]
        name = event.name()
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            if event.duration_ns() > 0:
                kernels.append((event.start_ns(), event.end_ns(), name, event.correlation_id()))
        elif name.startswith("cu"):
            calls[name] += 1
    calls["cudaDeviceSynchronize"] -= 2  # the one above, and the profiler's own
    rounds = _rounds(kernels)
    if len(rounds) < 3:
        return None
    phases = [_phases(current, following) for current, following in pairwise(rounds)]
    parts = [_parts_of(kernels) for kernels in rounds]
    per_round = {name: count / num_rounds for name, count in sorted(calls.items())}
    turnarounds = [p["accept + commit"] + p["between"] for p in phases]
    kernels.sort()
    steps = [_turnaround_steps(kernels, a, b) for a, b in pairwise(rounds)]
    return RoundProfile(
        round=median(sum(p.values()) for p in phases),
        phases={name: median(p[name] for p in phases) for name in phases[0]},
        parts={name: median(p[name] for p in parts) for name in (*_PARTS, "other")},
        turnaround=median(turnarounds),
        turnaround_steps=_median_steps(steps),
        launches={n: c for n, c in per_round.items() if "Launch" in n or "Async" in n},
        waits={n: c for n, c in per_round.items() if c > 0 and _WAITS.search(n)},
        nodes=dict(Counter(name[:100] for _, _, name, _ in rounds[0]).most_common()),
    )


def _turnaround_steps(
    kernels: list[Kernel], current: list[Kernel], following: list[Kernel]
) -> list[tuple[str, float, float]]:
    """What ran from the end of the last GEMM to the first kernel of the next round."""
    spans = _phases(current, following)
    end = following[0][0] - round(1e3 * (spans["accept + commit"] + spans["between"]))
    steps = []
    for kernel in kernels:
        if end <= kernel[0] <= following[0][0]:
            steps.append((short_name(kernel[2]), (kernel[0] - end) / 1e3, _us(kernel)))
            end = max(end, kernel[1])
    return steps


def _median_steps(
    rounds: list[list[tuple[str, float, float]]],
) -> list[tuple[str, float, float]]:
    """Of the rounds with the commonest sequence of names."""
    ((names, _),) = Counter(tuple(s[0] for s in steps) for steps in rounds).most_common(1)
    alike = [steps for steps in rounds if tuple(s[0] for s in steps) == names]
    columns = zip(*alike, strict=True)
    return [(c[0][0], median(s[1] for s in c), median(s[2] for s in c)) for c in columns]


def short_name(kernel: str) -> str:
    """The function, and of torch's element-wise ones what they compute."""
    plain = kernel.replace("(anonymous namespace)::", "").removeprefix("void ")
    function, _, arguments = plain.partition("<")
    name = function.partition("(")[0].rpartition("::")[2]
    if name.startswith("Mem"):
        return plain
    inner = re.search(r"(\w*(?:Functor\w*|(?<!gpu)_kernel_\w*|_impl))\b(?=[<(>,])", arguments)
    return f"{name}({inner.group(1)})" if inner and "elementwise" in name else name


def _us(kernel: Kernel) -> float:
    return (kernel[1] - kernel[0]) / 1e3


def _phases(current: list[Kernel], following: list[Kernel]) -> dict[str, float]:
    layout = [k for k in current if _PARTS["layout"].search(k[2])]
    begin = layout[-1][1] if layout else current[0][0]
    accepts = [k[0] for k in current if k[0] >= begin and _PARTS["accept"].search(k[2])]
    accept = min(accepts, default=current[-1][1])
    gemms = [k[1] for k in current if k[0] < accept and _GEMM.search(k[2])]
    gemm_end = max(gemms, default=accept)
    ends = {
        "draft": layout[0][0] if layout else current[0][0],
        "layout": begin,
        "verify": gemm_end,
        "accept + commit": max(k[1] for k in current),
        "between": following[0][0],
    }
    before, spans = current[0][0], {}
    for name, end in ends.items():
        spans[name] = (end - before) / 1e3
        before = end
    return spans


def _parts_of(kernels: list[Kernel]) -> Counter[str]:
    totals: Counter[str] = Counter()
    for start, end, name, _ in kernels:
        part = next((part for part, pattern in _PARTS.items() if pattern.search(name)), "other")
        totals[part] += (end - start) / 1e3  # type: ignore[assignment]
    return totals


def _rounds(kernels: list[Kernel]) -> list[list[Kernel]]:
    """Kernels of one graph launch share its correlation id; copies of the host lie between them."""
    by_launch: dict[int, list[Kernel]] = defaultdict(list)
    for kernel in sorted(kernels):
        by_launch[kernel[3]].append(kernel)
    most = max((len(group) for group in by_launch.values()), default=0)
    return sorted(group for group in by_launch.values() if len(group) > max(8, most // 2))
