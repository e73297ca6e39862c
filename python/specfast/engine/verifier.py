"""One forward of the target and what it decides: rows, attention, accept, relocation, record."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.base import DraftBatch
from specfast.drafters.taps import TapRecorder, recording
from specfast.engine.attention import AttentionLayers, PagedAttention
from specfast.engine.flashinfer_attention import FlashInfer, FlashInferAttention
from specfast.engine.packed_record import RecordShape
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.rank_agreement import RankAgreement, Site
from specfast.engine.requests import Request
from specfast.engine.rows import RowBatch, lay_out_rows
from specfast.engine.rules import BatchRule, choose_rule
from specfast.engine.state_adapter import ChainRows
from specfast.engine.state_pool import RowStates, StatePool
from specfast.engine.target import Target
from specfast.engine.verified_round import VerifiedRound
from specfast.records import AcceptRecord, FinishRules, TreeRecord


class Verifier:
    """Runs prefills and verify rounds; each returns its record on the host, in one copy."""

    def __init__(
        self,
        target: Target,
        pool: PagedKvPool,
        page_table: PageTable,
        agreement: RankAgreement | None = None,
        recorder: TapRecorder | None = None,
        state_pool: StatePool | None = None,
        attention_backend: Literal["flashinfer"] | None = None,
    ) -> None:
        self._target = target
        self._flashinfer = None if attention_backend is None else FlashInfer(pool, target)
        self._state_pool = state_pool
        self._recorder = recorder
        self._agreement = agreement
        self._pool = pool
        self._page_table = page_table

    def prefill(self, request: Request) -> VerifiedRound:
        """Write the KV of the prompt; its last row emits the first token."""
        lens = [len(request.token_ids)]
        rows = self._lay_out([request], lens)
        ids = torch.tensor(request.token_ids, device=self._target.device)
        positions = torch.arange(len(ids), device=ids.device)
        attention = self._attention([request], lens, rows)
        states = self._states(rows, last_only=True)
        with recording(self._recorder):
            logits = self._target.forward(ids, positions, attention, states, last_only=True)
        rule = choose_rule([request], None, ids.device)
        shape = RecordShape(1, 1, 1, rule.wants_logprobs)
        record, packed = shape.pack(ids.device)
        # The last prompt token is the anchor of a round without drafts.
        accept = partial(
            ops.accept_chain,
            ids[None, -1:],
            rows.verify_lens - 1,
            target_logits=logits,
            finish=_finish_rules([request], ids.device),
            out_cache_loc=rows.out_cache_loc[-1:],
        )
        rule.decide(accept, record)
        self._agree(packed)
        if states is not None:
            states.commit(record)
        taps = None if self._recorder is None else [self._recorder.taps()[0]]
        return VerifiedRound.of(shape.unpack(packed.cpu()), [1], taps)

    def verify(
        self, requests: Sequence[Request], draft: DraftBatch, verify_lens: Sequence[int]
    ) -> VerifiedRound:
        """Verify the first ``verify_lens[b]`` rows of each draft; KV ends up committed."""
        rows = self._lay_out(requests, verify_lens)
        tokens = draft.tokens.clone()
        tokens[:, 0] = torch.tensor([request.token_ids[-1] for request in requests])
        tokens = tokens.to(self._target.device)
        tree = self._build_tree(draft, tokens, rows)
        window_mask = None if tree is None else tree.mask
        positions = rows.prefix_lens[:, None] + rows.offsets if tree is None else tree.positions
        states = self._states(rows)
        with recording(self._recorder):
            logits = self._target.forward(
                rows.flatten(self._embeddable(tokens)),
                rows.flatten(positions).long(),
                self._attention(requests, verify_lens, rows, window_mask),
                states,
            )
        rule = choose_rule(requests, draft.proposal, tokens.device)
        shape = RecordShape(rows.batch_size, tokens.shape[1], rows.num_rows, rule.wants_logprobs)
        record, packed = shape.pack(tokens.device)
        self._accept(requests, tokens, tree, rows, logits, rule, record)
        self._agree(packed)
        if tree is not None:
            self._relocate(rows, record)
        if states is not None:
            states.commit(record)
        on_host = shape.unpack(packed.cpu())
        return VerifiedRound.of(on_host, verify_lens, self._committed_taps(on_host))

    def _committed_taps(self, record: AcceptRecord) -> list[Tensor] | None:
        if self._recorder is None:
            return None
        taps = self._recorder.taps()[0]
        accepted = record.accept_index.to(taps.device, torch.int64)
        counts = record.commit_lens.tolist()
        return [taps[index[:n]] for index, n in zip(accepted, counts, strict=True)]

    def _attention(
        self,
        requests: Sequence[Request],
        verify_lens: Sequence[int],
        rows: RowBatch,
        window_mask: Tensor | None = None,
    ) -> AttentionLayers:
        if self._flashinfer is None:
            return PagedAttention(self._pool, rows, window_mask)
        return FlashInferAttention(self._flashinfer, requests, verify_lens, rows, window_mask)

    def _states(self, rows: RowBatch, *, last_only: bool = False) -> RowStates | None:
        if self._state_pool is None:
            return None
        chain_rows = ChainRows.of_batch(rows, last_only=last_only)
        return self._state_pool.over(chain_rows, rows.page_table_rows)

    def _lay_out(self, requests: Sequence[Request], verify_lens: Sequence[int]) -> RowBatch:
        return lay_out_rows(requests, verify_lens, self._page_table, self._target.device)

    def _build_tree(self, draft: DraftBatch, tokens: Tensor, rows: RowBatch) -> TreeRecord | None:
        if draft.parents is None:
            return None
        return ops.tree_from_parents(
            tokens,
            draft.parents.to(tokens.device),
            rows.prefix_lens,
            verify_lens=rows.verify_lens,
            mask_mode="qlen",
        )

    def _embeddable(self, tokens: Tensor) -> Tensor:
        """Any legal id where a draft has none: accept rejects it, the embedding must survive it."""
        legal = (tokens >= 0) & (tokens < self._target.vocab_size)
        return torch.where(legal, tokens, 0)

    def _accept(
        self,
        requests: Sequence[Request],
        tokens: Tensor,
        tree: TreeRecord | None,
        rows: RowBatch,
        logits: Tensor,
        rule: BatchRule,
        record: AcceptRecord,
    ) -> None:
        finish = _finish_rules(requests, tokens.device)
        if tree is None:
            # The accepted rows of a chain are the front of the window: nothing moves.
            accept = partial(
                ops.accept_chain,
                tokens,
                rows.prefix_lens,
                target_logits=logits,
                qo_indptr=rows.qo_indptr,
                verify_lens=rows.verify_lens,
                finish=finish,
                out_cache_loc=rows.out_cache_loc,
            )
            rule.decide(accept, record)
            return
        record.status.copy_(tree.status)
        accept = partial(
            ops.accept_tree,
            tokens,
            tree.retrieve_next_token,
            tree.retrieve_next_sibling,
            rows.prefix_lens,
            width=tokens.shape[1],
            target_logits=logits,
            qo_indptr=rows.qo_indptr,
            verify_lens=rows.verify_lens,
            finish=finish,
            out_cache_loc=rows.out_cache_loc,
            accumulate_status=True,
        )
        rule.decide(accept, record)

    def _agree(self, packed: Tensor) -> None:
        """Other ranks may have decided otherwise: before anything moves, all take the same."""
        if self._agreement is not None:
            self._agreement.decide(Site.ACCEPT, packed)

    def _relocate(self, rows: RowBatch, record: AcceptRecord) -> None:
        assert self._pool.layout is not None  # recurrent targets have no trees
        ops.relocate_kv(
            self._pool.layout,
            record.accept_index,
            record.commit_lens,
            out_cache_loc=rows.out_cache_loc,
            qo_indptr=rows.qo_indptr,
            status=record.status,
            accumulate_status=True,
        )


def _finish_rules(requests: Sequence[Request], device: torch.device) -> FinishRules:
    """The op has one EOS list for the batch; requests may differ, so each brings its own ids."""
    lengths = [[r.tokens_left for r in requests], [r.min_tokens_left for r in requests]]
    max_left, min_left = torch.tensor(lengths, dtype=torch.int32, device=device)
    most = max(len(request.end_token_ids) for request in requests)
    padded = [[*r.end_token_ids, *[-1] * (most - len(r.end_token_ids))] for r in requests]
    stop = torch.tensor(padded, dtype=torch.int32, device=device) if most > 0 else None
    return FinishRules(stop_token_ids=stop, max_tokens_left=max_left, min_tokens_left=min_left)
