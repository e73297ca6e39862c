"""``specfast check``: what is installed here, and does every op work?"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from specfast.cli.errors import FAILED, ends_cleanly, first_line
from specfast.cli.self_tests import SELF_TESTS, first_difference
from specfast.cli.versions import device_names, kernel_targets, missing_for_cuda, op_names, versions

PASSED = Text("passed", "green")


@ends_cleanly
def check() -> int:
    """Print versions, devices and ops, and test every op in seconds.

    Every op runs once per device on small inputs and has to give what its
    definition in plain torch gives. Exits with 1 if one does not.
    """
    console = Console(highlight=False, markup=False)
    for name, version in versions().items():
        console.print(f"{name:<14}{version or 'none'}")
    for name in device_names():
        console.print(f"{'device':<14}{name}")
    no_cuda = missing_for_cuda()
    devices = ["cpu"] if no_cuda else ["cpu", "cuda"]

    table = Table(show_edge=False)
    table.add_column("op")
    table.add_column("compiled for")
    for device in devices:
        table.add_column(f"on {device}")
    passed = True
    for op in op_names():
        results = [_self_test(op, device) for device in devices]
        passed = passed and all(result is PASSED for result in results)
        table.add_row(op, ", ".join(kernel_targets(op)), *results)
    console.print()
    console.print(table)
    console.print()
    if no_cuda:
        console.print(f"Nothing ran on a GPU: {no_cuda}.")
    if passed:
        console.print(Text("All ops passed.", "bold green"))
        return 0
    console.print(Text("Some ops FAILED.", "bold red"))
    return FAILED


def _self_test(op: str, device: str) -> Text:
    if op not in SELF_TESTS:
        return Text("no self-test", "red")
    try:
        difference = first_difference(op, device)
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:  # a kernel that cannot run is a result, too
        return Text(f"FAILED: {first_line(error)}", "red")
    return PASSED if difference is None else Text(f"FAILED: {difference} differs", "red")
