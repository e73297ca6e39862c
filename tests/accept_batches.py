"""Random accept batches, sound and unsound, and the comparison of two records."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import Any

import torch
from specfast import AcceptRecord, FinishRules
from torch import Tensor


def int32(*rows: Any, device: str = "cpu") -> Tensor:
    """int32 tensor of the given rows, or of one row's numbers."""
    values = rows[0] if len(rows) == 1 and isinstance(rows[0], list) else list(rows)
    return torch.tensor(values, dtype=torch.int32, device=device)


RECORD_FIELDS = (
    "status",
    "accept_lens",
    "num_correct_drafts",
    "commit_lens",
    "accept_index",
    "out_tokens",
    "predict",
    "new_seq_lens",
    "bonus",
    "next_anchor",
    "positions",
    "slots",
    "finish_reason",
    "cap_trim_lens",
)


def assert_same_record(got: AcceptRecord, expected: AcceptRecord) -> None:
    for name in RECORD_FIELDS:
        mine, theirs = getattr(got, name), getattr(expected, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None and not torch.equal(mine.cpu(), theirs.cpu()):
            raise AssertionError(f"{name}: expected\n{theirs.cpu()}\ngot\n{mine.cpu()}")
    # The one result of a logarithm, which the reference takes from elsewhere.
    assert (got.logprobs is None) == (expected.logprobs is None)
    if got.logprobs is not None:
        torch.testing.assert_close(
            got.logprobs.cpu(), expected.logprobs.cpu(), rtol=1e-6, atol=1e-6
        )


def to_device(value: Any, device: str) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    if is_dataclass(value):
        return type(value)(**{k: to_device(v, device) for k, v in vars(value).items()})
    return value


@dataclass
class AcceptBatch:
    """Arguments of accept_chain or accept_tree; ``links`` is empty for a chain."""

    draft_tokens: Tensor
    prefix_lens: Tensor
    links: tuple[Tensor, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, op: Any, device: str = "cpu", **more: Any) -> AcceptRecord:
        positional = (self.draft_tokens, *self.links, self.prefix_lens)
        options = {k: to_device(v, device) for k, v in self.options.items()}
        return op(*(to_device(v, device) for v in positional), **options, **more)


def random_links(rng: torch.Generator, batch: int, nodes: int) -> tuple[Tensor, Tensor]:
    """First child and next sibling of random trees whose parents precede their children."""
    next_token = torch.full((batch, nodes), -1, dtype=torch.int32)
    next_sibling = torch.full((batch, nodes), -1, dtype=torch.int32)
    for b in range(batch):
        last_child: dict[int, int] = {}
        for node in range(1, nodes):
            parent = int(torch.randint(max(0, node - 4), node, (1,), generator=rng))
            if parent in last_child:
                next_sibling[b, last_child[parent]] = node
            else:
                next_token[b, parent] = node
            last_child[parent] = node
    return next_token, next_sibling


def random_batch(
    seed: int,
    *,
    tree: bool,
    batch: int = 4,
    nodes: int = 6,
    vocab: int = 5,
    from_logits: bool = True,
    dtype: torch.dtype = torch.float32,
    ragged: bool = False,
    unsound: bool = False,
    finish: bool = True,
) -> AcceptBatch:
    """A batch with a small vocabulary, so that paths are long and tokens repeat."""
    rng = torch.Generator().manual_seed(seed)

    def randint(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=rng, dtype=torch.int32)

    drafts = randint(0, vocab, batch, nodes)
    lens = torch.full((batch,), nodes, dtype=torch.int32)
    options: dict[str, Any] = {}
    num_rows = batch * nodes
    if ragged:
        lens = randint(1, nodes + 1, batch)
        padding = 3
        indptr = torch.cat([int32([0]), lens.cumsum(0).to(torch.int32)])
        num_rows = int(indptr[-1]) + padding
        options["qo_indptr"] = indptr
    options["verify_lens"] = (lens - randint(0, 3, batch)).clamp(min=0)

    if from_logits:
        # Few distinct values: ties are common.
        logits = randint(-2, 3, num_rows, vocab + 2).to(dtype)
        if unsound:
            strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
            where = torch.rand(logits.shape, generator=rng) < 0.3
            picks = strange[randint(0, 4, *logits.shape).long()]
            logits = torch.where(where, picks.to(dtype), logits)
            logits[torch.rand(num_rows, generator=rng) < 0.1] = -float("inf")
            logits[torch.rand(num_rows, generator=rng) < 0.1] = float("nan")
        options["target_logits"] = logits
        options["vocab_size"] = vocab
    else:
        options["target_predict"] = randint(-1 if unsound else 0, vocab + unsound, num_rows)
        options["vocab_size"] = vocab
    options["out_cache_loc"] = torch.randperm(num_rows + 7, generator=rng)[:num_rows]
    if finish:
        options["finish"] = FinishRules(
            eos_token_ids=int32([vocab - 1]),
            stop_token_ids=randint(-1, vocab * 3, batch, 2),
            max_tokens_left=randint(0, nodes + 3, batch),
            min_tokens_left=randint(-1, 4, batch),
            ignore_eos=torch.rand(batch, generator=rng) < 0.3,
        )

    links: tuple[Tensor, ...] = ()
    if tree:
        links = random_links(rng, batch, nodes)
        options["width"] = int(randint(1, nodes + 1, 1))
    if unsound:
        big = 2**31 - 1
        drafts = torch.where(torch.rand(drafts.shape, generator=rng) < 0.2, int32([-1]), drafts)
        drafts[torch.rand(drafts.shape, generator=rng) < 0.1] = big
        options["verify_lens"] = randint(-2, nodes + 4, batch)
        if tree:
            links = tuple(
                torch.where(
                    torch.rand(x.shape, generator=rng) < 0.2, randint(-3, nodes + 3, *x.shape), x
                )
                for x in links
            )
            if not ragged:
                base = torch.arange(batch, dtype=torch.int32)[:, None] * nodes
                index = base + torch.arange(nodes, dtype=torch.int32)
                wrong = torch.rand(index.shape, generator=rng) < 0.1
                options["retrieve_index"] = torch.where(wrong, randint(-5, 99, *index.shape), index)
        if ragged:
            options["qo_indptr"][0] += 1
            options["qo_indptr"][batch // 2] += 2
            options["qo_indptr"][-1] += 5
    prefix_lens = randint(0, 100, batch)
    if unsound:
        prefix_lens[0] = 2**31 - 1 - int(randint(0, 2 * nodes, 1))
        prefix_lens[-1] = -1 - int(randint(0, 2, 1))
    return AcceptBatch(drafts, prefix_lens, links, options)
