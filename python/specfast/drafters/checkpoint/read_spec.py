"""From config.json and a table of tensors to a DrafterSpec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specfast.drafters.checkpoint.backbone_config import read_backbone
from specfast.drafters.checkpoint.block_config import (
    read_block,
    read_confidence,
    read_convolution,
    read_markov,
    read_selector,
)
from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.fields import Fields
from specfast.drafters.checkpoint.files import CheckpointFiles
from specfast.drafters.checkpoint.recognise import recognise
from specfast.drafters.checkpoint.spec import DrafterSpec, Eagle3Spec
from specfast.drafters.checkpoint.taps import read_taps
from specfast.drafters.checkpoint.tensors import canonical_names, check_tensors


def read_spec(files: CheckpointFiles) -> DrafterSpec:
    """What the checkpoint is, with every tensor checked by name and shape; no values are read.

    Raises
    ------
    DrafterError
        A field of config.json that is missing, malformed or not supported; a tensor that is
        unknown, missing or misshaped.
    """
    names = canonical_names(files.entries)
    shapes = {name: files.entries[own].shape for name, own in names.items()}
    if "mask_embedding" in shapes and shapes["mask_embedding"][:-1] == (1,):
        shapes["mask_embedding"] = shapes["mask_embedding"][1:]
    spec = spec_of(files.config, shapes)
    check_tensors(spec, shapes)
    token = files.mask_embedding_id
    if spec.block is not None and token not in (None, spec.block.mask_token_id):
        raise DrafterError(
            f"mask_embedding.pt is of token {token}, but config.json says mask_token_id "
            f"{spec.block.mask_token_id}"
        )
    return spec


def spec_of(config: Mapping[str, object], shapes: Mapping[str, tuple[int, ...]]) -> DrafterSpec:
    """The spec that ``config`` describes; ``shapes`` settle what it leaves open."""
    fields = Fields(config)
    family, dialect, architecture = recognise(fields, shapes)
    if dialect == "speculators":
        # What the layers are is nested there; what the drafter is stands outside and wins.
        fields = fields.merged_over(fields.nested("transformer_layer_config"))
    qk_norm = family in ("dflash", "dspark", "dflash2") or dialect == "DeepSpec"
    if family == "eagle3" and not qk_norm:
        qk_norm = "layers.0.self_attn.q_norm.weight" in shapes
    backbone = read_backbone(fields, qk_norm=qk_norm, full_rotary=family not in ("eagle", "eagle3"))
    vocab_size = fields.integer("vocab_size")
    spec = DrafterSpec(
        family=family,
        dialect=dialect,
        architecture=architecture,
        backbone=backbone,
        vocab_size=vocab_size,
        draft_vocab_size=_draft_vocab_size(fields, vocab_size, shapes),
        num_target_layers=(
            fields.integer("num_target_layers") if "num_target_layers" in fields else None
        ),
        taps=None,
        fc_bias=False,
        eagle3=None,
        block=None,
        markov=None,
        confidence=None,
        convolution=None,
        selector=None,
        readings=(),
        open_questions=(),
    )
    if family in ("eagle", "eagle3"):
        spec = _with_eagle(spec, fields, shapes)
    else:
        spec = _with_block(spec, fields, shapes)
    return replace(
        spec, readings=tuple(fields.readings), open_questions=tuple(fields.open_questions)
    )


def _draft_vocab_size(
    fields: Fields, vocab_size: int, shapes: Mapping[str, tuple[int, ...]]
) -> int:
    fields.refuse("hot_vocab_size")
    if "draft_vocab_size" in fields:
        size = fields.integer("draft_vocab_size")
        if size > vocab_size:
            raise DrafterError(
                f"config.json: draft_vocab_size {size} is larger than vocab_size {vocab_size}"
            )
        return size
    if "d2t" in shapes:
        size = shapes["d2t"][0] if shapes["d2t"] else 0
        fields.assume("draft_vocab_size", size, "the length of d2t")
        return size
    return vocab_size


def _with_eagle(
    spec: DrafterSpec, fields: Fields, shapes: Mapping[str, tuple[int, ...]]
) -> DrafterSpec:
    if spec.backbone.num_layers != 1:
        raise DrafterError(
            f"config.json: {spec.family} with num_hidden_layers = {spec.backbone.num_layers} is "
            "not supported, expected 1"
        )
    if spec.family == "eagle":
        if "bias" not in fields:
            fields.assume("bias", True, "fc has one, as in the first files")
        if "lm_head.weight" in shapes:
            fields.readings.append("lm_head is not read: the target's head is used")
        return replace(spec, fc_bias=fields.flag("bias", default=True))
    nested = fields.nested("eagle_config")
    if "use_aux_hidden_state" in nested and not nested.flag("use_aux_hidden_state"):
        raise DrafterError(
            "config.json: eagle_config.use_aux_hidden_state = False is not supported"
        )
    if fields.flag("norm_output"):
        fields.open_questions.append("norm_output")
        fields.readings.append(
            "norm_output: the next feature is the normalised hidden state, as SGLang reads it; "
            "SpecForge reads it otherwise"
        )
    if "norm_before_residual" not in fields:
        fields.assume("norm_before_residual", False, "the residual is not normalised")
    width = fields.integer("target_hidden_size", spec.backbone.hidden_size)
    taps = read_taps(fields, width, num_layers=1, eagle3=True)
    if "num_aux_hidden_states" in fields:
        count = fields.integer("num_aux_hidden_states")
        if count != taps.num_taps:
            raise DrafterError(
                f"config.json: num_aux_hidden_states is {count}, but there are {taps.num_taps} taps"
            )
    eagle3 = Eagle3Spec(
        norm_before_residual=fields.flag("norm_before_residual"),
        norm_output=fields.flag("norm_output"),
        fc_norm=fields.flag("fc_norm") or fields.flag("use_aux_norm"),
        input_norm=fields.flag("norm_before_fc") or nested.flag("norm_before_fc"),
    )
    return replace(spec, fc_bias=fields.flag("bias"), taps=taps, eagle3=eagle3)


def _with_block(
    spec: DrafterSpec, fields: Fields, shapes: Mapping[str, tuple[int, ...]]
) -> DrafterSpec:
    width = fields.integer("target_hidden_size", spec.backbone.hidden_size)
    taps = read_taps(fields, width, num_layers=spec.backbone.num_layers, eagle3=False)
    # What DFlash adds may stand in an object of its own, and wins there.
    fields = fields.nested("dflash_config").merged_over(fields)
    if spec.family == "dflash2" and spec.draft_vocab_size < spec.vocab_size:
        raise DrafterError("config.json: dflash2 with draft_vocab_size is not supported")
    dspark, dflash2 = spec.family == "dspark", spec.family == "dflash2"
    markov = read_markov(fields, shapes) if dspark else None
    return replace(
        spec,
        taps=taps,
        block=read_block(spec, fields, shapes),
        markov=markov,
        confidence=read_confidence(fields, shapes, markov) if dspark else None,
        convolution=read_convolution(fields, spec.backbone) if dflash2 else None,
        selector=read_selector(fields) if dflash2 else None,
    )
