"""Records taken apart into the arguments of the registered ops, and what rules refuse."""

from __future__ import annotations

from typing import Literal, TypeVar

from torch import Tensor

from specfast.records import AcceptRecord, FinishRules
from specfast.sampling import Coins, LogitEdits, Proposal, RowRecord, SamplingRules

Logprobs = Literal["raw", "processed"]
Given = TypeVar("Given")

_FINISH = ("eos_token_ids", "stop_token_ids", "max_tokens_left", "min_tokens_left", "ignore_eos")
_FILTERS = ("temperature", "seeds", "top_k", "top_p", "min_p")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
_PROPOSAL = ("logits", "probs", "sparse_ids", "sparse_values", "row_of_node", "d2t")
_EDITS = ("indptr", "ids", "counts", "biases")


def finish_tensors(op: str, finish: FinishRules | None) -> tuple[Tensor | None, ...]:
    if finish is None:
        return (None,) * len(_FINISH)
    expect(op, "finish", finish, FinishRules)
    return _tensors(op, "finish", finish, _FINISH)


def sampling_tensors(op: str, sampling: SamplingRules) -> tuple[Tensor | None, ...]:
    """All but the coins."""
    edits: tuple[Tensor | None, ...] = (None,) * 4
    filters = filter_tensors(op, sampling)
    penalties = _tensors(op, "sampling", sampling, _PENALTIES)
    if sampling.edits is not None:
        expect(op, "sampling.edits", sampling.edits, LogitEdits)
        edits = _tensors(op, "sampling.edits", sampling.edits, _EDITS)
    return (*filters, *penalties, *edits, *_tensors(op, "sampling", sampling, ("token_bitmask",)))


def filter_tensors(op: str, sampling: SamplingRules) -> tuple[Tensor | None, ...]:
    """Temperature, seeds, top-k, top-p and min-p."""
    expect(op, "sampling", sampling, SamplingRules)
    for name in ("temperature", "seeds"):
        expect(op, f"sampling.{name}", getattr(sampling, name), Tensor)
    return _tensors(op, "sampling", sampling, _FILTERS)


def has_edits(sampling: SamplingRules) -> bool:
    """Whether what is sampled from are not the logits as they come."""
    changes = (
        sampling.edits,
        sampling.repetition_penalty,
        sampling.presence_penalty,
        sampling.frequency_penalty,
        sampling.token_bitmask,
    )
    return any(change is not None for change in changes)


def coin_tensors(op: str, sampling: SamplingRules) -> tuple[Tensor | None, Tensor | None]:
    if sampling.coins is None:
        return None, None
    expect(op, "sampling.coins", sampling.coins, Coins)
    accept, final = _tensors(op, "sampling.coins", sampling.coins, ("accept", "final"))
    return accept, final


def proposal_tensors(op: str, proposal: Proposal) -> tuple[Tensor | None, ...]:
    expect(op, "proposal", proposal, Proposal)
    if proposal.records is not None:
        expect(op, "proposal.records", proposal.records, RowRecord)
        if proposal.records.edited and not proposal.logits_edited:
            raise RuntimeError(
                f"{op}: expected proposal.logits_edited (the records are of edited logits: edit "
                "the draft logits as they were for the draws), got False"
            )
    logits, *others = _tensors(op, "proposal", proposal, _PROPOSAL)
    return logits, None if proposal.records is None else proposal.records.packed, *others


def _tensors(
    op: str, name: str, record: object, fields: tuple[str, ...]
) -> tuple[Tensor | None, ...]:
    """Fields of ``record``, each a tensor or absent."""
    values = tuple(getattr(record, field) for field in fields)
    for field, value in zip(fields, values, strict=True):
        if value is not None:
            expect(op, f"{name}.{field}", value, Tensor)
    return values


def expect(op: str, name: str, value: object, record: type) -> None:
    """Refuse anything but this type; torch would name neither the argument nor its fields."""
    if not isinstance(value, record):
        raise RuntimeError(f"{op}: expected {name} as {record.__name__}, got {said(value)}")


def required(op: str, name: str, value: Given | None, rule: str) -> Given:
    if value is None:
        raise RuntimeError(f'{op}: expected {name} with rule "{rule}", got None')
    return value


def require_rule(op: str, rule: str, rules: tuple[str, ...]) -> None:
    if rule in rules:
        return
    allowed = ", ".join(f'"{known}"' for known in rules[:-1]) + f' or "{rules[-1]}"'
    hint = " (it decides on a whole chain: use accept_chain)" if rule == "block" else ""
    raise RuntimeError(f"{op}: expected rule {allowed}, got {rule!r}{hint}")


def refuse(op: str, name: str, value: object, rule: str, why: str) -> None:
    """Refuse an argument that this rule has no use for."""
    if value is not None:
        raise RuntimeError(f'{op}: expected no {name} with rule "{rule}", got {said(value)}: {why}')


def refuse_thresholds(op: str, rule: str, threshold_single: float, threshold_acc: float) -> None:
    if (threshold_single, threshold_acc) != (1.0, 1.0):
        raise RuntimeError(
            f'{op}: expected threshold_single and threshold_acc 1 with rule "{rule}", got '
            f'{threshold_single} and {threshold_acc}: only rule "target_only" has thresholds'
        )


def accept_buffers(
    op: str,
    out: AcceptRecord | None,
    draft_tokens: Tensor,
    width: int | None,
    rows: Tensor | None,
    out_cache_loc: Tensor | None,
    *,
    accumulate_status: bool,
    cap_trim: bool = False,
    logprobs: str | None = None,
) -> AcceptRecord:
    """The caller's record, or a new one; ``width`` None is that of a chain."""
    if logprobs not in (None, "raw", "processed"):
        raise RuntimeError(
            f'{op}: expected logprobs None, "raw" or "processed", got {said(logprobs)}'
        )
    if out is not None:
        if (out.logprobs is None) != (logprobs is None):
            given = "logprobs" if out.logprobs is None else "out.logprobs"
            raise RuntimeError(
                f"{op}: expected out.logprobs exactly when logprobs is asked for, got {given} alone"
            )
        return out
    if accumulate_status:
        raise RuntimeError(f"{op}: expected out with accumulate_status, got None")
    # Of any rank: the op has the sentence for a wrong one.
    batch_size, num_nodes = (1, 1, *draft_tokens.shape)[-2:]
    return AcceptRecord.empty(
        batch_size,
        num_nodes if width is None else width,
        0 if rows is None else rows.shape[:1].numel(),
        draft_tokens.device,
        slots_dtype=None if out_cache_loc is None else out_cache_loc.dtype,
        cap_trim=cap_trim,
        logprobs=logprobs is not None,
    )


def said(value: object) -> str:
    """A value as a sentence names it: plain ones whole, others by their type."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if plain else type(value).__name__
