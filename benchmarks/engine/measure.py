"""One batch at one context length: tokens as a user gets them, launches alone, a profile."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Any

import torch
from specfast.drafters import DeviceDrafter, PlainDecoding
from specfast.engine import Engine, VerifyTiers
from specfast.engine.captured_round import CapturedRound
from specfast.engine.verify_tiers import VerifyTier
from specfast.sampling_params import SamplingParams
from transformers import PreTrainedModel

from benchmarks.engine.kernels import profile_rounds
from benchmarks.engine.prescribed import prescribe_text, prescribed_drafter
from benchmarks.engine.seats import fill_kv, seat

WARM_UP_ROUNDS = 4
PROFILED_ROUNDS = 8
REPLAYS = 4
PAGE_SIZE = 16


@dataclass(frozen=True)
class Setting:
    """What all points of a run share.

    drafter : "table" or "poor", which are tables, or a family of drafters whose steps are run
        before the table's drafts are taken
    """

    model: PreTrainedModel
    acceptance: tuple[float, ...]
    temperature: float
    graphs: bool
    drafter: str

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    @property
    def width(self) -> int:
        return len(self.acceptance) + 1

    @property
    def kv_bytes_per_token(self) -> int:
        config = self.model.config
        heads = config.num_key_value_heads * config.head_dim
        return 2 * config.num_hidden_layers * heads * self.model.dtype.itemsize


def measure(
    setting: Setting, batch: int, context: int, outputs: Sequence[int]
) -> list[dict[str, Any]]:
    """A result for each number of ``outputs``, tokens of a request."""
    drafter = prescribed_drafter(setting.drafter, setting.acceptance, setting.model, batch)
    plain = _decode(setting, PlainDecoding(), batch, context, outputs, 1)
    release_memory(setting)
    speculative = _decode(setting, drafter, batch, context, outputs, setting.width)
    return [
        {
            "batch": batch,
            "context": context,
            "output": output,
            "drafter": setting.drafter,
            "plain": plain[output],
            "speculative": speculative[output],
            **_gains(plain[output], speculative[output]),
        }
        for output in outputs
    ]


def _gains(plain: dict[str, Any], speculative: dict[str, Any]) -> dict[str, float | None]:
    """The speed-up, and how much of it there would be if rounds were drafts and forward alone."""
    speedup = plain["tpot_us"] / speculative["tpot_us"]
    split = speculative["split_us"]
    if split is None:
        return {"speedup": speedup, "ideal_speedup": None, "of_ideal": None}
    tau = speculative["tokens_per_round"]
    ideal = tau * plain["tpot_us"] / (split["draft"] + split["verify"])
    return {"speedup": speedup, "ideal_speedup": ideal, "of_ideal": speedup / ideal}


def _decode(
    setting: Setting,
    drafter: DeviceDrafter,
    batch: int,
    context: int,
    outputs: Sequence[int],
    width: int,
) -> dict[int, dict[str, Any]]:
    rounds = WARM_UP_ROUNDS + PROFILED_ROUNDS + REPLAYS
    longest = context + 1 + max(*outputs, rounds * width) + 2 * width
    half = batch * width // 2
    engine = Engine(
        setting.model,
        drafter,
        max_batch_size=batch,
        page_size=PAGE_SIZE,
        num_pages=batch * -(-longest // PAGE_SIZE),
        verify_width=width,
        tiers=VerifyTiers(
            [batch],
            width,
            [half] if half > batch else [],
            capture=None if setting.graphs else False,
        ),
        check_invariants=False,
    )
    prescribe_text(engine)
    fill_kv(engine)

    def seat_all(max_new_tokens: int) -> None:
        for number in range(batch):
            params = SamplingParams(
                max_new_tokens=max_new_tokens, temperature=setting.temperature, seed=number
            )
            seat(engine, context - 7 * number % min(context, 97), params)

    seat_all(WARM_UP_ROUNDS)
    while engine.has_unfinished:
        engine.step()
    results = {}
    for output in outputs:
        seat_all(output)
        results[output] = _run(engine, setting.on_gpu)
    alone: dict[str, Any] = dict.fromkeys(("launch_us", "half_launch_us", "split_us", "profile"))
    if setting.on_gpu and setting.graphs:
        seat_all(rounds * width)
        for _ in range(WARM_UP_ROUNDS):
            engine.step()
        alone |= _launches(engine, half)
        recorded = profile_rounds(engine.step, PROFILED_ROUNDS)
        if recorded is not None:
            alone["profile"] = asdict(recorded)
            alone["split_us"] = recorded.split_of(alone["launch_us"])
    return {output: {**result, **alone} for output, result in results.items()}


def _run(engine: Engine, on_gpu: bool) -> dict[str, Any]:
    """TPOT and tokens per round are means over requests, each until its own end; the throughput is
    that of the whole batch, until the first of it ends."""
    if on_gpu:
        torch.cuda.synchronize()
    tokens: Counter[int] = Counter()
    ends: list[tuple[int, int, float]] = []  # tokens, rounds and seconds of each request
    begin, steps, full_batch = time.perf_counter(), 0, 0.0
    while engine.has_unfinished:
        outputs = engine.step()
        seconds = time.perf_counter() - begin
        steps += 1
        for output in outputs:
            tokens[output.request_id] += len(output.token_ids)
        if not ends:
            full_batch = tokens.total() / seconds
        ends += [(tokens[o.request_id], steps, seconds) for o in outputs if o.finish_reason]
    return {
        "tokens_per_round": mean(count / rounds for count, rounds, _ in ends),
        "round_us": seconds / steps * 1e6,
        "tpot_us": mean(seconds / count for count, _, seconds in ends) * 1e6,
        "tokens_per_second": full_batch,
    }


def _launches(engine: Engine, half: int) -> dict[str, float | None]:
    """A round alone: replays of a graph one behind the other, without a host between.

    Also of the tier with half of the rows, where each request verifies half of them.
    """
    assert engine._ahead is not None
    assert engine.graphs is not None
    flight = engine._ahead._flight
    assert flight is not None
    engine._pages.reserve(flight.requests, (2 + REPLAYS) * engine.graphs.tiers.width)
    tiers = engine.graphs.tiers.of_size(flight.num_slots)
    launches = {"launch_us": _replay_us(engine.graphs.at(flight.form, tiers[-1]))}
    if len(tiers) == 1:
        return {**launches, "half_launch_us": None}
    captured = engine.graphs.at(flight.form, VerifyTier(half, flight.num_slots))
    inputs = captured.round.inputs
    before = inputs.snapshot()
    inputs.verify_lens.fill_(engine.graphs.tiers.width // 2)
    launches["half_launch_us"] = _replay_us(captured)
    inputs.restore(before)
    return launches


def _replay_us(captured: CapturedRound) -> float:
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


def release_memory(setting: Setting) -> None:
    """Of engines that nobody has any more: of two pools there may be room for one."""
    gc.collect()
    if setting.on_gpu:
        torch.cuda.empty_cache()


def ttft_ms(setting: Setting, context: int) -> float:
    """From a prompt of so many tokens to its first token, alone; the better of two."""
    pages = -(-(context + 2) // PAGE_SIZE)
    engine = Engine(setting.model, page_size=PAGE_SIZE, num_pages=pages, check_invariants=False)
    times = []
    for _ in range(2):
        begin = time.perf_counter()
        engine.generate([[1] * context], SamplingParams(max_new_tokens=1))
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3
