"""Loaded drafters on the device alone propose what they propose on the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.device_drafters import Journal, NotedHost, Watched
from engine.models import random_prompt
from engine.test_trained_drafters import (
    CASES,
    NUM_TOKENS,
    PROMPTS,
    VOCAB,
    WIDTH,
    from_scratch,
    target,
    texts,
)
from specfast import DraftPlaces, SamplingParams, Status
from specfast.drafters import (
    DeviceDrafter,
    DeviceTrainedDrafter,
    DraftSlots,
    DraftTarget,
    TapDrafter,
    TrainedDrafter,
    load_drafter,
)
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.draws import DraftSampler
from specfast.drafters.loader import DrafterModel
from specfast.drafters.paged_rows import PagedRows, PagedWindow
from specfast.engine import Engine, VerifyTiers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

# Both ways within fewer positions than a block has rows: not on the device.
NARROW = {"dflash-speculators": 3, "dflash2": 4, "dflash2-three-taps": 4}
WIDER = 7
GREEDY = SamplingParams()
DRAWN = SamplingParams(temperature=0.9)
FILTERED = SamplingParams(temperature=1.2, top_k=9, top_p=0.95)
MANY = [[token % VOCAB for token in random_prompt(n, seed=n)] for n in (5, 1, 17, 9)]


def loaded(name: str, path: Path) -> DrafterModel:
    model = load_drafter(CASES[name].write(path), DraftTarget.of(target()))
    if name in NARROW:
        widen(model)
    return model


def widen(model: DrafterModel) -> None:
    assert isinstance(model, DFlashModel)
    spans = tuple(
        replace(span, window=None if span.window is None else WIDER)
        for span in model.block_spec.spans
    )
    model.block_spec = replace(model.block_spec, spans=spans)


def decoded(
    drafter: Any,
    params: Sequence[SamplingParams],
    prompts: Sequence[list[int]] = MANY,
    *,
    padded: bool = True,
    width: int = WIDTH,
) -> list[list[int]]:
    """Requests join one by one, three at a time; each has a seed of its own. Texts, and no flag."""
    tiers = VerifyTiers([1, 2, 4], width, capture=False) if padded else None
    engine = Engine(
        target(), drafter, max_batch_size=3, page_size=4, verify_width=width, tiers=tiers
    )
    waiting = [
        (prompt, replace(one, seed=7 + i, max_new_tokens=14 - 2 * i))
        for i, (prompt, one) in enumerate(zip(prompts, params, strict=True))
    ]
    out: dict[int, list[int]] = {}
    steps = 0
    while waiting or engine.has_unfinished:
        if waiting and steps % 2 == 0:
            out[engine.add_request(*waiting.pop(0))] = []
        for output in engine.step():
            assert output.status == Status.OK
            out[output.request_id] += output.token_ids
        steps += 1
    assert engine.pool.num_free_pages == engine.pool.num_pages
    return list(out.values())


RULES = {
    "greedy": [GREEDY] * 4,
    "drawn": [DRAWN] * 4,
    "filtered": [DRAWN, FILTERED, DRAWN, FILTERED],
    "mixed": [GREEDY, FILTERED, DRAWN, DRAWN],
    "greedy, logprobs": [replace(GREEDY, logprobs="raw")] * 4,
    # Rounds with a penalty run eagerly, those before and after do not.
    "some eager": [DRAWN, replace(GREEDY, presence_penalty=0.3), GREEDY, DRAWN],
}


def on_host(model: DrafterModel, rules: str) -> tuple[Journal, list[list[int]]]:
    host = NotedHost(model)
    texts = decoded(host, RULES[rules], padded=False)
    return host.journal, texts


def compare(
    model: DrafterModel, rules: str, host: tuple[Journal, list[list[int]]] | None = None
) -> Journal:
    journal, texts = host or on_host(model, rules)
    device = Watched(model)
    assert decoded(device, RULES[rules]) == texts
    device.journal.assert_equals(journal)
    return device.journal


@pytest.mark.parametrize(
    ("name", "rules"),
    [(name, "mixed") for name in CASES]
    + [
        (name, rules)
        for name in ("safeailab", "dspark")
        for rules in ("greedy", "drawn", "some eager")
    ],
)
def test_proposes_what_the_host_proposes(name: str, rules: str, tmp_path: Path) -> None:
    journal = compare(loaded(name, tmp_path), rules)
    assert len(journal.rounds) > 20
    assert (rules != "greedy") == any(one.q is not None for one in journal.rounds.values())


def test_what_it_is(tmp_path: Path) -> None:
    drafter = DeviceTrainedDrafter(loaded("dflash", tmp_path))
    assert isinstance(drafter, DeviceDrafter)
    assert isinstance(drafter, TapDrafter)
    assert not isinstance(TrainedDrafter(drafter.model), DeviceDrafter)


Mutate = Callable[[pytest.MonkeyPatch], None]


def taps_of_another_row(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = DeviceTrainedDrafter.committed
    monkeypatch.setattr(
        DeviceTrainedDrafter,
        "committed",
        lambda self, slots, record, taps: committed(self, slots, record, taps.roll(1, 1)),
    )


def positions_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    drafted = PagedRows.drafted

    def mutant(*arguments: Any) -> PagedWindow:
        window = drafted(*arguments)
        # Of blocks and drafted pairs alone: relative positions are all that counts.
        return replace(window, positions=window.positions + 1)

    monkeypatch.setattr(PagedRows, "drafted", mutant)


def opposite_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    attend = PagedWindow.attend
    monkeypatch.setattr(
        PagedWindow,
        "attend",
        lambda self, layer, queries, span: attend(
            self, layer, queries, replace(span, causal=not span.causal)
        ),
    )


def one_row_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last committed row is not seen."""
    attend = PagedWindow.attend

    def mutant(self: PagedWindow, *arguments: Any) -> Tensor:
        return attend(replace(self, first=(self.first - 1).clamp(min=0)), *arguments)

    monkeypatch.setattr(PagedWindow, "attend", mutant)


