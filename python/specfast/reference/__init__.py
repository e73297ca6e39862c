"""Every op in plain torch: the meaning of the op and the only oracle of the tests."""

from specfast.reference.accept import accept_chain as accept_chain
from specfast.reference.accept import accept_tree as accept_tree
from specfast.reference.attention import verify_attention as verify_attention
from specfast.reference.context import inject_context_kv as inject_context_kv
from specfast.reference.drafter_cache import place_draft_rows as place_draft_rows
from specfast.reference.drafter_cache import rope_append_kv as rope_append_kv
from specfast.reference.drafter_rows import fused_add_rms_norm as fused_add_rms_norm
from specfast.reference.drafter_rows import gather_eagle_inputs as gather_eagle_inputs
from specfast.reference.drafter_rows import grouped_dynamic_conv as grouped_dynamic_conv
from specfast.reference.drafter_rows import silu_and_mul as silu_and_mul
from specfast.reference.frontier import expand_frontier as expand_frontier
from specfast.reference.markov import sample_markov_block as sample_markov_block
from specfast.reference.merge_row_stats import merge_row_stats as merge_row_stats
from specfast.reference.plan import build_verify_window as build_verify_window
from specfast.reference.plan import schedule_verify_lens as schedule_verify_lens
from specfast.reference.relocate import relocate_kv as relocate_kv
from specfast.reference.row_stats import row_stats as row_stats
from specfast.reference.sample import sample_rows as sample_rows
from specfast.reference.selector import walk_selector as walk_selector
from specfast.reference.state import commit_state as commit_state
from specfast.reference.tree import build_tree as build_tree
from specfast.reference.tree import select_and_build_tree as select_and_build_tree
from specfast.reference.tree import select_draft_tokens as select_draft_tokens
from specfast.reference.tree import tree_from_parents as tree_from_parents
