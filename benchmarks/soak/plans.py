"""Plans of a soak: by a table that makes rows dear, so that budgets go up and down."""

from __future__ import annotations

from specfast.engine import VerifyTiers
from specfast.engine.sps_setting import sps_setting
from specfast.engine.target import Target
from specfast.planner import PlannerMode, Planning, SpsTable, TierRates
from transformers import PreTrainedModel

# A step without rows costs as much as so many.
ROWS_OF_A_STEP = 8


def planned(
    model: PreTrainedModel, mode: PlannerMode, batch_size: int, width: int, way: str
) -> tuple[VerifyTiers, Planning]:
    """Tiers of one batch size, and how their rounds are planned; ``way``: "graphs" or "padded"."""
    quarters = {batch_size * width * i // 4 for i in range(1, 4)}
    rows = sorted(count for count in quarters if count >= batch_size)
    tiers = VerifyTiers([batch_size], width, rows, capture=way == "graphs")
    counts = tuple(tier.num_rows for tier in tiers.tiers)
    setting = sps_setting(
        Target(model), batch_size, counts, "graphs" if way == "graphs" else "padded"
    )
    rates = TierRates(counts, tuple(1 / (ROWS_OF_A_STEP + count) for count in counts))
    return tiers, Planning(mode, SpsTable(setting, "none", rates))
