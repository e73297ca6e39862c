"""Models of transformers whose recurrent layers run with their own cache."""

from __future__ import annotations

import pytest
import torch
from engine.drafters import OracleDrafter
from engine.models import plain_greedy, random_prompt, tiny_model
from engine.test_recurrent_refusal import MODELS
from engine.test_recurrent_target import poison
from specfast import SamplingParams
from specfast.engine import CacheStates, Engine, VerifyTiers
from torch import Tensor, nn
from transformers import PreTrainedModel

WIDTH = 5
NUM_TOKENS = 14
PROMPTS = [random_prompt(length, seed=length) for length in (1, 9)]
# Short convolutions; Mamba; Mamba 2; Mamba 2 beside attention; gated delta nets.
ARCHITECTURES = ["lfm2", "jamba", "mamba", "bamba", "falcon_h1", "qwen3_next", "qwen3_5_text"]


def model_of(architecture: str) -> PreTrainedModel:
    return tiny_model(architecture, num_hidden_layers=2, **MODELS[architecture])


def states_of(engine: Engine, slot: int) -> list[Tensor]:
    assert engine.state_pool is not None
    return [s[slot] for of_layer in engine.state_pool.states.values() for s in of_layer]


@pytest.mark.parametrize("sizes", [None, VerifyTiers([2], WIDTH)], ids=["eager", "padded"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_texts_are_those_of_whole_forwards(architecture: str, sizes: VerifyTiers | None) -> None:
    model = model_of(architecture)
    plain = [plain_greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    drafter = OracleDrafter([p + t for p, t in zip(PROMPTS, plain, strict=True)])
    engine = Engine(
        model, drafter, max_batch_size=2, verify_width=WIDTH, state_adapter=CacheStates(),
        tiers=sizes,
    )  # fmt: skip
    poison(engine, range(2))
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert [g.token_ids for g in generations] == plain
    rounds = [output for g in generations for output in g.rounds]
    assert sum(output.num_proposed - output.num_accepted for output in rounds) > 5
    assert sum(output.num_accepted for output in rounds) > 5


def test_states_are_those_of_the_text_as_a_prompt() -> None:
    model = model_of("qwen3_next")
    plain = plain_greedy(model, PROMPTS[1], NUM_TOKENS)
    drafter = OracleDrafter([PROMPTS[1] + plain])
    engines = [
        Engine(model, d, max_batch_size=1, verify_width=WIDTH, state_adapter=CacheStates())
        for d in (drafter, None)
    ]
    engines[0].add_request(PROMPTS[1], SamplingParams(max_new_tokens=NUM_TOKENS))
    for _ in range(4):
        engines[0].step()
        (request,) = engines[0]._running
        engines[1].add_request(request.token_ids[:-1], SamplingParams(max_new_tokens=1))
        engines[1].step()
        for ours, fresh in zip(states_of(engines[0], 0), states_of(engines[1], 0), strict=True):
            torch.testing.assert_close(ours, fresh, rtol=1e-3, atol=1e-3)


class Elsewhere(nn.Module):
    """Has a convolution and takes a cache, but leaves nothing there."""

    layer_idx = 0

    def __init__(self) -> None:
        super().__init__()
        self.conv1d = nn.Conv1d(1, 1, 1)

    def forward(self, hidden_states: Tensor, cache: object = None) -> Tensor:
        return hidden_states


def test_a_layer_that_keeps_its_state_elsewhere_is_refused() -> None:
    model = model_of("qwen3_next")
    model.model.layers[0].mlp = Elsewhere()
    with pytest.raises(ValueError, match=r"a cached state from 'model.layers.0.mlp' \(Elsewhere\)"):
        Engine(model, state_adapter=CacheStates())


@pytest.mark.parametrize("architecture", ["minimax", "xlstm"])
def test_layers_without_a_convolution_are_refused(architecture: str) -> None:
    with pytest.raises(ValueError, match="that have a convolution and take a cache, found none in"):
        Engine(model_of(architecture), state_adapter=CacheStates())
