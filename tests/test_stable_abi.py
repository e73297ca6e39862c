"""The compiled library runs with any torch from 2.10 on, CPU or CUDA build."""

from __future__ import annotations

import re
import shutil
import subprocess
from importlib.util import find_spec

import pytest

# Torch's stable C interface, the C runtime, and weak symbols that may be absent.
STABLE = re.compile(r"[wv] .*|U ((aoti_torch|torch)_\w+|.*@(GLIBC|GLIBCXX|CXXABI|GCC)_[\w.]+)")


@pytest.mark.skipif(shutil.which("nm") is None, reason="nm is not installed")
def test_only_stable_symbols_are_needed() -> None:
    spec = find_spec("specfast._ops")
    assert spec is not None
    assert spec.origin is not None
    command = ["nm", "--dynamic", "--undefined-only", spec.origin]
    symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    unstable = [line for line in symbols.splitlines() if not STABLE.fullmatch(line.strip())]
    assert unstable == []
