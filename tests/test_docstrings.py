"""The examples in the docstrings give what they say."""

from __future__ import annotations

import doctest

import pytest
from registered_ops import registered_ops
from specfast import ops

EXAMPLES = [
    example
    for op in registered_ops()
    for example in doctest.DocTestFinder(recurse=False).find(getattr(ops, op), op, module=False)
    if example.examples
]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example(example: doctest.DocTest) -> None:
    messages: list[str] = []
    doctest.DocTestRunner().run(example, out=messages.append)
    assert messages == []