def scratch_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    place = PagedRows.place

    def mutant(
        self: PagedRows, page_table_rows: Tensor, *others: Any, **options: Any
    ) -> DraftPlaces:
        places = place(self, page_table_rows, *others, **options)
        own, scratch = page_table_rows * self.scratch_pages, self.pages.pool_size
        pages = torch.where(places.pages < scratch, places.pages, places.pages - own[:, None])
        size = self.pages.page_size
        slots = torch.where(places.slots < scratch * size, places.slots, places.slots - own * size)
        return replace(places, pages=pages, slots=slots)

    monkeypatch.setattr(PagedRows, "place", mutant)


def coins_of_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.device_trained.DraftSampler",
        lambda rules, lens: DraftSampler(rules, lens + 1),
    )


def drafts_are_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.device_trained.rules_of",
        lambda slots: replace(slots.sampling, temperature=0 * slots.sampling.temperature),
    )


MUTANTS = [
    taps_of_another_row,
    positions_shifted,
    opposite_mask,
    one_row_less,
    scratch_of_another,
    coins_of_the_next_round,
    drafts_are_greedy,
]


@pytest.fixture(scope="module", params=["dflash", "safeailab"])
def of_host(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[DrafterModel, tuple[Journal, list[list[int]]]]:
    model = loaded(request.param, tmp_path_factory.mktemp("drafter"))
    return model, on_host(model, "mixed")


@pytest.mark.parametrize("mutate", MUTANTS)
def test_mutants_fail(
    mutate: Mutate,
    of_host: tuple[DrafterModel, tuple[Journal, list[list[int]]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, host = of_host
    if mutate is opposite_mask and not isinstance(model, DFlashModel):
        pytest.skip("one pair is drafted at a time")
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        compare(model, "mixed", host)


HOT_ARGMAX = SamplingParams(temperature=3.0, top_k=1)


def test_the_argmax_at_a_temperature(tmp_path: Path) -> None:
    """A request with ``top_k`` 1 is greedy: its batch has no proposal and no rule of ``top_k``."""
    model = loaded("dspark", tmp_path)
    host, device = NotedHost(model), Watched(model)
    expected = decoded(host, [HOT_ARGMAX] * 2, MANY[:2], padded=False)
    assert decoded(device, [HOT_ARGMAX] * 2, MANY[:2]) == expected
    device.journal.assert_equals(host.journal)


@pytest.mark.parametrize("name", ["llama2", "safeailab", "dflash-sliding", "dspark", "dflash2"])
def test_any_number_of_accepted_drafts(name: str, tmp_path: Path) -> None:
    """With true tokens before its drafts, which then are those of a fresh start on the text."""
    model = loaded(name, tmp_path)
    device, host = Watched(model), TrainedDrafter(model)
    text = pad_sequence([torch.tensor(t, dtype=torch.int32) for t in texts()], batch_first=True)

    def true_first(slots: DraftSlots) -> None:
        steps = torch.arange(1, slots.tokens.shape[1])
        at = slots.prefix_lens[:, None] + steps
        own = text[slots.sampling.seeds.clamp(0, 2)].gather(1, at.clamp(max=text.shape[1] - 1))
        num_known = (slots.page_table_rows + device.num_rounds) % slots.tokens.shape[1]
        known = steps <= num_known[:, None]
        slots.tokens[:, 1:] = torch.where(known, own, slots.tokens[:, 1:])

    device.change = true_first
    engine = Engine(
        target(), device, max_batch_size=4, page_size=4, verify_width=WIDTH,
        tiers=VerifyTiers([4], WIDTH, capture=False),
    )  # fmt: skip
    for seed, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, SamplingParams(seed=seed, max_new_tokens=NUM_TOKENS - 12))
    accepted, emitted = set(), {0: [], 1: [], 2: []}
    while engine.has_unfinished:
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
            accepted.add(output.num_accepted)
    for i, tokens in emitted.items():
        assert PROMPTS[i] + tokens == texts()[i][: len(PROMPTS[i]) + len(tokens)]
    assert accepted >= {0, 1, 2, 3}
    for (seed, prefix_len), drafted in device.journal.rounds.items():
        token_ids = texts()[seed][: prefix_len + 1]
        fresh = from_scratch(host, token_ids, len(drafted.tokens))
        assert drafted.tokens == fresh
    assert len(device.journal.rounds) > 12
