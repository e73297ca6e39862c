"""Text of a recurrent target, whatever is drafted, is what whole forwards over it give."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from engine.drafters import FixedDrafter, NoiseDrafter, OracleDrafter
from engine.hybrid_model import HYBRID, HybridAdapter, HybridForCausalLM, hybrid_model
from engine.models import VOCAB, plain_greedy, random_prompt
from engine.sps_tables import costly_rows
from engine.table_drafter import oracle as table_oracle
from specfast import SamplingParams, Status
from specfast.drafters import DraftBatch, Drafter, DraftRequest, NgramDrafter
from specfast.engine import ChainRows, Engine, Generation, StateItem, VerifyTiers
from specfast.engine.captured_round import LaunchedRound
from specfast.engine.run_ahead import RunAhead
from specfast.engine.target import Target
from specfast.engine.verified_round import VerifiedRound
from specfast.planner import Planning
from torch import Tensor, nn

Items = Mapping[str, Sequence[StateItem]]

WIDTH = 5
NUM_TOKENS = 24
PROMPTS = [random_prompt(length, seed=length) for length in (1, 17, 31)]
KINDS = {
    "hybrid": HYBRID,
    "recurrent": ("recurrent", "recurrent"),
    "attention first": ("attention", "attention", "recurrent"),
}


@lru_cache
def plain(prompt: tuple[int, ...], kinds: Sequence[str] = HYBRID) -> list[int]:
    return plain_greedy(hybrid_model(kinds), list(prompt), NUM_TOKENS)


def expected(kinds: Sequence[str] = HYBRID) -> list[list[int]]:
    return [plain(tuple(prompt), kinds) for prompt in PROMPTS]


class NoisyChains(NoiseDrafter):
    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        return replace(super().propose(requests, verify_width), parents=None)


def drafter_of(name: str, kinds: Sequence[str] = HYBRID) -> Drafter | None:
    texts = [p + t for p, t in zip(PROMPTS, expected(kinds), strict=True)]
    drafters: dict[str, Drafter | None] = {
        "none": None,
        "wrong": FixedDrafter([VOCAB - 1, -1, 3]),
        # True drafts up to a depth that varies, then wrong ones.
        "right, then wrong": OracleDrafter(texts),
        "noise": NoisyChains(texts, seed=1),
    }
    return drafters[name]


@pytest.fixture(params=["eager", "padded", "ragged", "captured"])
def sizes(request: pytest.FixtureRequest, device: str) -> VerifyTiers | None:
    if request.param == "captured" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    if request.param == "eager":
        return None
    totals = () if request.param == "padded" else (4, 7, 12)
    return VerifyTiers([1, 2, 4], WIDTH, totals, capture=request.param == "captured")


def engine_of(model: HybridForCausalLM, drafter: Drafter | None = None, **options: Any) -> Engine:
    """Whose states are no numbers where no request has written them."""
    options = {"max_batch_size": 4, "verify_width": WIDTH, "page_size": 4, **options}
    engine = Engine(model, drafter, state_adapter=HybridAdapter(), **options)
    poison(engine, range(options["max_batch_size"]))
    return engine


def storages(engine: Engine) -> list[Tensor]:
    assert engine.state_pool is not None
    return [storage for of_layer in engine.state_pool.states.values() for storage in of_layer]


def poison(engine: Engine, slots: Any) -> None:
    for storage in storages(engine):
        storage[list(slots)] = torch.nan


@pytest.mark.parametrize("drafter", ["none", "wrong", "right, then wrong", "noise"])
def test_greedy_text_is_that_of_whole_forwards(
    drafter: str, sizes: VerifyTiers | None, device: str
) -> None:
    engine = engine_of(hybrid_model(device=device), drafter_of(drafter), tiers=sizes)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert [g.token_ids for g in generations] == expected()
    rounds = [output for g in generations for output in g.rounds]
    assert all(not output.status & ~Status.BAD_TOKEN for output in rounds)
    if drafter == "right, then wrong":
        assert sum(0 < o.num_accepted < o.num_proposed for o in rounds) >= 5
        assert sum(0 < o.num_accepted == o.num_proposed for o in rounds) >= 2
    assert engine.pool.num_free_pages == engine.pool.num_pages


@pytest.mark.parametrize("kinds", ["recurrent", "attention first"])
def test_layers_in_any_order(kinds: str, sizes: VerifyTiers | None, device: str) -> None:
    model = hybrid_model(KINDS[kinds], device=device)
    drafter = drafter_of("right, then wrong", KINDS[kinds])
    engine = engine_of(model, drafter, tiers=sizes)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert [g.token_ids for g in generations] == expected(KINDS[kinds])


def run_with_company(engine: Engine, *, cancel_at: int = -1) -> None:
    """Requests come at every third step, leave at their limits, and one is cancelled.

    After each step, the slots of those that left are no numbers; nobody wrote them in the step if
    they were free before it.
    """
    pending = list(zip(PROMPTS * 2, (NUM_TOKENS, 3, 17, 1, 20, 11), strict=True))
    wanted = {}
    emitted: dict[int, list[int]] = {}
    for step in itertools.count():
        if pending and step % 3 == 0:
            prompt, limit = pending.pop(0)
            number = engine.add_request(prompt, SamplingParams(max_new_tokens=limit))
            wanted[number], emitted[number] = plain(tuple(prompt))[:limit], []
        if step == cancel_at:
            gone = engine._running[0].request_id
            assert engine.cancel(gone)
            wanted[gone] = emitted[gone]
        engine._admit()
        in_use = {request.slot for request in engine._running}
        free = [slot for slot in range(engine._page_table.pages.shape[0]) if slot not in in_use]
        poison(engine, free)
        if not pending and not engine.has_unfinished:
            break
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
        for storage in storages(engine):
            assert storage[free].isnan().all()
    assert emitted == wanted


@pytest.mark.parametrize("drafter", ["none", "right, then wrong"])
def test_requests_join_leave_and_are_cancelled(
    drafter: str, sizes: VerifyTiers | None, device: str
) -> None:
    options: dict[str, Any] = {"max_batch_size": 3, "tiers": sizes}
    engine = engine_of(hybrid_model(device=device), drafter_of(drafter), **options)
    run_with_company(engine, cancel_at=7)
    assert engine.pool.num_free_pages == engine.pool.num_pages


@pytest.mark.parametrize("planning", [False, True], ids=["all", "planned"])
def test_drafts_of_the_device(
    planning: bool, sizes: VerifyTiers | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round starts from states that the host has not heard of."""
    flights = []
    advance = RunAhead.advance

    def noted(ahead: RunAhead, requests: Any) -> Any:
        flights.append(ahead.in_flight)
        return advance(ahead, requests)

    monkeypatch.setattr(RunAhead, "advance", noted)
    if sizes is None:
        pytest.skip("without tiers nothing is launched ahead")
    drafter = table_oracle(PROMPTS, expected(), device, 0.95 if planning else None)
    model = hybrid_model(device=device)
    options: dict[str, Any] = {"tiers": sizes}
    if planning:
        tiers = VerifyTiers([4], WIDTH, (4, 7, 12), capture=sizes.capture)
        table = costly_rows(Target(model, HybridAdapter()), tiers)
        options = {"tiers": tiers, "planning": Planning("compact", table)}
    engine = engine_of(model, drafter, **options)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert [g.token_ids for g in generations] == expected()
    assert sum(flights) >= 3


