"""The result file of ``--json``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from specfast.cli.errors import CliError


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


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write ``report`` whole or not at all: a reader never meets half a file."""
    text = _format(report)
    partial = path.with_name(f".specfast-{os.getpid()}.partial")
    try:
        try:
            # The name of a prompt file may hold bytes that are no text.
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise CliError(f"cannot write {path}: {error.strerror}") from error


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
