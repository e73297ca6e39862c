"""Trees of EAGLE on the device alone are those of the host, round after round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import torch
from drafters.small_vocabulary import Stream
from engine.device_drafters import Journal, NotedHostTrees, WatchedTrees
from engine.hybrid_model import HybridAdapter, hybrid_model
from engine.sps_tables import costly_rows
from engine.test_device_drafters import (
    GREEDY,
    MANY,
    RULES,
    decoded,
    loaded,
    scratch_of_another,
)
from engine.test_device_rounds import cancel_in_flight, engine_of, step_without_numbers
from engine.test_trained_drafters import MIXED, NUM_TOKENS, PROMPTS, target, texts
from specfast import SamplingParams, Status
from specfast.drafters import (
    DeviceDrafter,
    DeviceTrainedDrafter,
    DeviceTreeDrafter,
    DraftSlots,
    PlainDecoding,
    TapRecorder,
    TreeDrafter,
)
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle_tree import Frontier
from specfast.drafters.paged_pairs import PagedChains
from specfast.drafters.paged_rows import PagedWindow
from specfast.engine import Engine, VerifyTiers
from specfast.engine.target import Target
from specfast.planner import PlannerMode, Planning
from torch import Tensor

# Nine expanded nodes, over pages of four positions.
NUM_NODES, TOPK, DEPTH = SIZE = (9, 3, 4)
SHARPNESS = 8
TIERS = VerifyTiers([4], NUM_NODES, (4, 8, 16, 24), capture=False)
Trees = tuple[Journal, list[list[int]]]


def eagle(name: str, path: Path) -> EagleModel:
    model = loaded(name, path)
    assert isinstance(model, EagleModel)
    # Sure enough of itself that its trees are deep; the head may be the target's.
    model.weights._tensors["lm_head.weight"] = SHARPNESS * model.weights["lm_head.weight"]
    return model


def on_host(model: EagleModel, rules: str, *, drawn: bool = False) -> Trees:
    host = NotedHostTrees(model, *SIZE, drawn=drawn)
    texts = decoded(host, RULES[rules], padded=False, width=NUM_NODES)
    return host.journal, texts


def compare(
    model: EagleModel, rules: str, host: Trees | None = None, *, drawn: bool = False
) -> Journal:
    journal, texts = host or on_host(model, rules, drawn=drawn)
    device = WatchedTrees(model, *SIZE, drawn=drawn)
    assert decoded(device, RULES[rules], width=NUM_NODES) == texts
    device.journal.assert_equals(journal)
    return device.journal


@pytest.mark.parametrize(
    ("name", "rules"),
    [(name, "mixed") for name in ("safeailab", "eagle-3.1", "speculators", "qwen2")]
    + [("safeailab", "greedy"), ("llama2", "drawn")],
)
def test_proposes_what_the_host_proposes(name: str, rules: str, tmp_path: Path) -> None:
    journal = compare(eagle(name, tmp_path), rules)
    assert len(journal.rounds) > 20
    shapes = {tuple(one.parents or ()) for one in journal.rounds.values()}
    assert len(shapes) > 5
    assert any(len(set(shape)) < len(shape) for shape in shapes)
    depths = [len(path_to(list(shape), len(shape))) for shape in shapes]
    assert depths.count(3) + depths.count(4) > 3


def path_to(parents: list[int], node: int) -> list[int]:
    """Nodes below the anchor down to ``node``; ``parents`` are those of nodes 1, 2, ..."""
    path = [node]
    while parents[path[0] - 1] > 0:
        path.insert(0, parents[path[0] - 1])
    return path


def siblings_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    level = PagedWindow.level

    def mutant(self: PagedWindow, ancestors: Tensor) -> PagedWindow:
        num_old = ancestors.shape[2] - ancestors.shape[1]
        return level(self, torch.ones_like(ancestors).tril(num_old))

    monkeypatch.setattr(PagedWindow, "level", mutant)


def positions_of_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a level are no chain: their angles are those of their depth."""
    descend = Frontier.descend

    def mutant(self: Frontier, tokens: Tensor, *related: Tensor) -> None:
        behind, count = self._behind, tokens.shape[1]

        def in_order(level: int, ancestors: Tensor) -> object:
            places, pairs = behind(level, ancestors)
            positions = places.positions + level * (count - 1) + torch.arange(count)
            return self.model.places(positions), pairs

        self._behind = in_order  # type: ignore[assignment]
        descend(self, tokens, *related)
        self._behind = behind

    monkeypatch.setattr(Frontier, "descend", mutant)


