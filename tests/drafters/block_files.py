"""Checkpoints of DFlash, DSpark and DFlash-2, one per dialect, with what they mean by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drafters.block_formula import BlockFormula, Sees
from drafters.by_formula import Sizes, Tensors
from drafters.checkpoints import layer_config, layer_shapes, random_tensors, write_checkpoint

NORMS = ("input_layernorm", "post_attention_layernorm")
NUM_LAYERS, RANK, MASK = 2, 5, 33
SIZES = Sizes()
Shapes = Mapping[str, tuple[int, ...]]


def everything(query: int, key: int) -> bool:
    return True


def causal(query: int, key: int) -> bool:
    return key <= query


def causal_within(window: int) -> Sees:
    return lambda query, key: query - window < key <= query


def both_ways_within(window: int) -> Sees:
    return lambda query, key: query - window < key < query + window


@dataclass(frozen=True)
class BlockCase:
    """A checkpoint of a block family; ``markov`` is the kind of its head, or None."""

    name: str
    family: str
    dialect: str
    config: Mapping[str, Any]
    tensors: Tensors
    taps: tuple[int, ...]
    num_rows: int
    from_anchor: bool = False
    sizes: Sizes = SIZES
    sees: tuple[Sees, ...] = (everything, everything)
    markov: str | None = None
    confidence: str | None = None
    conv_group: int = 0
    embedding_scale: float = 1.0
    selector: tuple[int, float, float | None] | None = None
    rename: Callable[[str], str] = lambda name: name

    @property
    def mapped(self) -> bool:
        return self.sizes.draft_vocab < self.sizes.vocab

    def write(self, path: Path) -> Path:
        tensors = {self.rename(name): value for name, value in self.tensors.items()}
        return write_checkpoint(path, self.config, tensors, self.sizes, mapped=self.mapped)

    def formula(self, of_target: Tensors) -> BlockFormula:
        tensors = {**of_target, **self.tensors}
        return BlockFormula(tensors, self.sizes, self.sees, self.conv_group, self.embedding_scale)


def backbone(seed: int, s: Sizes, num_taps: int, more: Shapes | None = None) -> Tensors:
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (s.hidden, num_taps * s.hidden),
        "hidden_norm.weight": (s.hidden,),
        "norm.weight": (s.hidden,),
    }
    for layer in range(NUM_LAYERS):
        shapes.update(layer_shapes(s, f"layers.{layer}.", NORMS, s.hidden, qk_norm=True))
    return random_tensors(seed, {**shapes, **(more or {})})


def own_ends(s: Sizes) -> Shapes:
    return {"embed_tokens.weight": (s.vocab, s.hidden), "lm_head.weight": (s.draft_vocab, s.hidden)}


def markov(s: Sizes, kind: str, confidence: int = 0, rank: int = RANK) -> Shapes:
    """Shapes of the heads; ``confidence`` is the width of that head's input, 0 for none."""
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (s.vocab, rank),
        "markov_head.markov_w2.weight": (s.draft_vocab, rank),
    }
    if kind == "gated":
        shapes["markov_head.gate_proj.weight"] = (rank, s.hidden + rank)
        shapes["markov_head.gate_proj.bias"] = (rank,)
    if kind == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + s.hidden)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if confidence:
        shapes["confidence_head.proj.weight"] = (1, confidence)
        shapes["confidence_head.proj.bias"] = (1,)
    return shapes


