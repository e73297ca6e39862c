"""accept_tree and accept_chain refuse what their rule lacks, or has no use for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from specfast import Proposal, SamplingRules, ops
from torch import Tensor

B, N, V = 2, 3, 40
R, Q = B * N, B * (N - 1)


def ints(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


TREE = {"retrieve_next_token": ints(B, N), "retrieve_next_sibling": ints(B, N)}
RULES = SamplingRules(torch.ones(B), torch.zeros(B, dtype=torch.int64))
DENSE = Proposal(probs=torch.full((Q, V), 1 / V))
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    'sampling with rule "target_only", got None': ("both", {"rule": "target_only"}),
    'sampling with rule "rejection", got None': ("both", {"rule": "rejection", "proposal": DENSE}),
    'proposal with rule "rejection", got None': ("both", {"rule": "rejection", "sampling": RULES}),
    'proposal with rule "block", got None': ("chain", {"rule": "block", "sampling": RULES}),
    'no proposal with rule "target_only", got Proposal: it needs no q': (
        "both",
        {"rule": "target_only", "sampling": RULES, "proposal": DENSE},
    ),
    'no sampling with rule "greedy", got SamplingRules: name a sampled rule': (
        "both",
        {"sampling": RULES},
    ),
    'no proposal with rule "greedy", got Proposal': ("both", {"proposal": DENSE}),
    "no logprobs with rule \"greedy\", got 'raw'": ("both", {"logprobs": "raw"}),
    'threshold_single and threshold_acc 1 with rule "greedy", got 0.5 and 1.0': (
        "both",
        {"threshold_single": 0.5},
    ),
    'threshold_single and threshold_acc 1 with rule "rejection", got 1.0 and 0.5': (
        "both",
        {"rule": "rejection", "sampling": RULES, "proposal": DENSE, "threshold_acc": 0.5},
    ),
    'rule "greedy", "target_only" or "rejection", got \'block\' .it decides on a whole chain': (
        "tree",
        {"rule": "block", "sampling": RULES, "proposal": DENSE},
    ),
    'rule "greedy", "target_only", "rejection" or "block", got \'typical\'': (
        "chain",
        {"rule": "typical"},
    ),
    'no target_predict with rule "target_only", got Tensor: it samples from target_logits': (
        "both",
        {"rule": "target_only", "sampling": RULES, "target_predict": ints(R)},
    ),
    'no return_trim with rule "block", got True: drafts past the cut would change': (
        "chain",
        {"rule": "block", "sampling": RULES, "proposal": DENSE, "return_trim": True},
    ),
    'target_logits with rule "target_only", got None': (
        "both",
        {"rule": "target_only", "sampling": RULES, "target_logits": None},
    ),
}


@pytest.mark.parametrize("form", ["tree", "chain"])
@pytest.mark.parametrize("message", REFUSED)
def test_a_rule_refuses_what_does_not_fit_it(form: str, message: str) -> None:
    forms, changes = REFUSED[message]
    if forms not in ("both", form):
        pytest.skip(f"of a {forms}")
    arguments: dict[str, Any] = {
        "draft_tokens": ints(B, N),
        "prefix_lens": ints(B),
        "target_logits": torch.zeros(R, V),
    }
    if form == "tree":
        arguments |= {**TREE, "width": N}
    with pytest.raises(RuntimeError, match=f"accept_{form}: expected {message}"):
        getattr(ops, f"accept_{form}")(**arguments | changes)


def test_a_pruned_tree_is_not_verified_by_rejection() -> None:
    with pytest.raises(RuntimeError, match='verified by rule "target_only"'):
        ops.accept_tree(
            ints(B, N),
            *TREE.values(),
            ints(B),
            width=N,
            target_logits=torch.zeros(R, V),
            rule="rejection",
            sampling=RULES,
            proposal=DENSE,
        )
