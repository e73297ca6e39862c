"""How commands end when they cannot do what was asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
import typer

from specfast.models import ModelError

FAILED = 1  # the command ran, and what it checked is not so
UNUSABLE_INPUT = 2
INTERRUPTED = 130

P = ParamSpec("P")


class CliError(Exception):
    """What is wrong with the input, as one sentence for the user."""


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message, or its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _is_out_of_memory(error: RuntimeError) -> bool:
    # On a CPU torch has no type for it.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def ends_cleanly(command: Callable[P, int]) -> Callable[P, None]:
    """Make ``command``, which returns its exit code, end with one sentence and no traceback."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
        except (CliError, ModelError) as error:
            print(f"specfast: {error}", file=sys.stderr)
            code = UNUSABLE_INPUT
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            print(f"specfast: not enough memory: {first_line(error)}", file=sys.stderr)
            code = UNUSABLE_INPUT
        except KeyboardInterrupt:
            print("\nspecfast: interrupted", file=sys.stderr)
            code = INTERRUPTED
        raise typer.Exit(code)

    return run
