"""Rounds planned by the confidences of a drafter on the host: fewer drafts, the same text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from drafters.block_files import BlockCase, dspark_cases
from drafters.eagle_files import EagleCase, eagle3_cases
from engine.models import plain_greedy, random_prompt, tiny_model
from engine.sps_tables import costly_rows
from engine.test_verify_graphs import model_on, texts
from specfast import SamplingParams, Status
from specfast.drafters import (
    DraftBatch,
    DraftRequest,
    DraftTarget,
    TrainedDrafter,
    TreeDrafter,
    load_drafter,
)
from specfast.drafters.eagle import EagleModel
from specfast.drafters.loader import DrafterModel
from specfast.engine import Engine, Generation, VerifyTiers
from specfast.engine.round_plan import HostPlan, planner_for
from specfast.engine.target import Target
from specfast.ops.plan import ConfidenceForm
from specfast.planner import (
    Planning,
    Tiers,
    VerifyPlan,
    VerifyPlanner,
    choose_budget,
)
from specfast.records import VerifySchedule
from torch import Tensor
from transformers import PreTrainedModel

CPU = torch.device("cpu")
WIDTH = 5
TIERS = VerifyTiers([4], WIDTH, (4, 8, 12))
ROWS = tuple(tier.num_rows for tier in TIERS.tiers)
# So dear that only drafts that are sure to be right are worth a row.
TABLE = costly_rows(Target(tiny_model()), TIERS)
# More than there are slots: the later ones join when others have ended.
PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 31, 9, 12)]
NUM_TOKENS = 40


def measured_on(model: PreTrainedModel, planning: Planning | None) -> Planning | None:
    """The same, with a table of this model."""
    if planning is None or planning.table is None:
        return planning
    return replace(planning, table=costly_rows(Target(model), TIERS))


class SureDrafter:
    """Knows the text, drafts every third position wrong, and knows that as well."""

    def __init__(
        self, all_texts: list[list[int]], form: ConfidenceForm, device: str, is_broken: bool
    ) -> None:
        self._texts = all_texts
        self._form = form
        self._device = device
        self._is_broken = is_broken

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        drafts, chances = [], []
        for request in requests:
            done = len(request.token_ids)
            text = next(text for text in self._texts if text[:done] == request.token_ids)
            after = range(done, min(done + verify_width - 1, len(text)))
            drafts.append([text[at] if at % 3 else (text[at] + 1) % 7 for at in after])
            chances.append([0.95 if at % 3 else 0.05 for at in after])
        batch = DraftBatch.from_lists(requests, drafts)
        confidence = torch.zeros(len(requests), batch.tokens.shape[1] - 1)
        for row, values in enumerate(chances):
            confidence[row, : len(values)] = torch.tensor(values)
        if self._form == "survival":
            confidence = confidence.cumprod(1)
        if self._form == "logits":
            confidence = 0.01 * confidence.logit()
            temperatures = torch.full((confidence.shape[1],), 0.01, device=self._device)
            batch = replace(batch, temperatures=temperatures)
        if self._is_broken:
            confidence[[request.request_id == 0 for request in requests], :1] = torch.nan
        return replace(batch, confidence=confidence.to(self._device), confidence_form=self._form)

    def release(self, request_id: int) -> None:
        pass


@lru_cache
def known(device: str) -> tuple[PreTrainedModel, list[list[int]]]:
    """A target, and what it says after each prompt."""
    model = model_on(device)
    return model, [plain_greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]


def decoded(
    planning: Planning | None,
    form: ConfidenceForm,
    device: str,
    verify_width: int = WIDTH,
    break_confidence: bool = False,
) -> list[Generation]:
    """Generations whose texts are those of plain decoding."""
    model, plain = known(device)
    all_texts = [p + t for p, t in zip(PROMPTS, plain, strict=True)]
    engine = Engine(
        model,
        SureDrafter(all_texts, form, device, break_confidence),
        max_batch_size=4,
        verify_width=verify_width,
        tiers=TIERS,
        planning=measured_on(model, planning),
    )
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert texts(generations) == plain
    return generations


def counts(generations: list[Generation]) -> tuple[int, int]:
    """Drafts accepted, and proposed."""
    rounds = [output for g in generations for output in g.rounds[1:]]
    return sum(r.num_accepted for r in rounds), sum(r.num_proposed for r in rounds)


@pytest.mark.parametrize("form", ["survival", "confidence", "logits"])
def test_drafts_that_are_not_worth_it_are_left_out(form: ConfidenceForm, device: str) -> None:
    accepted, proposed = counts(decoded(Planning("compact", TABLE), form, device))
    assert accepted > 30
    assert proposed < 1.8 * accepted


@pytest.mark.parametrize("planning", [None, Planning("static", TABLE), Planning("compact")])
def test_without_a_plan_all_drafts_are_verified(planning: Planning | None, device: str) -> None:
    accepted, proposed = counts(decoded(planning, "survival", device))
    assert proposed > 2 * accepted


@pytest.mark.parametrize("form", ["survival", "logits"])
def test_drafts_wider_than_the_tiers_are_cut_there(form: ConfidenceForm, device: str) -> None:
    generations = decoded(Planning("compact", TABLE), form, device, WIDTH + 2)
    assert max(output.num_proposed for g in generations for output in g.rounds) == WIDTH - 1
    accepted, proposed = counts(generations)
    assert proposed < 1.8 * accepted


def test_a_confidence_that_is_no_number_is_flagged(device: str) -> None:
    """Nothing is expected of its draft and of those behind it, as soon as there is a budget."""
    table = Planning("compact", TABLE)
    first, *others = decoded(table, "confidence", device, break_confidence=True)
    planned = [output for output in first.rounds[1:-1] if output.num_proposed == 0]
    assert len(planned) > 20
    assert {output.status for output in planned} == {Status.BAD_PARAM}
    assert {output.status for g in others for output in g.rounds} == {Status.OK}


class Plans:
    """The planner at work: what each round was planned from, and what came of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds: list[tuple[list[int], list[int], VerifyPlan]] = []
        self.survivals: list[dict[int, Tensor]] = []
        plan, publish = VerifyPlanner.plan, VerifyPlanner.publish

        def planned(
            planner: VerifyPlanner, rows: Any, generations: list[int], max_lens: list[int]
        ) -> VerifyPlan:
            chosen = plan(planner, rows, generations, max_lens)
            self.rounds.append((generations, max_lens, chosen))
            return chosen

        def published(
            planner: VerifyPlanner, schedule: VerifySchedule, places: Any, rows: Any, who: list[int]
        ) -> None:
            self.survivals.append(dict(zip(who, schedule.survival.cpu().clone(), strict=True)))
            publish(planner, schedule, places, rows, who)

        monkeypatch.setattr(VerifyPlanner, "plan", planned)
        monkeypatch.setattr(VerifyPlanner, "publish", published)