@pytest.mark.parametrize("failing", [2, 8, 9, 12])
def test_a_failed_step_can_be_tried_again(
    failing: int, sizes: VerifyTiers | None, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the states were committed before it failed (an even call) or not."""
    engine = engine_of(hybrid_model(device=device), drafter_of("right, then wrong"), tiers=sizes)
    calls = itertools.count(1)

    def failing_once(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            if next(calls) == failing:
                raise torch.OutOfMemoryError
            return result

        return call

    monkeypatch.setattr(engine.target, "forward", failing_once(engine.target.forward))
    monkeypatch.setattr(VerifiedRound, "of", failing_once(VerifiedRound.of))
    assert generate_in_spite_of(engine, torch.OutOfMemoryError) == (expected(), 1)


def test_an_interrupt_loses_no_state(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = LaunchedRound.read, itertools.count(1)

    def interrupted(launched: LaunchedRound) -> VerifiedRound:
        if next(calls) in (3, 4, 7):
            raise KeyboardInterrupt
        return read(launched)

    monkeypatch.setattr(LaunchedRound, "read", interrupted)
    drafter = table_oracle(PROMPTS, expected(), device)
    sizes = VerifyTiers([1, 2, 4], WIDTH, capture=False)
    engine = engine_of(hybrid_model(device=device), drafter, tiers=sizes)
    assert generate_in_spite_of(engine, KeyboardInterrupt) == (expected(), 3)


def generate_in_spite_of(engine: Engine, fault: type[BaseException]) -> tuple[list[list[int]], int]:
    """The texts, and how many steps failed."""
    params = SamplingParams(max_new_tokens=NUM_TOKENS)
    done = {i: Generation(i, []) for i in [engine.add_request(p, params) for p in PROMPTS]}
    steps, ended = 0, 0
    while engine.has_unfinished:
        steps += 1
        with suppress(fault):
            for output in engine.step():
                done[output.request_id].append(output)
            ended += 1
    return [generation.token_ids for generation in done.values()], steps - ended


def test_a_prompt_keeps_one_state() -> None:
    engine = engine_of(hybrid_model(), NgramDrafter(num_drafts=WIDTH - 1))
    engine.generate(PROMPTS, SamplingParams(max_new_tokens=4))
    assert engine.state_pool is not None
    adapter = engine.state_pool.adapter
    assert isinstance(adapter, HybridAdapter)
    assert adapter.longest_kept <= WIDTH


def test_trees_are_refused() -> None:
    engine = engine_of(hybrid_model(), FixedDrafter([1, 2, 3], [0, 0, 1]))
    engine.add_request(PROMPTS[1])
    engine.step()
    with pytest.raises(RuntimeError, match=r"expected chains for a target with recurrent layers"):
        engine.step()


def test_the_model_is_itself_outside_of_rounds() -> None:
    model = hybrid_model()
    prompt = torch.tensor(PROMPTS[1:2])
    with torch.inference_mode():
        before = model(prompt).logits
        engine = engine_of(model)
        engine.generate(PROMPTS, SamplingParams(max_new_tokens=3))
        assert torch.equal(model(prompt).logits, before)
    assert all("forward" not in module.__dict__ for module in model.modules())


class WrongAdapter(HybridAdapter):
    """Says what it is told to say, of its modules and as what the first one answers."""

    def __init__(
        self,
        items: Callable[[Items], Items] = lambda sound: sound,
        answer: Callable[[Tensor], tuple[Tensor, list[Tensor]]] | None = None,
    ) -> None:
        super().__init__()
        self._items, self._answer = items, answer

    def state_items(self, model: Any) -> Items:
        return self._items(super().state_items(model))

    def advance(
        self, module: nn.Module, hidden_states: Tensor, states: Sequence[Tensor], rows: ChainRows
    ) -> tuple[Tensor, Sequence[Tensor]]:
        if self._answer is not None:
            return self._answer(hidden_states)
        return super().advance(module, hidden_states, states, rows)


NUMBER = [StateItem((1,), torch.float32)]


@pytest.mark.parametrize(
    ("adapter", "sentence"),
    [
        (WrongAdapter(lambda _: {}), "expected at least one recurrent module, got none"),
        (
            WrongAdapter(lambda sound: {**sound, "layers.9": NUMBER}),
            r"expected names of modules of HybridForCausalLM, got 'layers.9'",
        ),
        (
            WrongAdapter(lambda sound: {**sound, "layers.0": []}),
            r"expected items, each with a dimension and an element, for 'layers.0', got \[\]",
        ),
        (
            WrongAdapter(lambda sound: {**sound, "layers.0": [StateItem((), torch.float32)]}),
            r"each with a dimension and an element, for 'layers.0', got \[\(\)\]",
        ),
        (
            WrongAdapter(lambda sound: {**sound, "layers": NUMBER}),
            "expected modules that a forward calls, got layers",
        ),
        (
            WrongAdapter(lambda _: {"layers.0": NUMBER}, lambda x: (x, [torch.zeros(2, 1)])),
            r"of 'layers.0' to be float32 \[2, 32\], float32 \[1, 1\], got .*float32 \[2, 1\]",
        ),
        (
            # Right for a prompt, wrong for a round of two requests.
            WrongAdapter(lambda _: {"layers.0": NUMBER}, lambda x: (x, [torch.zeros(1, 1)])),
            r"of 'layers.0' to be float32 \[2, 32\], float32 \[2, 1\], got .*float32 \[1, 1\]",
        ),
        (
            WrongAdapter(lambda _: {"layers.0": NUMBER}, lambda x: (x, [])),
            r"states of 'layers.0' to be .*, got float32 \[2, 32\]$",
        ),
        (
            WrongAdapter(lambda sound: {"layers.2": sound["layers.2"]}),
            "carry a state from row to row .* a state adapter that does not name them",
        ),
        (None, "2 layers that bypass .*recurrent ones need a state adapter"),
    ],
)
def test_wrong_adapters_are_refused(adapter: WrongAdapter | None, sentence: str) -> None:
    model = hybrid_model()
    with pytest.raises(ValueError, match=sentence):
        Target(model, adapter)
    assert model.config._attn_implementation == "sdpa"
    assert all("forward" not in module.__dict__ for module in model.modules())
