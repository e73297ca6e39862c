"""The engine benchmark with real weights: the text is plain decoding's, drafts as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drafters.families import FAMILIES, sizes_of
from tiny_tokenizer import make_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

ROOT = Path(__file__).parents[1]
POSITIONS = 512
Benchmark = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=1,
        head_dim=64,
        max_position_embeddings=POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def benchmark_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Benchmark]:
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.engine import __main__ as module

    def run(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        out = tmp_path / "engine.json"
        out.write_text('{"results": []}')
        words = ["engine", "--device", "cpu", "--output", "12", "--json", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", words)
        return module.main(), json.loads(out.read_text())["results"]

    yield run
    for name in [name for name in sys.modules if name.startswith("benchmarks")]:
        del sys.modules[name]


def test_drafters_of_real_weights(
    benchmark_run: Benchmark, model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding is measured once for all drafters of a batch and a context."""
    from benchmarks.engine import measure

    decoded = []
    decode = measure._decode

    def counted(setting: Any, drafter: Any, *rest: Any) -> Any:
        decoded.append(type(drafter).__name__)
        return decode(setting, drafter, *rest)

    monkeypatch.setattr(measure, "_decode", counted)
    checkpoint = FAMILIES["eagle3"](tmp_path / "drafter", sizes_of(model_path))
    points = "2x20,ngram-tree:2x20,trained:2x20"
    arguments = ["--model", str(model_path), "--drafter", str(checkpoint), "--width", "4"]
    code, results = benchmark_run(*arguments, "--points", points)
    assert code == 0
    assert [r["drafter"] for r in results] == ["ngram", "ngram-tree", "trained"]
    for result in results:
        assert result["equal_texts"] == 2
        assert result["plain"]["tokens_per_round"] == 1.0
        assert 1 <= result["speculative"]["tokens_per_round"] <= 4
    assert len(decoded) == 4
    assert decoded.count("PlainDecoding") == 1


def test_prompts_are_windows_of_a_text(benchmark_run: Benchmark) -> None:
    from benchmarks.engine.work import RealWork

    work = RealWork(tuple(range(1000)), 3, None)
    assert work.prompt(4) == [0, 1, 2, 3]
    long = work._window(1, 1500)
    assert long[:5] == [997, 998, 999, 0, 1]
    assert len(long) == 1500


@pytest.mark.parametrize("shape", [True, False])
def test_a_context_that_is_too_long(
    shape: bool, benchmark_run: Benchmark, model_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    room = (65536 if shape else POSITIONS) - (1 + 16 * 8 + 16)
    which = ["--shape", "tiny"] if shape else ["--model", str(model_path)]
    code, results = benchmark_run(*which, "--points", f"1x{room + 1}")
    assert code == 2
    assert results == []
    said = capsys.readouterr().err
    assert said.startswith(f"engine: expected contexts of at most {room} tokens, ")
    assert said.endswith(f"got {room + 1}\n")
    assert said.count("\n") == 1


def test_a_model_without_a_tokenizer(
    benchmark_run: Benchmark,
    model_path: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "bare"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        (path / name).write_bytes((model_path / name).read_bytes())
    code, _ = benchmark_run("--model", str(path))
    assert code == 2
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("engine: cannot load the tokenizer")]) == 1
