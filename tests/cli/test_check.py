"""``specfast check``: every op is tested, and a wrong one is found."""

from __future__ import annotations

from typing import Any

import pytest
import specfast
import torch
from registered_ops import registered_ops
from specfast.cli import app
from specfast.cli.self_tests import SELF_TESTS, first_difference
from typer.testing import CliRunner


def test_every_registered_op_has_a_self_test() -> None:
    assert sorted(SELF_TESTS) == registered_ops()


@pytest.mark.parametrize("op", sorted(SELF_TESTS))
def test_the_ops_pass(op: str, device: str) -> None:
    assert first_difference(op, device) is None


def test_check_prints_versions_and_ops() -> None:
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["torch", torch.__version__] in lines
    assert ["specfast", specfast.__version__] in lines
    for op in registered_ops():
        assert any(line[:2] == [op, "│"] and line[2].startswith("cpu") for line in lines)
    assert result.stdout.endswith("All ops passed.\n")


def test_the_self_tests_accept_and_reject() -> None:
    for op in [op for op in SELF_TESTS if op.startswith("accept_")]:
        record = SELF_TESTS[op](specfast.reference, "cpu")
        accept_lens = record["per_request"][1]
        assert accept_lens.max() > 2
        assert accept_lens.min() < accept_lens.max()


class Spoiled:
    """specfast.ops with one output of one function changed in its last element."""

    def __init__(self, function: str, output: str | None) -> None:
        self._ops = specfast.ops
        self._function = function
        self._output = output

    def __getattr__(self, name: str) -> Any:
        right = getattr(self._ops, name)
        if name != self._function:
            return right

        def wrong(*args: Any, **options: Any) -> Any:
            if self._output is None:
                raise RuntimeError("no kernel image\nfor this card")
            result = right(*args, **options)
            getattr(result, self._output).view(-1)[-1] += 1
            return result

        return wrong


@pytest.mark.parametrize(
    ("op", "function", "output", "complaint"),
    [
        ("accept_chain", "accept_chain", "per_step", "per_step differs"),
        ("accept_rejection", "accept_chain", "logprobs", "logprobs differs"),
        ("tree_from_parents", "tree_from_parents", "mask", "mask differs"),
        ("sample_rows", "sample_rows", "tokens", "tokens differs"),
        ("accept_tree", "accept_tree", None, "no kernel image"),
    ],
)
def test_a_wrong_op_is_named(
    monkeypatch: pytest.MonkeyPatch, op: str, function: str, output: str | None, complaint: str
) -> None:
    monkeypatch.setattr("specfast.cli.self_tests.specfast.ops", Spoiled(function, output))
    result = CliRunner().invoke(app, ["check"])
    assert result.exit_code == 1
    lines = [line for line in result.stdout.splitlines() if line.split()[:1] == [op]]
    assert len(lines) == 1
    assert f"FAILED: {complaint}" in lines[0]
    assert "Some ops FAILED." in result.stdout
