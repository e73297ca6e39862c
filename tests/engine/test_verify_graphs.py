"""A round padded to a tier, captured or not, decides what the round laid out by itself decides."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.drafters import DrawingDrafter, FixedDrafter, OracleDrafter
from engine.models import VOCAB, answer_from_table, plain_greedy, random_prompt, tiny_model
from specfast import FinishReason, SamplingParams, Status
from specfast.drafters import DraftBatch, Drafter, NgramDrafter
from specfast.engine import Engine, Generation, VerifyTier, VerifyTiers
from specfast.engine.round_form import RoundForm
from specfast.engine.round_inputs import MAX_END_IDS, RoundInputs
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import PreTrainedModel

WIDTH = 8
NUM_TOKENS = 24
PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 31)]


def model_on(device: str) -> PreTrainedModel:
    """Kernels know the widths of real heads only."""
    return tiny_model(head_dim=64).to(device)


def tiers(*batch_sizes: int, capture: bool | None = None, **options: Any) -> VerifyTiers:
    return VerifyTiers(batch_sizes, WIDTH, capture=capture, **options)


def texts(generations: Sequence[Generation]) -> list[list[int]]:
    return [generation.token_ids for generation in generations]


@pytest.fixture(params=["padded", "captured"])
def capture(request: pytest.FixtureRequest, device: str) -> bool:
    """Whether rounds at tiers are replays of graphs."""
    if request.param == "captured" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    return bool(request.param == "captured")


class CountedRounds:
    """How many rounds ran at a tier, and how many had to run eagerly."""

    def __init__(self, engine: Engine) -> None:
        assert engine.graphs is not None
        self.at_tiers, self.eager = 0, 0
        verify = engine.graphs.verify

        def counted(*arguments: Any) -> Any:
            verified = verify(*arguments)
            self.at_tiers += verified is not None
            self.eager += verified is None
            return verified

        engine.graphs.verify = counted  # type: ignore[method-assign]


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("total_rows", [(), (4, 9, 17)], ids=["uniform", "ragged"])
def test_greedy_output_equals_plain_decoding(
    tree: bool, total_rows: tuple[int, ...], capture: bool, device: str
) -> None:
    model = model_on(device)
    plain = [plain_greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    drafter = OracleDrafter([p + t for p, t in zip(PROMPTS, plain, strict=True)], tree)
    sizes = tiers(1, 2, 4, capture=capture, total_rows=total_rows)
    engine = Engine(model, drafter, verify_width=WIDTH, page_size=4, tiers=sizes)
    rounds = CountedRounds(engine)
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert texts(generations) == plain
    assert sum(output.num_accepted > 1 for g in generations for output in g.rounds) >= 3
    assert all(output.status == Status.OK for g in generations for output in g.rounds)
    assert rounds.at_tiers > 0
    assert rounds.eager == 0
    assert engine.pool.num_free_pages == engine.pool.num_pages


COMPANY = [
    SamplingParams(max_new_tokens=20),
    SamplingParams(max_new_tokens=7, temperature=1.3, seed=2),
    SamplingParams(max_new_tokens=24, temperature=0.4, seed=2**63 + 8, top_k=4),
    SamplingParams(max_new_tokens=22, temperature=1.0, top_p=0.6, min_p=0.05, seed=1),
    SamplingParams(max_new_tokens=11, temperature=2.0, top_k=1, stop_token_ids=(1, 2, 3)),
]
WITHOUT_FILTERS = [
    SamplingParams(max_new_tokens=20, temperature=0.8, seed=4),
    SamplingParams(max_new_tokens=9, eos_token_ids=(5, 6, 7, 8), min_new_tokens=3),
    SamplingParams(max_new_tokens=15, temperature=1.2, seed=5, logprobs="raw"),
]


def sampled_run(
    device: str, company: Sequence[SamplingParams], drafter: Drafter, sizes: VerifyTiers | None
) -> tuple[list[list[int]], list[FinishReason], list[list[float]]]:
    """Of rows that are equal bit for bit in every batch."""
    engine = Engine(model_on(device), drafter, verify_width=WIDTH, max_batch_size=3, tiers=sizes)
    generator = torch.Generator().manual_seed(1)
    answer_from_table(engine, 2.5 * torch.randn(13, VOCAB, generator=generator).to(device))
    ids = [engine.add_request(random_prompt(9, seed=i), p) for i, p in enumerate(company)]
    done = {i: Generation(i, []) for i in ids}
    while engine.has_unfinished:
        for output in engine.step():
            done[output.request_id].append(output)
    return (
        texts([done[i] for i in ids]),
        [done[i].finish_reason for i in ids],
        [done[i].logprobs for i in ids],
    )


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("company", [COMPANY, WITHOUT_FILTERS], ids=["filters", "temperature"])
def test_sampled_and_greedy_requests_decide_as_without_tiers(
    company: list[SamplingParams], tree: bool, capture: bool, device: str
) -> None:
    drafters = [NgramDrafter(num_drafts=WIDTH - 1, tree=tree, max_ngram=1) for _ in range(2)]
    alone = sampled_run(device, company, drafters[0], None)
    padded = sampled_run(device, company, drafters[1], tiers(4, capture=capture))
    assert padded == alone


@pytest.mark.parametrize("branches", [(1, 1), (2, 2)], ids=["chain", "tree"])
def test_drawn_drafts_decide_as_without_tiers(
    branches: tuple[int, int], capture: bool, device: str
) -> None:
    """Their q is read by the graph; requests come and go, so that its rows move."""
    generator = torch.Generator().manual_seed(3)
    table = torch.randn(VOCAB, VOCAB, generator=generator).to(device)

    def run(sizes: VerifyTiers | None) -> Any:
        company = [replace(p, logprobs=None) for p in (*COMPANY, *WITHOUT_FILTERS)]
        return sampled_run(device, company, DrawingDrafter(table, branches), sizes)

    assert run(tiers(1, 4, capture=capture)) == run(None)


def test_a_tier_does_not_change_a_request(capture: bool, device: str) -> None:
    """Alone at the tier of four it computes what it computes among four, bit for bit."""
    params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.7, seed=5)
    model = model_on(device)

    def run(prompts: list[list[int]]) -> list[int]:
        drafter = NgramDrafter(num_drafts=WIDTH - 1)
        engine = Engine(model, drafter, verify_width=WIDTH, tiers=tiers(4, capture=capture))
        return engine.generate(prompts, params)[0].token_ids

    assert run(PROMPTS[:1]) == run(PROMPTS)


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_requests_join_and_leave(tree: bool, capture: bool, device: str) -> None:
    prompts = [random_prompt(length, seed=length) for length in (3, 9, 14, 20, 26)]
    limits = [1, 25, 8, 24, 13]
    model = model_on(device)
    plain = [plain_greedy(model, p, n) for p, n in zip(prompts, limits, strict=True)]
    drafter = OracleDrafter([p + t for p, t in zip(prompts, plain, strict=True)], tree)
    sizes = tiers(1, 2, capture=capture)
    engine = Engine(model, drafter, max_batch_size=2, verify_width=WIDTH, tiers=sizes)
    emitted: dict[int, list[int]] = {}
    pending = list(zip(prompts, limits, strict=True))
    order = []
    while pending or engine.has_unfinished:
        if pending:
            prompt, limit = pending.pop(0)
            order.append(engine.add_request(prompt, SamplingParams(max_new_tokens=limit)))
        for output in engine.step():
            emitted.setdefault(output.request_id, []).extend(output.token_ids)
    assert [emitted[i] for i in order] == plain
    assert engine.pool.num_free_pages == engine.pool.num_pages


def test_padding_touches_no_page(device: str) -> None:
    """Cases B45 and B46: one request in a tier of four, whose other slots are stale."""
    model = model_on(device)
    sizes = tiers(4, capture=False)
    engine = Engine(model, NgramDrafter(), verify_width=WIDTH, num_pages=40, tiers=sizes)
    engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=NUM_TOKENS))
    engine.step()
    (request,) = engine._running
    own = {page * 16 + i for page in request.pages for i in range(16)} | {engine.pool.padding_slot}
    others = [slot for slot in range(len(engine.pool.keys[0])) if slot not in own]
    for storage in (*engine.pool.keys, *engine.pool.values):
        storage[others] = torch.nan
    before = [storage[others].clone() for storage in (*engine.pool.keys, *engine.pool.values)]
    output = engine.step()[0]
    assert request.token_ids[-len(output.token_ids) :] == output.token_ids
    assert plain_greedy(model, PROMPTS[0], request.num_new_tokens) == request.token_ids[5:]
    after = [storage[others] for storage in (*engine.pool.keys, *engine.pool.values)]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(old, new, equal_nan=True, rtol=0, atol=0)


class Unusual:
    """Rounds that no graph holds."""

    penalised = SamplingParams(max_new_tokens=6, presence_penalty=0.4)
    biased = SamplingParams(max_new_tokens=6, logit_bias={3: 1.0})
    many_ends = SamplingParams(max_new_tokens=6, stop_token_ids=tuple(range(40, 41 + MAX_END_IDS)))


@pytest.mark.parametrize(
    ("params", "what"),
    [
        (Unusual.penalised, "penalties and biases"),
        (Unusual.biased, "penalties and biases"),
        (Unusual.many_ends, "17 ids that end it, and 16 are captured"),
    ],
)
def test_what_runs_eagerly_says_why_once(
    params: SamplingParams, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    def run(sizes: VerifyTiers | None) -> list[list[int]]:
        engine = Engine(tiny_model(), FixedDrafter([1, 2]), verify_width=WIDTH, tiers=sizes)
        return texts(engine.generate(PROMPTS, params))

    with caplog.at_level(logging.INFO, logger="specfast"):
        assert run(tiers(4)) == run(None)
    assert [record.getMessage() for record in caplog.records if what in record.getMessage()] == [
        record.getMessage() for record in caplog.records
    ]
    assert len(caplog.records) == 1


def test_two_kinds_of_logprobs_run_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tiny_model(), FixedDrafter([1]), verify_width=WIDTH, tiers=tiers(4))
    for mode in ("raw", "processed"):
        engine.add_request(PROMPTS[0], SamplingParams(max_new_tokens=4, logprobs=mode))
    with caplog.at_level(logging.INFO, logger="specfast"):
        while engine.has_unfinished:
            engine.step()
    assert "two kinds of log-probabilities" in caplog.text


def test_more_than_the_largest_tier_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model()
    engine = Engine(model, FixedDrafter([1, 2, 3]), verify_width=WIDTH, tiers=tiers(2))
    with caplog.at_level(logging.INFO, logger="specfast"):
        generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=6))
    assert texts(generations) == [plain_greedy(model, prompt, 6) for prompt in PROMPTS]
    assert caplog.text.count("no tier holds 3 requests of 12 rows") == 1


def test_inputs_of_another_shape_are_refused() -> None:
    inputs = RoundInputs(2, 4, torch.device("cpu"))
    engine = Engine(tiny_model())
    for prompt in PROMPTS:
        engine.add_request(prompt)
    engine._admit()
    requests = list(engine._running)
    wide = DraftBatch(torch.zeros(2, 5, dtype=torch.int32), [5, 5])
    with pytest.raises(RuntimeError, match=r"at most 2 requests of at most 4 rows, got .*\[2, 5\]"):
        inputs.load(requests[:2], wide, [5, 5])
    many = DraftBatch(torch.zeros(3, 4, dtype=torch.int32), [4, 4, 4])
    with pytest.raises(RuntimeError, match="got 3 requests"):
        inputs.load(requests, many, [4, 4, 4])


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_one_replay_is_a_whole_round(tree: bool, tmp_path: Path, device: str) -> None:
    """Its nodes, as a profile sees them."""
    if device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    model = model_on(device)
    drafter = NgramDrafter(num_drafts=WIDTH - 1, tree=tree, max_ngram=1)
    engine = Engine(model, drafter, verify_width=WIDTH, tiers=tiers(4, capture=True))
    engine.generate(PROMPTS, SamplingParams(max_new_tokens=4))
    assert engine.graphs is not None
    captured = engine.graphs.at(RoundForm("host", tree, "greedy"), VerifyTier(4 * WIDTH, 4))
    captured.round.inputs.clear()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
        captured.replay()
        torch.cuda.synchronize()
    events = recorded.events()
    assert events is not None
    names = [event.name for event in events if event.device_type == DeviceType.CUDA]
    (tmp_path / "nodes.txt").write_text("\n".join(names))
    launches = [event.name for event in events if event.name.startswith("cudaGraphLaunch")]
    assert len(launches) == 1
    layers = model.config.num_hidden_layers
    for pattern, count in {
        "build_verify_window": 1,
        "(verify|simple)_attention_kernel": layers,
        "accept_kernel": 1,
        "tree_from_parents": int(tree),
        "relocate": int(tree),
    }.items():
        assert sum(bool(re.search(pattern, name)) for name in names) == count, pattern
    order = [
        next(i for i, name in enumerate(names) if re.search(pattern, name))
        for pattern in (
            "build_verify_window",
            "(verify|simple)_attention_kernel",
            "accept_kernel",
        )
    ]
    assert order == sorted(order)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (((), 4), r"batch sizes of at least 1 request, got \[\]"),
        (((0, 2), 4), "batch sizes of at least 1 request"),
        (((2,), 0), "width of at least 1 row, got 0"),
        (((2,), 4, (0,)), r"tiers of at least 1 row, got \[0\]"),
    ],
)
def test_tiers_that_are_none(arguments: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        VerifyTiers(*arguments)


def test_the_cheapest_tier_that_holds() -> None:
    sizes = VerifyTiers([1, 4], 8, [12, 20])
    assert sizes.holding(1, 3) == VerifyTier(8, 1)
    assert sizes.holding(2, 3) == VerifyTier(12, 4)
    assert sizes.holding(3, 13) == VerifyTier(20, 4)
    assert sizes.holding(4, 21) == VerifyTier(32, 4)
    assert sizes.holding(5, 5) is None
    assert sizes.holding(4, 33) is None
    assert [t.num_requests for t in VerifyTiers.up_to(6, 8).tiers] == [1, 2, 4, 6]
    assert [t.num_requests for t in VerifyTiers.up_to(4, 8).tiers] == [1, 2, 4]


def test_capturing_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="on a GPU to capture its rounds, got one on cpu"):
        Engine(tiny_model(), tiers=tiers(2, capture=True))
