"""accept_tree and accept_chain in plain Python: the meaning of the accept ops."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from specfast.records import AcceptRecord, FinishRules
from specfast.status import FinishReason, Status

INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class RowPrediction:
    """What the target says after one verify row; an invalid row ends the path."""

    token: int
    valid: bool
    status: Status


def greedy_prediction(row: Tensor, vocab_size: int) -> RowPrediction:
    """Lowest id of the largest value; NaN never wins; nothing usable means token 0."""
    values = row[:vocab_size].float().tolist()
    status = Status.NAN_LOGITS if any(math.isnan(v) for v in values) else Status.OK
    best, token = -math.inf, -1
    for i, value in enumerate(values):
        if value > best:
            best, token = value, i
    if token < 0:
        return RowPrediction(0, False, status or Status.EMPTY_SUPPORT)
    return RowPrediction(token, True, status)


def _given_prediction(token: int, vocab_size: int) -> RowPrediction:
    if not 0 <= token < vocab_size:
        return RowPrediction(0, False, Status.BAD_TOKEN)
    return RowPrediction(token, True, Status.OK)


@dataclass
class _Batch:
    """The arguments that both ops share, as Python reads them."""

    draft_tokens: Tensor
    prefix_lens: Tensor
    target_logits: Tensor | None
    target_predict: Tensor | None
    vocab_size: int | None
    qo_indptr: Tensor | None
    verify_lens: Tensor | None
    finish: FinishRules
    out_cache_loc: Tensor | None

    @property
    def num_rows(self) -> int:
        rows = self.target_logits if self.target_logits is not None else self.target_predict
        assert rows is not None
        return rows.shape[0]

    @property
    def num_ids(self) -> int:
        """Ids from here on are bad; where nothing names a vocabulary, the record's int32 does."""
        if self.vocab_size is not None:
            return self.vocab_size
        return INT32_MAX if self.target_logits is None else self.target_logits.shape[1]

    def predict(self, row: int) -> RowPrediction:
        if self.target_logits is not None:
            return greedy_prediction(self.target_logits[row], self.num_ids)
        assert self.target_predict is not None
        return _given_prediction(int(self.target_predict[row]), self.num_ids)

    def draft_is_bad(self, token: int) -> bool:
        return not 0 <= token < self.num_ids

    def window(self, b: int) -> tuple[int, int, int, Status]:
        """First row, rows in the window, nodes verified, status."""
        num_nodes = self.draft_tokens.shape[1]
        status = Status.OK
        if self.qo_indptr is None:
            base, rows = b * num_nodes, num_nodes
        else:
            low, high = int(self.qo_indptr[b]), int(self.qo_indptr[b + 1])
            base = min(max(low, 0), self.num_rows)
            end = min(max(high, base), self.num_rows)
            rows = end - base
            if (base, end) != (low, high):
                status |= Status.BAD_PARAM
        limit = min(rows, num_nodes)
        wanted = rows if self.verify_lens is None else int(self.verify_lens[b])
        verified = min(max(wanted, 0), limit)
        if verified != wanted:
            status |= Status.BAD_PARAM
        return base, rows, verified, status


def _next_child(
    batch: _Batch, b: int, parent: int, token: int, verified: int, links: tuple[Tensor, Tensor]
) -> tuple[int, Status]:
    """First child of ``parent`` that carries ``token``, -1 if none."""
    next_token, next_sibling = links
    num_nodes = batch.draft_tokens.shape[1]
    child, previous, status = int(next_token[b, parent]), parent, Status.OK
    while child != -1:
        if not previous < child < num_nodes:
            return -1, status | Status.BAD_TREE
        if child >= verified:
            return -1, status
        draft = int(batch.draft_tokens[b, child])
        if batch.draft_is_bad(draft):
            status |= Status.BAD_TOKEN
        elif draft == token:
            return child, status
        child, previous = int(next_sibling[b, child]), child
    return -1, status


def _finishes(finish: FinishRules, b: int, token: int) -> FinishReason:
    ignore_eos = finish.ignore_eos is not None and bool(finish.ignore_eos[b])
    eos = [] if finish.eos_token_ids is None or ignore_eos else finish.eos_token_ids.tolist()
    if token in eos:
        return FinishReason.EOS
    if finish.stop_token_ids is not None and token in finish.stop_token_ids[b].tolist():
        return FinishReason.STOP
    return FinishReason.NOT_FINISHED


def _truncate(finish: FinishRules, b: int, tokens: list[int]) -> tuple[int, FinishReason]:
    """How many of the tokens are emitted, and whether that ends the request."""
    limit = len(tokens) + 1
    if finish.max_tokens_left is not None:
        limit = max(int(finish.max_tokens_left[b]), 0)
    minimum = 0 if finish.min_tokens_left is None else int(finish.min_tokens_left[b])
    for i, token in enumerate(tokens[:limit]):
        reason = _finishes(finish, b, token)
        if reason is not FinishReason.NOT_FINISHED and i + 1 >= minimum:
            return i + 1, reason
    if len(tokens) >= limit:
        return limit, FinishReason.LENGTH
    return len(tokens), FinishReason.NOT_FINISHED


