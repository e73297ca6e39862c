"""Types of command-line options: what they refuse is said in a sentence before anything is run."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

_Value = TypeVar("_Value")


def count(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """A whole number from ``least`` to ``most``."""
    expected = f">= {least}" if most is None else f"in [{least}, {most}]"

    def parsed(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"expected a whole number {expected}, got {text!r}")
        return value

    return parsed


def number(least: float, most: float = math.inf) -> Callable[[str], float]:
    """A finite number from ``least`` to ``most``."""
    expected = f">= {least:g}" if most == math.inf else f"in [{least:g}, {most:g}]"

    def parsed(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most):
            raise argparse.ArgumentTypeError(f"expected a number {expected}, got {text!r}")
        return value

    return parsed


def several(one: Callable[[str], _Value]) -> Callable[[str], list[_Value]]:
    """Values separated by commas."""
    return lambda text: [one(word) for word in text.split(",")]


def choice(*allowed: str) -> Callable[[str], str]:
    def parsed(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"choose from {', '.join(allowed)}, got {text!r}")
        return text

    return parsed


def device(text: str) -> str:
    """ "cpu", or "cuda" where there is a GPU."""
    choice("cpu", "cuda")(text)
    if text == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("torch finds no GPU")
    return text


def output_file(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"{text} cannot be written: a file in a folder is expected"
        )
    return path


def input_file(text: str) -> Path:
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return path