def levels_over_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    level = PagedWindow.level

    def mutant(self: PagedWindow, ancestors: Tensor) -> PagedWindow:
        window = level(self, ancestors)
        return replace(window, slots=self.slots[:, : ancestors.shape[1]])

    monkeypatch.setattr(PagedWindow, "level", mutant)


def hidden_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    last_hidden = PagedChains._last_hidden
    monkeypatch.setattr(
        PagedChains, "_last_hidden", lambda self, requests: last_hidden(self, requests * 0)
    )


def parents_of_the_round_before(monkeypatch: pytest.MonkeyPatch) -> None:
    draft = DeviceTreeDrafter.draft

    def mutant(self: DeviceTreeDrafter, slots: DraftSlots) -> object:
        assert slots.parents is not None
        before = slots.parents.clone()
        drafts = draft(self, slots)
        slots.parents.copy_(before)
        return drafts

    monkeypatch.setattr(DeviceTreeDrafter, "draft", mutant)


MUTANTS = [
    siblings_seen,
    positions_of_pages,
    levels_over_each_other,
    scratch_of_another,
    hidden_of_another,
    parents_of_the_round_before,
]


@pytest.fixture(scope="module")
def of_host(tmp_path_factory: pytest.TempPathFactory) -> tuple[EagleModel, Trees]:
    model = eagle("safeailab", tmp_path_factory.mktemp("drafter"))
    return model, on_host(model, "mixed")


