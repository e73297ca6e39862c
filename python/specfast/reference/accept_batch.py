"""What every accept rule shares: the batch as Python reads it, the tail that writes a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from specfast.records import AcceptRecord, FinishRules
from specfast.status import FinishReason, Status

INT32_MAX = 2**31 - 1


class Child(NamedTuple):
    """A child as a rule meets it; ``token`` is -1 where it can only be passed over."""

    node: int
    token: int
    status: Status = Status.OK


class Window(NamedTuple):
    """The verify rows of one request: first row, rows, nodes verified, status."""

    base: int
    rows: int
    verified: int
    status: Status


@dataclass
class Path:
    """The rows that a rule visited and the token that it emits after each."""

    nodes: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    status: Status = Status.OK


@dataclass
class AcceptBatch:
    """The arguments of an accept op; ``links`` are first children and next siblings."""

    draft_tokens: Tensor
    prefix_lens: Tensor
    target_logits: Tensor | None
    target_predict: Tensor | None
    vocab_size: int | None
    qo_indptr: Tensor | None
    verify_lens: Tensor | None
    finish: FinishRules
    out_cache_loc: Tensor | None
    width: int
    links: tuple[Tensor, Tensor]
    retrieve_index: Tensor | None

    @property
    def num_requests(self) -> int:
        return self.draft_tokens.shape[0]

    @property
    def num_nodes(self) -> int:
        return self.draft_tokens.shape[1]

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

    def draft(self, b: int, node: int) -> int:
        """The draft of a node, -1 if it is outside the vocabulary."""
        token = int(self.draft_tokens[b, node])
        return token if 0 <= token < self.num_ids else -1

    def prefix_len(self, b: int) -> tuple[int, Status]:
        prefix_len = int(self.prefix_lens[b])
        if 0 <= prefix_len < 2**31 - self.width:
            return prefix_len, Status.OK
        return 0, Status.BAD_PARAM

    def window(self, b: int) -> Window:
        status = Status.OK
        if self.qo_indptr is None:
            base, rows = b * self.num_nodes, self.num_nodes
        else:
            low, high = int(self.qo_indptr[b]), int(self.qo_indptr[b + 1])
            base = min(max(low, 0), self.num_rows)
            end = min(max(high, base), self.num_rows)
            rows = end - base
            if (base, end) != (low, high):
                status |= Status.BAD_PARAM
        limit = min(rows, self.num_nodes)
        wanted = rows if self.verify_lens is None else int(self.verify_lens[b])
        verified = min(max(wanted, 0), limit)
        if verified != wanted:
            status |= Status.BAD_PARAM
        return Window(base, rows, verified, status)

    def children(self, b: int, parent: int, verified: int) -> Iterator[Child]:
        """The verified children of a node, in sibling order; a malformed link ends them."""
        next_token, next_sibling = self.links
        node, previous = int(next_token[b, parent]), parent
        while node != -1:
            if not previous < node < self.num_nodes:
                yield Child(-1, -1, Status.BAD_TREE)
                return
            if node >= verified:
                return
            token = self.draft(b, node)
            yield Child(node, token, Status.BAD_TOKEN if token < 0 else Status.OK)
            node, previous = int(next_sibling[b, node]), node

    def row(self, b: int, node: int, window: Window) -> tuple[int, Status]:
        """The verify row of a node, -1 if there is none to read."""
        if self.retrieve_index is None:
            return window.base + node, Status.OK
        given = int(self.retrieve_index[b, node])
        if window.base <= given < window.base + window.verified:
            return given, Status.OK
        return (window.base if node == 0 else -1), Status.BAD_TREE


def write_padding(record: AcceptRecord) -> None:
    """Fill what depends on the path, before the requests write over it."""
    record.predict.fill_(-1)
    for padded in (record.accept_index, record.out_tokens, record.positions, record.slots):
        if padded is not None:
            padded.fill_(-1)
    if record.logprobs is not None:
        record.logprobs.fill_(0)


def write_request(
    record: AcceptRecord, batch: AcceptBatch, b: int, window: Window, path: Path
) -> None:
    """Truncate the path and write the request's part of the record."""
    accept_len = len(path.tokens)
    commit_len, reason = 0, FinishReason.NOT_FINISHED
    if window.verified > 0:
        commit_len, reason = _truncate(batch.finish, b, path.tokens)
    prefix_len, status = batch.prefix_len(b)
    for i in range(commit_len):
        record.predict[path.rows[i]] = path.tokens[i]
        record.accept_index[b, i] = path.rows[i]
        record.out_tokens[b, i] = path.tokens[i]
        record.positions[b, i] = prefix_len + i
        if record.slots is not None and batch.out_cache_loc is not None:
            record.slots[b, i] = batch.out_cache_loc[window.base + i]
    bonus = path.tokens[commit_len - 1] if commit_len > 0 else -1
    record.num_correct_drafts[b] = max(accept_len - 1, 0)
    record.accept_lens[b] = accept_len
    record.commit_lens[b] = commit_len
    record.new_seq_lens[b] = prefix_len + commit_len
    record.bonus[b] = bonus
    record.next_anchor[b] = bonus if reason is FinishReason.NOT_FINISHED else -1
    record.finish_reason[b] = reason
    record.status[b] = window.status | path.status | status


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
