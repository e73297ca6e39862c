"""Cache directories are whole or not there."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest
from specfast.models.cache import build_once, cache_root


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def write(directory: Path) -> None:
    (directory / "weights").write_text("all")


def test_the_first_call_builds_and_later_ones_find() -> None:
    path = build_once("model", write)
    assert path == cache_root() / "model"
    assert (path / "weights").read_text() == "all"

    def again(directory: Path) -> None:
        raise AssertionError("built twice")

    assert build_once("model", again) == path


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(error: BaseException) -> None:
    def fail(directory: Path) -> None:
        write(directory)
        raise error

    with pytest.raises(type(error)):
        build_once("model", fail)
    assert [name for name in os.listdir(cache_root()) if not name.endswith(".lock")] == []
    assert (build_once("model", write) / "weights").exists()


def test_what_a_killed_process_left_is_not_taken_over() -> None:
    staging = cache_root() / ".model.partial"
    staging.mkdir(parents=True)
    (staging / "half").touch()
    assert os.listdir(build_once("model", write)) == ["weights"]


def build_slowly(started: multiprocessing.Queue[int], built: multiprocessing.Queue[int]) -> None:
    def build(directory: Path) -> None:
        write(directory)
        time.sleep(0.2)
        built.put(os.getpid())

    started.put(os.getpid())
    assert (build_once("model", build) / "weights").read_text() == "all"


def test_two_processes_at_once_build_once() -> None:
    context = multiprocessing.get_context("fork")
    started, built = context.Queue(), context.Queue()
    processes = [context.Process(target=build_slowly, args=(started, built)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    built.get(timeout=5)
    assert built.empty()
