"""SPS tables of engines of tests."""

from __future__ import annotations

from specfast.engine import VerifyTiers
from specfast.engine.sps_setting import sps_setting
from specfast.engine.target import Target
from specfast.planner import SpsTable, TierRates


def costly_rows(target: Target, tiers: VerifyTiers) -> SpsTable:
    """Rows that cost so much that only drafts that are sure to be right are worth one."""
    rows = tuple(tier.num_rows for tier in tiers.tiers)
    captured = target.device.type == "cuda" if tiers.capture is None else tiers.capture
    setting = sps_setting(
        target, tiers.tiers[0].num_requests, rows, "graphs" if captured else "padded"
    )
    return SpsTable(setting, "a commit", TierRates(rows, tuple(1 / (1 + row) for row in rows)))
