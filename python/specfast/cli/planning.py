"""``--sps``: rounds planned by what rows cost, at the tiers that were measured."""

from __future__ import annotations

from pathlib import Path

from specfast.cli.errors import CliError
from specfast.engine import VerifyTiers
from specfast.planner import Planning, SpsTable


def read_planning(path: Path) -> Planning:
    """Planning by the table of a file of ``specfast profile``."""
    try:
        return Planning("compact", SpsTable.read(path))
    except OSError as error:
        raise CliError(f"cannot read SPS table {path}: {error.strerror}") from error
    except ValueError as error:
        raise CliError(str(error)) from error


def planned_tiers(planning: Planning, batch_size: int, width: int, capture: bool) -> VerifyTiers:
    """The tiers of the table, for batches that it was measured with or smaller ones."""
    assert planning.table is not None
    num_requests = planning.table.setting.num_requests
    if num_requests < batch_size:
        raise CliError(
            f"the SPS table is of {num_requests} requests at once: expected --max-batch-size "
            f"{num_requests} or less for a batch of {batch_size} prompts"
        )
    num_rows = max(planning.table.tiers)
    if num_rows != num_requests * width:
        raise CliError(
            f"the SPS table is of up to {num_rows} rows for {num_requests} requests: expected "
            f"--verify-width {num_rows // num_requests}, as it was measured with, got {width}"
        )
    return VerifyTiers([num_requests], width, planning.table.tiers, capture=capture)
