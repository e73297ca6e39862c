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
from specfast.drafters import DeviceDrafter, Drafter, PlainDecoding
from specfast.engine import Engine, VerifyTiers
from specfast.engine.captured_round import CapturedRound
from specfast.engine.verify_tiers import VerifyTier
from specfast.sampling_params import SamplingParams
from transformers import PreTrainedModel

from benchmarks.engine.kernels import profile_rounds
from benchmarks.engine.work import Work

WARM_UP_ROUNDS = 4
PROFILED_ROUNDS = 8
REPLAYS = 4
PAGE_SIZE = 16


@dataclass(frozen=True)
class Setting:
    """What all points of a run share; ``width`` is of rows per request."""

    model: PreTrainedModel
    work: Work
    width: int
    temperature: float
    graphs: bool

    @property
    def on_gpu(self) -> bool:
        return self.model.device.type == "cuda"

    def tokens_after(self, outputs: Sequence[int]) -> int:
        """Room that requests need behind their context."""
        rounds = WARM_UP_ROUNDS + PROFILED_ROUNDS + REPLAYS
        return 1 + max(*outputs, rounds * self.width) + 2 * self.width

    @property
    def kv_bytes_per_token(self) -> int:
        config = self.model.config
        head_dim = getattr(config, "head_dim", None)
        head_dim = head_dim or config.hidden_size // config.num_attention_heads
        heads = config.num_key_value_heads * head_dim
        return 2 * config.num_hidden_layers * heads * self.model.dtype.itemsize


Results = dict[int, dict[str, Any]]  # by tokens of a request


def measure(
    setting: Setting,
    drafter: str,
    batch: int,
    context: int,
    outputs: Sequence[int],
    plains: dict[tuple[int, int], Results],
) -> list[dict[str, Any]]:
    """A result for each number of ``outputs``, tokens of a request.

    ``drafter`` is one that ``setting.work`` knows. ``plains`` holds what was found without drafts,
    by batch and context.
    """
    # First, since its settings may be refused.
    made = setting.work.drafter(drafter, setting.model, batch)
    where = batch, context
    if where not in plains:
        plains[where] = _decode(setting, PlainDecoding(), batch, context, outputs, 1)
        release_memory(setting)
    plain = plains[where]
    speculative = _decode(setting, made, batch, context, outputs, setting.width)
    return [
        {
            "batch": batch,
            "context": context,
            "output": output,
            "drafter": drafter,
            "plain": _without_texts(plain[output]),
            "speculative": _without_texts(speculative[output]),
            "equal_texts": _num_equal(plain[output], speculative[output]),
            **_gains(plain[output], speculative[output]),
        }
        for output in outputs
    ]


def _without_texts(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "texts"}


def _num_equal(plain: dict[str, Any], speculative: dict[str, Any]) -> int:
    return sum(a == b for a, b in zip(plain["texts"], speculative["texts"], strict=True))


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
    drafter: Drafter,
    batch: int,
    context: int,
    outputs: Sequence[int],
    width: int,
) -> Results:
    rounds = WARM_UP_ROUNDS + PROFILED_ROUNDS + REPLAYS
    longest = context + setting.tokens_after(outputs)
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
    work = setting.work
    work.prepare(engine)

    def seat_all(max_new_tokens: int) -> None:
        for number in range(batch):
            params = SamplingParams(
                max_new_tokens=max_new_tokens, temperature=setting.temperature, seed=number
            )
            work.seat(engine, number, context, params)
        while engine._waiting or any(r.committed_len == 0 for r in engine._running):
            engine.step()

    seat_all(WARM_UP_ROUNDS)
    while engine.has_unfinished:
        engine.step()
    results = {}
    for output in outputs:
        seat_all(output)
        results[output] = _run(engine, setting.on_gpu)
    alone: dict[str, Any] = dict.fromkeys(
        ("launch_us", "half_launch_us", "half_parts_us", "split_us", "profile")
    )
    # What a drafter on the host does is no part of a launch.
    if setting.on_gpu and setting.graphs and isinstance(drafter, DeviceDrafter):
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
    texts: dict[int, list[int]] = {r.request_id: [] for r in engine._running}
    begin, steps, full_batch = time.perf_counter(), 0, 0.0
    while engine.has_unfinished:
        outputs = engine.step()
        seconds = time.perf_counter() - begin
        steps += 1
        for output in outputs:
            tokens[output.request_id] += len(output.token_ids)
            texts[output.request_id] += output.token_ids
        if not ends:
            full_batch = tokens.total() / seconds
        ends += [(tokens[o.request_id], steps, seconds) for o in outputs if o.finish_reason]
    return {
        "tokens_per_round": mean(count / rounds for count, rounds, _ in ends),
        "round_us": seconds / steps * 1e6,
        "tpot_us": mean(seconds / count for count, _, seconds in ends) * 1e6,
        "tokens_per_second": full_batch,
        "texts": list(texts.values()),
    }


def _launches(engine: Engine, half: int) -> dict[str, Any]:
    """A round alone: replays of a graph one behind the other, without a host between.

    Also of the tier with half of the rows, where each request verifies half of them; and what
    kinds of kernels that one spends its time in.
    """
    assert engine._ahead is not None
    assert engine.graphs is not None
    flight = engine._ahead._flight
    assert flight is not None
    engine._pages.reserve(flight.requests, (2 + REPLAYS) * engine.graphs.tiers.width)
    tiers = engine.graphs.tiers.of_size(flight.num_slots)
    launches: dict[str, Any] = {"launch_us": _replay_us(engine.graphs.at(flight.form, tiers[-1]))}
    if len(tiers) == 1:
        return launches
    captured = engine.graphs.at(flight.form, VerifyTier(half, flight.num_slots))
    inputs = captured.round.inputs
    before = inputs.snapshot()
    inputs.verify_lens.fill_(engine.graphs.tiers.width // 2)
    half_us = _replay_us(captured)
    recorded = profile_rounds(captured.replay, REPLAYS)
    inputs.restore(before)
    parts = None if recorded is None else recorded.parts
    return {**launches, "half_launch_us": half_us, "half_parts_us": parts}


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
        engine.generate([setting.work.prompt(context)], SamplingParams(max_new_tokens=1))
        times.append(time.perf_counter() - begin)
    return min(times) * 1e3