def _accept(
    batch: _Batch,
    width: int,
    links: tuple[Tensor, Tensor],
    retrieve_index: Tensor | None,
    return_trim: bool,
    previous_status: Tensor | None,
) -> AcceptRecord:
    batch_size = batch.draft_tokens.shape[0]
    loc = batch.out_cache_loc
    record = AcceptRecord.empty(
        batch_size,
        width,
        batch.num_rows,
        batch.draft_tokens.device,
        slots_dtype=None if loc is None else loc.dtype,
        cap_trim=return_trim,
    )
    record.predict.fill_(-1)
    for padded in (record.accept_index, record.out_tokens, record.positions, record.slots):
        if padded is not None:
            padded.fill_(-1)

    for b in range(batch_size):
        base, rows, verified, status = batch.window(b)
        nodes: list[int] = []
        path_rows: list[int] = []
        tokens: list[int] = []
        node = 0
        while verified > 0:
            row = base + node
            if retrieve_index is not None:
                given = int(retrieve_index[b, node])
                if base <= given < base + verified:
                    row = given
                else:
                    status |= Status.BAD_TREE
                    if node > 0:
                        break
            if path_rows and row <= path_rows[-1]:
                status |= Status.BAD_TREE
                break
            prediction = batch.predict(row)
            status |= prediction.status
            nodes.append(node)
            path_rows.append(row)
            tokens.append(prediction.token)
            if not prediction.valid or len(nodes) == width:
                break
            node, child_status = _next_child(batch, b, node, prediction.token, verified, links)
            status |= child_status
            if node < 0:
                break

        accept_len = len(tokens)
        commit_len, reason = 0, FinishReason.NOT_FINISHED
        if verified > 0:
            commit_len, reason = _truncate(batch.finish, b, tokens)
        prefix_len = int(batch.prefix_lens[b])
        if not 0 <= prefix_len < 2**31 - width:
            prefix_len = 0
            status |= Status.BAD_PARAM
        for i in range(commit_len):
            record.predict[path_rows[i]] = tokens[i]
            record.accept_index[b, i] = path_rows[i]
            record.out_tokens[b, i] = tokens[i]
            record.positions[b, i] = prefix_len + i
            if record.slots is not None and loc is not None:
                record.slots[b, i] = loc[base + i]
        bonus = tokens[commit_len - 1] if commit_len > 0 else -1
        record.num_correct_drafts[b] = max(accept_len - 1, 0)
        record.accept_lens[b] = accept_len
        record.commit_lens[b] = commit_len
        record.new_seq_lens[b] = prefix_len + commit_len
        record.bonus[b] = bonus
        record.next_anchor[b] = bonus if reason is FinishReason.NOT_FINISHED else -1
        record.finish_reason[b] = reason
        if previous_status is not None:
            status |= Status(int(previous_status[b]))
        record.status[b] = status
        if record.cap_trim_lens is not None:
            limit = min(rows, batch.draft_tokens.shape[1])
            record.cap_trim_lens[b] = _trim(batch, b, base, nodes, tokens, verified, limit)
    return record


def _trim(
    batch: _Batch, b: int, base: int, nodes: list[int], tokens: list[int], verified: int, limit: int
) -> int:
    """Drafts past ``verify_lens`` that the chain would have accepted: a statistic."""
    if not nodes or nodes[-1] != verified - 1:
        return 0
    prediction = batch.predict(base + nodes[-1])
    trimmed = 0
    for node in range(verified, limit):
        draft = int(batch.draft_tokens[b, node])
        if not prediction.valid or batch.draft_is_bad(draft) or draft != prediction.token:
            break
        trimmed += 1
        prediction = batch.predict(base + node)
    return trimmed


def accept_tree(
    draft_tokens: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    prefix_lens: Tensor,
    *,
    width: int,
    target_logits: Tensor | None = None,
    target_predict: Tensor | None = None,
    vocab_size: int | None = None,
    retrieve_index: Tensor | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    previous_status: Tensor | None = None,
) -> AcceptRecord:
    """Follow, from the root, the child that carries the target's token; see the op."""
    batch = _Batch(
        draft_tokens,
        prefix_lens,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        finish or FinishRules(),
        out_cache_loc,
    )
    links = (retrieve_next_token, retrieve_next_sibling)
    return _accept(batch, width, links, retrieve_index, False, previous_status)


def accept_chain(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    *,
    target_logits: Tensor | None = None,
    target_predict: Tensor | None = None,
    vocab_size: int | None = None,
    qo_indptr: Tensor | None = None,
    verify_lens: Tensor | None = None,
    finish: FinishRules | None = None,
    out_cache_loc: Tensor | None = None,
    return_trim: bool = False,
    previous_status: Tensor | None = None,
) -> AcceptRecord:
    """Accept the longest prefix of the drafts that the target predicts; see the op."""
    batch_size, num_nodes = draft_tokens.shape
    batch = _Batch(
        draft_tokens,
        prefix_lens,
        target_logits,
        target_predict,
        vocab_size,
        qo_indptr,
        verify_lens,
        finish or FinishRules(),
        out_cache_loc,
    )
    following = torch.arange(1, num_nodes + 1, dtype=torch.int32)
    following[-1] = -1
    next_token = following.expand(batch_size, num_nodes)
    next_sibling = torch.full((batch_size, num_nodes), -1, dtype=torch.int32)
    return _accept(batch, num_nodes, (next_token, next_sibling), None, return_trim, previous_status)
