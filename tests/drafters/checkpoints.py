"""Small random checkpoints in every dialect, and a target that they fit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafters.by_formula import Array, Sizes, Tensors
from safetensors.torch import save_file
from specfast.drafters.checkpoint import DraftTarget, TargetSizes

NUM_TARGET_LAYERS = 12
D2T_SEED = 5


def random_tensors(seed: int, shapes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Values that fp32 holds; norms near 1, d2t and t2d as :func:`vocabulary_map` gives them."""
    rng = np.random.default_rng(seed)
    tensors: Tensors = {}
    for name, shape in shapes.items():
        scale = 0.5 if len(shape) == 1 else 1.4 / np.sqrt(shape[-1])
        values = rng.standard_normal(shape) * scale + ("norm" in name)
        tensors[name] = values.astype(np.float32).astype(np.float64)
    return tensors


def vocabulary_map(s: Sizes) -> tuple[list[int], list[bool]]:
    """d2t as offsets of ascending ids, and t2d."""
    rng = np.random.default_rng(D2T_SEED)
    ids = sorted(rng.permutation(s.vocab)[: s.draft_vocab].tolist())
    return [v - j for j, v in enumerate(ids)], [v in ids for v in range(s.vocab)]


def layer_shapes(
    s: Sizes, layer: str, norms: tuple[str, ...], inputs: int, *, qk_norm: bool
) -> dict[str, tuple[int, ...]]:
    q, kv, attention = s.heads * s.head_dim, s.kv_heads * s.head_dim, f"{layer}self_attn."
    shapes: dict[str, tuple[int, ...]] = {
        f"{attention}q_proj.weight": (q, inputs),
        f"{attention}k_proj.weight": (kv, inputs),
        f"{attention}v_proj.weight": (kv, inputs),
        f"{attention}o_proj.weight": (s.hidden, q),
        f"{layer}mlp.gate_proj.weight": (s.inner, s.hidden),
        f"{layer}mlp.up_proj.weight": (s.inner, s.hidden),
        f"{layer}mlp.down_proj.weight": (s.hidden, s.inner),
    }
    if qk_norm:
        shapes[f"{attention}q_norm.weight"] = (s.head_dim,)
        shapes[f"{attention}k_norm.weight"] = (s.head_dim,)
    return {**shapes, **{f"{layer}{name}.weight": (s.hidden,) for name in norms}}


def layer_config(s: Sizes, num_layers: int = 1) -> dict[str, Any]:
    return {
        "hidden_size": s.hidden,
        "intermediate_size": s.inner,
        "num_hidden_layers": num_layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.kv_heads,
        "head_dim": s.head_dim,
        "vocab_size": s.vocab,
        "rms_norm_eps": s.eps,
        "rope_theta": s.theta,
        "hidden_act": "silu",
        "max_position_embeddings": 64,
    }


def write_checkpoint(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Array],
    s: Sizes,
    *,
    pickled: bool = False,
    mapped: bool = False,
) -> Path:
    """Write ``config`` and ``tensors``; ``mapped`` adds d2t and t2d."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    values = {name: torch.tensor(v, dtype=torch.float32) for name, v in tensors.items()}
    if mapped:
        d2t, t2d = vocabulary_map(s)
        values["d2t"], values["t2d"] = torch.tensor(d2t), torch.tensor(t2d)
    if pickled:
        torch.save(values, path / "pytorch_model.bin")
    else:
        save_file(values, path / "model.safetensors")
    return path


def make_target(s: Sizes, num_layers: int = NUM_TARGET_LAYERS, seed: int = 77) -> DraftTarget:
    """A target with a larger, padded embedding."""
    shape = (s.vocab + 3, s.hidden)
    values = random_tensors(seed, {"embed_tokens.weight": shape, "lm_head.weight": shape})
    embedding, head = (torch.tensor(v, dtype=torch.float32) for v in values.values())
    return DraftTarget(TargetSizes(s.hidden, s.vocab, num_layers), embedding, head)


def as_formula(target: DraftTarget) -> Tensors:
    """What drafters without an embedding or a head of their own take from ``target``."""
    rows = target.sizes.vocab_size
    return {
        "embed_tokens.weight": target.embedding[:rows].double().numpy(),
        "lm_head.weight": target.lm_head[:rows].double().numpy(),
    }
