"""The command line: ``specfast generate``, ``eval``, ``profile``, ``inspect``, ``check``."""

from __future__ import annotations

import io
import sys

import typer

from specfast.cli.check import check
from specfast.cli.evaluate import evaluate
from specfast.cli.generate import generate
from specfast.cli.inspect import inspect
from specfast.cli.profile import profile

app = typer.Typer(
    help="Speculative decoding: generate text, measure a drafter, time the target, look at a "
    "drafter, check this installation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(generate)
app.command("eval")(evaluate)
app.command()(profile)
app.command()(inspect)
app.command()(check)


def main() -> None:
    """Entry point of the ``specfast`` script."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character is no reason to stop.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    app(prog_name="specfast")
