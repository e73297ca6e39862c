"""Includes and imports go downward only, and every op is whole."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
import specfast
import torch
from registered_ops import registered_ops

ROOT = Path(__file__).parents[1]
STANDARD = r"[a-z_]+"  # C++ standard headers have no dot

# What the files of a folder may include: quoted, and in angle brackets. OWN is the file's stem.
CUDA = r"cuda\w*\.h|cooperative_groups.*"
INCLUDES = {
    # What is CUDA in a .h stands behind __CUDACC__: the CPU build compiles the file without it.
    "csrc/core/*": (r"core/\w+\.(h|cuh)", rf"{STANDARD}|{CUDA}"),
    "csrc/ops/*.h": (r"core/\w+\.h", STANDARD),
    "csrc/ops/*.cu": (r"core/\w+\.(h|cuh)|ops/OWN\.h", rf"{STANDARD}|{CUDA}"),
    "csrc/torch/*": (
        r"(core|ops|torch)/\w+\.h",
        rf"{STANDARD}|torch/csrc/stable/.*|torch/headeronly/.*"
        r"|torch/csrc/inductor/aoti_torch/c/shim\.h",
    ),
}

# What an op may not do: allocate, copy, wait; and torch's side may not launch or allocate.
FORBIDDEN = {
    "csrc/core/*": r"\bcuda(Malloc|Free|Memcpy|Memset)\w*|\bcuda(Device|Stream|Event)Synchronize\b",
    "csrc/ops/*": r"\bcuda(Malloc|Free|Memcpy|Memset)\w*|\bcuda(Device|Stream|Event)Synchronize\b",
    "csrc/torch/*": r"<<<|\bstable::(new_)?(empty|zeros|ones|full|clone|to)\w*\(",
}

# Which layers of the Python package a layer may import. `cli` may import all of them.
IMPORTS = {
    "status": set(),
    "_library": set(),
    "records": {"status"},
    "kv_layout": set(),
    "sampling": set(),
    "reference": {"kv_layout", "records", "sampling", "status"},
    "ops": {"kv_layout", "records", "sampling", "status"},
    "planner": {"ops", "records"},
    "models": set(),
    "sampling_params": set(),
    "drafters": {"kv_layout", "ops", "records", "sampling", "sampling_params", "status"},
    "engine": {
        "drafters",
        "kv_layout",
        "ops",
        "planner",
        "records",
        "sampling",
        "sampling_params",
        "status",
    },
}
TORCH_ONLY = {
    "status",
    "_library",
    "records",
    "kv_layout",
    "sampling",
    "sampling_params",
    "reference",
    "ops",
    "planner",
}


def sources(*patterns: str) -> Iterator[tuple[str, str]]:
    """Path relative to the root, and text, of the files that match."""
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            yield path.relative_to(ROOT).as_posix(), path.read_text()


def imported_modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_includes_go_downward() -> None:
    faults = []
    for pattern, (quoted, angled) in INCLUDES.items():
        for path, text in sources(pattern):
            allowed = {'"': quoted.replace("OWN", Path(path).stem), "<": angled}
            for bracket, header in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)', text, re.M):
                if not re.fullmatch(allowed[bracket], header):
                    faults.append(f"{path} includes {header}")
    assert faults == []


def test_ops_neither_allocate_nor_wait() -> None:
    faults = []
    for pattern, forbidden in FORBIDDEN.items():
        for path, text in sources(pattern):
            code = re.sub(r"//.*", "", text)
            faults += [f"{path}: {match.group()}" for match in re.finditer(forbidden, code)]
    assert faults == []


def test_imports_go_downward() -> None:
    faults = []
    for path, text in sources("python/specfast/*.py", "python/specfast/*/**/*.py"):
        layer = path.split("/")[2].removesuffix(".py")
        if layer in ("__init__", "cli"):
            continue
        assert layer in IMPORTS, f"{path}: a layer without a rule"
        for module in imported_modules(ast.parse(text)):
            top, _, rest = module.partition(".")
            if top == "specfast":
                target = rest.partition(".")[0]
                if target != layer and target not in IMPORTS[layer]:
                    faults.append(f"{path} imports {module}")
            elif not top:
                faults.append(f"{path} imports {module}: relative")
            elif layer in TORCH_ONLY and top != "torch" and top not in sys.stdlib_module_names:
                faults.append(f"{path} imports {module}: not needed by the ops")
    assert faults == []


def test_only_the_wrappers_call_the_registered_ops() -> None:
    paths = {path for path, text in sources("python/**/*.py") if "torch.ops.specfast" in text}
    assert {Path(path).parent.as_posix() for path in paths} <= {"python/specfast/ops"}


def test_importing_the_ops_brings_no_engine() -> None:
    program = "import sys, specfast; print('transformers' in sys.modules, 'rich' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert answer.stdout.split() == ["False", "False"], answer.stderr


def test_files_stay_small() -> None:
    patterns = [
        f"{folder}/**/*.{kind}"
        for folder in ("csrc", "tests", "benchmarks")
        for kind in ("h", "cuh", "cu", "cpp", "py")
    ]
    long = [
        f"{path}: {count} lines"
        for path, text in sources(*patterns, "python/**/*.py")
        if (count := text.count("\n")) > 400
    ]
    assert long == []


def test_every_contract_is_a_registered_op() -> None:
    headers = {Path(path).stem for path, _ in sources("csrc/ops/*.h")}
    assert headers == set(registered_ops())


@pytest.mark.parametrize("op", registered_ops())
class TestEveryOp:
    def test_has_a_contract_and_both_implementations(self, op: str) -> None:
        header = (ROOT / f"csrc/ops/{op}.h").read_text()
        assert f"void {op}_cpu(" in header
        assert f"void {op}_cuda(" in header
        assert f"void {op}_cuda(" in (ROOT / f"csrc/ops/{op}.cu").read_text()
        assert torch._C._dispatch_has_kernel_for_dispatch_key(f"specfast::{op}", "CPU")

    def test_has_a_reference(self, op: str) -> None:
        # A sampled accept is a rule of the reference's accept_tree and accept_chain.
        rules = get_args(specfast.reference.accept.RuleName)
        is_rule = op.removeprefix("accept_") in rules
        assert is_rule or callable(getattr(specfast.reference, op, None))

    def test_has_a_documented_wrapper(self, op: str) -> None:
        docstring = getattr(specfast.ops, op).__doc__.lower()
        for word in ("parameters", "returns", "raises", "notes", "determinis", "captur", "cost:"):
            assert word in docstring, f"the docstring of {op} lacks {word!r}"

    def test_has_tests(self, op: str) -> None:
        assert f"{op}(" in (ROOT / f"tests/ops/test_{op}.py").read_text()
        assert any(
            f"{op}_cpu(" in text and ("ThreadTeam::run" in text or "_on_threads" in text)
            for _, text in sources("tests/cpp/test_*.cpp")
        )
        assert any(f"{op}_cuda(" in text for _, text in sources("tests/cpp/kernels/test_*.cu"))

    def test_has_a_benchmark(self, op: str) -> None:
        assert any(f"{op}_cuda(" in text for _, text in sources("benchmarks/bench_*.cu"))

    def test_has_a_section_in_the_docs(self, op: str) -> None:
        assert f"\n## {op}\n" in (ROOT / "docs/ops.md").read_text()