def convolutions(s: Sizes, num_taps: int, group: int, rank: int = RANK) -> Shapes:
    shapes: dict[str, tuple[int, ...]] = {
        "candidate_selector.hidden_projection.weight": (rank, s.hidden),
        "candidate_selector.predecessor_codebook": (s.vocab, rank),
        "candidate_selector.successor_codebook": (s.vocab, rank),
    }
    for layer in range(NUM_LAYERS):
        for name in ("attention_conv", "mlp_conv"):
            conv = f"layers.{layer}.{name}"
            shapes[f"{conv}.base_kernel"] = (2, num_taps, s.hidden)
            shapes[f"{conv}.kernel_projection.weight"] = (
                2 * num_taps * (s.hidden // group),
                s.hidden,
            )
    return shapes


def dflash_cases() -> list[BlockCase]:
    s = Sizes()
    reduced = replace(s, draft_vocab=17)
    config = {**layer_config(s, NUM_LAYERS), "num_target_layers": 12, "model_type": "qwen3"}
    zlab = {**config, "architectures": ["DFlashDraftModel"]}
    nested = {"mask_token_id": MASK, "target_layer_ids": [1, 5, 9]}
    sliding = ["sliding_attention", "full_attention"]
    return [
        BlockCase(
            "dflash",
            "dflash",
            "z-lab",
            # The nested block size wins.
            {**zlab, "block_size": 16, "dflash_config": {**nested, "block_size": 6}},
            backbone(11, s, 3),
            (1, 5, 9),
            6,
            rename=lambda name: f"model.{name}",
        ),
        BlockCase(
            "dflash-sliding",
            "dflash",
            "z-lab",
            {
                **zlab,
                "block_size": 5,
                "mask_token_id": MASK,
                "layer_types": sliding,
                "sliding_window": 4,
            },
            backbone(12, s, 2),
            (1, 9),
            5,
            sees=(causal_within(4), everything),
            rename=lambda name: name.replace("fc.", "encoder.fc.").replace(
                "hidden_norm.", "encoder.output_norm_enc."
            ),
        ),
        BlockCase(
            "dflash-causal",
            "dflash",
            "z-lab",
            {
                **zlab,
                "is_causal": True,
                # The target's share does not count, the drafter's own width does.
                "rope_theta": None,
                "rope_parameters": {
                    "rope_theta": s.theta,
                    "partial_rotary_factor": 0.25,
                    "rope_dim": 4,
                },
                "input_embedding_scale": 3.5,
                "dflash_config": {**nested, "block_size": 5},
            },
            backbone(13, s, 3, {"mask_embedding": (s.hidden,)}),
            (1, 5, 9),
            5,
            sizes=replace(s, rotary=4),
            sees=(causal, causal),
            embedding_scale=3.5,
        ),
        BlockCase(
            "dflash-speculators",
            "dflash",
            "speculators",
            {
                "architectures": ["DFlashSpeculator"],
                "speculators_model_type": "dflash",
                "draft_vocab_size": 17,
                "block_size": 5,
                "mask_token_id": MASK,
                "aux_hidden_state_layer_ids": [2, 6, 10],
                "sliding_window_non_causal": True,
                "transformer_layer_config": {
                    **config,
                    "layer_types": sliding[::-1],
                    "sliding_window": 3,
                },
            },
            backbone(14, reduced, 3, own_ends(reduced)),
            (1, 5, 9),
            5,
            sizes=reduced,
            sees=(everything, both_ways_within(3)),
        ),
    ]


def dspark_cases() -> list[BlockCase]:
    s = Sizes()
    reduced = replace(s, draft_vocab=17)
    config = {
        **layer_config(s, NUM_LAYERS),
        "architectures": ["Qwen3DSparkModel"],
        "num_target_layers": 12,
        "block_size": 4,
        "mask_token_id": MASK,
        "target_layer_ids": [1, 5, 9],
        "sample_from_anchor": True,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    nested = {
        "projector_type": "dspark",
        "block_size": 4,
        "mask_token_id": MASK,
        "target_layer_ids": [1, 5, 9],
        "markov_rank": RANK,
        "markov_head_type": "gated",
        "enable_confidence_head": True,
        "confidence_head_with_markov": False,
    }
    return [
        BlockCase(
            "dspark",
            "dspark",
            "DeepSpec",
            config,
            backbone(21, s, 3, {**own_ends(s), **markov(s, "vanilla", s.hidden + RANK)}),
            (1, 5, 9),
            4,
            from_anchor=True,
            markov="vanilla",
            confidence="with markov",
        ),
        BlockCase(
            "dspark-nested",
            "dspark",
            "SpecForge",
            {
                **layer_config(s, NUM_LAYERS),
                "architectures": ["DFlashDraftModel"],
                "dflash_config": nested,
            },
            backbone(22, s, 3, markov(s, "gated", s.hidden)),
            (1, 5, 9),
            4,
            from_anchor=True,
            markov="gated",
            confidence="alone",
            rename=lambda name: f"logit_head.{name}" if name.startswith("markov") else name,
        ),
        BlockCase(
            "dspark-rnn",
            "dspark",
            "DeepSpec",
            {**config, "markov_head_type": "rnn", "enable_confidence_head": False},
            backbone(23, s, 3, {**own_ends(s), **markov(s, "rnn")}),
            (1, 5, 9),
            4,
            from_anchor=True,
            markov="rnn",
        ),
        BlockCase(
            "deepspec-dflash",
            "dspark",
            "DeepSpec",
            {**config, "markov_rank": 0, "enable_confidence_head": False},
            backbone(24, s, 3, own_ends(s)),
            (1, 5, 9),
            4,
            from_anchor=True,
        ),
        BlockCase(
            "dspark-speculators",
            "dspark",
            "speculators",
            {
                "architectures": ["DSparkSpeculator"],
                "speculators_model_type": "dspark",
                "draft_vocab_size": 17,
                "block_size": 4,
                "mask_token_id": MASK,
                "aux_hidden_state_layer_ids": [2, 6, 10],
                "markov_rank": RANK,
                "markov_head_type": "rnn",
                "transformer_layer_config": layer_config(s, NUM_LAYERS),
            },
            backbone(25, reduced, 3, {**own_ends(reduced), **markov(reduced, "rnn", 17)}),
            (1, 5, 9),
            4,
            sizes=reduced,
            markov="rnn",
            confidence="with markov",
        ),
    ]


def dflash2_cases() -> list[BlockCase]:
    s = Sizes()
    config = {
        **layer_config(s, NUM_LAYERS),
        "architectures": ["DFlash2DraftModel"],
        "is_causal": False,
        "layer_types": ["sliding_attention"] * NUM_LAYERS,
        "sliding_window": 4,
    }
    nested = {
        "block_size": 6,
        "conv_kernel_size": 2,
        "conv_group_size": 4,
        "selector_rank": RANK,
        "selector_top_k": 3,
        "mask_token_id": MASK,
        "target_layer_ids": [1, 5, 9],
    }
    capped = {"output_multiplier": 0.4, "final_logit_softcapping": 1.5}
    return [
        BlockCase(
            "dflash2",
            "dflash2",
            "z-lab",
            {**config, "dflash_config": {**nested, **capped}},
            backbone(31, s, 3, convolutions(s, 2, 4)),
            (1, 5, 9),
            6,
            sees=(both_ways_within(4),) * NUM_LAYERS,
            conv_group=4,
            selector=(3, 0.4, 1.5),
        ),
        BlockCase(
            "dflash2-three-taps",
            "dflash2",
            "z-lab",
            {**config, "dflash_config": {**nested, "conv_kernel_size": 3, "conv_group_size": 6}},
            backbone(32, s, 3, convolutions(s, 3, 6)),
            (1, 5, 9),
            6,
            sees=(both_ways_within(4),) * NUM_LAYERS,
            conv_group=6,
            selector=(3, 1.0, None),
        ),
    ]
