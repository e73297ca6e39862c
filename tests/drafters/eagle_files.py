"""EAGLE checkpoints, one per dialect, with what they mean by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from drafters.by_formula import Array, Sizes, Tensors, rms_norm
from drafters.checkpoints import layer_config, layer_shapes, random_tensors, write_checkpoint

EAGLE3_NORMS = ("input_layernorm", "hidden_norm", "post_attention_layernorm")


@dataclass(frozen=True)
class EagleCase:
    """A checkpoint of an EAGLE family.

    tensors : by canonical name; ``rename`` makes the file's names of them
    taps : after layers of a target of 12; empty for EAGLE-1/2
    """

    name: str
    family: str
    dialect: str
    sizes: Sizes
    config: Mapping[str, Any]
    tensors: Tensors
    taps: tuple[int, ...] = ()
    rename: Callable[[str], str] = lambda name: name
    pickled: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    readings: tuple[str, ...] = field(default=())

    @property
    def mapped(self) -> bool:
        return self.sizes.draft_vocab < self.sizes.vocab

    def write(self, path: Path) -> Path:
        tensors = {self.rename(name): value for name, value in self.tensors.items()}
        return write_checkpoint(
            path, self.config, tensors, self.sizes, pickled=self.pickled, mapped=self.mapped
        )

    def feature(self, t: Tensors, taps: Array) -> Array:
        """What the layer reads, by the formulas."""
        if self.family == "eagle":
            return taps
        parts = np.split(taps, len(self.taps))
        if "fc_norm.0.weight" in t:
            parts = [
                rms_norm(part, t[f"fc_norm.{i}.weight"], self.sizes.eps)
                for i, part in enumerate(parts)
            ]
        joined = np.concatenate(parts)
        if "input_norm.weight" in t:
            joined = rms_norm(joined, t["input_norm.weight"], self.sizes.eps)
        out: Array = t["fc.weight"] @ joined
        return out + t.get("fc.bias", 0.0)


def _eagle3(
    seed: int, s: Sizes, num_taps: int, more: Mapping[str, tuple[int, ...]], *, qk_norm: bool
) -> Tensors:
    shapes = {
        "fc.weight": (s.hidden, num_taps * s.hidden),
        **layer_shapes(s, "layers.0.", EAGLE3_NORMS, 2 * s.hidden, qk_norm=qk_norm),
        "norm.weight": (s.hidden,),
        "lm_head.weight": (s.draft_vocab, s.hidden),
        **more,
    }
    return random_tensors(seed, shapes)


def eagle3_cases() -> list[EagleCase]:
    s = Sizes()
    reduced = replace(s, draft_vocab=17)
    embedding = {"embed_tokens.weight": (s.vocab, s.hidden)}
    return [
        EagleCase(
            "safeailab",
            "eagle3",
            "SafeAILab/SpecForge",
            replace(reduced, theta=10000.0),
            # As the first files: no aux ids, no rope_theta, a pickle, one layer called midlayer.
            {
                **{k: v for k, v in layer_config(reduced).items() if k != "rope_theta"},
                "architectures": ["LlamaForCausalLMEagle3"],
                "draft_vocab_size": 17,
            },
            _eagle3(1, reduced, 3, {}, qk_norm=False),
            taps=(1, 5, 8),
            rename=lambda name: name.replace("layers.0.", "midlayer."),
            pickled=True,
            readings=("rope_theta", "inputs of layers 2, n/2 and n-3"),
        ),
        EagleCase(
            "nested-aux-ids",
            "eagle3",
            "SafeAILab/SpecForge",
            s,
            {
                **layer_config(s),
                "architectures": ["LlamaForCausalLMEagle3"],
                "draft_vocab_size": None,
                "bias": True,
                "eagle_config": {
                    "use_aux_hidden_state": True,
                    "eagle_aux_hidden_state_layer_ids": [2, 6, 11],
                },
            },
            _eagle3(2, s, 3, {"fc.bias": (s.hidden,)}, qk_norm=False),
            taps=(2, 6, 11),
        ),
        EagleCase(
            "eagle-3.1",
            "eagle3",
            "SafeAILab/SpecForge",
            reduced,
            {
                **layer_config(reduced),
                "architectures": ["LlamaForCausalLM"],
                "draft_vocab_size": 17,
                "use_aux_norm": True,
                "norm_output": True,
            },
            _eagle3(3, reduced, 3, {f"fc_norm.{i}.weight": (12,) for i in range(3)}, qk_norm=False),
            taps=(1, 5, 8),
            rename=lambda name: (
                name.replace("fc_norm.0", "aux_norm_low")
                .replace("fc_norm.1", "aux_norm_mid")
                .replace("fc_norm.2", "aux_norm_high")
            ),
            norm_output=True,
            readings=("norm_output", "eagle3 by tensors"),
        ),
        EagleCase(
            "deepspec",
            "eagle3",
            "DeepSpec",
            s,
            {
                **layer_config(s),
                "architectures": ["Qwen3Eagle3Model"],
                "target_layer_ids": [-1, 1, 4, 7, 9],
                "num_target_layers": 12,
                "ttt_length": 7,
            },
            _eagle3(4, s, 5, embedding, qk_norm=True),
            taps=(-1, 1, 4, 7, 9),
            rename=lambda name: f"model.{name}",
        ),
        EagleCase(
            "speculators",
            "eagle3",
            "speculators",
            reduced,
            {
                "architectures": ["Eagle3DraftModel"],
                "speculators_model_type": "eagle3",
                "draft_vocab_size": 17,
                "target_hidden_size": None,
                "norm_before_residual": True,
                "norm_before_fc": True,
                "eagle_aux_hidden_state_layer_ids": [2, 6, 9],
                "transformer_layer_config": {
                    **{k: v for k, v in layer_config(reduced).items() if k != "rope_theta"},
                    "rope_parameters": {"rope_type": "default", "rope_theta": s.theta},
                },
            },
            _eagle3(5, reduced, 3, {**embedding, "input_norm.weight": (36,)}, qk_norm=False),
            taps=(1, 5, 8),
            norm_before_residual=True,
            readings=("eagle_aux_hidden_state_layer_ids is read as the inputs",),
        ),
    ]


def eagle_cases() -> list[EagleCase]:
    s = Sizes(heads=3, kv_heads=1, head_dim=4)
    without = ("head_dim", "rms_norm_eps")
    config = {k: v for k, v in layer_config(s).items() if k not in without}
    shapes = {
        "fc.weight": (s.hidden, 2 * s.hidden),
        "fc.bias": (s.hidden,),
        "embed_tokens.weight": (s.vocab, s.hidden),
        **layer_shapes(s, "layers.0.", ("post_attention_layernorm",), s.hidden, qk_norm=False),
    }
    qwen2 = Sizes()
    biases = {
        f"layers.0.self_attn.{name}_proj.bias": (rows * qwen2.head_dim,)
        for name, rows in (("q", qwen2.heads), ("k", qwen2.kv_heads), ("v", qwen2.kv_heads))
    }
    no_fc_bias = {n: shape for n, shape in shapes.items() if "fc.bias" not in n}
    del no_fc_bias["embed_tokens.weight"]
    no_fc_bias.update(
        layer_shapes(qwen2, "layers.0.", ("post_attention_layernorm",), qwen2.hidden, qk_norm=False)
    )
    return [
        EagleCase(
            "llama2",
            "eagle",
            "SafeAILab/SpecForge",
            replace(s, eps=1e-6),
            {**config, "architectures": ["LlamaForCausalLM"]},
            random_tensors(6, shapes),
            pickled=True,
            readings=("bias", "head_dim", "rms_norm_eps"),
        ),
        EagleCase(
            "qwen2",
            "eagle",
            "SafeAILab/SpecForge",
            qwen2,
            {
                **layer_config(qwen2),
                "architectures": ["LlamaForCausalLMEagle"],
                "bias": False,
                "qkv_bias": True,
            },
            random_tensors(7, {**no_fc_bias, **biases}),
        ),
    ]
