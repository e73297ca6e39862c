"""Accept batches whose vocabulary is divided into shards, and their way through both ops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accept_batches import AcceptBatch, random_batch, to_device
from sampled_batches import Dice, random_rules
from specfast import AcceptRecord, MergedRows, RowStats, SamplingRules
from torch import Tensor

# What row_stats and merge_row_stats take of the options of an accept.
BATCH_OPTIONS = ("qo_indptr", "verify_lens")


@dataclass
class ShardBatch:
    """An accept batch from logits, where its vocabulary is cut, and what records have room for."""

    batch: AcceptBatch
    sampling: SamplingRules
    vocab_size: int
    offsets: tuple[int, ...]
    max_candidates: int
    max_top_k: int = 0

    @property
    def logits(self) -> Tensor:
        return self.batch.options["target_logits"]

    def options(self, device: str) -> dict[str, Any]:
        given = {k: v for k, v in self.batch.options.items() if k in BATCH_OPTIONS}
        moved = {name: to_device(value, device) for name, value in given.items()}
        return {"vocab_size": self.vocab_size, **moved}

    def arguments(self, shard: int, device: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Of row_stats; the last shard also has the columns of padding."""
        ends = (*self.offsets[1:], self.logits.shape[1])
        columns = self.logits[:, self.offsets[shard] : ends[shard]]
        options = self.options(device) | {
            "max_candidates": self.max_candidates,
            "max_top_k": self.max_top_k,
            "vocab_offset": self.offsets[shard],
        }
        for name, links in zip(
            ("retrieve_next_token", "retrieve_next_sibling"), self.batch.links, strict=False
        ):
            options[name] = links.to(device)
        positional = (self.batch.draft_tokens, self.batch.prefix_lens, columns, self.sampling)
        return tuple(to_device(value, device) for value in positional), options

    def stats(self, impl: Any, device: str) -> RowStats:
        """The records of all shards, gathered."""
        shards = []
        for shard in range(len(self.offsets)):
            positional, options = self.arguments(shard, device)
            shards.append(impl.row_stats(*positional, **options).packed)
        return RowStats(torch.stack(shards), self.max_candidates, self.max_top_k)

    def merge(self, impl: Any, stats: RowStats, device: str, **more: Any) -> MergedRows:
        return impl.merge_row_stats(
            replace(stats, packed=stats.packed.to(device)),
            self.batch.prefix_lens.to(device),
            to_device(self.sampling, device),
            **self.options(device),
            **more,
        )

    def accept(self, impl: Any, device: str, **more: Any) -> AcceptRecord:
        """The round as a rank decides it."""
        merged = self.merge(impl, self.stats(impl, device), device, **more)
        options = dict(self.batch.options)
        del options["target_logits"]
        given = replace(self.batch, options={**options, "target_predict": merged.target_predict})
        return given.run(impl.accept_tree if self.batch.links else impl.accept_chain, device)


def cut(dice: Dice, vocab_size: int, num_shards: int) -> tuple[int, ...]:
    """Where shards begin: evenly as ranks divide a vocabulary, or anywhere; some may be empty."""
    if dice.happens(0.5):
        share = -(-vocab_size // num_shards)
        return tuple(min(share * i, vocab_size) for i in range(num_shards))
    inner = dice.integers(0, vocab_size + 1, num_shards - 1).sort().values
    return (0, *inner.tolist())


def random_shards(
    seed: int,
    *,
    tree: bool,
    num_shards: int,
    ragged: bool = False,
    unsound: bool = False,
    vocab: int = 5,
    dtype: torch.dtype = torch.float32,
    counts: bool | None = None,
) -> ShardBatch:
    """``counts``: every request has a top_k that the records have room for, or none has one."""
    batch = random_batch(
        seed, tree=tree, vocab=vocab, dtype=dtype, ragged=ragged, unsound=unsound, finish=False
    )
    batch.options.pop("retrieve_index", None)
    del batch.options["out_cache_loc"]
    dice = Dice(seed + 1)
    logits = batch.options["target_logits"]
    if dice.happens(0.6):
        # Other values than the few of the batch, and spread: maxima of shards differ.
        noise = dice.normal(*logits.shape) * dice.some_of([0.3, 2.0, 8.0], len(logits), 1)
        batch.options["target_logits"] = (logits.float() + noise).to(dtype)
    num_requests = len(batch.prefix_lens)
    rules = random_rules(dice, num_requests, len(logits), vocab, edits=False, unsound=unsound)
    rules = replace(rules, token_bitmask=None)
    max_top_k = int(dice.integers(0, 5))
    if counts is not None:
        rules = replace(rules, top_k=None)
    if counts is True:
        max_top_k = vocab - 1
        rules.top_k = dice.integers(1, vocab, num_requests)
    elif counts is False:
        rules = replace(rules, top_p=None, min_p=None)
    children = int(dice.integers(0, 4)) if counts is None else 8
    return ShardBatch(batch, rules, vocab, cut(dice, vocab, num_shards), children, max_top_k)


def rows_of(words: Sequence[Sequence[int]]) -> Tensor:
    """int64 records from numbers of up to 64 bits."""
    wrapped = [[word - (word >> 63 << 64) for word in row] for row in words]
    return torch.tensor(wrapped, dtype=torch.int64)
