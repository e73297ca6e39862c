"""Thin documented wrappers over ``torch.ops.specfast``."""

from specfast.ops.accept import *  # noqa: F403
from specfast.ops.relocate import *  # noqa: F403
from specfast.ops.tree import *  # noqa: F403
