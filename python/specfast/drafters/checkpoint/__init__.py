"""Reading drafters' checkpoints: what they are, before any maths."""

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.files import CheckpointFiles
from specfast.drafters.checkpoint.read_spec import read_spec
from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.target import DraftTarget, TargetSizes, match_target
from specfast.drafters.checkpoint.tokenizer import match_tokenizers

__all__ = [
    "CheckpointFiles",
    "DraftTarget",
    "DrafterError",
    "DrafterSpec",
    "TargetSizes",
    "match_target",
    "match_tokenizers",
    "read_spec",
]
