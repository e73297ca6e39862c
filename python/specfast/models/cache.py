"""Directories of the user's cache that are either whole or not there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_root() -> Path:
    """``$XDG_CACHE_HOME/specfast``, or ``~/.cache/specfast``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "specfast"


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """Return the cache directory ``name``, filled by ``build`` if it is not there yet.

    ``build`` fills a staging directory that is renamed once it is complete, so a failure, a kill
    or a full disk leaves nothing that looks like a result. A second process waits for the first
    one's result; the lock goes with its process, so a killed one blocks nobody.

    Raises
    ------
    OSError
        The cache cannot be written.
    """
    root = cache_root()
    final = root / name
    if final.is_dir():
        return final
    root.mkdir(parents=True, exist_ok=True)
    with open(root / f".{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        staging = root / f".{name}.partial"
        shutil.rmtree(staging, ignore_errors=True)  # what a killed process left
        staging.mkdir()
        try:
            build(staging)
            staging.rename(final)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return final