@pytest.mark.parametrize("lag", [1, 2])
def test_a_budget_comes_from_earlier_rounds(
    lag: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same requests: those who were not there yet count as sure of their drafts."""
    plans = Plans(monkeypatch)
    decoded(Planning("compact", TABLE, lag=lag), "survival", device)
    budgets = []
    last: dict[int, Tensor] = {}
    for number, (generations, max_lens, plan) in enumerate(plans.rounds):
        if number < lag:
            assert plan.budget is None
            continue
        last.update(plans.survivals[number - lag])
        sure = torch.ones(WIDTH - 1)
        lagged = torch.stack([last.get(who, sure) for who in generations])
        assert plan.budget == choose_budget(lagged, max_lens, TABLE, Tiers(ROWS))
        budgets.append(plan.budget)
    assert len(set(budgets)) > 1
    assert len(plans.rounds) == len(plans.survivals) > 10


def test_a_budget_does_not_look_at_the_lengths_of_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafter may end them where they come out unlikely: that is what they are."""
    plans = Plans(monkeypatch)
    requests: Any = [
        SimpleNamespace(slot=i, generation=i + 1, tokens_left=9 - 7 * i) for i in range(2)
    ]
    confidence = torch.tensor([[0.9, 0.8, 0.7, 0.6], [0.9, 0.2, 0.1, 0.1]])
    tokens = torch.zeros(2, WIDTH, dtype=torch.int32)
    draft = DraftBatch(tokens, [WIDTH] * 2, confidence=confidence)
    cut = []
    for lens in ([WIDTH, 2], [2, 1]):
        planner = Planning("compact", TABLE, lag=1).planner(2, WIDTH - 1, Tiers(ROWS), CPU)
        plan = HostPlan(planner, WIDTH - 1)
        plan.cut(requests, draft, [WIDTH, 2])
        cut.append(plan.cut(requests, draft, lens)[1])
    (_, first_lens, first), (_, second_lens, second) = plans.rounds[1::2]
    assert first == second
    assert first_lens == second_lens == [WIDTH, 2]
    assert cut[0] != cut[1]
    assert cut[1][1] == 1


def test_a_cut_does_not_look_at_how_far_drafts_go_beyond_the_tiers() -> None:
    """A drafter may go on where its drafts come out likely."""
    requests: Any = [SimpleNamespace(slot=0, generation=1, tokens_left=20)]
    confidence = torch.tensor([[0.9, 0.2, 0.1, 0.1, 0.1, 0.1]])
    cut = []
    for width in (WIDTH, WIDTH + 2):
        tokens = torch.zeros(1, width, dtype=torch.int32)
        draft = DraftBatch(tokens, [width], confidence=confidence[:, : width - 1])
        planner = Planning("compact", TABLE, lag=1).planner(1, WIDTH - 1, Tiers(ROWS), CPU)
        plan = HostPlan(planner, WIDTH - 1)
        cut.append([plan.cut(requests, draft, [width])[1] for _ in range(2)])
    assert cut[0] == cut[1]
    assert cut[0][1] < cut[0][0] == [WIDTH]


def test_a_round_that_is_drafted_again_is_not_planned_by_its_first_drafts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = Plans(monkeypatch)
    model, plain = known("cpu")
    drafter = SureDrafter([PROMPTS[0] + plain[0]], "survival", "cpu", False)
    planning = measured_on(model, Planning("compact", TABLE, lag=1))
    engine = Engine(model, drafter, verify_width=WIDTH, tiers=TIERS, planning=planning)
    engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=NUM_TOKENS))
    for _ in range(4):
        engine.step()
    forward = engine.target.forward

    def failing(*_arguments: Any, **_options: Any) -> Tensor:
        raise torch.OutOfMemoryError

    engine.target.forward = failing  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        engine.step()
    engine.target.forward = forward  # type: ignore[method-assign]
    engine.step()
    engine.step()
    budgets = [plan.budget for _, _, plan in plans.rounds]
    assert [budget is None for budget in budgets] == [True, False, False, False, True, False]


