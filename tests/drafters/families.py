"""A small random checkpoint of each family, for any target."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from drafters.block_files import NUM_LAYERS, backbone, convolutions, markov
from drafters.by_formula import Sizes
from drafters.checkpoints import layer_config, layer_shapes, random_tensors, write_checkpoint
from drafters.eagle_files import EAGLE3_NORMS

BLOCK, MASK, RANK = 6, 1, 32


def sizes_of(model_path: Path) -> Sizes:
    """Of drafters for the model in ``model_path``."""
    config = json.loads((model_path / "config.json").read_text())
    return sizes_for(config["hidden_size"], config["vocab_size"])


def sizes_for(hidden: int, vocab: int) -> Sizes:
    """Of drafters for such a target; heads as kernels know them, where they fit."""
    if hidden % 64:
        return Sizes(hidden=hidden, vocab=vocab, draft_vocab=vocab)
    heads, dim = hidden // 64, 64
    return Sizes(
        hidden=hidden, inner=2 * hidden, heads=heads, kv_heads=1, head_dim=dim, vocab=vocab,
        draft_vocab=vocab, rotary=dim,
    )  # fmt: skip


def eagle(path: Path, s: Sizes) -> Path:
    norms = ("post_attention_layernorm",)
    shapes = {
        "fc.weight": (s.hidden, 2 * s.hidden),
        **layer_shapes(s, "layers.0.", norms, s.hidden, qk_norm=False),
    }
    config = {**layer_config(s), "architectures": ["LlamaForCausalLMEagle"], "bias": False}
    return write_checkpoint(path, config, random_tensors(41, shapes), s)


def eagle3(path: Path, s: Sizes) -> Path:
    """With half of the vocabulary."""
    s = Sizes(**{**vars(s), "draft_vocab": s.vocab // 2})
    shapes = {
        "fc.weight": (s.hidden, 2 * s.hidden),
        **layer_shapes(s, "layers.0.", EAGLE3_NORMS, 2 * s.hidden, qk_norm=False),
        "norm.weight": (s.hidden,),
        "lm_head.weight": (s.draft_vocab, s.hidden),
    }
    aux = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
    config = {
        **layer_config(s),
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": s.draft_vocab,
        "eagle_config": {"use_aux_hidden_state": True, **aux},
    }
    return write_checkpoint(path, config, random_tensors(43, shapes), s, mapped=True)


def dflash(path: Path, s: Sizes) -> Path:
    config = {
        **layer_config(s, NUM_LAYERS),
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 1]},
    }
    return write_checkpoint(path, config, backbone(44, s, 2), s)


def dspark(path: Path, s: Sizes, *, confidence: bool = False) -> Path:
    config = {
        **layer_config(s, NUM_LAYERS),
        "architectures": ["Qwen3DSparkModel"],
        "block_size": 4,
        "mask_token_id": MASK,
        "target_layer_ids": [0, 1],
        "markov_rank": RANK,
        "enable_confidence_head": confidence,
        "confidence_head_with_markov": False,
    }
    heads = markov(s, "vanilla", s.hidden if confidence else 0, RANK)
    return write_checkpoint(path, config, backbone(42, s, 2, heads), s)


def dflash2(path: Path, s: Sizes) -> Path:
    group = 4
    config = {
        **layer_config(s, NUM_LAYERS),
        "architectures": ["DFlash2DraftModel"],
        "is_causal": False,
        "layer_types": ["full_attention"] * NUM_LAYERS,
        "dflash_config": {
            "block_size": BLOCK,
            "conv_kernel_size": 2,
            "conv_group_size": group,
            "selector_rank": RANK,
            "selector_top_k": 4,
            "mask_token_id": MASK,
            "target_layer_ids": [0, 1],
        },
    }
    return write_checkpoint(path, config, backbone(45, s, 2, convolutions(s, 2, group, RANK)), s)


FAMILIES: dict[str, Callable[[Path, Sizes], Path]] = {
    "eagle": eagle,
    "eagle3": eagle3,
    "dflash": dflash,
    "dspark": dspark,
    "dflash2": dflash2,
}
MOST_DRAFTS = {"eagle": 7, "eagle3": 7, "dflash": BLOCK - 1, "dspark": 4, "dflash2": BLOCK - 1}
