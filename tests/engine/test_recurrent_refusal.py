"""A recurrent target without a state adapter is refused when it is loaded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine.models import tiny_model
from specfast.engine import Engine
from specfast.engine.target import Target
from torch import Tensor, nn

DELTA = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 8}
MODELS: dict[str, dict[str, Any]] = {
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    # Mamba and attention side by side in every layer.
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2, "use_mamba_kernels": False},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {},
    "mamba2": {"num_heads": 4, "head_dim": 16, "n_groups": 1},
    "minimax": {"layer_types": ["linear_attention", "full_attention"], "num_local_experts": 2},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"], "n_groups": 1},
    "qwen3_5_text": DELTA,
    "qwen3_next": DELTA | {"num_experts": 2, "num_experts_per_tok": 1},
    "recurrent_gemma": {"lru_width": 32, "block_types": ["recurrent", "attention"]},
    # These two name no types of layers.
    "rwkv": {"attention_hidden_size": 32},
    "xlstm": {"num_heads": 4},
}


@pytest.mark.parametrize("architecture", MODELS)
def test_recurrent_architectures(architecture: str) -> None:
    model = tiny_model(architecture, num_hidden_layers=2, **MODELS[architecture])
    name = type(model).__name__
    sentence = rf"^{name} is not supported as a target: .* recurrent layers .*no state adapter$"
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=sentence):
        Engine(model)
    assert model.config._attn_implementation == before


class LeakyMlp(nn.Module):
    """Adds a little of the row before: a convolution that no config tells of."""

    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, hidden_states: Tensor) -> Tensor:
        before = torch.nn.functional.pad(hidden_states, (0, 0, 1, -1))
        return self.mlp(hidden_states) + 0.05 * before


def test_a_state_that_no_config_names() -> None:
    model = tiny_model()
    layer = model.model.layers[1]
    layer.mlp = LeakyMlp(layer.mlp)
    with pytest.raises(ValueError, match=r"carry a state from row to row .* no state adapter$"):
        Target(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_experts_are_no_state(dtype: torch.dtype) -> None:
    """In a mixture the rows share products, so that one moves the other by a rounding."""
    Target(tiny_model("mixtral", num_local_experts=4).to(dtype))
