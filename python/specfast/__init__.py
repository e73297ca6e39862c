"""The accept path of speculative decoding: from draft scores to committed KV."""

from importlib import import_module
from typing import TYPE_CHECKING

from specfast import _library

_library.load()

from specfast import drafters, ops, planner, reference  # noqa: E402
from specfast.kv_layout import KvBuffer, KvLayout  # noqa: E402
from specfast.records import (  # noqa: E402
    AcceptRecord,
    DraftPlaces,
    ExpandedFrontier,
    FinishRules,
    TreeRecord,
    VerifySchedule,
    VerifyWindow,
)
from specfast.sampling import (  # noqa: E402
    Coins,
    DraftedBlock,
    LogitEdits,
    MergedRows,
    Proposal,
    RowKind,
    RowRecord,
    RowStats,
    SampledRows,
    SamplingRules,
    SelectedWalk,
)
from specfast.sampling_params import SamplingParams  # noqa: E402
from specfast.status import FinishReason, Status  # noqa: E402

if TYPE_CHECKING:
    from specfast.engine import Engine, Generation, RoundOutput

__version__ = "0.1.0"

__all__ = [
    "AcceptRecord",
    "Coins",
    "DraftPlaces",
    "DraftedBlock",
    "Engine",
    "ExpandedFrontier",
    "FinishReason",
    "FinishRules",
    "Generation",
    "KvBuffer",
    "KvLayout",
    "LogitEdits",
    "MergedRows",
    "Proposal",
    "RoundOutput",
    "RowKind",
    "RowRecord",
    "RowStats",
    "SampledRows",
    "SamplingParams",
    "SamplingRules",
    "SelectedWalk",
    "Status",
    "TreeRecord",
    "VerifySchedule",
    "VerifyWindow",
    "__version__",
    "drafters",
    "ops",
    "planner",
    "reference",
]


def __getattr__(name: str) -> object:
    # The engine imports transformers, which takes seconds; the ops do not need it.
    if name in __all__:
        return getattr(import_module("specfast.engine"), name)
    raise AttributeError(f"module 'specfast' has no attribute {name!r}")
