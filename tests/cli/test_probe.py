"""``specfast inspect --probe``: of two readings, the one that the file meant is accepted more."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from drafters.block_files import dspark_cases
from drafters.by_formula import Sizes
from drafters.checkpoints import (
    NUM_TARGET_LAYERS,
    layer_config,
    layer_shapes,
    make_target,
    write_checkpoint,
)
from drafters.eagle_files import EAGLE3_NORMS, eagle3_cases
from specfast.cli import app
from specfast.drafters import load_drafter, load_readings
from tiny_tokenizer import make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner, Result

PROMPTS = ("the key of the slot", "index")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments), "--device", "cpu"])


def following(token: int, vocab: int) -> int:
    """Into one circle of all tokens but 0, which would end a text."""
    return token % (vocab - 1) + 1


@pytest.fixture(scope="module")
def target_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says what follows its last token, and writes that token into other channels after layer 1."""
    path, tokenizer = tmp_path_factory.mktemp("target"), make_tokenizer()
    vocab = len(tokenizer)
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=2 * vocab,
        intermediate_size=vocab,
        num_hidden_layers=3,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=0,
    )
    model = LlamaForCausalLM(config)
    same = torch.eye(vocab)
    none = torch.zeros(vocab, vocab)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        mlp = model.model.layers[1].mlp
        mlp.gate_proj.weight.copy_(torch.cat([same, none], dim=1))
        mlp.up_proj.weight.copy_(torch.cat([same, none], dim=1))
        mlp.down_proj.weight.copy_(torch.cat([none, 0.01 * same]))
        model.model.embed_tokens.weight.copy_(torch.cat([same, none], dim=1))
        model.lm_head.weight.zero_()
        for token in range(vocab):
            model.lm_head.weight[following(token, vocab), token] = 1
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def drafter(path: Path, target_path: Path, field: str) -> Path:
    """EAGLE-3 that finds the token of its feature in those channels, and drafts what is two on.

    ``field`` names layer 1, and means after it.
    """
    vocab = json.loads((target_path / "config.json").read_text())["vocab_size"]
    s = Sizes(2 * vocab, 8, 1, 1, 8, vocab, vocab)
    shapes = layer_shapes(s, "layers.0.", EAGLE3_NORMS, 2 * s.hidden, qk_norm=False)
    shapes |= {"norm.weight": (s.hidden,)}
    tensors = {name: np.full(shape, 1.0 * ("norm" in name)) for name, shape in shapes.items()}
    tensors["fc.weight"] = np.eye(s.hidden, k=vocab)
    tensors["lm_head.weight"] = np.zeros((vocab, s.hidden))
    for token in range(vocab):
        tensors["lm_head.weight"][following(following(token, vocab), vocab), token] = 1
    config = {
        **layer_config(s),
        "architectures": ["LlamaForCausalLMEagle3"],
        "norm_before_residual": False,
        field: [1],
    }
    return write_checkpoint(path, config, tensors, s)


@pytest.fixture
def prompt_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return path


def test_the_reading_that_was_meant(target_path: Path, prompt_file: Path, tmp_path: Path) -> None:
    path = drafter(tmp_path / "drafter", target_path, "eagle_aux_hidden_state_layer_ids")
    out = tmp_path / "out.json"
    arguments = ("--model", target_path, "--probe", prompt_file, "--json", out)
    result = run(path, *arguments, "--max-new-tokens", 20)
    assert result.exit_code == 0, result.stderr
    assert "Most tokens per round: taps after layers [1]." in result.stdout
    probe: dict[str, Any] = json.loads(out.read_text())["probe"]
    assert list(probe) == ["as read", "taps after layers [1]"]
    assert probe["as read"]["drafts_accepted"] == 0
    # The first draft is always right. The second needs what the feature does not have.
    assert probe["taps after layers [1]"]["acceptance_by_position"] == [1.0]


def test_nothing_open(target_path: Path, prompt_file: Path, tmp_path: Path) -> None:
    path = drafter(tmp_path / "drafter", target_path, "target_layer_ids")
    result = run(path, "--model", target_path, "--probe", prompt_file, "--max-new-tokens", 20)
    assert result.exit_code == 0, result.stderr
    assert "leave nothing open" in result.stdout
    assert "100%" in result.stdout


def test_bad_input(target_path: Path, prompt_file: Path, tmp_path: Path) -> None:
    path = drafter(tmp_path / "drafter", target_path, "target_layer_ids")
    small = eagle3_cases()[0].write(tmp_path / "small")
    for arguments, words in (
        ((path, "--probe", prompt_file), "name one with --model"),
        ((path, "--probe", tmp_path / "no", "--model", target_path), "cannot read the prompt file"),
        ((small, "--probe", prompt_file, "--model", target_path), "hidden size 12"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert words in result.stderr
        assert result.stdout == ""


def test_no_difference(target_path: Path, prompt_file: Path, tmp_path: Path) -> None:
    """One new token leaves no round."""
    path = drafter(tmp_path / "drafter", target_path, "eagle_aux_hidden_state_layer_ids")
    result = run(path, "--model", target_path, "--probe", prompt_file, "--max-new-tokens", 1)
    assert result.exit_code == 0, result.stderr
    assert "does not tell the readings apart" in result.stdout


class TestReadings:
    """The first is that of the loader; the others are what an explicit file would say."""

    def test_norm_output(self, tmp_path: Path) -> None:
        case = next(case for case in eagle3_cases() if case.name == "eagle-3.1")
        self.check(case, tmp_path, "the next feature is not normalised", norm_output=False)

    def test_taps(self, tmp_path: Path) -> None:
        case = next(case for case in eagle3_cases() if case.name == "speculators")
        # As before layers 3, 7 and 10.
        later = {"eagle_aux_hidden_state_layer_ids": [3, 7, 10]}
        self.check(case, tmp_path, "taps after layers [2, 6, 9]", **later)

    def test_sample_from_anchor(self, tmp_path: Path) -> None:
        case = next(case for case in dspark_cases() if case.name == "dspark-speculators")
        self.check(case, tmp_path, "the anchor's row drafts", sample_from_anchor=True)

    def test_a_layer_that_the_target_lacks(self, tmp_path: Path) -> None:
        case = next(case for case in eagle3_cases() if case.name == "speculators")
        last = {**case.config, "eagle_aux_hidden_state_layer_ids": [2, 6, NUM_TARGET_LAYERS]}
        path = replace(case, config=last).write(tmp_path)
        assert list(load_readings(path, make_target(case.sizes))) == ["as read"]

    def check(self, case: Any, path: Path, name: str, **explicit: object) -> None:
        target = make_target(case.sizes)
        readings = load_readings(case.write(path / "open"), target)
        own = load_drafter(path / "open", target).spec
        written = replace(case, config={**case.config, **explicit}).write(path / "explicit")
        other = load_drafter(written, target).spec
        assert readings["as read"].spec == own
        assert self.meaning(readings[name].spec) == self.meaning(other) != self.meaning(own)

    def meaning(self, spec: Any) -> Any:
        taps = replace(spec.taps, source="")
        return replace(spec, taps=taps, readings=(), open_questions=())
