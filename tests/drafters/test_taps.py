"""Taps are the residual stream after the layers that are named."""

from __future__ import annotations

import pytest
import torch
from specfast.drafters.checkpoint import DrafterError, DraftTarget
from specfast.drafters.taps import TapRecorder
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

NUM_LAYERS = 4
IDS = torch.tensor([[3, 9, 27, 1, 3]])


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def layer_by_layer(model: LlamaForCausalLM) -> list[Tensor]:
    """The embedding's output, and that of each layer: entry k + 1 is what tap k must be."""
    body = model.model
    x = body.embed_tokens(IDS)
    outputs = [x]
    positions = torch.arange(IDS.shape[1])[None]
    mask = torch.full((1, 1, 5, 5), -torch.inf).triu(1)
    for layer in body.layers:
        rotary = body.rotary_emb(x, positions)
        x = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
        outputs.append(x)
    return outputs


def test_taps(model: LlamaForCausalLM) -> None:
    layers = [2, -1, 0, NUM_LAYERS - 1]
    with torch.no_grad():
        expected = layer_by_layer(model)
        with TapRecorder(model, layers) as recorder:
            hidden = model(IDS, output_hidden_states=True).hidden_states
            taps = recorder.taps()
    torch.testing.assert_close(taps, torch.cat([expected[k + 1] for k in layers], dim=-1))
    # The tuple agrees but for its last entry, which is behind the final norm.
    torch.testing.assert_close(taps[..., :16], hidden[3])
    assert not torch.allclose(taps[..., -16:], hidden[-1])


def test_last_hidden_state(model: LlamaForCausalLM) -> None:
    """What the head reads, of every row, also where logits are made of the last one alone."""
    with torch.no_grad():
        with TapRecorder(model, None) as recorder:
            model(IDS, logits_to_keep=1)
        expected = model.model.norm(layer_by_layer(model)[-1])
    torch.testing.assert_close(recorder.taps(), expected)


def test_hooks_are_removed(model: LlamaForCausalLM) -> None:
    def hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = hooks()
    with TapRecorder(model, [-1, 1]):
        assert hooks() == before + 2
    assert hooks() == before


def test_a_target(model: LlamaForCausalLM) -> None:
    target = DraftTarget.of(model)
    assert (target.sizes.hidden_size, target.sizes.vocab_size) == (16, 32)
    assert target.sizes.num_layers == NUM_LAYERS
    assert target.lm_head.data_ptr() == model.lm_head.weight.data_ptr()


def test_a_target_that_cannot_be_tapped(model: LlamaForCausalLM) -> None:
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9))
    with pytest.raises(DrafterError, match="GPT2LMHeadModel cannot be tapped"):
        DraftTarget.of(other)
    layers = model.model.layers
    model.model.layers = nn.ModuleList(layers[:2])
    try:
        with pytest.raises(DrafterError, match="no list of 4 decoder layers"):
            DraftTarget.of(model)
    finally:
        model.model.layers = layers


def test_layers_that_return_more_than_hidden_states(model: LlamaForCausalLM) -> None:
    with torch.no_grad(), TapRecorder(model, [1]) as recorder:
        model(IDS)
        expected = recorder.taps()
    wrap = model.model.layers[1].register_forward_hook(lambda m, a, out: (out, None))
    with torch.no_grad(), TapRecorder(model, [1]) as recorder:
        unwrap = model.model.layers[1].register_forward_hook(lambda m, a, out: out[0])
        model(IDS)
        assert torch.equal(recorder.taps(), expected)
    wrap.remove()
    unwrap.remove()
