"""Rounds of an engine whose drafter works on the device: leaving, planning, bad numbers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from capturable import only_capturable
from drafters.small_vocabulary import Stream
from engine.device_drafters import NotedHost, Watched
from engine.sps_tables import costly_rows
from engine.test_device_drafters import DRAWN, GREEDY, NARROW, decoded, loaded, widen
from engine.test_trained_drafters import CASES, MIXED, PROMPTS, VOCAB, WIDTH, target, texts
from specfast import FinishReason, SamplingParams, Status
from specfast.drafters import (
    DeviceDrafts,
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    DraftPages,
    DraftSlots,
    DraftTarget,
    load_drafter,
)
from specfast.drafters.checkpoint.weights import Weights
from specfast.drafters.eagle import EagleModel
from specfast.drafters.loader import DrafterModel
from specfast.drafters.paged_drafter import PagedDrafter
from specfast.engine import Engine, RoundOutput, VerifyTiers
from specfast.engine.run_ahead import RunAhead
from specfast.engine.target import Target
from specfast.engine.tier_round import TierRound
from specfast.planner import Planning
from specfast.sampling import SamplingRules
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

NUM_TOKENS = 12
FAMILIES = ["llama2", "safeailab", "dflash", "dspark", "dflash2"]


def engine_of(drafter: PagedDrafter, **options: Any) -> Engine:
    settings: dict[str, Any] = {
        "max_batch_size": 4,
        "page_size": 4,
        "verify_width": WIDTH,
        "tiers": VerifyTiers([1, 2, 4], WIDTH, capture=False),
    }
    return Engine(target(), drafter, **{**settings, **options})


def assert_capturable(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole sampled rounds of it do nothing that a graph could not hold."""
    run, rounds = TierRound.run, []

    def checked(self: TierRound) -> None:
        rounds.append(self)
        with only_capturable():
            run(self)

    monkeypatch.setattr(TierRound, "run", checked)
    engine.generate(PROMPTS, SamplingParams(max_new_tokens=6, temperature=0.8, seed=1))
    assert len(rounds) >= 2


