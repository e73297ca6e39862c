"""Where a round's time goes, and what the host does for it, from a profile."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

_GEMM = re.compile(r"gemm|nvjet|cutlass|splitK|cublas", re.IGNORECASE)
_PARTS = {
    "attention": re.compile(r"attention|flash|fmha"),
    "gemm": _GEMM,
    "accept": re.compile(r"accept_|AcceptChain|AcceptTree|sampled_kernel|accept"),
    "layout": re.compile(r"verify_window|tree_from_parents|schedule_verify|VerifyWindow|Schedule"),
    "relocate": re.compile(r"[Rr]elocate"),
}
_WAITS = re.compile(r"Synchronize|cudaStreamWaitValue|cudaMemcpy$")


@dataclass(frozen=True)
class RoundProfile:
    """Medians over rounds, in microseconds, and counts per round.

    parts : time of kernels by what they do
    gaps : between kernels of a round
    turnaround : from the end of the target's last GEMM to the first kernel of the next round
    launches, waits : calls of the host per round, by name
    """

    round: float
    parts: dict[str, float]
    gaps: float
    turnaround: float
    launches: dict[str, float]
    waits: dict[str, float]
    kernels: int


def profile_rounds(step: Callable[[], Any], num_rounds: int) -> RoundProfile | None:
    """Profile ``step`` so many times; None where no kernel was seen (no CUPTI, no GPU)."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        for _ in range(num_rounds):
            step()
        torch.cuda.synchronize()
    kernels, calls = [], defaultdict(int)
    for event in recorded.profiler.kineto_results.events():  # type: ignore[union-attr]
        name = event.name()
        if event.device_type() == torch.autograd.DeviceType.CUDA:
            if event.duration_ns() > 0:
                kernels.append((event.start_ns(), event.end_ns(), name, event.correlation_id()))
        elif name.startswith("cuda"):
            calls[name] += 1
    kernels.sort()
    rounds = _rounds(kernels)
    if len(rounds) < 3:
        return None
    spans, gaps, turnarounds = [], [], []
    parts: dict[str, list[float]] = defaultdict(list)
    for current, following in pairwise(rounds):
        spans.append(following[0][0] - current[0][0])
        busy = sum(end - start for start, end, _, _ in current)
        gaps.append(max(0, current[-1][1] - current[0][0] - busy))
        last_gemm = max((end for _, end, name, _ in current if _GEMM.search(name)), default=0)
        turnarounds.append(following[0][0] - last_gemm)
        totals: dict[str, float] = defaultdict(float)
        for start, end, name, _ in current:
            totals[_part(name)] += end - start
        for part in {*_PARTS, "other"}:
            parts[part].append(totals[part])
    launches = {
        n: c / num_rounds for n, c in sorted(calls.items()) if "Launch" in n or "Async" in n
    }
    waits = {n: c / num_rounds for n, c in sorted(calls.items()) if _WAITS.search(n)}
    return RoundProfile(
        round=median(spans) / 1e3,
        parts={part: median(values) / 1e3 for part, values in sorted(parts.items())},
        gaps=median(gaps) / 1e3,
        turnaround=median(turnarounds) / 1e3,
        launches=launches,
        waits=waits,
        kernels=round(median(len(r) for r in rounds)),
    )


def _part(name: str) -> str:
    return next((part for part, pattern in _PARTS.items() if pattern.search(name)), "other")


def _rounds(kernels: list[tuple[int, int, str, int]]) -> list[list[tuple[int, int, str, int]]]:
    """Kernels of one graph launch have its correlation id; copies of the host lie between them."""
    by_launch: dict[int, list[tuple[int, int, str, int]]] = defaultdict(list)
    for kernel in kernels:
        by_launch[kernel[3]].append(kernel)
    most = max((len(group) for group in by_launch.values()), default=0)
    rounds = [group for group in by_launch.values() if len(group) > most // 2 and len(group) > 8]
    return sorted(rounds)
