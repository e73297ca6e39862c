"""Drawn trees of EAGLE on the device alone are those of the host, round after round."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from engine.device_drafters import NotedHostTrees, WatchedTrees
from engine.sps_tables import costly_rows
from engine.test_device_drafters import RULES, decoded
from engine.test_device_rounds import assert_capturable, engine_of
from engine.test_device_trees import (
    DEPTH,
    MUTANTS,
    NUM_NODES,
    SIZE,
    TIERS,
    TOPK,
    Trees,
    compare,
    eagle,
    on_host,
)
from engine.test_trained_drafters import CASES, PROMPTS, target
from specfast import Proposal, SamplingParams, Status
from specfast.drafters import DeviceTreeDrafter, DraftTarget, load_drafter
from specfast.drafters.eagle import EagleModel
from specfast.drafters.tree_sampler import TreeSampler
from specfast.drafters.tree_shape import TreeShape
from specfast.engine import Engine, VerifyTiers
from specfast.engine.target import Target
from specfast.planner import PlannerMode, Planning
from torch import Tensor

SHAPE = TreeShape.likely(*SIZE)


@pytest.mark.parametrize(
    ("name", "rules"),
    [(name, "drawn") for name in ("safeailab", "eagle-3.1", "speculators", "llama2", "qwen2")]
    + [("safeailab", "filtered")],
)
def test_draws_what_the_host_draws(name: str, rules: str, tmp_path: Path) -> None:
    journal = compare(eagle(name, tmp_path), rules, drawn=True)
    drawn = [one for one in journal.rounds.values() if one.q is not None]
    assert len(drawn) > 20
    assert {tuple(one.parents or ()) for one in drawn} <= {
        SHAPE.parents[1:length] for length in range(NUM_NODES + 1)
    }
    assert max(len(one.tokens) for one in drawn) == NUM_NODES - 1
    assert any(len(set(one.tokens)) > NUM_NODES // 2 for one in drawn)


@pytest.mark.parametrize("rules", ["mixed", "some eager"])
def test_texts_of_drawn_trees_beside_others(rules: str, tmp_path: Path) -> None:
    """Which trees a greedy request gets depends on who else is in flight, its text does not."""
    model = eagle("safeailab", tmp_path)
    host, device = (kind(model, *SIZE, drawn=True) for kind in (NotedHostTrees, WatchedTrees))
    expected = decoded(host, RULES[rules], padded=False, width=NUM_NODES)
    assert decoded(device, RULES[rules], width=NUM_NODES) == expected
    assert any(one.q is not None for one in device.journal.rounds.values())


def test_nothing_is_drawn_for_logprobs(tmp_path: Path) -> None:
    journal = compare(eagle("safeailab", tmp_path), "greedy, logprobs", drawn=True)
    assert len(journal.rounds) > 20
    assert all(one.q is None and one.confidence is not None for one in journal.rounds.values())


def coins_of_the_next_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.device_tree.TreeSampler",
        lambda rules, lens: TreeSampler(rules, lens + 1),
    )


def q_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    proposal = TreeSampler.proposal

    def mutant(self: TreeSampler, row_of_node: Tensor, d2t: Tensor | None) -> Proposal:
        return proposal(self, row_of_node.roll(1, 0), d2t)

    monkeypatch.setattr(TreeSampler, "proposal", mutant)


def drawn_greedily(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "specfast.drafters.device_tree.rules_of",
        lambda slots: replace(slots.sampling, temperature=0 * slots.sampling.temperature),
    )


@pytest.fixture(scope="module")
def of_host(tmp_path_factory: pytest.TempPathFactory) -> tuple[EagleModel, Trees]:
    model = eagle("safeailab", tmp_path_factory.mktemp("drafter"))
    return model, on_host(model, "drawn", drawn=True)


@pytest.mark.parametrize(
    "mutate", [*MUTANTS, coins_of_the_next_round, q_of_another, drawn_greedily]
)
def test_mutants_fail(
    mutate: Callable[[pytest.MonkeyPatch], None],
    of_host: tuple[EagleModel, Trees],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, host = of_host
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        compare(model, "drawn", host, drawn=True)


@pytest.mark.parametrize("mode", ["compact", "cap-accept"])
def test_drawn_trees_are_not_planned(mode: PlannerMode, tmp_path: Path) -> None:
    """What was drawn must not decide what is verified of it; greedy rounds before are planned."""
    table = costly_rows(Target(target()), TIERS)

    def decode(planning: Planning | None) -> tuple[list[list[int]], list[list[int]]]:
        drafter = WatchedTrees(eagle("safeailab", tmp_path), *SIZE, drawn=True)
        engine = engine_of(drafter, tiers=TIERS, verify_width=NUM_NODES, planning=planning)
        engine.generate(PROMPTS, SamplingParams(max_new_tokens=9))
        rules = [SamplingParams(temperature=0.8, max_new_tokens=16, seed=i) for i in range(3)]
        generations = [engine.add_request(*one) for one in zip(PROMPTS, rules, strict=True)]
        texts: dict[int, list[int]] = {place: [] for place in generations}
        counts: dict[int, list[int]] = {place: [] for place in generations}
        while engine.has_unfinished:
            for output in engine.step():
                assert output.status == Status.OK
                texts[output.request_id] += output.token_ids
                counts[output.request_id].append(output.num_proposed)
        return list(texts.values()), list(counts.values())

    assert decode(Planning(mode, table)) == decode(None)


def test_a_whole_round_can_be_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = DeviceTreeDrafter(eagle("safeailab", tmp_path), *SIZE, drawn=True)
    assert_capturable(engine_of(drafter, tiers=TIERS, verify_width=NUM_NODES), monkeypatch)


# With more nodes than rows, their shape is made by the runs before the capture.
@pytest.mark.parametrize("num_nodes", [NUM_NODES, NUM_NODES + 4])
@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_captured_as_padded(
    num_nodes: int, drawn: bool, temperature: float, tmp_path: Path, device: str
) -> None:
    if device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    target_model = deepcopy(target()).to(device)
    path = CASES["safeailab"].write(tmp_path)
    model = load_drafter(path, DraftTarget.of(target_model))
    assert isinstance(model, EagleModel)
    params = SamplingParams(temperature=temperature, seed=3, max_new_tokens=12)

    def run(capture: bool) -> list[list[int]]:
        engine = Engine(
            target_model,
            DeviceTreeDrafter(model, num_nodes, TOPK, DEPTH, drawn=drawn),
            max_batch_size=4,
            page_size=4,
            verify_width=NUM_NODES,
            tiers=VerifyTiers([1, 2, 4], NUM_NODES, capture=capture),
        )
        return [g.token_ids for g in engine.generate(PROMPTS, params)]

    assert run(True) == run(False)
