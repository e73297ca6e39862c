"""What a drafter has to keep to."""

from __future__ import annotations

from specfast.drafters.base import DraftBatch


def check_draft(
    draft: DraftBatch, batch_size: int, verify_width: int, *, chains_only: bool = False
) -> None:
    """Raise RuntimeError for a draft that cannot be verified; says what was expected."""
    shape = tuple(draft.tokens.shape)
    if len(shape) != 2 or shape[0] != batch_size or not 1 <= shape[1] <= verify_width:
        raise RuntimeError(
            f"drafter: expected tokens [{batch_size}, N] with N in [1, {verify_width}], "
            f"got {list(shape)}"
        )
    if len(draft.verify_lens) != batch_size:
        raise RuntimeError(
            f"drafter: expected {batch_size} verify_lens, got {len(draft.verify_lens)}"
        )
    if draft.confidence is not None and draft.confidence.shape != (batch_size, shape[1] - 1):
        raise RuntimeError(
            f"drafter: expected confidence [{batch_size}, {shape[1] - 1}], one of each draft, "
            f"got {list(draft.confidence.shape)}"
        )
    if draft.status is not None and len(draft.status) != batch_size:
        raise RuntimeError(f"drafter: expected {batch_size} status, got {len(draft.status)}")
    if draft.parents is not None and chains_only:
        raise RuntimeError(
            "drafter: expected chains for a target with recurrent layers, whose state follows the "
            "row before, got trees"
        )
    in_order = draft.proposal is None or draft.proposal.without_replacement
    if draft.parents is not None and not in_order:
        raise RuntimeError(
            "drafter: expected the proposal of a tree to be without_replacement, got one that is "
            "not; without a proposal the tree is verified target-only"
        )
