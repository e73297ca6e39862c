"""Rounds launched before the one before is read give what rounds one by one give."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import torch
from engine.drafters import OracleDrafter
from engine.models import CONTEXT, plain_greedy, random_prompt, tiny_model
from engine.sps_tables import costly_rows
from engine.table_drafter import WIDTH, TableDrafter, oracle
from engine.test_verify_graphs import model_on, texts
from specfast import FinishReason, SamplingParams
from specfast.drafters import (
    DeviceDrafter,
    DeviceDrafts,
    DraftRequest,
    DraftSlots,
    PlainDecoding,
    TapRecorder,
)
from specfast.engine import Engine, VerifyTiers
from specfast.engine.captured_round import CapturedRound, LaunchedRound
from specfast.engine.run_ahead import RunAhead
from specfast.engine.target import Target
from specfast.engine.verified_round import VerifiedRound
from specfast.planner import ConfidenceRelay, LaggedSurvival, PlannerMode, Planning
from specfast.records import AcceptRecord
from tiny_tokenizer import make_tokenizer
from torch import Tensor

PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 31)]


@pytest.fixture(params=["padded", "captured"])
def sizes(request: pytest.FixtureRequest, device: str) -> VerifyTiers:
    if request.param == "captured" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    return VerifyTiers([1, 2, 4], WIDTH, capture=request.param == "captured")


class Launches:
    """Counts rounds that were launched while another was in flight."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead, self.landed = 0, 0
        advance, land = RunAhead.advance, RunAhead.land

        def counted(ahead: RunAhead, requests: Any) -> Any:
            self.ahead += ahead.in_flight
            return advance(ahead, requests)

        def counted_landing(ahead: RunAhead, requests: Any) -> Any:
            self.landed += 1
            return land(ahead, requests)

        monkeypatch.setattr(RunAhead, "advance", counted)
        monkeypatch.setattr(RunAhead, "land", counted_landing)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Launches:
    return Launches(monkeypatch)


def test_what_drafts_on_the_device() -> None:
    assert isinstance(PlainDecoding(), DeviceDrafter)
    assert not isinstance(OracleDrafter([]), DeviceDrafter)


def test_plain_decoding(sizes: VerifyTiers, device: str, launches: Launches) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, 20) for prompt in PROMPTS]
    engine = Engine(model, max_batch_size=4, verify_width=WIDTH, page_size=4, tiers=sizes)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=20))
    assert texts(generations) == plain
    assert all(len(output.token_ids) == 1 for g in generations for output in g.rounds)
    assert launches.ahead >= 15
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_drafts_of_the_device(sizes: VerifyTiers, device: str, launches: Launches) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, 40) for prompt in PROMPTS]
    drafter = oracle(PROMPTS, plain, device)
    engine = Engine(model, drafter, max_batch_size=4, verify_width=WIDTH, page_size=4, tiers=sizes)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=40))
    assert texts(generations) == plain
    rounds = [output for g in generations for output in g.rounds[1:]]
    assert sum(output.num_accepted for output in rounds) > 40
    assert {output.num_proposed for output in rounds} == {WIDTH - 1}
    # Three requests, one after the other, join; then all fly together until the first ends.
    assert launches.ahead >= 8
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_sampled_texts_are_those_of_rounds_one_by_one(
    sizes: VerifyTiers, device: str, launches: Launches
) -> None:
    model = model_on(device)
    params = SamplingParams(
        max_new_tokens=30, temperature=0.9, top_p=0.9, seed=4, min_new_tokens=8,
        stop_token_ids=(1, 2, 3, 4, 5, 6),
    )  # fmt: skip

    def run(**options: Any) -> list[list[int]]:
        engine = Engine(model, max_batch_size=4, verify_width=WIDTH, **options)
        return texts(engine.generate(PROMPTS, params))

    assert run(tiers=VerifyTiers([4], WIDTH, capture=sizes.capture)) == run()
    assert launches.ahead > 0


