"""Thin documented wrappers over ``torch.ops.specfast``."""

from specfast.ops.accept import *  # noqa: F403
from specfast.ops.attention import *  # noqa: F403
from specfast.ops.context import *  # noqa: F403
from specfast.ops.drafter_cache import *  # noqa: F403
from specfast.ops.drafter_rows import *  # noqa: F403
from specfast.ops.frontier import *  # noqa: F403
from specfast.ops.markov import *  # noqa: F403
from specfast.ops.plan import *  # noqa: F403
from specfast.ops.relocate import *  # noqa: F403
from specfast.ops.sample import *  # noqa: F403
from specfast.ops.sampled_accept import *  # noqa: F403
from specfast.ops.selector import *  # noqa: F403
from specfast.ops.shards import *  # noqa: F403
from specfast.ops.state import *  # noqa: F403
from specfast.ops.tree import *  # noqa: F403
from specfast.ops.verify import *  # noqa: F403
from specfast.ops.workspace import *  # noqa: F403
