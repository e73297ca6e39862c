"""``specfast eval`` and ``generate`` with a small random checkpoint of every family.

What is shown: greedy text is that of plain decoding, and rounds that are replayed, drafts included,
give at one tier the text of the same rounds kernel by kernel, greedy and sampled. Without a GPU:
padded rounds, drafted on the device, give what rounds at their own sizes give, drafted on the host.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from specfast.cli import app
from typer.testing import CliRunner

from benchmarks.options import choice, count, device, input_file, output_file, several

ROOT = Path(__file__).parents[2]
NUM_PROMPTS = 4
ALL_FAMILIES = ("eagle", "eagle3", "dflash", "dspark", "dflash2")
SAMPLED = ("--temperature", "0.8", "--seed", "5")


@dataclass
class Findings:
    """Of one drafter.

    figures : of the evaluation
    failures : sentences; empty is what is wanted
    """

    family: str
    drafts: str
    figures: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    options = _options()
    sys.path.append(str(ROOT / "tests"))
    from drafters.families import FAMILIES, sizes_of

    console = Console(highlight=False)
    all_findings: list[Findings] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        prompts = scratch / "prompts.jsonl"
        lines = options.prompts.read_text().splitlines(keepends=True)
        prompts.write_text("".join(lines[:NUM_PROMPTS]))
        for family in options.families:
            checkpoint = FAMILIES[family](scratch / family, sizes_of(options.model))
            trees = ("trees", "drawn trees") if family.startswith("eagle") else ()
            for drafts in ("chains", *trees):
                findings = Findings(family, drafts)
                begin = time.monotonic()
                Trial(options, findings, checkpoint, prompts, scratch).run()
                findings.seconds = time.monotonic() - begin
                all_findings.append(findings)
                console.print(_line(findings), markup=False)
                if options.json is not None:  # after each, in case that time runs out
                    report = {**_conditions(options), "drafters": [vars(f) for f in all_findings]}
                    options.json.write_text(json.dumps(report, indent=1) + "\n")
    _print(console, options, all_findings)
    return 1 if any(findings.failures for findings in all_findings) else 0


class Trial:
    """The commands for one drafter."""

    def __init__(
        self,
        options: argparse.Namespace,
        findings: Findings,
        checkpoint: Path,
        prompts: Path,
        scratch: Path,
    ) -> None:
        self._options = options
        self._findings = findings
        self._prompts = prompts
        self._out = scratch / "out.json"
        self._shared = ["--model", str(options.model), "--device", options.device]
        self._shared += ["--drafter", str(checkpoint), "--max-new-tokens", str(options.tokens)]
        self._shared.append("--ignore-eos")
        if findings.drafts != "chains":
            self._shared.append("--tree")
        if findings.drafts == "drawn trees":
            self._shared.append("--drawn")
        # Graphs are for GPUs; on a CPU padded rounds stand against those at their own sizes.
        ways = ("on", "padded") if options.device == "cuda" else ("padded", "off")
        self._replayed, self._other = ways

    def run(self) -> None:
        dtype = self._options.dtype
        self._evaluate(dtype)
        for checked in dict.fromkeys(("fp32", dtype)):
            replayed = self._texts("--graphs", self._replayed, "--check", dtype=checked)
            self._note(f"greedy {checked}, plain's", replayed is not None)
        other = self._texts("--graphs", self._other, "--no-plain", dtype=dtype)
        name = "padded" if self._other == "padded" else "eager"
        self._note(f"greedy {dtype}, {name}'s", replayed is not None and replayed == other)
        first, second = (
            self._texts("--graphs", graphs, "--no-plain", *SAMPLED, dtype=dtype)
            for graphs in (self._replayed, self._other)
        )
        self._note(f"sampled {dtype}, {name}'s", first is not None and first == second)

    def _evaluate(self, dtype: str) -> None:
        report = self._run(
            "eval", "--prompts", self._prompts, "--graphs", self._replayed, dtype=dtype
        )
        if report is None:
            return
        evaluation = report["evaluation"]
        rounds = max(evaluation["summary"]["rounds"], 1)
        self._findings.figures = {
            **evaluation["lengths"],
            "acceptance_length": evaluation["acceptance_length"],
            "rounds": rounds,
            "draft_ms": 1e3 * evaluation["cost"]["draft"] / rounds,
            "verify_accept_ms": 1e3 * evaluation["cost"]["verify_accept"] / rounds,
        }

    def _texts(self, *arguments: str, dtype: str) -> list[tuple[list[int], list[Any]]] | None:
        """Tokens of each prompt, and what each round did; None if the command failed."""
        report = self._run("generate", "--prompt-file", self._prompts, *arguments, dtype=dtype)
        if report is None:
            return None
        return [(prompt["token_ids"], prompt["rounds"]) for prompt in report["prompts"]]

    def _run(self, command: str, *arguments: object, dtype: str) -> dict[str, Any] | None:
        words = [command, *map(str, arguments), *self._shared, "--dtype", dtype]
        if "off" not in words:
            words += ["--tiers", str(NUM_PROMPTS)]
        self._out.unlink(missing_ok=True)
        result = CliRunner().invoke(app, [*words, "--json", str(self._out)])
        if result.exit_code != 0:
            said = (result.stderr or result.stdout or repr(result.exception)).strip()
            self._findings.failures.append(
                f"{' '.join(words)}: exit code {result.exit_code}: {said}"
            )
            return None
        report: dict[str, Any] = json.loads(self._out.read_text())
        return report

    def _note(self, what: str, is_so: bool) -> None:
        self._findings.checks[what] = "yes" if is_so else "NO"
        if not is_so:
            self._findings.failures.append(f"{what}: no")


def _line(findings: Findings) -> str:
    checks = ", ".join(f"{what}: {answer}" for what, answer in findings.checks.items())
    return "\n".join(
        [
            f"{findings.family} {findings.drafts} ({findings.seconds:.0f} s): {checks}",
            *(f"  {failure}" for failure in findings.failures),
        ]
    )


def _conditions(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": options.model.name,
        "card": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "dtype": options.dtype,
        "torch": torch.__version__,
        "commit": options.commit,
        "prompts": NUM_PROMPTS,
        "tokens": options.tokens,
        "sampled": " ".join(SAMPLED),
    }


def _print(console: Console, options: argparse.Namespace, all_findings: list[Findings]) -> None:
    conditions = _conditions(options)
    console.print("\n" + ", ".join(f"{k} {v}" for k, v in conditions.items()) + "\n", markup=False)
    table = Table(show_edge=False)
    for name in ("drafter", "m", "acceptance", "draft ms", "verify ms"):
        table.add_column(name, justify="left" if name == "drafter" else "right")
    checks = list(dict.fromkeys(what for findings in all_findings for what in findings.checks))
    for what in checks:
        table.add_column(what)
    for findings in all_findings:
        figures = findings.figures
        known = ["-"] * 4
        if figures:
            known = [
                f"{figures['proposals']}",
                f"{figures['acceptance_length']:.3f}",
                f"{figures['draft_ms']:.2f}",
                f"{figures['verify_accept_ms']:.2f}",
            ]
        table.add_row(
            f"{findings.family} {findings.drafts}",
            *known,
            *(findings.checks.get(what, "-") for what in checks),
        )
    console.print(table)
    console.print(
        "\nRandom weights, so hardly a draft is accepted. draft and verify ms: of eval, whose "
        "drafts are made on the host, to be measured; in generate they are a part of the round."
    )


def _model(text: str) -> Path:
    """With sizes, which its drafters take."""
    return input_file(str(Path(text) / "config.json")).parent


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drafters", description=__doc__)
    parser.add_argument("--model", type=_model, required=True, help="directory of the target")
    parser.add_argument("--device", type=device, default="cpu")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="bf16")
    parser.add_argument("--prompts", type=input_file, default=ROOT / "benchmarks/prompts.jsonl")
    parser.add_argument("--tokens", type=count(), default=32)
    parser.add_argument(
        "--families", type=several(choice(*ALL_FAMILIES)), default=list(ALL_FAMILIES)
    )
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--commit", default="unknown")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
