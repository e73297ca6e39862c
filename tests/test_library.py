"""A CPU that cannot run the compiled ops is refused at import, with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from specfast import _library

HASWELL = "processor\t: 0\nflags\t\t: fpu sse2 avx fma avx2\n"
SANDY_BRIDGE = HASWELL.replace(" fma avx2", "")
PILEDRIVER = HASWELL.replace(" avx2", "")


def load_on(monkeypatch: pytest.MonkeyPatch, cpuinfo: Path, machine: str = "x86_64") -> Path:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(_library, "CPUINFO", cpuinfo)
    return _library.load()


@pytest.mark.parametrize(
    ("cpuinfo", "missing"), [(SANDY_BRIDGE, "avx2, fma"), (PILEDRIVER, "avx2")]
)
def test_a_cpu_without_avx2_or_fma_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpuinfo: str, missing: str
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(cpuinfo)
    with pytest.raises(ImportError, match=f"with AVX2 and FMA; this one lacks {missing}$"):
        load_on(monkeypatch, path)


def test_other_cpus_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "cpuinfo"
    assert load_on(monkeypatch, path).name == "_ops.so"  # nothing is known
    path.write_text(HASWELL)
    assert load_on(monkeypatch, path).name == "_ops.so"
    path.write_text(SANDY_BRIDGE)
    assert load_on(monkeypatch, path, machine="aarch64").name == "_ops.so"
