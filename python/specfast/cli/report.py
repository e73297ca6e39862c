"""Result files, above all that of ``--json``."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from specfast.cli.decoding import Decoding
from specfast.cli.errors import CliError
from specfast.cli.prompts import Prompt
from specfast.cli.target import TargetModel
from specfast.cli.versions import versions
from specfast.engine.detokenizer import StoppingDetokenizer
from specfast.engine.sps_setting import device_name
from specfast.sampling_params import SamplingParams


def check_writable(path: Path) -> None:
    """Refuse a result file before the work that fills it."""
    try:
        if path.exists() and not path.is_file():
            raise CliError(f"cannot write {path}: it is not a file")
    except OSError as error:  # a name too long
        raise CliError(f"cannot write {path}: {error.strerror}") from error
    if not path.parent.is_dir():
        raise CliError(f"cannot write {path}: the directory {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise CliError(f"cannot write {path}: the directory {path.parent} is not writable")
    write_whole(path, None)


def check_apart(**files: Path | None) -> None:
    """Refuse to write over another file of the same call; each under the name of its option."""
    seen: dict[Path, str] = {}
    for name, path in files.items():
        if path is None:
            continue
        option = f"--{name.replace('_', '-')}"
        other = seen.setdefault(path.resolve(), option)
        if other != option:
            raise CliError(f"{other} and {option} are the same file, {path}")


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write ``report`` as :func:`write_whole` does."""
    # The name of a prompt file may hold bytes that are no text.
    write_whole(path, _format(report).encode("utf-8", errors="backslashreplace"))


def write_whole(path: Path, content: bytes | None) -> None:
    """Write ``content`` whole or not at all: a reader never meets half a file. None: only try."""
    partial = path.with_name(f".specfast-{os.getpid()}.partial")
    try:
        try:
            partial.write_bytes(content or b"")
            if content is not None:
                partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


def title(target: TargetModel) -> str:
    """What ran, where, in what."""
    return f"{target.name}, {device_name(target.device)}, {target.dtype.value}"


def conditions(target: TargetModel) -> dict[str, Any]:
    """What any result depends on."""
    return {
        "versions": versions(),
        "model": target.name,
        "device": device_name(target.device),
        "dtype": target.dtype.value,
    }


def prompt_reports(
    target: TargetModel, prompts: list[Prompt], decoding: Decoding, params: SamplingParams
) -> list[dict[str, Any]]:
    """What became of each prompt."""
    return [
        {
            "source": prompt.source,
            "prompt": prompt.content,
            "prompt_ids": generation.prompt_ids,
            "token_ids": generation.token_ids,
            "seed": seed,
            "text": _text(target, generation.token_ids, params),
            "logprobs": _finite(generation.logprobs) if params.logprobs else None,
            "finish_reason": generation.finish_reason.name.lower(),
            "rounds": [
                {
                    "num_proposed": r.num_proposed,
                    "num_accepted": r.num_accepted,
                    "num_tokens": len(r.token_ids),
                    "status": int(r.status),
                }
                for r in generation.rounds
            ],
        }
        for prompt, generation, seed in zip(
            prompts, decoding.generations, decoding.seeds, strict=True
        )
    ]


def _text(target: TargetModel, token_ids: list[int], params: SamplingParams) -> str:
    detokenizer = StoppingDetokenizer(target.tokenizer, params.stop, params.min_new_tokens)
    return "".join([*map(detokenizer.push, token_ids), detokenizer.flush()])


def _finite(values: list[float]) -> list[float | None]:
    """JSON has no infinities: the token of a row without a usable value has no probability."""
    return [value if math.isfinite(value) else None for value in values]


def _format(report: dict[str, Any]) -> str:
    """JSON with a line per entry, and per item where the entry is a list."""
    entries = []
    for key, value in report.items():
        if isinstance(value, list):
            text = "[\n" + ",\n".join(map(_one_line, value)) + "\n]"
        else:
            text = _one_line(value)
        entries.append(f"{_one_line(key)}: {text}")
    return "{\n" + ",\n".join(entries) + "\n}\n"


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
