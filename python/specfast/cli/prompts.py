"""Prompts: where they come from, and the token ids that the target gets."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from specfast.cli.errors import CliError, first_line
from specfast.cli.target import TargetModel

Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Prompt:
    """A text or a chat; ``source`` is how messages to the user name it."""

    source: str
    content: str | Messages

    @property
    def title(self) -> str:
        """One line for a heading."""
        text = self.content if isinstance(self.content, str) else self.content[-1]["content"]
        return " ".join(text.split())


def collect_prompts(texts: list[str], file: Path | None) -> list[Prompt]:
    """Prompts of the command line, then those of the file."""
    prompts = [Prompt(f"prompt {i}", text) for i, text in enumerate(texts, start=1)]
    if file is not None:
        prompts += read_prompt_file(file)
    if not prompts:
        raise CliError("nothing to generate from: give a PROMPT or a --prompt-file")
    return prompts


def read_prompt_file(path: Path) -> list[Prompt]:
    """Read one JSON object per line, with "prompt" (a text) or "messages"; blank lines pass."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise CliError(f"cannot read the prompt file {path}: {error.strerror}") from error
    prompts = [
        Prompt(source := f"{path} line {number}", _parse_line(line, source))
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not prompts:
        raise CliError(f"the prompt file {path} holds no prompt")
    return prompts


def _parse_line(line: bytes, source: str) -> str | Messages:
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise CliError(f"{source} is not UTF-8 text") from error
    except (ValueError, RecursionError) as error:
        raise CliError(f"{source} is not JSON: {first_line(error)}") from error
    if not isinstance(record, dict) or ("prompt" in record) == ("messages" in record):
        raise CliError(f'{source}: expected an object with either "prompt" or "messages"')
    if "prompt" in record:
        if not isinstance(record["prompt"], str):
            raise CliError(f'{source}: expected "prompt" to be a string')
        return record["prompt"]
    if not _are_messages(record["messages"]):
        raise CliError(
            f'{source}: expected "messages" to be a list of objects with the strings '
            '"role" and "content"'
        )
    return [{key: m[key] for key in ("role", "content")} for m in record["messages"]]


def _are_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in value
        )
    )


def tokenize(prompt: Prompt, target: TargetModel, *, raw: bool) -> list[int]:
    """Token ids of ``prompt``, through the chat template unless there is none or ``raw``.

    Raises
    ------
    CliError
        The prompt is empty, cannot be encoded, or leaves no room in the model's context.
    """
    text = prompt.content
    tokenizer = target.tokenizer
    if not text:
        raise CliError(f"{prompt.source} is empty")
    templated = not raw and tokenizer.chat_template is not None
    if templated:
        text = _apply_chat_template(prompt, tokenizer)
    elif not isinstance(text, str):
        why = "with --raw" if raw else "for a model without a chat template"
        raise CliError(f'{prompt.source}: "messages" cannot be used {why}')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CliError(f"{prompt.source} is not valid Unicode text") from error
    # A template writes the special tokens itself.
    ids: list[int] = tokenizer(text, add_special_tokens=not templated)["input_ids"]
    if not ids:
        raise CliError(f"{prompt.source} is empty: the tokenizer makes no token of it")
    vocab_size = target.model.config.get_text_config().vocab_size
    if max(ids) >= vocab_size:
        raise CliError(
            f"the tokenizer does not belong to the model: it makes token {max(ids)} of "
            f"{prompt.source}, and the model knows {vocab_size}"
        )
    if target.room_after(ids) < 1:
        raise CliError(
            f"{prompt.source} is too long: it has {len(ids)} tokens, and the model's context of "
            f"{target.context_length} has to hold an answer too"
        )
    return ids


def _apply_chat_template(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    content = prompt.content
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except (TemplateError, ValueError) as error:
        raise CliError(
            f"{prompt.source}: the model's chat template refuses it: {first_line(error)}"
        ) from error
    return str(text)
