"""Commands on a model with recurrent layers: the same as on any other, in chains."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.models import tiny_model
from engine.test_recurrent_refusal import MODELS
from specfast.cli import app
from tiny_tokenizer import make_tokenizer
from typer.testing import CliRunner, Result

PROMPT = "the key of the slot of the key of the slot"


def saved(architecture: str, path: Path) -> Path:
    tokenizer = make_tokenizer()
    options = MODELS[architecture] | {"num_hidden_layers": 2, "vocab_size": len(tokenizer)}
    tiny_model(architecture, **options).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved("qwen3_next", tmp_path_factory.mktemp("recurrent"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), "--device", "cpu"])


@pytest.mark.parametrize("options", [(), ("--graphs", "padded")], ids=["eager", "padded"])
def test_a_checked_run(model_path: Path, options: tuple[str, ...]) -> None:
    arguments = ("--model", model_path, "--max-new-tokens", 40, "--check", "--ignore-eos")
    result = run("generate", PROMPT, *arguments, *options)
    assert result.exit_code == 0, result.stderr
    assert "1 of 1 outputs are those of plain decoding" in result.stdout


@pytest.mark.parametrize("mode", ["auto", "padded"])
def test_a_profile(mode: str, model_path: Path, tmp_path: Path) -> None:
    sizes = ("--max-batch-size", 2, "--verify-width", 3, "--context-len", 20, "--repeats", 2)
    options = ("--model", model_path, "--graphs", mode)
    result = run("profile", tmp_path / "sps.json", *options, *sizes)
    assert result.exit_code == 0, result.stderr


def test_trees_are_refused(model_path: Path) -> None:
    result = run("generate", PROMPT, "--model", model_path, "--tree")
    assert result.exit_code == 2
    assert "--tree cannot be used" in result.stderr
    assert "has recurrent layers, which take chains" in result.stderr


def test_what_no_adapter_knows_is_refused(tmp_path: Path) -> None:
    result = run("generate", PROMPT, "--model", saved("xlstm", tmp_path))
    assert result.exit_code == 2
    assert "cannot load the model" in result.stderr
    assert "found none in xLSTMForCausalLM" in result.stderr
