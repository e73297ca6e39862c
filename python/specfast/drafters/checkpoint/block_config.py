"""Blocks and heads of DFlash, DSpark and DFlash-2 out of config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.fields import Fields
from specfast.drafters.checkpoint.spec import (
    BackboneSpec,
    BlockSpec,
    ConfidenceSpec,
    ConvolutionSpec,
    DrafterSpec,
    MarkovSpec,
    SelectorSpec,
    SpanSpec,
)

MARKOV_KINDS: dict[str, Literal["vanilla", "gated", "rnn"]] = {
    "vanilla": "vanilla",
    "gated": "gated",
    "rnn": "rnn",
}
# What the ops take that draft with these heads.
MAX_MARKOV_RANK, MAX_SELECTOR_RANK, MAX_CANDIDATES = 1024, 512, 32
SLIDING, FULL = "sliding_attention", "full_attention"
UNSUPPORTED = ("use_swa", "logits_mup_width_multiplier", "shift_label", "dspark_bonus_anchor")


def read_block(
    spec: DrafterSpec, fields: Fields, shapes: Mapping[str, tuple[int, ...]]
) -> BlockSpec:
    """``fields`` with those of ``dflash_config`` over the rest."""
    for name in UNSUPPORTED:
        fields.refuse(name)
    if spec.family == "dspark":
        # For DFlash they change no order of the logits; the Markov head adds to them.
        for name in ("final_logit_softcapping", "output_multiplier"):
            fields.refuse(name)
    if "mask_token_id" not in fields:
        raise DrafterError(
            "config.json: mask_token_id is missing; the name of a mask token does not say its id"
        )
    mask_token_id = fields.integer("mask_token_id", minimum=0)
    if mask_token_id >= spec.vocab_size:
        raise DrafterError(
            f"config.json: mask_token_id {mask_token_id} is outside of vocab_size {spec.vocab_size}"
        )
    num_rows = fields.integer("block_size", minimum=2)
    # DeepSpec and SpecForge draft from the anchor's row; speculators says so where it does.
    default = spec.family == "dspark" and spec.dialect != "speculators"
    if spec.family == "dspark" and "sample_from_anchor" not in fields:
        fields.open_questions.append("sample_from_anchor")
        fields.assume("sample_from_anchor", default, f"the default of {spec.dialect}")
    from_anchor = fields.flag("sample_from_anchor", default)
    if spec.family == "dspark" and not from_anchor:
        fields.readings.append(
            f"block_size {num_rows} counts the rows of the block, the anchor included: "
            f"{num_rows - 1} proposals"
        )
    return BlockSpec(
        num_rows=num_rows,
        num_proposals=num_rows if from_anchor else num_rows - 1,
        sample_from_anchor=from_anchor,
        mask_token_id=mask_token_id,
        spans=_read_spans(spec, fields),
        embedding_scale=fields.number("input_embedding_scale", 1.0),
        own_mask_embedding="mask_embedding" in shapes,
    )


def _read_spans(spec: DrafterSpec, fields: Fields) -> tuple[SpanSpec, ...]:
    """Inside the block: what the file says of all layers, else what the type of each says."""
    types = fields.texts("layer_types") or (FULL,) * spec.backbone.num_layers
    if len(types) != spec.backbone.num_layers or set(types) - {SLIDING, FULL}:
        raise DrafterError(
            f"config.json: expected layer_types to name {SLIDING} or {FULL} for each of "
            f"{spec.backbone.num_layers} layers, got {list(types)}"
        )
    if "layer_types" not in fields and fields.flag("use_sliding_window"):
        raise DrafterError("config.json: use_sliding_window without layer_types is not supported")
    window = fields.integer("sliding_window") if SLIDING in types else None
    causal = {SLIDING: True, FULL: False}
    if "is_causal" in fields:
        causal = dict.fromkeys(causal, fields.flag("is_causal"))
    elif "causal" in fields:
        fields.readings.append("dflash_config.causal is read as vLLM does: of every layer")
        causal = dict.fromkeys(causal, fields.flag("causal"))
    elif spec.dialect == "speculators":
        bidirectional = fields.flag("sliding_window_non_causal", spec.family == "dflash2")
        causal[SLIDING] = not bidirectional
    if SLIDING in types and not causal[SLIDING]:
        fields.readings.append(
            f"sliding layers look both ways inside the block, and {window} positions far: a "
            "query's own position counts on either side"
        )
    return tuple(SpanSpec(causal[kind], window if kind == SLIDING else None) for kind in types)


def read_markov(fields: Fields, shapes: Mapping[str, tuple[int, ...]]) -> MarkovSpec | None:
    """None for DSpark without the head, as DeepSpec's dflash files are."""
    w1 = shapes.get("markov_head.markov_w1.weight")
    if "markov_rank" not in fields:
        rank = w1[-1] if w1 else 0
        fields.assume("markov_rank", rank, "by the tensors")
    else:
        rank = fields.integer("markov_rank", minimum=0, maximum=MAX_MARKOV_RANK)
    if rank == 0:
        return None
    kind = fields.text("markov_head_type")
    if not kind:
        fields.assume("markov_head_type", "vanilla", "the first kind")
    elif kind not in MARKOV_KINDS:
        raise DrafterError(f"config.json: markov_head_type {kind!r} is not supported")
    return MarkovSpec(MARKOV_KINDS[kind or "vanilla"], rank)


def read_confidence(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], markov: MarkovSpec | None
) -> ConfidenceSpec | None:
    present = "confidence_head.proj.weight" in shapes
    if "enable_confidence_head" not in fields:
        fields.assume("enable_confidence_head", present, "by the tensors")
    if not fields.flag("enable_confidence_head", present):
        return None
    if "confidence_head_with_markov" not in fields:
        width = shapes["confidence_head.proj.weight"][-1] if present else 0
        with_markov = width > fields.integer("hidden_size")
        fields.assume("confidence_head_with_markov", with_markov, "by the tensors")
    else:
        with_markov = fields.flag("confidence_head_with_markov")
    if with_markov and markov is None:
        raise DrafterError("config.json: confidence_head_with_markov is true, but markov_rank is 0")
    return ConfidenceSpec(with_markov)


def read_convolution(fields: Fields, backbone: BackboneSpec) -> ConvolutionSpec:
    num_taps = fields.integer("conv_kernel_size")
    group_size = fields.integer("conv_group_size")
    if backbone.hidden_size % group_size:
        raise DrafterError(
            f"config.json: hidden_size {backbone.hidden_size} is no multiple of conv_group_size "
            f"{group_size}"
        )
    return ConvolutionSpec(num_taps, group_size)


def read_selector(fields: Fields) -> SelectorSpec:
    softcap = None
    if "final_logit_softcapping" in fields:
        softcap = fields.number("final_logit_softcapping")
    return SelectorSpec(
        rank=fields.integer("selector_rank", maximum=MAX_SELECTOR_RANK),
        top_k=fields.integer("selector_top_k", maximum=MAX_CANDIDATES),
        output_multiplier=fields.number("output_multiplier", 1.0),
        softcap=softcap,
    )
