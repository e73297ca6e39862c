"""The examples of docs/engine.md run as they stand, and mean what they say."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from engine.models import plain_greedy, tiny_model
from engine.sps_tables import costly_rows
from engine.test_recurrent_target import NoisyChains
from specfast import SamplingParams
from specfast.drafters import NgramDrafter
from specfast.engine import Engine, VerifyTier, VerifyTiers
from specfast.engine.target import Target
from specfast.engine.verify_graphs import VerifyGraphs
from specfast.planner import SpsSetting, SpsTable, TierRates
from specfast.records import VerifyWindow
from torch import Tensor, nn

PAGE = (Path(__file__).parents[2] / "docs/engine.md").read_text()
VOCAB = 50


def examples(section: str) -> list[str]:
    (text,) = re.findall(rf"^##? {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_an_engine_with_tiers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(head_dim=64)
    names: dict[str, Any] = {"model": model, "drafter": NgramDrafter()}
    exec(examples("Rounds at tiers")[0], names)
    engine: Engine = names["engine"]
    (captured,) = examples("One replay")
    exec(captured, names)
    monkeypatch.setattr(VerifyGraphs, "capture", None)  # it has been done
    prompt = [1, 2, 3, 1, 2, 3, 1, 2]
    (generation,) = engine.generate([prompt], SamplingParams(max_new_tokens=12))
    assert generation.token_ids == plain_greedy(model, prompt, 12)


def test_which_tiers_there_are() -> None:
    listed = re.findall(r"^(VerifyTiers\(.*?\]?\))  +(\D*\d.*)$", PAGE, re.MULTILINE)
    assert len(listed) == 2
    for call, sizes in listed:
        pairs = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) . (\d+)", sizes)]
        tiers: VerifyTiers = eval(call)
        assert [(tier.num_requests, tier.num_rows) for tier in tiers.tiers] == pairs
    ((requests, rows, *tier),) = re.findall(
        r"round of (\d+) requests\sand (\d+) rows at (\d+) . (\d+)", PAGE
    )
    slots, num_rows = map(int, tier)
    assert tiers.holding(int(requests), int(rows)) == VerifyTier(num_rows, slots)


def test_why_a_round_is_eager(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tiny_model(head_dim=64), tiers=VerifyTiers([1], 1))
    (logger,) = re.findall(r"the logger `([\w.]+)`", PAGE)
    with caplog.at_level(logging.INFO, logger):
        engine.generate([[1, 2]], SamplingParams(max_new_tokens=4, presence_penalty=0.5))
    assert [record.message for record in caplog.records] == [
        "a round runs eagerly: penalties and biases change from round to round"
    ]


def test_planned_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = tiny_model(head_dim=64)
    tiers = VerifyTiers([8], 8, [16, 24, 32, 48])
    Path("sps.json").write_text(json.dumps(costly_rows(Target(model), tiers).as_json()))
    names: dict[str, Any] = {"model": model, "drafter": None, "Engine": Engine}
    exec(examples("Planned rounds")[0], {**names, "VerifyTiers": VerifyTiers})
    changed = re.sub(r"total_rows=\[.*?\]", "total_rows=[16]", examples("Planned rounds")[0])
    with pytest.raises(ValueError, match=re.escape("with tiers (16, 64), got (16, 24, 32, 48, 6")):
        exec(changed, {**names, "VerifyTiers": VerifyTiers})


def test_the_planner_in_another_engine(tmp_path: Path) -> None:
    """A target that counts; one request drafts right and knows it, the other is not so sure."""
    setting = SpsSetting("a card", "a model", "a backend", 2, (2, 4, 6, 8))
    rates = TierRates(setting.tiers, (1 / 12, 1 / 14, 1 / 16, 1 / 18))
    (tmp_path / "sps.json").write_text(json.dumps(SpsTable(setting, "", rates).as_json()))
    confidence = torch.tensor([[9.0, 9.0, 9.0], [0.4, 0.4, 0.4]])

    def draft(batch: SimpleNamespace) -> tuple[Tensor, Tensor]:
        steps = torch.tensor([[0, 1, 2, 3], [0, 7, 7, 7]])
        return ((batch.anchors[:, None] + steps) % VOCAB).int(), confidence

    rows = []

    def target_forward(window: VerifyWindow) -> Tensor:
        rows.append(len(window.input_ids))
        following = (window.input_ids.long() + 1) % VOCAB
        return torch.nn.functional.one_hot(following, VOCAB).float()

    names: dict[str, Any] = {
        "path": tmp_path / "sps.json",
        "setting": setting,
        "pool_size": 4,
        "num_drafts": 3,
        "device": torch.device("cpu"),
        "page_size": 64,
        "draft": draft,
        "target_forward": target_forward,
    }
    (example,) = examples("In an engine of your own")
    exec(example, names)
    batch = SimpleNamespace(
        places=[2, 0],
        places_on_device=torch.tensor([2, 0]),
        generations=[1, 2],
        max_lens=[4, 4],
        max_lens_on_device=torch.tensor([4, 4], dtype=torch.int32),
        anchors=torch.tensor([5, 20]),
        prefix_lens=torch.tensor([3, 3], dtype=torch.int32),
        pages=torch.tensor([[0], [1]], dtype=torch.int32),
    )
    emitted = []
    for _ in range(4):
        record = names["verify_round"](batch)
        emitted.append(record.commit_lens.tolist())
        batch.anchors = record.next_anchor.long()
        batch.prefix_lens = record.new_seq_lens
    assert emitted == [[4, 1]] * 4
    # Nothing is known for two rounds; then 3 drafts of the first request are worth it.
    assert rows == [8, 8, 6, 6]
    assert batch.anchors.tolist() == [21, 24]


class Mixer(nn.Module):
    """Remembers all rows, later ones best."""

    def __init__(self, size: int, state_size: int) -> None:
        super().__init__()
        self.into = nn.Linear(size, state_size, bias=False)
        self.out = nn.Linear(state_size, size, bias=False)
        self.decay = nn.Parameter(torch.rand(state_size))
        for layer in (self.into, self.out):
            nn.init.normal_(layer.weight)

    def forward(self, hidden_states: Tensor) -> Tensor:
        rows, states = self.into(hidden_states), []
        state = torch.zeros_like(rows[:, 0])
        for i in range(rows.shape[1]):
            state = self.decay * state + rows[:, i]
            states.append(state)
        return self.out(torch.stack(states, dim=1))


class MixedMlp(nn.Module):
    def __init__(self, mlp: nn.Module, mixer: Mixer) -> None:
        super().__init__()
        self.mlp, self.mixer = mlp, mixer

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.mlp(hidden_states) + self.mixer(hidden_states)


@pytest.mark.parametrize("tiers", [None, VerifyTiers([1, 2], 4, capture=False)])
def test_recurrent_targets(tiers: VerifyTiers | None) -> None:
    model = tiny_model(head_dim=64)
    torch.manual_seed(3)
    for layer in model.model.layers:
        layer.mlp = MixedMlp(layer.mlp, Mixer(model.config.hidden_size, 5))
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [7, 8, 9, 7], [5]]

    def plain(prompt: list[int]) -> list[int]:
        """Its layers have no cache for their states: whole texts."""
        text = list(prompt)
        for _ in range(16):
            logits = model(torch.tensor([text]), use_cache=False).logits
            text.append(int(logits[0, -1].argmax()))
        return text[len(prompt) :]

    with torch.no_grad():
        expected = [plain(prompt) for prompt in prompts]
    texts = [prompt + text for prompt, text in zip(prompts, expected, strict=True)]
    example = examples("Recurrent targets")[0].replace(
        "state_adapter", "max_batch_size=2, verify_width=4, tiers=tiers, state_adapter"
    )
    names: dict[str, Any] = {"model": model, "MyMixer": Mixer, "tiers": tiers}
    exec(example, {**names, "drafter": None})
    exec(example, names := {**names, "drafter": NoisyChains(texts, seed=1)})
    generations = names["engine"].generate(prompts, SamplingParams(max_new_tokens=16))
    assert [generation.token_ids for generation in generations] == expected
    rounds = [r for generation in generations for r in generation.rounds]
    assert any(0 < r.num_accepted < r.num_proposed for r in rounds)
