"""Sizes, norms and rotary embedding out of config.json."""

from __future__ import annotations

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.fields import Fields
from specfast.drafters.checkpoint.spec import BackboneSpec, RopeSpec

DEFAULT_NORM_EPS = 1e-6
DEFAULT_ROPE_THETA = 10000.0
# Fields of a layer that would change the maths, and the value at which they do not.
UNSUPPORTED = {
    "hidden_act": "silu",
    "mlp_bias": False,
    "use_gemma_norm": False,
    "is_neox_style": True,
    "attention_sink_bias": False,
    "attention_value_scale": 1.0,
    "aux_hidden_norms": False,
    "rope_interleaved": False,
}


def read_backbone(fields: Fields, *, qk_norm: bool, full_rotary: bool) -> BackboneSpec:
    """The decoder layers that ``fields`` describe.

    full_rotary : the family rotates whole heads, whatever was copied from the target's config
    """
    for name, neutral in UNSUPPORTED.items():
        fields.refuse(name, unless=neutral)
    hidden_size = fields.integer("hidden_size")
    num_heads = fields.integer("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise DrafterError(
            f"config.json: {num_heads} attention heads cannot share {num_kv_heads} key-value heads"
        )
    if "head_dim" not in fields and hidden_size % num_heads:
        raise DrafterError(
            f"config.json: head_dim is missing, and hidden_size {hidden_size} is no multiple of "
            f"{num_heads} heads"
        )
    if "head_dim" not in fields:
        fields.assume("head_dim", hidden_size // num_heads, "hidden_size over heads")
    if "rms_norm_eps" not in fields:
        fields.assume("rms_norm_eps", DEFAULT_NORM_EPS, "the default of Llama and Qwen3")
    head_dim = fields.integer("head_dim", hidden_size // num_heads)
    attention_bias = fields.flag("attention_bias")
    return BackboneSpec(
        hidden_size=hidden_size,
        intermediate_size=fields.integer("intermediate_size"),
        num_layers=fields.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=fields.number("rms_norm_eps", DEFAULT_NORM_EPS),
        rope=_read_rope(fields, head_dim, full_rotary),
        qk_norm=qk_norm,
        qkv_bias=attention_bias or fields.flag("qkv_bias"),
        output_bias=attention_bias,
    )


def _read_rope(fields: Fields, head_dim: int, full_rotary: bool) -> RopeSpec:
    """From ``rope_theta`` and ``rope_scaling``, or ``rope_parameters``, of this config alone."""
    new, old = fields.nested("rope_parameters"), fields.nested("rope_scaling")
    rope = new.merged_over(old)
    named = [f.number("rope_theta") for f in (fields, new, old) if "rope_theta" in f]
    if len(set(named)) > 1:
        raise DrafterError(f"config.json: rope_theta is given as {named[0]} and as {named[1]}")
    if not named:
        fields.assume("rope_theta", DEFAULT_ROPE_THETA, "not that of the target")
    theta = named[0] if named else DEFAULT_ROPE_THETA
    rope_type = rope.text("rope_type") or rope.text("type") or "default"
    partial = [f for f in (fields, rope) if "partial_rotary_factor" in f]
    if full_rotary and partial:
        fields.readings.append("partial_rotary_factor is the target's: whole heads are rotated")
    elif any(f.number("partial_rotary_factor") != 1.0 for f in partial):
        raise DrafterError("config.json: partial_rotary_factor other than 1 is not supported")
    rotary_dim = rope.integer("rope_dim", head_dim)
    if rotary_dim > head_dim or rotary_dim % 2:
        raise DrafterError(
            f"config.json: expected rope_dim to be even and at most head_dim {head_dim}, "
            f"got {rotary_dim}"
        )
    if rope_type in ("default", "mrope"):
        # Text alone: the three coordinates of mrope are one and the same position.
        return RopeSpec("default", theta, rotary_dim)
    if rope_type == "linear":
        return RopeSpec("linear", theta, rotary_dim, factor=rope.number("factor"))
    if rope_type == "llama3":
        return RopeSpec(
            "llama3",
            theta,
            rotary_dim,
            factor=rope.number("factor"),
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
            original_max_position=rope.integer("original_max_position_embeddings"),
        )
    raise DrafterError(f"config.json: rotary embeddings of type {rope_type!r} are not supported")
