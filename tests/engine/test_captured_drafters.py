"""Drafts of a replayed round are those of the same round kernel by kernel, and the host's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.families import FAMILIES, sizes_for
from engine.logged_drafters import Drafted, Logged, LoggedTrees, _Logged
from engine.models import random_prompt, tiny_model
from engine.test_device_drafters import loaded
from engine.test_trained_drafters import (
    CASES,
    NUM_TOKENS,
    PROMPTS,
    WIDTH,
    from_scratch,
    target,
    texts,
)
from specfast import SamplingParams, Status
from specfast.drafters import DraftTarget, TrainedDrafter, load_drafter
from specfast.drafters.eagle import EagleModel
from specfast.drafters.loader import DrafterModel
from specfast.engine import Engine, VerifyTiers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

GREEDY = [SamplingParams()] * 3
MIXED = [
    SamplingParams(),
    SamplingParams(temperature=0.9),
    SamplingParams(temperature=1.2, top_k=9, top_p=0.95),
]
TREE = (9, 3, 4)


def on(device: str) -> PreTrainedModel:
    config = target().config
    model = type(target())(config).eval()
    model.load_state_dict(target().state_dict())
    return model.to(device)


def decoded(
    model: PreTrainedModel,
    drafter: _Logged,
    params: Sequence[SamplingParams],
    *,
    capture: bool,
    prompts: Sequence[list[int]] = PROMPTS,
    num_tokens: int = NUM_TOKENS,
) -> tuple[list[list[int]], list[int], Drafted]:
    """Requests join one by one. Texts, numbers of accepted drafts, and what was drafted."""
    width = TREE[0] if drafter.drafts_trees else WIDTH
    tiers = VerifyTiers([4], width, capture=capture)
    engine = Engine(model, drafter, max_batch_size=4, page_size=4, verify_width=width, tiers=tiers)
    waiting = [
        (prompt, replace(one, seed=seed, max_new_tokens=num_tokens - 3 * seed))
        for seed, (prompt, one) in enumerate(zip(prompts, params, strict=True))
    ]
    emitted: dict[int, list[int]] = {}
    accepted = []
    while waiting or engine.has_unfinished:
        if waiting:
            emitted[engine.add_request(*waiting.pop(0))] = []
        for output in engine.step():
            assert output.status == Status.OK
            emitted[output.request_id] += output.token_ids
            accepted.append(output.num_accepted)
    assert engine.pool.num_free_pages == engine.pool.num_pages
    assert drafter.log is not None
    return list(emitted.values()), accepted, drafter.log.read()


def true_texts(device: str) -> Tensor:
    rows = [torch.tensor(text, dtype=torch.int32) for text in texts()]
    return pad_sequence(rows, batch_first=True).to(device)


def loaded_on(device: str, name: str, path: Path) -> tuple[PreTrainedModel, DrafterModel]:
    """The target and the drafter of a case."""
    loaded(name, path)  # writes it, and widens spans that are too narrow
    model = on(device)
    drafter = load_drafter(path, DraftTarget.of(model))
    if hasattr(drafter, "block_spec"):
        drafter.block_spec = loaded(name, path).block_spec  # type: ignore[union-attr]
    return model, drafter


@pytest.mark.parametrize("name", CASES)
def test_greedy_chains(name: str, tmp_path: Path, device: str) -> None:
    """Equal to the host's fresh start on the text, with any number of drafts accepted."""
    model, drafter = loaded_on(device, name, tmp_path)
    runs = []
    for capture in (False, True) if device == "cuda" else (False,):
        logged = Logged(drafter, texts=true_texts(device))
        runs.append(decoded(model, logged, GREEDY, capture=capture))
    emitted, accepted, drafted = runs[0]
    for prompt, tokens, text in zip(PROMPTS, emitted, texts(), strict=True):
        assert prompt + tokens == text[: len(prompt) + len(tokens)]
    assert set(accepted) >= {0, 1, 2, 3}
    host = TrainedDrafter(loaded(name, tmp_path))
    for (seed, prefix_len), (tokens, _) in drafted.items():
        assert tokens == from_scratch(host, texts()[seed][: prefix_len + 1], len(tokens))
    assert len(drafted) > 12
    assert runs[0] == runs[-1]


def replayed_equals_padded(
    model: PreTrainedModel, make: Any, params: Sequence[SamplingParams], **options: Any
) -> None:
    padded = decoded(model, make(), params, capture=False, **options)
    assert len(padded[2]) > 12
    captured = model.device.type == "cuda"
    assert decoded(model, make(), params, capture=captured, **options) == padded


@pytest.mark.parametrize("name", CASES)
def test_drawn_chains(name: str, tmp_path: Path, device: str) -> None:
    model, drafter = loaded_on(device, name, tmp_path)
    replayed_equals_padded(model, lambda: Logged(drafter), MIXED)


@pytest.mark.parametrize("name", ["safeailab", "llama2"])
@pytest.mark.parametrize("params", [GREEDY, MIXED], ids=["greedy", "mixed"])
@pytest.mark.parametrize("drawn", [False, True], ids=["dynamic", "drawn"])
def test_trees(
    name: str, params: list[SamplingParams], drawn: bool, tmp_path: Path, device: str
) -> None:
    model, drafter = loaded_on(device, name, tmp_path)
    assert isinstance(drafter, EagleModel)
    replayed_equals_padded(model, lambda: LoggedTrees(drafter, *TREE, drawn=drawn), params)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ["greedy", "mixed", "trees", "drawn trees"])
def test_heads_that_kernels_know(family: str, kind: str, tmp_path: Path, device: str) -> None:
    """In bf16, through tensor cores on a GPU."""
    of_trees = kind.endswith("trees")
    if of_trees and not family.startswith("eagle"):
        pytest.skip("chains alone")
    sizes = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1}
    model = tiny_model(head_dim=64, **sizes).to(device=device, dtype=torch.bfloat16)
    path = FAMILIES[family](tmp_path, sizes_for(128, model.config.vocab_size))
    drafter = load_drafter(path, DraftTarget.of(model), torch.bfloat16)
    prompts = [random_prompt(length, seed=length) for length in (5, 1, 150)]

    def make() -> _Logged:
        if of_trees:
            return LoggedTrees(drafter, *TREE, drawn=kind == "drawn trees")
        return Logged(drafter)

    replayed_equals_padded(
        model,
        make,
        GREEDY if kind == "greedy" else MIXED,
        prompts=prompts,
        num_tokens=24,
    )
