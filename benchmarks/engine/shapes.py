"""Models of a known shape with random weights: what they cost is real, what they say is not."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

NUM_POSITIONS = 65536

SHAPES = {
    "qwen3-8b": {
        "architecture": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    "smollm2-135m": {
        "architecture": "llama",
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
    },
    "tiny": {
        "architecture": "llama",
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
    },
}


def random_model(
    name: str, device: str, dtype: torch.dtype, *, num_layers: int | None = None
) -> PreTrainedModel:
    """A model of the shape, made on ``device``; positions up to 64 k.

    With ``num_layers``, of so many instead of the shape's.
    """
    sizes = dict(SHAPES[name])
    if num_layers is not None:
        sizes["num_hidden_layers"] = num_layers
    config = AutoConfig.for_model(
        sizes.pop("architecture"),
        **sizes,
        max_position_embeddings=NUM_POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(config)
    finally:
        torch.set_default_dtype(previous)
    return model.eval()
