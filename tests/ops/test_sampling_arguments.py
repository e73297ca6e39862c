"""Sampled ops refuse what the host can see to be wrong, and say what they expected and got."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from accept_batches import int32
from specfast import (
    AcceptRecord,
    Coins,
    FinishRules,
    LogitEdits,
    Proposal,
    RowRecord,
    SampledRows,
    SamplingRules,
    ops,
)
from torch import Tensor

B, N, V = 2, 3, 40
R, Q = B * N, B * (N - 1)


def int64(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def float64(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.float64)


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def sound_arguments(op: str) -> dict[str, Any]:
    """A call that goes through, into which a test puts one fault."""
    sampling = SamplingRules(
        torch.ones(B),
        int64(B),
        edits=LogitEdits(ints(B + 1), ints(4), ints(4)),
        coins=Coins(torch.zeros(B, N), torch.zeros(B)),
    )
    if op == "sample_rows":
        return {
            "logits": torch.zeros(R, V),
            "sampling": replace(sampling, coins=None),
            "prefix_lens": ints(B),
            "request_of_row": int32([0, 0, 0, 1, 1, 1]),
        }
    arguments = {
        "draft_tokens": ints(B, N),
        "prefix_lens": ints(B),
        "target_logits": torch.zeros(R, V),
        "sampling": sampling,
    }
    if op != "accept_target_only":
        arguments["proposal"] = Proposal(probs=torch.full((Q, V), 1 / V))
    return arguments


def call(op: str, changes: dict[str, Any]) -> Any:
    """Call with changes: of an argument, or by ``a.b`` of a field of one."""
    arguments = sound_arguments(op)
    for path, value in changes.items():
        name, *fields = path.split(".")
        arguments[name] = changed(arguments.get(name), fields, value)
    return getattr(ops, op)(**arguments)


def changed(record: Any, fields: list[str], value: Any) -> Any:
    if not fields:
        return value
    inner = changed(getattr(record, fields[0]), fields[1:], value)
    return replace(record, **{fields[0]: inner})


ACCEPT_OPS = ("accept_target_only", "accept_rejection", "accept_block")
ALL_OPS = (*ACCEPT_OPS, "sample_rows")

SAMPLING = {
    "sampling as SamplingRules, got dict": {"sampling": {"temperature": torch.ones(B)}},
    "sampling as SamplingRules, got None": {"sampling": None},
    "sampling.temperature as Tensor, got list": {"sampling.temperature": [1.0] * B},
    "sampling.temperature as Tensor, got 0.7": {"sampling.temperature": 0.7},
    "sampling.seeds as Tensor, got None": {"sampling.seeds": None},
    "sampling.top_p as Tensor, got list": {"sampling.top_p": [0.9] * B},
    "sampling.presence_penalty as Tensor, got tuple": {"sampling.presence_penalty": (0.5,) * B},
    "sampling.edits.ids as Tensor, got list": {"sampling.edits.ids": [1, 2, 3, 4]},
    "sampling.token_bitmask as Tensor, got list": {"sampling.token_bitmask": [[1]] * R},
    r"sampling.temperature of shape \[B=2\], got \[3\]": {"sampling.temperature": torch.ones(3)},
    "sampling.temperature of dtype float32, got float64": {"sampling.temperature": float64(B)},
    r"sampling.seeds of shape \[B=2\], got \[1\]": {"sampling.seeds": int64(1)},
    "sampling.seeds of dtype int64, got int32": {"sampling.seeds": ints(B)},
    "sampling.top_k of dtype int32, got int64": {"sampling.top_k": int64(B)},
    r"sampling.top_k of shape \[B=2\], got \[2, 1\]": {"sampling.top_k": ints(B, 1)},
    "sampling.top_p of dtype float32, got float64": {"sampling.top_p": float64(B)},
    r"sampling.min_p of shape \[B=2\], got \[0\]": {"sampling.min_p": torch.zeros(0)},
    "sampling.repetition_penalty of dtype float32, got int32": {
        "sampling.repetition_penalty": ints(B)
    },
    r"sampling.presence_penalty of shape \[B=2\], got \[6\]": {
        "sampling.presence_penalty": torch.zeros(R)
    },
    r"sampling.frequency_penalty to be contiguous, got strides \[2\]": {
        "sampling.frequency_penalty": torch.zeros(2 * B)[::2]
    },
    "sampling.edits as LogitEdits, got tuple": {"sampling.edits": (ints(B + 1), ints(4))},
    "sampling.edits with indptr, ids and counts, got only some": {"sampling.edits.counts": None},
    r"sampling.edits.indptr of shape \[B \+ 1=3\], got \[2\]": {"sampling.edits.indptr": ints(B)},
    "sampling.edits.ids of dtype int32, got int64": {"sampling.edits.ids": int64(4)},
    r"sampling.edits.counts of shape \[num_edits=4\], got \[5\]": {
        "sampling.edits.counts": ints(5)
    },
    r"sampling.edits.biases of shape \[num_edits=4\], got \[3\]": {
        "sampling.edits.biases": torch.zeros(3)
    },
    "sampling.token_bitmask of dtype int32, got bool": {
        "sampling.token_bitmask": torch.ones(R, V, dtype=torch.bool)
    },
    r"sampling.token_bitmask of shape \[R=6, W\], got \[2, 2\]": {
        "sampling.token_bitmask": ints(B, 2)
    },
    r"the number of words W of sampling.token_bitmask in \[2, 2147483647\], got 1": {
        "sampling.token_bitmask": ints(R, 1)
    },
    r"vocab_size in \[1, 40\], got 41": {"vocab_size": V + 1},
    r"vocab_size in \[1, 40\], got 0": {"vocab_size": 0},
    r"prefix_lens of shape \[B=2\], got \[3\]|sampling.temperature of shape \[B=3\], got \[2\]": {
        "prefix_lens": ints(3)
    },
}

ACCEPT = {
    "out with accumulate_status, got None": {"accumulate_status": True},
    "draft_tokens of dtype int32 or int64, got float32": {"draft_tokens": torch.zeros(B, N)},
    r"draft_tokens of shape \[B, N\], got \[2\]": {"draft_tokens": ints(B)},
    r"target_logits of shape \[R=6, V\], got \[5, 40\]": {"target_logits": torch.zeros(5, V)},
    "target_logits of dtype float32 or bfloat16 or float16, got float64": {
        "target_logits": float64(R, V)
    },
    r"the number of columns V of target_logits in \[1, 1048576\], got 1048577": {
        "target_logits": torch.zeros(1, 2**20 + 1).expand(R, -1)
    },
    "finish.max_tokens_left as Tensor, got 5": {"finish": FinishRules(max_tokens_left=5)},
    r"sampling.coins as Coins, got Tensor": {"sampling.coins": torch.zeros(B, N)},
    "sampling.coins.final as Tensor, got list": {"sampling.coins.final": [0.5] * B},
    r"sampling.coins.accept of shape \[B=2, N=3\], got \[2, 2\]": {
        "sampling.coins.accept": torch.zeros(B, N - 1)
    },
    "sampling.coins.accept of dtype float32, got float64": {"sampling.coins.accept": float64(B, N)},
    r"sampling.coins.final of shape \[B=2\], got \[2, 3\]": {
        "sampling.coins.final": torch.zeros(B, N)
    },
    'logprobs None, "raw" or "processed", got True': {"logprobs": True},
    "out.logprobs exactly when logprobs is asked for, got logprobs alone": {
        "out": AcceptRecord.empty(B, N, R, "cpu"),
        "logprobs": "raw",
    },
    "out.logprobs exactly when logprobs is asked for, got out.logprobs alone": {
        "out": AcceptRecord.empty(B, N, R, "cpu", logprobs=True)
    },
    r"out.logprobs of shape \[B=2, S=3\], got \[2, 2\]": {
        "out": replace(AcceptRecord.empty(B, N, R, "cpu"), logprobs=torch.zeros(B, 2)),
        "logprobs": "raw",
    },
    "out.per_step of path width S = N = 3, got S = 2": {"out": AcceptRecord.empty(B, 2, R, "cpu")},
}

LINKS = {
    r"return_trim without qo_indptr \(rows past the cut": {
        "return_trim": True,
        "qo_indptr": int32([0, 3, 6]),
    },
    "retrieve_next_token and retrieve_next_sibling of a tree, or for a chain no links, got only": {
        "retrieve_next_sibling": ints(B, N)
    },
    "retrieve_next_token and retrieve_next_sibling of a tree, or for a chain no links, got": {
        "retrieve_index": ints(B, N)
    },
    r"retrieve_next_token of shape \[B=2, N=3\], got \[2, 2\]": {
        "retrieve_next_token": ints(B, N - 1),
        "retrieve_next_sibling": ints(B, N),
    },
    "retrieve_next_sibling of dtype int32, got int64": {
        "retrieve_next_token": ints(B, N),
        "retrieve_next_sibling": int64(B, N),
    },
    "return_trim of a chain, got the links of a tree": {
        "retrieve_next_token": ints(B, N),
        "retrieve_next_sibling": ints(B, N),
        "return_trim": True,
    },
    r"the path width S of out.per_step in \[1, 3\], got 4": {
        "retrieve_next_token": ints(B, N),
        "retrieve_next_sibling": ints(B, N),
        "width": 4,
    },
}

THRESHOLDS = {
    r"threshold_single in \[0, 1\], got 1.5": {"threshold_single": 1.5},
    r"threshold_acc in \[0, 1\], got -0.5": {"threshold_acc": -0.5},
    r"threshold_acc in \[0, 1\], got nan": {"threshold_acc": float("nan")},
}

SPARSE = Proposal(sparse_ids=ints(Q, 4), sparse_values=torch.zeros(Q, 4))
RECORDED = Proposal(logits=torch.zeros(Q, V), records=RowRecord(ints(Q, 8)))
PROPOSAL = {
    "proposal as Proposal, got Tensor": {"proposal": torch.zeros(Q, V)},
    "proposal.probs as Tensor, got list": {"proposal.probs": [[1 / V] * V] * Q},
    "exactly one of proposal.logits, proposal.probs and proposal.sparse_ids, got 0": {
        "proposal": Proposal()
    },
    "exactly one of proposal.logits, proposal.probs and proposal.sparse_ids, got 2": {
        "proposal": replace(SPARSE, probs=torch.zeros(Q, V))
    },
    "proposal.logits together with proposal.records, got logits alone": {
        "proposal": Proposal(logits=torch.zeros(Q, V))
    },
    "proposal.logits together with proposal.records, got records alone": {
        "proposal.records": RowRecord(ints(Q, 8))
    },
    "proposal.sparse_ids together with proposal.sparse_values, got sparse_ids alone": {
        "proposal": Proposal(sparse_ids=ints(Q, 4))
    },
    "proposal.logits of dtype float32 or bfloat16 or float16, got float64": {
        "proposal": replace(RECORDED, logits=float64(Q, V))
    },
    r"proposal.records.packed of shape \[Q=4, 8\], got \[3, 8\]": {
        "proposal": replace(RECORDED, records=RowRecord(ints(Q - 1, 8)))
    },
    "proposal.records.packed to start at a multiple of 16 bytes": {
        "proposal": replace(RECORDED, records=RowRecord(ints(8 * Q + 2)[2:].view(Q, 8)))
    },
    "proposal.probs of dtype float32, got float64": {"proposal.probs": float64(Q, V)},
    "proposal.probs with a dense last dimension, got stride 4": {
        "proposal.probs": torch.zeros(V, Q).t()
    },
    "proposal.sparse_ids of dtype int32 or int64, got float32": {
        "proposal": replace(SPARSE, sparse_ids=torch.zeros(Q, 4))
    },
    r"proposal.sparse_values of shape \[Q=4, K_q=4\], got \[4, 3\]": {
        "proposal": replace(SPARSE, sparse_values=torch.zeros(Q, 3))
    },
    r"the number of columns K_q of proposal.sparse_ids in \[1, 1048576\], got 0": {
        "proposal": Proposal(sparse_ids=ints(Q, 0), sparse_values=torch.zeros(Q, 0))
    },
    r"proposal.row_of_node of shape \[B=2, N=3\], got \[2, 2\]": {
        "proposal.row_of_node": ints(B, N - 1)
    },
    r"proposal of Q = B \* N = 6 or Q = B \* \(N - 1\) = 4 rows, or with proposal.row_of_node, got "
    "Q = 5": {"proposal.probs": torch.zeros(5, V)},
    r"proposal over the target's vocabulary \(V = 40 columns, or vocab_size = 39\), or with "
    "proposal.d2t, got Vq = 38 columns and no d2t": {
        "proposal.probs": torch.zeros(Q, 38),
        "vocab_size": 39,
    },
    r"proposal.d2t of shape \[Vq=40\], got \[39\]": {"proposal.d2t": int64(V - 1)},
    "proposal.d2t of dtype int64, got int32": {"proposal.d2t": ints(V)},
    "proposal.sparse_ids, which are the target's ids, without proposal.d2t, got both": {
        "proposal": replace(SPARSE, d2t=int64(V))
    },
}

TREE = {"retrieve_next_token": ints(B, N), "retrieve_next_sibling": ints(B, N)}
REJECTION = {
    r"proposal.without_replacement on a tree \(siblings drawn without replacement, all of them "
    r'kept, in draw order\), got False: other trees are verified by rule "target_only"': TREE
}

ROWS = {
    r"logits of shape \[R, V\], got \[40\]": {"logits": torch.zeros(V)},
    r"the number of columns V of logits in \[1, 1048576\], got 1048577": {
        "logits": torch.zeros(1, 2**20 + 1).expand(R, -1)
    },
    "request_of_row, or one row per request, got R = 6 rows of B = 2 requests": {
        "request_of_row": None
    },
    "prefix_lens of the requests of R = 6 rows, got those of none": {
        "prefix_lens": ints(0),
        "sampling": SamplingRules(torch.zeros(0), int64(0)),
    },
    r"request_of_row of shape \[R=6\], got \[2\]": {"request_of_row": ints(B)},
    "slot_of_row of dtype int32, got int64": {"slot_of_row": int64(R)},
    r"level in \[0, 65535\], got 65536": {"level": 65536},
    r"level in \[0, 65535\], got -1": {"level": -1},
    r"num_draws in \[0, 1024\], got -1": {"num_draws": -1},
    r"num_draws in \[0, 1024\], got 1025": {"num_draws": 1025},
    'purpose "draft" or "final", got \'accept\'': {"purpose": "accept"},
    r"no sampling.coins \(draws use the request's own random numbers\), got Coins": {
        "sampling.coins": Coins(torch.zeros(B, N))
    },
    "out.tokens of num_draws = 2 columns, got shape": {
        "num_draws": 2,
        "out": SampledRows.empty(R, 1, "cpu"),
    },
    r"out.tokens of shape \[R=6, K\], got \[5, 1\]": {"out": SampledRows.empty(5, 1, "cpu")},
    r"out.records.packed of shape \[R=6, 8\], got \[6, 7\]": {
        "out": replace(SampledRows.empty(R, 1, "cpu"), records=RowRecord(ints(R, 7)))
    },
    "out.records.packed to start at a multiple of 16 bytes": {
        "out": replace(
            SampledRows.empty(R, 1, "cpu"), records=RowRecord(ints(8 * R + 2)[2:].view(R, 8))
        )
    },
    "out.status of dtype int32, got int64": {
        "out": replace(SampledRows.empty(R, 1, "cpu"), status=int64(R))
    },
}

CASES = [
    pytest.param(op, message, table[message], id=f"{op}: {message}")
    for ops_of_table, table in (
        (ALL_OPS, SAMPLING),
        (ACCEPT_OPS, ACCEPT),
        (("accept_target_only", "accept_rejection"), LINKS),
        (("accept_target_only",), THRESHOLDS),
        (("accept_rejection", "accept_block"), PROPOSAL),
        (("accept_rejection",), REJECTION),
        (("sample_rows",), ROWS),
    )
    for op in ops_of_table
    for message in table
]


@pytest.mark.parametrize("op", ALL_OPS)
def test_the_sound_call_goes_through(op: str) -> None:
    call(op, {})


@pytest.mark.parametrize(("op", "message", "changes"), CASES)
def test_a_bad_argument_is_named(op: str, message: str, changes: dict[str, Any]) -> None:
    if op == "accept_rejection" and "retrieve_next_token" in changes and changes is not TREE:
        changes = {"proposal.without_replacement": True, **changes}
    with pytest.raises(RuntimeError, match=f"^{op}: expected ({message})"):
        call(op, changes)


@pytest.mark.parametrize("op", ALL_OPS)
def test_every_tensor_is_on_one_device(op: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    with pytest.raises(RuntimeError, match=f"{op}: expected sampling.top_p on cpu, got cuda:0"):
        call(op, {"sampling.top_p": torch.ones(B, device="cuda")})
