"""Prompts from arguments and files, and what is wrong with those that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specfast.cli.errors import CliError
from specfast.cli.prompts import Prompt, collect_prompts, read_prompt_file, tokenize
from specfast.cli.target import TargetModel
from tokenizers.processors import ByteLevel, TemplateProcessing

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]


def test_arguments_come_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('\ufeff{"prompt": "second"}\r\n\n' + json.dumps({"messages": CHAT, "id": 7}))
    assert collect_prompts(["first"], path) == [
        Prompt("prompt 1", "first"),
        Prompt(f"{path} line 1", "second"),
        Prompt(f"{path} line 3", CHAT),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b'{"prompt": "a"', "line 2 is not JSON"),
        (b"[" * 100_000, "line 2 is not JSON"),
        (b"\xff\xfe\x00", "line 2 is not UTF-8 text"),
        (b'["a"]', 'line 2: expected an object with either "prompt" or "messages"'),
        (b'{"text": "a"}', 'line 2: expected an object with either "prompt" or "messages"'),
        (b'{"prompt": "a", "messages": []}', "either"),
        (b'{"prompt": 3}', 'line 2: expected "prompt" to be a string'),
        (b'{"messages": []}', 'line 2: expected "messages" to be a list of objects'),
        (b'{"messages": [{"role": "user"}]}', 'line 2: expected "messages" to be a list'),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, complaint: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"prompt": "fine"}\n' + line)
    with pytest.raises(CliError) as caught:
        read_prompt_file(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_hold_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n \n")
    for path, complaint in [
        (empty, "holds no prompt"),
        (tmp_path, "Is a directory"),
        (tmp_path / "absent", "No such file"),
    ]:
        with pytest.raises(CliError, match=complaint):
            read_prompt_file(path)
    with pytest.raises(CliError, match="nothing to generate from"):
        collect_prompts([], None)


def test_the_chat_template_is_applied_unless_raw(target: TargetModel) -> None:
    text, chat = Prompt("prompt 1", "key"), Prompt("prompt 2", CHAT)
    decode = target.tokenizer.decode
    assert decode(tokenize(text, target, raw=False)) == "<|user|>key<|end|>"
    assert decode(tokenize(text, target, raw=True)) == "key"
    assert decode(tokenize(chat, target, raw=False)) == "<|user|>Hi<|user|>Yes?<|end|>"


def test_a_model_without_a_template_takes_texts_only(target: TargetModel) -> None:
    target.tokenizer.chat_template, template = None, target.tokenizer.chat_template
    try:
        assert target.tokenizer.decode(tokenize(Prompt("p", "key"), target, raw=False)) == "key"
        with pytest.raises(CliError, match='p: "messages" cannot be used for a model without'):
            tokenize(Prompt("p", CHAT), target, raw=False)
    finally:
        target.tokenizer.chat_template = template


def test_special_tokens_come_from_the_tokenizer_or_from_the_template(target: TargetModel) -> None:
    begins = TemplateProcessing(single="<|end|> $A", special_tokens=[("<|end|>", 0)])
    backend = target.tokenizer.backend_tokenizer
    backend.post_processor = begins
    try:
        raw = tokenize(Prompt("p", "key"), target, raw=True)
        templated = tokenize(Prompt("p", "key"), target, raw=False)
    finally:
        backend.post_processor = ByteLevel()
    assert target.tokenizer.decode(raw) == "<|end|>key"
    assert target.tokenizer.decode(templated) == "<|user|>key<|end|>"


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "p is empty"),
        ("a" * 100, "p is too long: it has 102 tokens, and the model's context of 96"),
        ("half a pair: \ud83d", "p is not valid Unicode"),
        ([{"role": "critic", "content": "no"}], "refuses it: no critics here"),
    ],
)
def test_prompts_that_cannot_be_used(target: TargetModel, content: str, complaint: str) -> None:
    with pytest.raises(CliError) as caught:
        tokenize(Prompt("p", content), target, raw=False)
    assert complaint in str(caught.value)


def test_the_longest_prompt_leaves_room_for_one_token(target: TargetModel) -> None:
    # The template adds two tokens.
    assert len(tokenize(Prompt("p", "a" * 93), target, raw=False)) == 95
    with pytest.raises(CliError, match="too long"):
        tokenize(Prompt("p", "a" * 94), target, raw=False)
    target.probed.context_length = None
    assert len(tokenize(Prompt("p", "a" * 94), target, raw=False)) == 96