SMALL_VOCAB = 40


def proposed_by(
    case: BlockCase | EagleCase,
    path: Path,
    drafter_of: Callable[[DrafterModel], TrainedDrafter],
    planning: Planning | None,
) -> int:
    """Drafts of three requests, one of them sampled; greedy text is the target's."""
    model = tiny_model(
        vocab_size=SMALL_VOCAB,
        hidden_size=case.sizes.hidden,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
    )
    drafter = drafter_of(load_drafter(case.write(path), DraftTarget.of(model)))
    engine = Engine(
        model,
        drafter,
        max_batch_size=4,
        verify_width=WIDTH,
        tiers=TIERS,
        planning=measured_on(model, planning),
    )
    prompts = [[token % SMALL_VOCAB for token in prompt] for prompt in PROMPTS[:3]]
    sampled = SamplingParams(temperature=0.9, top_k=7, seed=5, max_new_tokens=15)
    params = [SamplingParams(max_new_tokens=15)] * 2 + [sampled]
    ids = [engine.add_request(*one) for one in zip(prompts, params, strict=True)]
    emitted: dict[int, list[int]] = {i: [] for i in ids}
    total = 0
    while engine.has_unfinished:
        for output in engine.step():
            assert output.status == Status.OK
            emitted[output.request_id] += output.token_ids
            total += output.num_proposed
    plain = [plain_greedy(model, prompt, 15) for prompt in prompts[:2]]
    assert [emitted[i] for i in ids[:2]] == plain
    assert len(emitted[ids[2]]) == 15
    return total


def test_a_trained_drafter_is_planned(tmp_path: Path) -> None:
    """A random DSpark is as unsure as it is wrong."""
    case = next(case for case in dspark_cases() if case.name == "dspark")

    def proposed(planning: Planning | None) -> int:
        def drafter_of(model: DrafterModel) -> TrainedDrafter:
            return TrainedDrafter(model, temperatures=[1.0, 0.5, 2.0, 1.0])

        return proposed_by(case, tmp_path, drafter_of, planning)

    assert proposed(Planning("compact", TABLE)) < 0.6 * proposed(None)


@pytest.mark.parametrize("drawn", [False, True])
def test_trees_are_planned_unless_they_are_drawn(drawn: bool, tmp_path: Path) -> None:
    case = next(case for case in eagle3_cases() if case.name == "safeailab")

    def proposed(planning: Planning | None) -> int:
        def drafter_of(model: DrafterModel) -> TrainedDrafter:
            assert isinstance(model, EagleModel)
            return TreeDrafter(model, WIDTH, 3, 3, drawn=drawn)

        return proposed_by(case, tmp_path, drafter_of, planning)

    whole, planned = proposed(None), proposed(Planning("compact", TABLE))
    assert planned == whole if drawn else planned < 0.6 * whole


def test_what_only_a_device_drafter_can_do_is_refused(device: str) -> None:
    with pytest.raises(ValueError, match='"static" or "compact" for a drafter on the host, got'):
        decoded(Planning("cap-accept", TABLE), "survival", device)


def test_more_drafts_than_a_plan_holds_are_refused() -> None:
    """193 requests of 128 drafts would fail at their first round."""
    graphs: Any = SimpleNamespace(tiers=VerifyTiers([193], 129), device=CPU)
    with pytest.raises(
        ValueError, match=r"at most 24576 drafts in all .*, got 193 requests of 128"
    ):
        planner_for(Planning("compact"), graphs, 4)
