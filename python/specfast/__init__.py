"""The accept path of speculative decoding: from draft scores to committed KV."""

from specfast import _library

_library.load()

from specfast import ops, reference  # noqa: E402
from specfast.records import AcceptRecord, FinishRules, TreeRecord  # noqa: E402
from specfast.status import FinishReason, Status  # noqa: E402

__version__ = "0.1.0"

__all__ = [
    "AcceptRecord",
    "FinishReason",
    "FinishRules",
    "Status",
    "TreeRecord",
    "__version__",
    "ops",
    "reference",
]
