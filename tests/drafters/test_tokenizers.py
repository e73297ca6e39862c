"""Drafter and target have to mean the same tokens by their ids."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from drafters.checkpoints import make_target
from drafters.eagle_files import eagle_cases
from specfast.drafters.checkpoint import DrafterError, match_tokenizers
from specfast.drafters.loader import load_drafter

WORDS = ["a", "b", "c", "d"]
LIST = {"type": "Unigram", "vocab": [[word, -1.5] for word in WORDS]}
TABLE = {"type": "BPE", "vocab": {word: i for i, word in enumerate(WORDS)}}


def written(path: Path, model: Any, added: Any = ()) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokens = [{"id": number, "content": content} for number, content in added]
    (path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": tokens}))
    return path


def test_equal_tokens_in_either_form(tmp_path: Path) -> None:
    one, other = written(tmp_path / "1", LIST), written(tmp_path / "2", TABLE, [(4, "<mask>")])
    match_tokenizers(one, other)
    match_tokenizers(other, one)


def test_other_tokens_are_refused_with_both(tmp_path: Path) -> None:
    own = written(tmp_path / "own", TABLE, [(4, "<mask>"), (2, "z")])
    theirs = written(tmp_path / "theirs", LIST, [(4, "<end>")])
    with pytest.raises(DrafterError) as caught:
        match_tokenizers(own, theirs)
    assert "tokenizer has 'z' at id 2, the target's 'c'; 2 of the 5 ids" in str(caught.value)


def test_one_that_is_not_there_is_not_compared(tmp_path: Path) -> None:
    own, empty = written(tmp_path / "own", TABLE), tmp_path / "empty"
    empty.mkdir()
    match_tokenizers(own, None)
    match_tokenizers(own, empty)
    match_tokenizers(empty, own)


@pytest.mark.parametrize(
    "content",
    ["{", "[]", '{"model": 3}', '{"model": {"vocab": {"a": "x"}}}', '{"model": {"vocab": 1}}'],
)
def test_files_that_cannot_be_read(content: str, tmp_path: Path) -> None:
    own, theirs = written(tmp_path / "own", TABLE), written(tmp_path / "theirs", TABLE)
    (theirs / "tokenizer.json").write_text(content)
    with pytest.raises(DrafterError, match=r"cannot read .*theirs/tokenizer\.json"):
        match_tokenizers(own, theirs)


def test_at_load(tmp_path: Path) -> None:
    case = eagle_cases()[1]
    path = written(case.write(tmp_path / "drafter"), TABLE)
    theirs = written(tmp_path / "target", {"vocab": {"x": 0}})
    target = make_target(case.sizes)
    load_drafter(path, target)
    with pytest.raises(DrafterError, match="'a' at id 0, the target's 'x'"):
        load_drafter(path, replace(target, directory=theirs))
