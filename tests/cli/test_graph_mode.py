"""What ``--graphs`` comes to."""

from __future__ import annotations

from typing import Any

import pytest
from specfast.cli.graph_mode import graph_mode
from specfast.cli.options import GraphMode
from specfast.cli.target import TargetModel


def test_no_forward_of_the_target_is_needed(
    target: TargetModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commands ask several times; each forward of a large target would be waited for."""

    def forward(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the target ran")

    monkeypatch.setattr(target.model, "forward", forward)
    assert graph_mode(target, GraphMode.PADDED, 4, 8) is GraphMode.PADDED
