"""Sampled chains at tiers are accepted with their rows read at once, in memory of their own."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from engine.drafters import DrawingDrafter
from engine.models import VOCAB, answer_from_table, random_prompt, tiny_model
from specfast import SamplingParams, ops
from specfast.drafters import Drafter, NgramDrafter
from specfast.engine import Engine, VerifyTiers

WIDTH = 5
PARAMS = [
    SamplingParams(max_new_tokens=20, temperature=0.8, seed=4),
    SamplingParams(max_new_tokens=9, temperature=1.1, seed=6),
    SamplingParams(max_new_tokens=15),
]


@pytest.fixture
def workspaces(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """On a CPU, too; counts the chains of rounds by rule, accepted with one or without."""

    def of_any_device(
        batch_size: int, num_nodes: int, device: torch.device, *, rule: str
    ) -> torch.Tensor:
        return torch.zeros(batch_size, num_nodes, 12, dtype=torch.int32, device=device)

    calls: Counter[str] = Counter()
    accept_chain = ops.accept_chain

    def counted(*arguments: Any, **options: Any) -> Any:
        if "verify_lens" in options:  # no prefill
            with_one = "without" if options.get("workspace") is None else "with"
            calls[f"{options.get('rule', 'greedy')} {with_one}"] += 1
        return accept_chain(*arguments, **options)

    monkeypatch.setattr(ops, "accept_workspace", of_any_device)
    monkeypatch.setattr(ops, "accept_chain", counted)
    return calls


def make_drafter(kind: str, device: str) -> Drafter | None:
    if kind == "plain":
        return None
    if kind == "drawn":
        generator = torch.Generator().manual_seed(3)
        return DrawingDrafter(torch.randn(VOCAB, VOCAB, generator=generator).to(device), (1, 1))
    return NgramDrafter(num_drafts=WIDTH - 1, max_ngram=1, tree=kind == "tree")


def run(device: str, kind: str, sizes: VerifyTiers | None) -> tuple[list[list[int]], Engine]:
    """Of rows that are equal bit for bit in every batch."""
    model = tiny_model(head_dim=64).to(device)
    drafter = make_drafter(kind, device)
    engine = Engine(model, drafter, verify_width=WIDTH, max_batch_size=2, tiers=sizes)
    generator = torch.Generator().manual_seed(1)
    answer_from_table(engine, 2.5 * torch.randn(13, VOCAB, generator=generator).to(device))
    ids = [engine.add_request(random_prompt(9, seed=i), p) for i, p in enumerate(PARAMS)]
    texts: dict[int, list[int]] = {number: [] for number in ids}
    while engine.has_unfinished:
        for output in engine.step():
            texts[output.request_id] += output.token_ids
    return list(texts.values()), engine


@pytest.mark.parametrize(
    ("kind", "rule"), [("ngram", "target_only"), ("drawn", "rejection"), ("plain", "target_only")]
)
@pytest.mark.parametrize("capture", [False, True], ids=["padded", "captured"])
def test_rows_at_once_decide_as_one_after_the_other(
    kind: str, rule: str, capture: bool, device: str, workspaces: Counter[str]
) -> None:
    if capture and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    walked, _ = run(device, kind, None)
    assert workspaces[f"{rule} without"] > 5
    assert workspaces[f"{rule} with"] == 0
    eager = workspaces[f"{rule} without"]
    at_once, _ = run(device, kind, VerifyTiers([1, 2], WIDTH, capture=capture))
    assert at_once == walked
    # Captured, they are called for the capture alone.
    assert workspaces[f"{rule} with"] >= (6 if capture else eager // 2)
    assert workspaces[f"{rule} without"] == eager


def test_trees_and_greedy_chains_have_no_use_for_them(workspaces: Counter[str]) -> None:
    run("cpu", "tree", VerifyTiers([2], WIDTH))
    assert not any(name.endswith("with") for name in workspaces)


def test_no_two_rounds_share_one(workspaces: Counter[str]) -> None:
    """One round is launched before the record of another one is read, perhaps at another tier."""
    _, engine = run("cpu", "ngram", VerifyTiers([1, 2], WIDTH, total_rows=[4, 7]))
    assert engine.graphs is not None
    places = [
        workspace.data_ptr()
        for rounds in engine.graphs._rounds.values()
        for captured in rounds.values()
        for workspace in captured.round._accept_workspaces.values()
        if workspace is not None
    ]
    assert len(places) >= 8
    assert len(set(places)) == len(places)
