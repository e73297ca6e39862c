"""row_stats in plain Python: what one shard of the vocabulary says of every verify row."""

from __future__ import annotations

import dataclasses

from torch import Tensor

from specfast.reference.accept import chain_links
from specfast.reference.accept_batch import Child
from specfast.reference.coins import RequestCoins, token_at
from specfast.reference.distribution import row_distribution
from specfast.reference.philox import Purpose
from specfast.reference.shard_record import (
    DRAWN,
    FIRST_KEY,
    LARGEST,
    REST,
    ShardRules,
    coins_of,
    key_of,
    on_no_ids,
    signed,
    verified_rows,
    verify_batch,
)
from specfast.reference.target_only import is_repeated
from specfast.sampling import RowKind, RowStats, SamplingRules
from specfast.status import Status


def row_stats(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    target_logits: Tensor,
    sampling: SamplingRules,
    *,
    vocab_size: int,
    max_candidates: int,
    max_top_k: int = 0,
    vocab_offset: int = 0,
    retrieve_next_token: Tensor | None = None,
    retrieve_next_sibling: Tensor | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
) -> RowStats:
    """What the ids from ``vocab_offset`` on say of each verify row; see the op."""
    links = chain_links(draft_tokens)
    if retrieve_next_token is not None and retrieve_next_sibling is not None:
        links = retrieve_next_token, retrieve_next_sibling
    batch = verify_batch(
        draft_tokens, prefix_lens, target_logits, vocab_size, qo_indptr, verify_lens, links
    )
    size = min(target_logits.shape[1], vocab_size - vocab_offset)
    stats = RowStats.empty(len(target_logits), "cpu", max_candidates, max_top_k)
    stats.packed.zero_()
    stats.packed[:, DRAWN] = -1
    for row, b, node in verified_rows(batch):
        out = stats.packed[row]
        rules = ShardRules.of(sampling, b, vocab_size, max_top_k)
        values = on_no_ids(target_logits[row, :size].float())

        def key(token: int, values: Tensor = values) -> int:
            return key_of(float(values[token]), token + vocab_offset)

        # Filters of masses come after the merge, which knows all of them.
        p = row_distribution(values, None, dataclasses.replace(rules.whole, top_p=1.0, min_p=0.0))
        largest = 0 if p.kind == RowKind.UNUSABLE else key(p.token)
        out[LARGEST] = signed(largest | (Status.NAN_LOGITS in p.status))
        if p.kind != RowKind.ORDINARY:
            continue
        children = list(batch.children(b, node, batch.window(b).verified))[:max_candidates]
        candidates = _candidates(children, vocab_offset, size)
        for i, token in enumerate(candidates):
            out[FIRST_KEY + i] = 0 if token is None else signed(key(token))
        if rules.counts:
            kept = sorted((key(int(token)) for token in p.masses.nonzero()), reverse=True)
            for i, best in enumerate(kept):
                out[FIRST_KEY + max_candidates + i] = signed(best)
        else:
            rest = without(p.masses, [token for token in candidates if token is not None])
            out[REST] = rest.sum()
            out[DRAWN] = _drawn(rest, coins_of(batch, sampling, b), node, vocab_offset)
    return stats


def _candidates(children: list[Child], vocab_offset: int, size: int) -> list[int | None]:
    """The column of each child's token, None where it is not here, or was not the first time."""
    tokens = [child.token for child in children]
    return [
        token - vocab_offset
        if token >= 0 and 0 <= token - vocab_offset < size and not is_repeated(token, tokens[:i])
        else None
        for i, token in enumerate(tokens)
    ]


def without(masses: Tensor, candidates: list[int]) -> Tensor:
    """What the last draw chooses from: candidates are decided on before it."""
    rest = masses.clone()
    rest[candidates] = 0
    return rest


def _drawn(rest: Tensor, coins: RequestCoins, node: int, vocab_offset: int) -> int:
    """The token that the row gets if the last draw falls on this shard; -1 if it cannot."""
    total = int(rest.sum())
    if total == 0:
        return -1
    return token_at(rest, coins.drawn(Purpose.FINAL_INNER, node, 0, total)) + vocab_offset
