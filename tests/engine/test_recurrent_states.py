"""After every round a request's state is that of its committed text, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from engine.drafters import FixedDrafter, OracleDrafter
from engine.hybrid_model import HybridForCausalLM, fresh_states, hybrid_model
from engine.models import plain_greedy, random_prompt
from engine.test_recurrent_target import WIDTH, engine_of, poison
from specfast import AcceptRecord, SamplingParams
from specfast.drafters import DraftBatch, Drafter, DraftRequest
from specfast.engine import ChainRows, Engine, StateItem, VerifyTiers
from specfast.engine.state_pool import RowStates
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

PROMPTS = [random_prompt(length, seed=length) for length in (1, 9, 20)]
SIZES = [None, VerifyTiers([1, 2, 4], WIDTH, (4, 7, 12), capture=False)]


def check_states(engine: Engine, model: HybridForCausalLM) -> None:
    assert engine.state_pool is not None
    for request in engine._running:
        if request.committed_len == 0:
            continue
        fresh = fresh_states(model, request.token_ids[: request.committed_len])
        for name, of_layer in fresh.items():
            for storage, expected in zip(engine.state_pool.states[name], of_layer, strict=True):
                torch.testing.assert_close(storage[request.slot], expected, rtol=1e-3, atol=1e-3)


def run_and_check(
    drafter: Drafter, params: Sequence[SamplingParams], sizes: VerifyTiers | None
) -> int:
    """Requests come one by one into fewer slots than they are; returns accepted drafts."""
    model = hybrid_model()
    engine = engine_of(model, drafter, max_batch_size=2, tiers=sizes)
    accepted = 0
    for prompt, of_request in zip(PROMPTS, params, strict=True):
        engine.add_request(prompt, of_request)
    while engine.has_unfinished:
        for output in engine.step():
            accepted += output.num_accepted
        check_states(engine, model)
    return accepted


def greedy_oracle() -> OracleDrafter:
    model = hybrid_model()
    return OracleDrafter([p + plain_greedy(model, p, 18) for p in PROMPTS])


GREEDY = [SamplingParams(max_new_tokens=n) for n in (18, 5, 14)]
SAMPLED = [
    SamplingParams(max_new_tokens=18, temperature=0.3, seed=1),
    SamplingParams(max_new_tokens=5),
    SamplingParams(max_new_tokens=14, temperature=0.8, top_k=3, seed=2),
]


class LikelyDrafter:
    """Drafts the greedy continuation of whatever was sampled, and a token behind it."""

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        model = hybrid_model()
        drafts = [plain_greedy(model, request.token_ids, WIDTH - 2) for request in requests]
        return DraftBatch.from_lists(requests, [[*tokens, 0] for tokens in drafts])

    def release(self, request_id: int) -> None:
        pass


@pytest.mark.parametrize("sizes", SIZES, ids=["eager", "tiers"])
def test_greedy_rounds(sizes: VerifyTiers | None) -> None:
    assert run_and_check(greedy_oracle(), GREEDY, sizes) > 5


@pytest.mark.parametrize("sizes", SIZES, ids=["eager", "tiers"])
def test_sampled_rounds(sizes: VerifyTiers | None) -> None:
    assert run_and_check(LikelyDrafter(), SAMPLED, sizes) > 5


def of_the_last_verified_row(states: RowStates, record: AcceptRecord) -> Any:
    rows = states._rows.qo_indptr[1:] - 1
    return rows[:, None].expand_as(record.accept_index).contiguous(), record.commit_lens


def one_too_many(states: RowStates, record: AcceptRecord) -> Any:
    last = states._rows.qo_indptr[1:, None] - 1
    return torch.minimum(record.accept_index + 1, last).int(), record.commit_lens


def one_too_few(states: RowStates, record: AcceptRecord) -> Any:
    return record.accept_index, (record.commit_lens - 1).clamp(min=1)


def of_another_slot(states: RowStates, record: AcceptRecord) -> Any:
    states._slots = states._slots.flip(0)
    return record.accept_index, record.commit_lens


MUTANTS = [of_the_last_verified_row, one_too_many, one_too_few, of_another_slot]


@pytest.mark.parametrize("sizes", SIZES, ids=["eager", "tiers"])
@pytest.mark.parametrize("mutant", MUTANTS)
def test_wrong_commits_are_seen(
    mutant: Callable[[RowStates, AcceptRecord], Any],
    sizes: VerifyTiers | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = RowStates.commit

    def wrong(states: RowStates, record: AcceptRecord) -> None:
        record = AcceptRecord(
            record.per_request.clone(), record.per_step.clone(), record.predict, record.slots
        )
        index, lens = mutant(states, record)
        record.accept_index.copy_(index)
        record.commit_lens.copy_(lens)
        commit(states, record)

    monkeypatch.setattr(RowStates, "commit", wrong)
    with pytest.raises(AssertionError, match="not close"):
        run_and_check(greedy_oracle(), GREEDY, sizes)


def test_a_state_left_by_another_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def never_empty(states: RowStates, storage: Tensor) -> Tensor:
        return storage.index_select(0, states._slots).nan_to_num()

    monkeypatch.setattr(RowStates, "_before", never_empty)
    with pytest.raises(AssertionError, match="not close"):
        run_and_check(greedy_oracle(), GREEDY, None)


# Token t is the number t. One layer, s' = s / 2 + t, with a convolution's window of two tokens;
# after 0 the target says 1, then 2, 3, 4 ... whatever the state is.
class CountingConfig(PreTrainedConfig):
    model_type = "specfast_test_counting"

    def __init__(self, **options: Any) -> None:
        self.num_hidden_layers = 1
        self.vocab_size = 8
        self.hidden_size = 1
        self.max_position_embeddings = 16
        super().__init__(**options)


class Halving(nn.Module):
    def forward(self, hidden_states: Tensor) -> Tensor:
        positions = torch.arange(hidden_states.shape[1])
        weights = 0.5 ** (positions[:, None] - positions).float()
        return weights.tril() @ hidden_states


class Counting(PreTrainedModel):
    config_class = CountingConfig
    _supports_sdpa = True

    def __init__(self, config: CountingConfig) -> None:
        super().__init__(config)
        self.layer = Halving()
        # For its device and dtype.
        self.zero = nn.Parameter(torch.zeros(1))
        self.post_init()

    def forward(self, input_ids: Tensor, **_options: Any) -> CausalLMOutput:
        state = self.layer(input_ids[..., None].float())
        following = torch.eye(8)[(input_ids.long() + 1) % 8]
        return CausalLMOutput(logits=following + self.zero * state)


class CountingAdapter:
    def state_items(self, model: PreTrainedModel) -> Mapping[str, Sequence[StateItem]]:
        return {"layer": [StateItem((1,), torch.float32), StateItem((1, 2), torch.float32)]}

    def advance(
        self, module: nn.Module, hidden_states: Tensor, states: Sequence[Tensor], rows: ChainRows
    ) -> tuple[Tensor, Sequence[Tensor]]:
        state, window = states
        after = []
        for x in rows.by_request(hidden_states).unbind(1):
            state = state / 2 + x
            window = torch.cat([window[..., 1:], x[..., None]], dim=2)
            after.append((state, window))
        items = [rows.by_row(torch.stack(item, dim=1)) for item in zip(*after, strict=True)]
        if rows.last_only:
            items = [item[-1:] for item in items]
        return rows.by_row(torch.stack([state for state, _ in after], dim=1)), items


@pytest.mark.parametrize("sizes", SIZES, ids=["eager", "tiers"])
@pytest.mark.parametrize(
    ("drafts", "state", "window"),
    [
        # Case B56: of the window 1, 2, 4 the root and one draft are kept.
        ([2, 4], 2.5, [1.0, 2.0]),
        # The root alone: the state after row 0.
        ([3, 4], 1.0, [0.0, 1.0]),
        ([], 1.0, [0.0, 1.0]),
        # All of it: 0.5 * (0.5 * 1 + 2) + 3.
        ([2, 3], 4.25, [2.0, 3.0]),
    ],
)
def test_rejected_tokens_leave_no_trace(
    drafts: list[int], state: float, window: list[float], sizes: VerifyTiers | None
) -> None:
    engine = Engine(
        Counting(CountingConfig()), FixedDrafter(drafts), verify_width=WIDTH,
        state_adapter=CountingAdapter(), tiers=sizes,
    )  # fmt: skip
    poison(engine, range(8))
    # The prompt's last token is 0: the anchor after it is 1, and the state 0.
    engine.add_request([0, 0, 0], SamplingParams(max_new_tokens=9))
    engine.step()
    engine.step()
    assert engine.state_pool is not None
    states, windows = engine.state_pool.states["layer"]
    (request,) = engine._running
    assert states[request.slot].item() == state
    assert windows[request.slot].tolist() == [window]