def test_requests_join_leave_and_stop(sizes: VerifyTiers, device: str, launches: Launches) -> None:
    prompts = [random_prompt(length, seed=length) for length in (3, 9, 14, 20, 26)]
    limits = [1, 25, 8, 24, 13]
    model = model_on(device)
    plain = [plain_greedy(model, p, n) for p, n in zip(prompts, limits, strict=True)]
    drafter = oracle(prompts, plain, device)
    engine = Engine(model, drafter, max_batch_size=3, verify_width=WIDTH, page_size=2, tiers=sizes)
    emitted: dict[int, list[int]] = {}
    pending = list(zip(prompts, limits, strict=True))
    order = []
    steps = 0
    while pending or engine.has_unfinished:
        if pending and steps % 3 == 0:
            prompt, limit = pending.pop(0)
            order.append(engine.add_request(prompt, SamplingParams(max_new_tokens=limit)))
        for output in engine.step():
            emitted.setdefault(output.request_id, []).extend(output.token_ids)
        steps += 1
    assert [emitted[i] for i in order] == plain
    assert launches.ahead > 0
    assert launches.landed > 0
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_stop_string_ends_a_request_that_is_one_round_ahead(
    sizes: VerifyTiers, device: str, launches: Launches
) -> None:
    model = model_on(device)
    tokenizer = make_tokenizer()
    plain = [plain_greedy(model, prompt, 20) for prompt in PROMPTS]
    word = tokenizer.decode([plain[0][9]])
    params = [SamplingParams(max_new_tokens=20, stop=(word,)), SamplingParams(max_new_tokens=20)]

    def run(tiers: VerifyTiers | None) -> dict[int, tuple[list[int], FinishReason]]:
        engine = Engine(
            model, max_batch_size=4, verify_width=WIDTH, page_size=2, tokenizer=tokenizer,
            tiers=tiers,
        )  # fmt: skip
        ids = [engine.add_request(PROMPTS[i], p) for i, p in enumerate(params)]
        done: dict[int, tuple[list[int], FinishReason]] = {i: ([], FinishReason(0)) for i in ids}
        while engine.has_unfinished:
            for output in engine.step():
                tokens = done[output.request_id][0] + output.token_ids
                done[output.request_id] = (tokens, output.finish_reason)
        assert engine.pool.num_free_pages == engine.pool.num_pages
        return done

    one_by_one = run(None)
    assert one_by_one[0][1] is FinishReason.STOP
    assert run(sizes) == one_by_one
    assert launches.ahead > 0


def test_pages_of_a_request_that_the_host_ended_serve_others(
    sizes: VerifyTiers, device: str, launches: Launches
) -> None:
    """Its slot must not go on writing where the pages now belong to somebody else."""
    model = model_on(device)
    tokenizer = make_tokenizer()
    plain = [plain_greedy(model, prompt, 60) for prompt in PROMPTS[:2]]
    drafter = oracle(PROMPTS[:2], plain, device)
    # A stale row of the page table reaches further than the request that has it next.
    longer = plain_greedy(model, PROMPTS[2], 60)
    drafter.know(PROMPTS[2] + longer)
    word = tokenizer.decode([plain[0][3]])
    engine = Engine(
        model,
        drafter,
        max_batch_size=2,
        verify_width=WIDTH,
        page_size=1,
        tokenizer=tokenizer,
        tiers=VerifyTiers([2], WIDTH, capture=sizes.capture),
    )
    assert texts(engine.generate([PROMPTS[2]], SamplingParams(max_new_tokens=60))) == [longer]
    first = engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=60, stop=(word,)))
    last = engine.add_request(PROMPTS[1], SamplingParams(max_new_tokens=60))
    emitted: dict[int, list[int]] = {first: [], last: []}
    while engine.has_unfinished:
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
    assert len(emitted[first]) < 10
    assert emitted[last] == plain[1]
    assert launches.ahead > 10


def test_the_end_of_the_context(sizes: VerifyTiers, device: str) -> None:
    model = model_on(device)
    prompt = random_prompt(CONTEXT - 12, seed=3)
    plain = plain_greedy(model, prompt, 12)
    drafter = oracle([prompt], [plain], device)
    engine = Engine(model, drafter, verify_width=WIDTH, page_size=4, tiers=sizes)
    (generation,) = engine.generate([prompt], SamplingParams(max_new_tokens=99))
    assert generation.token_ids == plain
    assert generation.finish_reason is FinishReason.LENGTH
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_round_that_no_graph_holds_waits_for_the_flight(
    sizes: VerifyTiers, device: str, launches: Launches
) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, 30) for prompt in PROMPTS]
    engine = Engine(model, max_batch_size=4, verify_width=WIDTH, tiers=sizes)
    first = engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=30))
    emitted: dict[int, list[int]] = {first: []}
    for _ in range(6):
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
    penalised = SamplingParams(max_new_tokens=5, presence_penalty=1e-6)
    emitted[engine.add_request(PROMPTS[1], penalised)] = []
    while engine.has_unfinished:
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
    assert emitted[first] == plain[0]
    assert launches.landed == 1


