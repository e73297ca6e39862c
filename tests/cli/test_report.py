"""The result file is whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from specfast.cli.errors import CliError
from specfast.cli.report import check_writable, write_report

REPORT = {"model": "tiny ✓", "prompts": [{"text": 'a "b"\n', "ids": [1, 2]}, {}], "empty": []}


def test_round_trip_and_replacement(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_report(path, REPORT)
    assert json.loads(path.read_text(encoding="utf-8")) == REPORT
    assert os.listdir(tmp_path) == ["out.json"]


@pytest.mark.parametrize("moment", ["write_bytes", "replace"])
def test_a_failure_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_bytes = Path.write_bytes

    def full_disk(self: Path, content: bytes) -> int:
        if moment == "write_bytes":
            write_bytes(self, content[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, moment, full_disk)
    with pytest.raises(CliError, match="No space left on device"):
        write_report(path, REPORT)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    check_writable(tmp_path / "out.json")
    for path, complaint in [
        (tmp_path, "it is not a file"),
        (Path(os.devnull), "it is not a file"),
        (tmp_path / "absent" / "out.json", "does not exist"),
    ]:
        with pytest.raises(CliError, match=complaint):
            check_writable(path)
