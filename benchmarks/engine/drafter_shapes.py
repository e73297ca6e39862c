"""Drafters of the sizes that are usual for a target, with random weights, made on its device."""

from __future__ import annotations

from typing import Any

import torch
from specfast.drafters import DraftTarget
from specfast.drafters.checkpoint.read_spec import spec_of
from specfast.drafters.checkpoint.target import match_target
from specfast.drafters.checkpoint.tensors import expected_tensors
from specfast.drafters.checkpoint.weights import EMBEDDING, LM_HEAD, Weights
from specfast.drafters.loader import MODELS, DrafterModel
from torch import Tensor
from transformers import PreTrainedModel

DRAFTERS = ("eagle3", "dflash", "dspark")


def random_drafter(family: str, model: PreTrainedModel, num_drafts: int) -> DrafterModel:
    """Of any family, in the dtype of ``model``; blocks of ``num_drafts`` proposals."""
    target = DraftTarget.of(model)
    config = _config(family, model, num_drafts)
    spec = match_target(spec_of(config, {}), target.sizes)
    tensors: dict[str, Tensor] = {
        name: _random(name, expected.shape, model)
        for name, expected in expected_tensors(spec).items()
        if expected.required
    }
    for name, shared in ((EMBEDDING, target.embedding), (LM_HEAD, target.lm_head)):
        tensors.setdefault(name, shared[: spec.vocab_size])
    return MODELS[family](spec, Weights(tensors, spec.backbone.norm_eps))


def _random(name: str, shape: tuple[int, ...], model: PreTrainedModel) -> Tensor:
    if name == "d2t":
        return torch.zeros(shape, dtype=torch.int64, device=model.device)
    values = torch.empty(shape, dtype=model.dtype, device=model.device).normal_(std=0.02)
    return values + 1 if "norm" in name else values


def _config(family: str, model: PreTrainedModel, num_drafts: int) -> dict[str, Any]:
    target = model.config
    layers = target.num_hidden_layers
    fields = {
        name: getattr(target, name)
        for name in (
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "vocab_size",
            "rms_norm_eps",
            "max_position_embeddings",
        )
    }
    fields |= {"rope_theta": 1e6, "hidden_act": "silu", "num_hidden_layers": 1}
    if family == "eagle":
        return {**fields, "architectures": ["LlamaForCausalLMEagle"], "bias": False}
    if family == "eagle3":
        taps = sorted({1, layers // 2 - 1, layers - 1})
        return {
            **fields,
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": min(32000, target.vocab_size // 2),
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": taps,
            },
        }
    taps = sorted({layers * i // 5 for i in range(1, 5)} | {layers - 1})
    block = {"mask_token_id": 1, "target_layer_ids": taps, "num_hidden_layers": min(5, layers)}
    if family == "dflash":
        nested = {"mask_token_id": 1, "target_layer_ids": taps}
        return {
            **fields,
            **block,
            "architectures": ["DFlashDraftModel"],
            "block_size": num_drafts + 1,
            "dflash_config": nested,
        }
    if family == "dflash2":
        nested = {
            "mask_token_id": 1,
            "target_layer_ids": taps,
            "block_size": num_drafts + 1,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": 256,
            "selector_top_k": 16,
        }
        return {
            **fields,
            "num_hidden_layers": block["num_hidden_layers"],
            "architectures": ["DFlash2DraftModel"],
            "is_causal": False,
            "dflash_config": nested,
        }
    return {
        **fields,
        **block,
        "architectures": ["Qwen3DSparkModel"],
        "block_size": num_drafts,
        "sample_from_anchor": True,
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
