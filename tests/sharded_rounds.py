"""Sampled rounds whose vocabulary is divided: the calls of an implementation, by way of shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from implementations import Implementation
from specfast import RowStats, ops, reference
from torch import Tensor

# Of a whole accept, what the shards have seen to already.
DECIDED = ("rule", "sampling", "target_logits")


def in_shards(impl: Implementation, offsets: tuple[int, ...], max_top_k: int = 0) -> Implementation:
    """The implementation, with accepts by target-only decided from shards that begin there."""
    module = reference if impl.accept_tree is reference.accept_tree else ops

    def predict(
        drafts: Tensor, links: tuple[Tensor, ...], prefix_lens: Tensor, options: dict[str, Any]
    ) -> Tensor:
        assert options["rule"] == "target_only"
        logits = options["target_logits"]
        vocab_size = logits.shape[1]
        names = ("retrieve_next_token", "retrieve_next_sibling")
        shards = [
            module.row_stats(
                drafts,
                prefix_lens,
                logits[:, begin:end],
                options["sampling"],
                vocab_size=vocab_size,
                vocab_offset=begin,
                max_candidates=drafts.shape[1] - 1,
                max_top_k=max_top_k,
                **dict(zip(names, links, strict=False)),
            )
            for begin, end in zip(offsets, (*offsets[1:], vocab_size), strict=True)
        ]
        stats = RowStats(
            torch.stack([shard.packed for shard in shards]), drafts.shape[1] - 1, max_top_k
        )
        merged = module.merge_row_stats(
            stats, prefix_lens, options["sampling"], vocab_size=vocab_size
        )
        assert int(merged.status.max()) == 0
        return merged.target_predict

    def accept(whole: Callable[..., Any]) -> Callable[..., Any]:
        def run(drafts: Tensor, *tensors: Tensor, **options: Any) -> Any:
            *links, prefix_lens = tensors
            given = {name: value for name, value in options.items() if name not in DECIDED}
            decided = predict(drafts, tuple(links), prefix_lens, options)
            return whole(drafts, *tensors, target_predict=decided, **given)

        return run

    return replace(
        impl, accept_chain=accept(impl.accept_chain), accept_tree=accept(impl.accept_tree)
    )
