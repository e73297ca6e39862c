"""A target that looks at two tokens before, and drafters of every family made of its own layer.

Its one layer has two heads, which look at the tokens ``near`` and ``FAR`` positions before the next
one; rotary angles alone tell them apart. What these two say of the next one is random. So a
position that is off, or a row too much in a cache, makes another text.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from drafters.by_formula import Array, Sizes, Tensors
from drafters.checkpoints import layer_config, write_checkpoint
from engine.models import tiny_model
from transformers import PreTrainedModel

VOCAB, FAR, CONTEXT = 16, 9, 2**16
# Channels that hold the token, and as many that hold the logits.
HIDDEN = 2 * VOCAB
SIZES = Sizes(
    hidden=HIDDEN,
    inner=2,
    heads=2,
    kv_heads=1,
    head_dim=VOCAB,
    vocab=VOCAB,
    draft_vocab=VOCAB,
    theta=10000.0,
    rotary=VOCAB,
)
# Rows of a block, whose masks look like this token.
BLOCK, MASK = 6, 0
# Of the attention's scores: a row beside the one it looks at counts e^-14.
SHARPNESS = 4.0
LAYER = "layers.0."
# And ``near``, as near as its drafts may look: those of DFlash are made at once and cannot know one
# another, so that all of them look at committed rows.
FAMILIES = {"eagle": 1, "eagle3": 1, "dflash": BLOCK, "dspark": 1, "dflash2": BLOCK}


@cache
def says(seed: int) -> Array:
    """[next token, token]: logits, each token's of the same length."""
    values = np.random.default_rng(seed).standard_normal((VOCAB, VOCAB))
    lengths = np.sqrt((values**2).mean(0))
    out: Array = values / lengths
    return out


def echoed(text: list[int], near: int) -> list[int]:
    """What the target says after each token of ``text`` from number FAR on."""
    tokens = np.array(text)
    logits = says(1)[:, tokens[FAR - near : len(text) - near + 1]] + says(2)[:, tokens[: 1 - FAR]]
    out: list[int] = logits.argmax(0).tolist()
    return out


def layer(distances: tuple[int, int], first: float = 1.0) -> Tensors:
    """Heads that look at the rows so many positions before; ``first`` scales the first one."""
    half = VOCAB // 2
    angles = SIZES.theta ** (-np.arange(half) / half)
    queries = [[np.cos(distance * angles), -np.sin(distance * angles)] for distance in distances]
    key = [np.ones(half), np.zeros(half)]
    token = np.eye(VOCAB, HIDDEN)
    # The channels of any token add up to the same.
    any_token = token.sum(0)
    logits = np.concatenate([first * says(1), says(2)], 1)
    return {
        "self_attn.q_proj.weight": SHARPNESS * np.outer(np.ravel(queries), any_token),
        "self_attn.k_proj.weight": np.outer(np.ravel(key), any_token),
        "self_attn.v_proj.weight": token,
        "self_attn.o_proj.weight": np.concatenate([np.zeros_like(logits), logits]),
        "mlp.gate_proj.weight": np.zeros((SIZES.inner, HIDDEN)),
        "mlp.up_proj.weight": np.zeros((SIZES.inner, HIDDEN)),
        "mlp.down_proj.weight": np.zeros((HIDDEN, SIZES.inner)),
    }


def ends() -> Tensors:
    return {
        "embed_tokens.weight": np.eye(VOCAB, HIDDEN),
        "lm_head.weight": np.eye(VOCAB, HIDDEN, VOCAB),
    }


def echo_target(near: int) -> PreTrainedModel:
    model = tiny_model(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=SIZES.inner,
        num_hidden_layers=1,
        num_attention_heads=SIZES.heads,
        num_key_value_heads=SIZES.kv_heads,
        head_dim=SIZES.head_dim,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=SIZES.eps,
        tie_word_embeddings=False,
    )
    tensors = {f"{LAYER}{n}": v for n, v in layer((near - 1, FAR - 1)).items()} | ends()
    with torch.no_grad():
        for name, value in tensors.items():
            prefix = "" if name.startswith("lm_head") else "model."
            model.get_parameter(prefix + name).copy_(torch.tensor(value))
    return model