@pytest.mark.parametrize("mutate", MUTANTS)
def test_mutants_fail(
    mutate: Callable[[pytest.MonkeyPatch], None],
    of_host: tuple[EagleModel, Trees],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, host = of_host
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        compare(model, "mixed", host)


@lru_cache
def taps_of(i: int, layers: tuple[int, ...] | None) -> Tensor:
    with TapRecorder(target(), layers) as recorder:
        target()(torch.tensor([texts()[i]]), use_cache=False)
    return recorder.taps()[0]


def follows_the_text(device: WatchedTrees) -> set[int]:
    """With true tokens on a path of its trees, which are those of a fresh start on the text.

    The numbers of drafts that were accepted.
    """
    table = torch.tensor([text[-NUM_TOKENS:] for text in texts()])
    prompt_lens = torch.tensor([len(prompt) for prompt in PROMPTS])

    def true_path(slots: DraftSlots) -> None:
        assert slots.parents is not None
        lens = slots.verify_lens.tolist()
        for b in ((slots.verify_lens > 1) & (slots.tokens[:, 0] >= 0)).nonzero().flatten().tolist():
            i = int(slots.sampling.seeds[b])
            parents = slots.parents[b, 1:].tolist()
            paths = [path_to(parents, node) for node in range(1, lens[b])]
            path = max(paths, key=len)[: device.num_rounds % (DEPTH + 1)]
            first = int(slots.prefix_lens[b] + 1 - prompt_lens[i])
            slots.tokens[b, path] = table[i, first : first + len(path)].int()

    device.change = true_path
    engine = engine_of(device, tiers=VerifyTiers([4], NUM_NODES, capture=False), verify_width=9)
    for seed, prompt in enumerate(PROMPTS):
        engine.add_request(prompt, SamplingParams(seed=seed, max_new_tokens=NUM_TOKENS))
    accepted: set[int] = set()
    emitted: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while engine.has_unfinished:
        for output in engine.step():
            assert output.status == Status.OK
            emitted[output.request_id] += output.token_ids
            accepted.add(output.num_accepted)
    assert [PROMPTS[i] + tokens for i, tokens in emitted.items()] == texts()
    host = TreeDrafter(device.model, *SIZE)  # type: ignore[arg-type]
    for number, ((i, prefix_len), drafted) in enumerate(device.journal.rounds.items()):
        token_ids = texts()[i][: prefix_len + 1]
        left = len(texts()[i]) - len(token_ids)
        request = Stream(number, token_ids, GREEDY, seed=i, tokens_left=left)
        host.observe([request], [taps_of(i, device.tap_layers)[:prefix_len]])
        fresh = host.propose([request], NUM_NODES)
        assert fresh.parents is not None
        (length,) = fresh.verify_lens
        assert drafted.tokens == fresh.tokens[0, 1:length].tolist()
        assert drafted.parents == fresh.parents[0, 1:length].tolist()
    assert len(device.journal.rounds) > 12
    return accepted


@pytest.mark.parametrize("name", ["llama2", "safeailab"])
def test_any_number_of_accepted_drafts(name: str, tmp_path: Path) -> None:
    assert follows_the_text(WatchedTrees(eagle(name, tmp_path), *SIZE)) >= {0, 1, 2, 3}


def test_rows_of_the_window_are_not_those_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = WatchedTrees(eagle("safeailab", tmp_path), *SIZE)
    committed = DeviceTreeDrafter.committed

    def mutant(self: DeviceTreeDrafter, slots: DraftSlots, record: object, taps: Tensor) -> None:
        committed(self, slots, record, taps.roll(1, 1))  # type: ignore[arg-type]

    monkeypatch.setattr(DeviceTreeDrafter, "committed", mutant)
    with pytest.raises(AssertionError):
        follows_the_text(device)


def test_cancelled_in_flight(tmp_path: Path) -> None:
    cancel_in_flight(WatchedTrees(eagle("safeailab", tmp_path), *SIZE), NUM_NODES)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize(("num_nodes", "width"), [(2, 9), (9, 2), (5, 9), (9, 5), (40, 9)])
def test_fewer_nodes(num_nodes: int, width: int, drawn: bool, tmp_path: Path) -> None:
    drafter = DeviceTreeDrafter(eagle("safeailab", tmp_path), num_nodes, 2, 3, drawn=drawn)
    tiers = VerifyTiers([1], width, capture=False)
    params = SamplingParams(max_new_tokens=12, temperature=0.8, seed=2)
    engine = engine_of(drafter, tiers=tiers, verify_width=width)
    (generation,) = engine.generate(PROMPTS[:1], params)
    assert len(generation.token_ids) == 12
    assert max(r.num_proposed for r in generation.rounds) == min(num_nodes, width) - 1


@pytest.mark.parametrize("mode", ["compact", "cap-accept"])
def test_planned_by_its_survivals(mode: PlannerMode, tmp_path: Path) -> None:
    """Trees are cut to what pays, which no random drafter's nodes do."""
    table = costly_rows(Target(target()), TIERS)

    def looked_at(planning: Planning | None) -> int:
        drafter = WatchedTrees(eagle("safeailab", tmp_path), *SIZE)
        engine = engine_of(drafter, tiers=TIERS, verify_width=NUM_NODES, planning=planning)
        generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=16))
        for generation, prompt, text in zip(generations, PROMPTS, texts(), strict=True):
            assert prompt + generation.token_ids == text[: len(prompt) + 16]
            assert all(r.status == Status.OK for r in generation.rounds)
        return sum(r.num_proposed for g in generations for r in g.rounds[1:])

    assert looked_at(Planning(mode, table)) < 0.6 * looked_at(None)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("params", [MIXED[:1] * 3, MIXED])
