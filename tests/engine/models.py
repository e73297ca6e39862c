"""Tiny random models and the plain transformers decoding that the engine must reproduce."""

from __future__ import annotations

import torch
from specfast.engine import Engine
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB = 61
CONTEXT = 192

_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_OTHERS = {
    "gpt2": {"n_embd": 32, "n_head": 4, "n_layer": 3, "n_positions": CONTEXT},
    # Latent attention: keys and values of different widths.
    "deepseek_v3": {
        "first_k_dense_replace": 3,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
        "head_dim": 4,
    },
}


def tiny_model(architecture: str = "llama", seed: int = 0, **changes: object) -> PreTrainedModel:
    """A random model whose greedy text is not constant."""
    sizes = {**_SIZES, **_OTHERS.get(architecture, {}), **changes}
    config = AutoConfig.for_model(architecture, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.4)
    return model.eval()


@torch.inference_mode()
def plain_logits(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """Logits [len, V] of one plain forward, without any cache."""
    ids = torch.tensor([token_ids], device=model.device)
    return model(input_ids=ids, use_cache=False).logits[0]


def answer_from_table(engine: Engine, table: Tensor) -> None:
    """Make the target's logits rows of ``table`` [K, V], by token and position.

    So they are equal bit for bit in every batch, which those of a real model need not be.
    """

    def forward(
        ids: Tensor, positions: Tensor, *_layers: object, last_only: bool = False
    ) -> Tensor:
        rows = table_row(ids, positions, len(table))
        return table[rows[-1:] if last_only else rows]

    engine.target.forward = forward  # type: ignore[method-assign]


def table_row(ids: Tensor, positions: Tensor, num_rows: int) -> Tensor:
    return (ids + 7 * positions) % num_rows


def plain_greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """Greedy continuation, one whole forward per token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(plain_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def random_prompt(length: int, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()
