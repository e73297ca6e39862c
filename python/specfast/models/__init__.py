"""The default model, ready for ``transformers``, without a model hub."""

from specfast.models.errors import ModelError
from specfast.models.smollm2 import ensure_smollm2

__all__ = ["ModelError", "ensure_smollm2"]