def test_no_number_no_harm(params: list[SamplingParams], drawn: bool, tmp_path: Path) -> None:
    model = eagle("safeailab", tmp_path)
    model.weights["fc.weight"].fill_(torch.nan)
    tiers = VerifyTiers([1, 2, 4], NUM_NODES, capture=False)
    drafter = DeviceTreeDrafter(model, *SIZE, drawn=drawn)
    engine = engine_of(drafter, tiers=tiers, verify_width=NUM_NODES)
    places = [engine.add_request(*one) for one in zip(PROMPTS, params, strict=True)]
    emitted: dict[int, list[int]] = {place: [] for place in places}
    flags: dict[int, list[Status]] = {place: [] for place in places}
    while engine.has_unfinished:
        for output in engine.step():
            emitted[output.request_id] += output.token_ids
            flags[output.request_id].append(output.status)
            assert output.num_proposed == 0
    for i, place in enumerate(places):
        # Where one token is left, there is nothing to draft.
        assert set(flags[place][1:-1]) == {Status.NAN_DRAFTS}
        if params[i].is_greedy:
            assert PROMPTS[i] + emitted[place] == texts()[i]


@pytest.mark.parametrize("name", ["llama2", "safeailab"])
@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_step_without_numbers(name: str, is_sampled: bool, drawn: bool, tmp_path: Path) -> None:
    # As wide as the rounds, for which its shape is made beforehand.
    drafts = step_without_numbers(
        name,
        eagle(name, tmp_path),
        is_sampled,
        lambda model: DeviceTreeDrafter(model, 8, TOPK, DEPTH, drawn=drawn),
    )
    assert (drafts.proposal is not None) == (drawn and is_sampled)


def test_options(tmp_path: Path) -> None:
    model = eagle("safeailab", tmp_path)
    with pytest.raises(ValueError, match="num_nodes >= 2, a whole number, got 1"):
        DeviceTreeDrafter(model, 1)
    with pytest.raises(
        ValueError, match=r"at most 128 expanded nodes, topk \(depth - 1\) .* got 136"
    ):
        DeviceTreeDrafter(model, 60, 8, 18)
    with pytest.raises(ValueError, match=r"those of a drawn tree with children, got 14\d"):
        DeviceTreeDrafter(model, 250, 3, 12, drawn=True)
    DeviceTreeDrafter(model, 250, 3, 12)
    with pytest.raises(ValueError, match="a model of EAGLE, got DFlashModel"):
        DeviceTreeDrafter(loaded("dflash", tmp_path / "dflash"))  # type: ignore[arg-type]
    drafters = (DeviceTreeDrafter(model), DeviceTrainedDrafter(model), PlainDecoding())
    assert [isinstance(drafter, DeviceDrafter) for drafter in drafters] == [True] * 3
    assert [drafter.drafts_trees for drafter in drafters] == [True, False, False]


def test_trees_for_a_recurrent_target_are_refused(tmp_path: Path) -> None:
    drafter = DeviceTreeDrafter(eagle("safeailab", tmp_path), *SIZE)
    with pytest.raises(ValueError, match="expected chains for a target with recurrent layers, got"):
        Engine(
            hybrid_model(),
            drafter,
            verify_width=NUM_NODES,
            tiers=VerifyTiers([1], NUM_NODES, capture=False),
            state_adapter=HybridAdapter(),
        )


def test_rounds_that_run_eagerly(tmp_path: Path) -> None:
    """With penalties, or without tiers: the same step, and its results are read."""
    model = eagle("safeailab", tmp_path)
    rules = [SamplingParams(repetition_penalty=1.3)] * 2
    host, device = NotedHostTrees(model, *SIZE), WatchedTrees(model, *SIZE)
    expected = decoded(host, rules, MANY[:2], padded=False, width=NUM_NODES)
    for padded in (True, False):
        assert decoded(device, rules, MANY[:2], padded=padded, width=NUM_NODES) == expected
    device.journal.assert_equals(host.journal)