@pytest.mark.parametrize("mode", ["static", "cap-accept", "compact"])
def test_planned_rounds(
    mode: PlannerMode, sizes: VerifyTiers, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, 40) for prompt in PROMPTS]
    tiers = VerifyTiers([4], WIDTH, (4, 8, 12), capture=sizes.capture)
    used: list[int] = []
    launch = CapturedRound.launch

    def noted(captured: CapturedRound) -> LaunchedRound:
        used.append(captured.round.num_rows)
        return launch(captured)

    monkeypatch.setattr(CapturedRound, "launch", noted)
    read = ConfidenceRelay.read

    def read_what_arrived(relay: ConfidenceRelay, *of: Any) -> LaggedSurvival | None:
        # On a GPU that others use as well every copy may be late, and every layout uniform.
        if device == "cuda":
            torch.cuda.synchronize()
        return read(relay, *of)

    monkeypatch.setattr(ConfidenceRelay, "read", read_what_arrived)
    engine = Engine(
        model,
        oracle(PROMPTS, plain, device, sure=0.95),
        max_batch_size=4,
        verify_width=WIDTH,
        tiers=tiers,
        planning=Planning(mode, costly_rows(Target(model), tiers)),
    )
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=40))
    assert texts(generations) == plain
    rounds = [output for g in generations for output in g.rounds[1:]]
    proposed = sum(output.num_proposed for output in rounds)
    accepted = sum(output.num_accepted for output in rounds)
    assert accepted > 30
    if mode == "static":
        assert {output.num_proposed for output in rounds} == {WIDTH - 1}
    else:
        # Half of the drafts that stand behind a wrong one are no longer verified.
        assert proposed < 2.5 * accepted
    assert (min(used) < 4 * WIDTH) == (mode == "compact")
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_a_plan_needs_confidences(sizes: VerifyTiers, device: str) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, 30) for prompt in PROMPTS]
    tiers = VerifyTiers([4], WIDTH, (4, 8, 12), capture=sizes.capture)
    engine = Engine(
        model,
        oracle(PROMPTS, plain, device),
        max_batch_size=4,
        verify_width=WIDTH,
        tiers=tiers,
        planning=Planning("compact", costly_rows(Target(model), tiers)),
    )
    assert texts(engine.generate(PROMPTS, SamplingParams(max_new_tokens=30))) == plain


def test_planning_without_tiers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected tiers for planning, got none"):
        Engine(tiny_model(), planning=Planning())


def test_what_a_drafter_leaves_out_it_leaves_out_of_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model()
    plain = plain_greedy(model, PROMPTS[0], 40)
    drafter = oracle(PROMPTS[:1], [plain], "cpu")
    draft, calls = TableDrafter.draft, []

    def short_at_first(self: TableDrafter, slots: DraftSlots) -> DeviceDrafts:
        calls.append(1)
        if len(calls) == 1:
            slots.verify_lens.clamp_(max=2)
        return draft(self, slots)

    monkeypatch.setattr(TableDrafter, "draft", short_at_first)
    engine = Engine(model, drafter, verify_width=WIDTH, tiers=VerifyTiers([1], WIDTH))
    (generation,) = engine.generate(PROMPTS[:1], SamplingParams(max_new_tokens=40))
    assert generation.token_ids == plain
    proposed = [output.num_proposed for output in generation.rounds[1:]]
    assert proposed[0] == 1
    assert set(proposed[1:]) == {WIDTH - 1}


def test_an_interrupt_loses_no_round(
    sizes: VerifyTiers, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, 30) for prompt in PROMPTS]
    read, calls = LaunchedRound.read, []

    def interrupted(launched: LaunchedRound) -> VerifiedRound:
        calls.append(1)
        if len(calls) in (3, 4, 9):
            raise KeyboardInterrupt
        return read(launched)

    monkeypatch.setattr(LaunchedRound, "read", interrupted)
    drafter = oracle(PROMPTS, plain, device)
    engine = Engine(model, drafter, max_batch_size=4, verify_width=WIDTH, tiers=sizes)
    ids = [engine.add_request(prompt, SamplingParams(max_new_tokens=30)) for prompt in PROMPTS]
    emitted: dict[int, list[int]] = {i: [] for i in ids}
    while engine.has_unfinished:
        with suppress(KeyboardInterrupt):
            for output in engine.step():
                emitted[output.request_id] += output.token_ids
    assert [emitted[i] for i in ids] == plain
    assert engine.pool.num_free_pages == engine.pool.num_pages


class TappedTable(TableDrafter):
    """Keeps the taps that it is shown, in the round and by the host."""

    tap_layers = (1,)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.in_rounds: list[Tensor] = []
        self.observed: list[Tensor] = []

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: object) -> None:
        assert isinstance(taps, Tensor)
        count = int(record.commit_lens[0])
        self.in_rounds.append(taps[0, :count].clone())

    def observe(self, requests: Sequence[DraftRequest], taps: Sequence[Tensor]) -> None:
        self.observed += [rows.clone() for rows in taps]


def test_a_device_drafter_sees_the_taps_of_each_row_once() -> None:
    model = tiny_model()
    plain = plain_greedy(model, PROMPTS[0], 30)
    text = PROMPTS[0] + plain
    drafter = TappedTable([text], 1, "cpu")
    engine = Engine(model, drafter, max_batch_size=1, verify_width=WIDTH, tiers=VerifyTiers([1], 5))
    (generation,) = engine.generate(PROMPTS[:1], SamplingParams(max_new_tokens=30))
    assert generation.token_ids == plain
    with TapRecorder(model, (1,)) as recorder, torch.inference_mode():
        model(torch.tensor([text]), use_cache=False)
    expected = recorder.taps()[0]
    seen = torch.cat([*drafter.observed, *drafter.in_rounds])
    assert len(drafter.observed) == 1  # the prompt
    torch.testing.assert_close(seen, expected[: len(seen)], rtol=1e-4, atol=1e-4)
    assert len(seen) == len(text) - 1


def test_tiers_wider_than_the_engine_are_refused() -> None:
    with pytest.raises(ValueError, match="at most verify_width = 4 rows per request, got 5"):
        Engine(tiny_model(), verify_width=4, tiers=VerifyTiers([1], 5))
