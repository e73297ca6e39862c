"""The PNG of ``specfast eval``; needs matplotlib, which nothing else here does."""

from __future__ import annotations

import io
import math
from importlib.util import find_spec
from pathlib import Path

from specfast.cli.errors import CliError
from specfast.cli.evaluation import Evaluation
from specfast.cli.report import check_writable, write_whole
from specfast.planner import CALIBRATION_BINS


def check_chart(path: Path) -> None:
    """Refuse a chart before the work that it would show."""
    if find_spec("matplotlib") is None:
        raise CliError("--report draws with matplotlib, which is missing: pip install matplotlib")
    if path.suffix.lower() != ".png":
        raise CliError(f"--report is a PNG: expected a name ending in .png, got {path}")
    check_writable(path)


def write_chart(path: Path, title: str, evaluation: Evaluation) -> None:
    """Acceptance by position and how many drafts rounds accepted, side by side.

    Beside them, for a drafter with confidences, accepted shares over predicted survivals.
    """
    from matplotlib.figure import Figure  # without pyplot no window system is looked for

    calibration = evaluation.calibration
    panels = 2 if calibration is None else 3
    figure = Figure(figsize=(5 * panels, 4), layout="constrained")
    figure.suptitle(title, fontsize="medium", parse_math=False)
    by_position, lengths, *others = figure.subplots(1, panels)
    share = evaluation.acceptance_by_position
    conditional = [math.nan if c is None else c for c in evaluation.conditional_acceptance]
    positions = range(1, len(share) + 1)
    by_position.bar(positions, share, color="tab:green", label="of all rounds with drafts")
    by_position.plot(
        positions, conditional, "o-", color="black", label="if all before are accepted"
    )
    by_position.set(xlabel="position", ylabel="accepted", ylim=(0, 1.05), xticks=positions)
    by_position.legend()
    counts = evaluation.length_histogram
    lengths.bar(range(len(counts)), counts, color="tab:blue")
    lengths.axvline(
        evaluation.acceptance_length,
        color="black",
        label=f"mean {evaluation.acceptance_length:.2f}, with bonus "
        f"{evaluation.acceptance_length_with_bonus:.2f}",
    )
    lengths.set(xlabel="accepted drafts", ylabel="rounds", xticks=range(len(counts)))
    lengths.legend()
    if calibration is not None:
        (survival,) = others
        predicted = [one.predicted for one in calibration.bins]
        accepted = [one.accepted for one in calibration.bins]
        survival.plot([0, 1], [0, 1], "--", color="gray", label="as predicted")
        label = f"in {CALIBRATION_BINS} bins, error {calibration.error:.3f}"
        survival.plot(predicted, accepted, "o-", color="tab:purple", label=label)
        survival.set(xlabel="predicted survival", ylabel="accepted", xlim=(0, 1), ylim=(0, 1.05))
        survival.legend()
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=120)
    write_whole(path, image.getvalue())
