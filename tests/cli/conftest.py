"""A tiny random model with a byte-level tokenizer and a chat template, made on the spot."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from engine.conftest import one_quiet_thread as one_quiet_thread
from specfast.cli.target import DtypeName, TargetModel
from specfast.engine.target import Target
from tiny_tokenizer import make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

CONTEXT = 96


def make_model(vocab_size: int) -> LlamaForCausalLM:
    """Random weights, large enough that no two logits are close by chance."""
    torch.manual_seed(11)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=0.4,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model as ``--model`` takes it."""
    path = tmp_path_factory.mktemp("tiny-model")
    tokenizer = make_tokenizer()
    make_model(len(tokenizer)).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def target(tokenizer: PreTrainedTokenizerFast) -> TargetModel:
    model = make_model(len(tokenizer))
    return TargetModel("tiny", Target(model), tokenizer, DtypeName.FP32)


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No colours or width from the caller's terminal, and a cache of its own."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
