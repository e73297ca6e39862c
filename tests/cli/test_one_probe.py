"""A command probes its target once, however many engines it makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from specfast.cli import app
from specfast.engine import Engine
from specfast.engine import target as target_module
from specfast.engine.target import Target
from specfast.engine.target_probe import CausalProbe
from transformers import PreTrainedModel
from typer.testing import CliRunner


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[PreTrainedModel]:
    probed: list[PreTrainedModel] = []

    class Counted(CausalProbe):
        def __init__(self, model: PreTrainedModel) -> None:
            super().__init__(model)
            probed.append(model)

    monkeypatch.setattr(target_module, "CausalProbe", Counted)
    return probed


@pytest.mark.parametrize("command", ["generate", "profile"])
def test_of_a_command(
    command: str, model_path: Path, tmp_path: Path, probes: list[PreTrainedModel]
) -> None:
    arguments = ["a", "--max-new-tokens", "4", "--check"]
    if command == "profile":
        arguments = [str(tmp_path / "sps.json"), "--max-batch-size", "2", "--verify-width", "2"]
        arguments += ["--repeats", "1", "--context-len", "9"]
    arguments += ["--model", str(model_path), "--device", "cpu"]
    result = CliRunner().invoke(app, [command, *arguments])
    assert result.exit_code == 0, result.output
    assert len(probes) == 1


def test_engines_share_a_target(probes: list[PreTrainedModel]) -> None:
    from engine.models import plain_greedy, tiny_model
    from specfast import SamplingParams
    from specfast.engine import CacheStates

    target = Target(tiny_model())
    prompt, params = [3, 1, 4], SamplingParams(max_new_tokens=9)
    for _ in range(2):
        (generation,) = Engine(target).generate([prompt], params)
        assert generation.token_ids == plain_greedy(target.model, prompt, 9)
    assert len(probes) == 1
    with pytest.raises(ValueError, match="expected state_adapter with a model, got a Target"):
        Engine(target, state_adapter=CacheStates())