@pytest.mark.parametrize("name", ["safeailab", "dspark"])
def test_one_by_one_as_ahead(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = loaded(name, tmp_path)
    ahead = Watched(model)
    expected = decoded(ahead, [DRAWN] * 4)
    assert ahead.num_rounds > 8
    monkeypatch.setattr(RunAhead, "can_go_on", lambda self, requests: False)
    one_by_one = Watched(model)
    assert decoded(one_by_one, [DRAWN] * 4) == expected
    one_by_one.journal.assert_equals(ahead.journal)


@pytest.mark.parametrize("name", ["llama2", "dspark"])
def test_a_whole_round_can_be_captured(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_capturable(engine_of(DeviceTrainedDrafter(loaded(name, tmp_path))), monkeypatch)


@pytest.mark.parametrize("name", ["safeailab", "dflash"])
def test_a_prompt_longer_than_an_attention_takes(name: str, tmp_path: Path) -> None:
    model, prompt = loaded(name, tmp_path), [(7 * i * i + i) % VOCAB for i in range(150)]
    host, device = NotedHost(model), Watched(model)
    params = SamplingParams(max_new_tokens=4, temperature=0.5, seed=1)
    expected = Engine(target(), host, verify_width=WIDTH).generate([prompt], params)
    assert engine_of(device).generate([prompt], params)[0].token_ids == expected[0].token_ids
    device.journal.assert_equals(host.journal)


def cancel_in_flight(drafter: PagedDrafter, width: int) -> None:
    """Others take its pages while the device still works in them."""
    tiers = VerifyTiers([1, 2], width, capture=False)
    engine = engine_of(drafter, max_batch_size=2, page_size=1, verify_width=width, tiers=tiers)
    params = SamplingParams(max_new_tokens=NUM_TOKENS)
    ids = [engine.add_request(prompt, params) for prompt in PROMPTS]
    emitted: dict[int, list[int]] = {i: [] for i in ids}
    steps = 0
    while engine.has_unfinished:
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
            assert output.finish_reason != FinishReason.ABORT or output.request_id == ids[0]
        steps += 1
        if steps == 5:
            assert engine.cancel(ids[0])
    for i in (1, 2):
        assert PROMPTS[i] + emitted[ids[i]] == texts()[i][: len(PROMPTS[i]) + NUM_TOKENS]
    assert len(emitted[ids[0]]) < NUM_TOKENS
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_cancelled_in_flight(tmp_path: Path) -> None:
    cancel_in_flight(Watched(loaded("dspark", tmp_path)), WIDTH)


@pytest.mark.parametrize("name", ["safeailab", "dflash"])
@pytest.mark.parametrize("num_drafts", [1, 3, 7])
@pytest.mark.parametrize("width", [2, WIDTH])
def test_fewer_drafts(name: str, num_drafts: int, width: int, tmp_path: Path) -> None:
    drafter = DeviceTrainedDrafter(loaded(name, tmp_path), num_drafts)
    tiers = VerifyTiers([1], width, capture=False)
    params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.8, seed=2)
    (generation,) = engine_of(drafter, tiers=tiers).generate(PROMPTS[:1], params)
    assert len(generation.token_ids) == NUM_TOKENS
    # A block of 6 rows proposes 5.
    assert max(r.num_proposed for r in generation.rounds) == min(num_drafts, width - 1, 5)


@pytest.mark.parametrize("scale", [None, 0.5])
def test_planned_by_its_confidences(scale: float | None, tmp_path: Path) -> None:
    model = loaded("dspark", tmp_path)
    temperatures = None if scale is None else [scale] * 4
    drafter = DeviceTrainedDrafter(model, temperatures=temperatures)
    tiers = VerifyTiers([4], WIDTH, (4, 8, 12), capture=False)
    table = costly_rows(Target(target()), tiers)
    engine = engine_of(drafter, tiers=tiers, planning=Planning("compact", table))
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    for generation, prompt, text in zip(generations, PROMPTS, texts(), strict=True):
        assert prompt + generation.token_ids == text[: len(prompt) + NUM_TOKENS]
    proposed = [r.num_proposed for g in generations for r in g.rounds[1:]]
    # Blocks propose 4; some drafts are not worth a row.
    assert max(proposed) <= 4
    assert min(proposed) < 4


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("params", [MIXED[:1] * 3, MIXED])
def test_no_number_no_harm(name: str, params: list[SamplingParams], tmp_path: Path) -> None:
    model = loaded(name, tmp_path)
    model.weights["fc.weight"].fill_(torch.nan)
    engine = engine_of(DeviceTrainedDrafter(model))
    places = [engine.add_request(*one) for one in zip(PROMPTS, params, strict=True)]
    rounds: dict[int, list[RoundOutput]] = {place: [] for place in places}
    while engine.has_unfinished:
        for output in engine.step():
            rounds[output.request_id].append(output)
    for i, outputs in enumerate(rounds.values()):
        # Where one token is left, there is nothing to draft.
        assert {output.status for output in outputs[1:-1]} == {Status.NAN_DRAFTS}
        assert all(output.num_proposed == 0 for output in outputs)
        if params[i].is_greedy:
            emitted = [token for output in outputs for token in output.token_ids]
            assert PROMPTS[i] + emitted == texts()[i]


@pytest.mark.parametrize("name", NARROW)
def test_windows_narrower_than_a_block(name: str, tmp_path: Path) -> None:
    model = load_drafter(CASES[name].write(tmp_path), DraftTarget.of(target()))
    with pytest.raises(ValueError, match=r"looks both ways within \d positions, fewer than"):
        DeviceTrainedDrafter(model)


@pytest.mark.parametrize("name", ["safeailab", "dspark"])
def test_a_drafter_of_another_engine(name: str, tmp_path: Path) -> None:
    """Its rows are in the pages of the other one, where there may be fewer."""
    drafter = DeviceTrainedDrafter(loaded(name, tmp_path))
    first = engine_of(drafter)
    params = SamplingParams(max_new_tokens=NUM_TOKENS)
    for prompt in PROMPTS:
        first.add_request(prompt, params)
    for _ in range(5):
        first.step()
    second = engine_of(drafter, max_batch_size=1, tiers=VerifyTiers([1], WIDTH, capture=False))
    with pytest.raises(RuntimeError, match="a drafter on the device serves one engine at a time"):
        first.step()
    (generation,) = second.generate(PROMPTS[:1], params)
    assert PROMPTS[0] + generation.token_ids == texts()[0][: len(PROMPTS[0]) + NUM_TOKENS]


def test_options(tmp_path: Path) -> None:
    model = loaded("dspark", tmp_path)
    with pytest.raises(ValueError, match=r"^DeviceTrainedDrafter: .*num_drafts >= 1, got 0"):
        DeviceTrainedDrafter(model, 0)
    with pytest.raises(ValueError, match=r"^Device.*: .*temperatures of 4 drafts, got 2"):
        DeviceTrainedDrafter(model, temperatures=[1.0, 1.0])
    with pytest.raises(ValueError, match=r"expected attach\(\) to be called"):
        DeviceTrainedDrafter(model).observe([Stream(0, [1, 2], GREEDY, 0)], [torch.zeros(1, 36)])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("params", [GREEDY, DRAWN])
def test_captured_as_padded(name: str, params: SamplingParams, tmp_path: Path, device: str) -> None:
    if device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    target_model = deepcopy(target()).to(device)
    model = load_drafter(CASES[name].write(tmp_path), DraftTarget.of(target_model))
    if name in NARROW:
        widen(model)

    def run(capture: bool) -> list[list[int]]:
        engine = Engine(
            target_model,
            DeviceTrainedDrafter(model),
            max_batch_size=4,
            page_size=4,
            verify_width=WIDTH,
            tiers=VerifyTiers([1, 2, 4], WIDTH, capture=capture),
        )
        asked = replace(params, seed=3, max_new_tokens=NUM_TOKENS)
        return [g.token_ids for g in engine.generate(PROMPTS, asked)]

    assert run(True) == run(False)


def step_without_numbers(
    name: str,
    real: DrafterModel,
    is_sampled: bool,
    drafter_of: Callable[[Any], PagedDrafter],
) -> DeviceDrafts:
    """On a device that has none: nothing is read, and nothing of the host's goes in."""
    batch, width = 3, WIDTH + 2

    def somewhere(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def ints(*shape: int) -> Tensor:
        return somewhere(torch.int32, batch, *shape)

    weights = {n: somewhere(t.dtype, *t.shape) for n, t in real.weights._tensors.items()}
    model = type(real)(real.spec, Weights(weights, real.spec.backbone.norm_eps))
    if name in NARROW:
        widen(model)
    drafter = drafter_of(model)
    pages = somewhere(torch.int32, 4, 5)
    drafter.attach(DraftPages(pages, 4, 20))
    slots = DraftSlots(
        tokens=ints(width),
        verify_lens=ints(),
        tokens_left=ints(),
        prefix_lens=ints(),
        page_table_rows=ints(),
        sampling=SamplingRules(somewhere(torch.float32, batch), somewhere(torch.int64, batch)),
        is_sampled=is_sampled,
        parents=ints(width) if drafter.drafts_trees else None,
    )
    num_taps = 1 if real.spec.taps is None else real.spec.taps.num_taps
    taps = somewhere(torch.bfloat16, batch, width, num_taps * real.spec.backbone.hidden_size)
    record: Any = SimpleNamespace(commit_lens=ints(), out_tokens=ints(width))
    with only_capturable():
        drafts = drafter.draft(slots)
        drafter.committed(slots, record, taps)
    return drafts


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("is_sampled", [False, True])
def test_a_step_without_numbers(name: str, is_sampled: bool, tmp_path: Path) -> None:
    drafts = step_without_numbers(name, loaded(name, tmp_path), is_sampled, DeviceTrainedDrafter)
    assert (drafts.proposal is not None) == is_sampled


class _OneProduct(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        assert func.overloadpacket.__name__ not in ("bmm", "baddbmm"), "a product per request"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_read_once_per_batch(name: str, tmp_path: Path) -> None:
    model = loaded(name, tmp_path)
    with _OneProduct():
        step_without_numbers(name, model, True, DeviceTrainedDrafter)
        if isinstance(model, EagleModel):
            for drawn in (False, True):
                step_without_numbers(
                    name, model, True, lambda m, drawn=drawn: DeviceTreeDrafter(m, 8, drawn=drawn)
                )
