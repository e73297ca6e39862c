"""Decodes a list of prompts with one engine and keeps the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specfast.engine import Engine, Generation, RoundOutput
from specfast.sampling_params import SamplingParams

OnRound = Callable[[int, RoundOutput], None]


@dataclass(frozen=True)
class Decoding:
    """One generation per prompt, in their order, and the seed that each used.

    ``seconds`` is the time inside the engine, prefill included; showing the text is not counted.
    ``prefill_seconds`` is its part before and outside of all rounds.
    """

    generations: list[Generation]
    seeds: list[int]
    seconds: float
    prefill_seconds: float = 0.0


def decode(
    engine: Engine,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    on_round: OnRound = lambda index, output: None,
) -> Decoding:
    """Decode ``prompts``; ``on_round`` gets the prompt's index and what the round gave it."""
    started = time.perf_counter()
    indices = {engine.add_request(ids, params): i for i, ids in enumerate(prompts)}
    generations = [Generation(request_id, prompts[i]) for request_id, i in indices.items()]
    seconds = prefill_seconds = time.perf_counter() - started
    while engine.has_unfinished:
        started = time.perf_counter()
        outputs = engine.step()
        elapsed = time.perf_counter() - started
        seconds += elapsed
        if any(not generations[indices[output.request_id]].rounds for output in outputs):
            prefill_seconds += elapsed
        for output in outputs:
            index = indices[output.request_id]
            generations[index].append(output)
            on_round(index, output)
    seeds = [engine.seed_of(request_id, params) for request_id in indices]
    return Decoding(generations, seeds, seconds, prefill_seconds)
