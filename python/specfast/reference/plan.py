"""The planning ops in plain Python: how many rows of each request are verified, and which."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from specfast.records import VerifySchedule, VerifyWindow
from specfast.reference.float32 import f32
from specfast.reference.sigmoid import sigmoid
from specfast.status import Status

ConfidenceForm = Literal["survival", "confidence", "logits"]

INT32_MAX = 2**31 - 1


def schedule_verify_lens(
    confidence: Tensor,
    budget: int | Tensor | None = None,
    *,
    form: ConfidenceForm = "survival",
    temperatures: Tensor | None = None,
    min_lens: Tensor | None = None,
    max_lens: Tensor | None = None,
    anchors: Tensor | None = None,
    epsilon: float = 1e-6,
) -> VerifySchedule:
    """Sort all drafts that may be verified, and take as many as the budget says; see the op."""
    batch_size, num_drafts = confidence.shape
    schedule = VerifySchedule.empty(batch_size, num_drafts, "cpu")
    schedule.survival.zero_()
    probabilities = confidence.float().cpu()
    if form == "logits":
        probabilities = _sigmoid(probabilities, temperatures)
    wanted = batch_size * num_drafts if budget is None else int(budget)

    lens: list[int] = []
    candidates = []
    for b in range(batch_size):
        most, status = _clamped(max_lens, b, num_drafts + 1, 0, num_drafts + 1)
        if anchors is not None and int(anchors[b]) < 0:
            most, status = 0, Status.OK
        least, least_status = _clamped(min_lens, b, 1, 1, num_drafts + 1)
        if most > 0:
            status |= least_status | (Status.BAD_PARAM if wanted < 0 else Status.OK)
        lens.append(min(least, most))
        survival = 1.0
        for draft in range(most - 1):
            probability, draft_status = _probability(float(probabilities[b, draft]))
            status |= draft_status
            if form == "survival":
                survival = min(survival, probability)
            else:
                survival = f32(survival * probability)
            schedule.survival[b, draft] = survival
            if draft + 1 >= least and survival >= f32(epsilon):
                candidates.append((-survival, draft, b))
        schedule.status[b] = status
    for _, _, b in sorted(candidates)[: max(wanted, 0)]:
        lens[b] += 1
    schedule.verify_lens.copy_(torch.tensor(lens, dtype=torch.int32))
    return schedule


def _sigmoid(logits: Tensor, temperatures: Tensor | None) -> Tensor:
    """1 / (1 + exp(-x / T)) in float32; NaN where T is not a finite number above 0."""
    if temperatures is None:
        temperatures = torch.ones(logits.shape[1])
    legal = (temperatures > 0) & (temperatures < math.inf)
    return sigmoid(torch.where(legal.cpu(), logits / temperatures.cpu(), math.nan))


def _probability(value: float) -> tuple[float, Status]:
    if 0.0 <= value <= 1.0:
        return value, Status.OK
    return (1.0 if value > 1.0 else 0.0), Status.BAD_PARAM


def _clamped(
    lens: Tensor | None, b: int, absent: int, lowest: int, highest: int
) -> tuple[int, Status]:
    wanted = absent if lens is None else int(lens[b])
    clamped = max(lowest, min(wanted, highest))
    return clamped, Status.OK if clamped == wanted else Status.BAD_PARAM


def build_verify_window(
    draft_tokens: Tensor,
    prefix_lens: Tensor,
    page_table: Tensor,
    *,
    num_rows: int,
    page_size: int,
    anchors: Tensor | None = None,
    verify_lens: Tensor | None = None,
    page_table_rows: Tensor | None = None,
    context_len: int | None = None,
    vocab_size: int | None = None,
    padding_slot: int = -1,
) -> VerifyWindow:
    """Lay out each request's rows after those of the one before it; see the op."""
    batch_size, num_nodes = draft_tokens.shape
    window = VerifyWindow.empty(
        batch_size,
        num_rows,
        "cpu",
        tokens_dtype=draft_tokens.dtype,
        slots_dtype=page_table.dtype,
    )
    window.input_ids.zero_()
    window.positions.zero_()
    window.out_cache_loc.fill_(padding_slot)
    window.window_index.fill_(-1)
    window.qo_indptr.zero_()
    if context_len is None:
        context_len = min(page_table.shape[1] * page_size, INT32_MAX)
    num_ids = INT32_MAX if vocab_size is None else vocab_size

    row = 0
    for b in range(batch_size):
        length, status = _clamped(verify_lens, b, num_nodes, 0, num_nodes)
        prefix_len = int(prefix_lens[b])
        table_row = b if page_table_rows is None else int(page_table_rows[b])
        anchor = int(draft_tokens[b, 0] if anchors is None else anchors[b])
        if anchor < 0:
            length = 0
        exists = 0 <= prefix_len <= context_len and 0 <= table_row < page_table.shape[0]
        if length > 0 and not exists:
            length, status = 0, Status.BAD_PARAM
        # Past the context is the end of the request, not a fault.
        slots = []
        for position in range(prefix_len, min(prefix_len + length, context_len)):
            page = int(page_table[table_row, position // page_size])
            if not 0 <= page < INT32_MAX // page_size:
                status = Status.BAD_PARAM
                break
            slots.append(page * page_size + position % page_size)
        if row + len(slots) > num_rows:
            status = Status.BAD_PARAM
            slots = slots[: num_rows - row]
        for node, slot in enumerate(slots):
            token = anchor if node == 0 else int(draft_tokens[b, node])
            window.input_ids[row + node] = token if 0 <= token < num_ids else 0
            window.positions[row + node] = prefix_len + node
            window.out_cache_loc[row + node] = slot
            window.window_index[row + node] = b * num_nodes + node
        row += len(slots)
        window.verify_lens[b] = len(slots)
        window.qo_indptr[b + 1] = row
        window.status[b] = status
    return window