def echo_drafter(family: str, path: Path, near: int) -> Path:
    """A checkpoint that drafts what ``echo_target(near)`` says."""
    norms: Tensors = {f"{LAYER}post_attention_layernorm.weight": np.ones(HIDDEN)}
    if family != "eagle":
        norms["norm.weight"] = norms["hidden_norm.weight"] = np.ones(HIDDEN)
        norms[f"{LAYER}input_layernorm.weight"] = np.ones(HIDDEN)
    if family == "eagle3":
        # Features stand in the residual as well, unless their norm drops them.
        norms[f"{LAYER}hidden_norm.weight"] = 0 * norms.pop("hidden_norm.weight")
    parts = _eagle(family, near) if "eagle" in family else _block(family, near)
    config = {**layer_config(SIZES), "num_target_layers": 1, "target_layer_ids": [0]}
    return write_checkpoint(path, {**config, **parts[0]}, {**ends(), **norms, **parts[1]}, SIZES)


def _eagle(family: str, near: int) -> tuple[dict[str, Any], Tensors]:
    """Pairs of a token and the feature before it, for which they do not care."""
    tensors = {f"{LAYER}{n}": v for n, v in layer((near - 1, FAR - 1)).items()}
    nothing = np.zeros((HIDDEN, HIDDEN))
    if family == "eagle":
        # Its layer has no norm before, which makes a token this large in the others.
        tensors["fc.weight"] = np.concatenate([math.sqrt(HIDDEN) * np.eye(HIDDEN), nothing], 1)
        return {"architectures": ["LlamaForCausalLMEagle"], "bias": False}, tensors
    for name in ("q", "k", "v"):
        key = f"{LAYER}self_attn.{name}_proj.weight"
        tensors[key] = np.concatenate([tensors[key], np.zeros_like(tensors[key])], 1)
    config = {"architectures": ["LlamaForCausalLMEagle3"], "norm_before_residual": True}
    return config, {"fc.weight": nothing, **tensors}


def _block(family: str, near: int) -> tuple[dict[str, Any], Tensors]:
    """Rows of masks over the target's rows, of which only the tokens are context."""
    # A row of DSpark drafts the next token, whose nearest is left to its head.
    parts = layer((0, FAR - 1), first=0.0) if family == "dspark" else layer((near, FAR))
    tensors = {f"{LAYER}{name}": value for name, value in parts.items()}
    # Queries and keys are normed for each head.
    tensors[f"{LAYER}self_attn.q_norm.weight"] = np.full(VOCAB, HIDDEN / 2 * SHARPNESS)
    tensors[f"{LAYER}self_attn.k_norm.weight"] = np.ones(VOCAB)
    tensors["fc.weight"] = np.diag(np.eye(HIDDEN)[:VOCAB].sum(0))
    config: dict[str, Any] = {"block_size": BLOCK, "mask_token_id": MASK}
    if family == "dflash":
        return {**config, "architectures": ["DFlashDraftModel"]}, tensors
    if family == "dspark":
        # Scaled as the last norm scales what the second head says.
        scale = math.sqrt(HIDDEN / (VOCAB + 1 / HIDDEN))
        tensors["markov_head.markov_w1.weight"] = np.eye(VOCAB)
        tensors["markov_head.markov_w2.weight"] = scale * says(1)
        heads = {"markov_rank": VOCAB, "markov_head_type": "vanilla", "sample_from_anchor": True}
        return {**config, **heads, "architectures": ["Qwen3DSparkModel"]}, tensors
    for name in ("attention_conv", "mlp_conv"):
        kernel = np.zeros((2, 2, HIDDEN))
        kernel[:, 0] = 1
        tensors[f"{LAYER}{name}.base_kernel"] = kernel
        tensors[f"{LAYER}{name}.kernel_projection.weight"] = np.zeros((4, HIDDEN))
    selector = "candidate_selector."
    tensors[f"{selector}hidden_projection.weight"] = np.ones((1, HIDDEN))
    for name in ("predecessor_codebook", "successor_codebook"):
        tensors[f"{selector}{name}"] = np.zeros((VOCAB, 1))
    heads = {"conv_kernel_size": 2, "conv_group_size": HIDDEN, "selector_rank": 1}
    config = {**config, **heads, "selector_top_k": 3, "is_causal": False}
    return {**config, "architectures": ["DFlash2DraftModel"]}, tensors
