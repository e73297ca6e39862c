"""How many drafts a round verifies: from what verifying costs, and from how sure drafts were."""

from specfast.planner.budget import choose_budget
from specfast.planner.planner import PlannerMode, Planning, VerifyPlan, VerifyPlanner
from specfast.planner.relay import ConfidenceRelay, LaggedSurvival
from specfast.planner.sps import AdditiveSeconds, SpsSetting, SpsTable, TierRates
from specfast.planner.sts import CALIBRATION_BINS, StsFit, fit_temperatures, read_temperatures
from specfast.planner.tiers import CaptureSlots, Tiers

__all__ = [
    "CALIBRATION_BINS",
    "AdditiveSeconds",
    "CaptureSlots",
    "ConfidenceRelay",
    "LaggedSurvival",
    "PlannerMode",
    "Planning",
    "SpsSetting",
    "SpsTable",
    "StsFit",
    "TierRates",
    "Tiers",
    "VerifyPlan",
    "VerifyPlanner",
    "choose_budget",
    "fit_temperatures",
    "read_temperatures",
]
