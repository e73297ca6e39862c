"""Which family a checkpoint is of, and who wrote it."""

from __future__ import annotations

from collections.abc import Collection

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.fields import Fields
from specfast.drafters.checkpoint.spec import Dialect, Family

ARCHITECTURES: dict[str, tuple[Family, Dialect]] = {
    "LlamaForCausalLMEagle": ("eagle", "SafeAILab/SpecForge"),
    "LlamaForCausalLMEagle3": ("eagle3", "SafeAILab/SpecForge"),
    "Qwen3Eagle3Model": ("eagle3", "DeepSpec"),
    "DFlashDraftModel": ("dflash", "z-lab"),
    "Qwen3DSparkModel": ("dspark", "DeepSpec"),
    "DFlash2DraftModel": ("dflash2", "z-lab"),
}
SPECULATORS: dict[str, Family] = {
    "eagle3": "eagle3",
    "dflash": "dflash",
    "dspark": "dspark",
    "dflash2": "dflash2",
}
DIALECTS: dict[Family, Dialect] = {
    "eagle": "SafeAILab/SpecForge",
    "eagle3": "SafeAILab/SpecForge",
    "dflash": "z-lab",
    "dspark": "DeepSpec",
    "dflash2": "z-lab",
}


def recognise(fields: Fields, names: Collection[str]) -> tuple[Family, Dialect, str]:
    """Family, dialect and architecture of a config and canonical tensor names.

    What config.json says decides; tensors that contradict it are found missing or unknown later.
    Where it says nothing of drafting, the tensors decide.

    Raises
    ------
    DrafterError
        A family that is not built, or no drafter.
    """
    architectures = fields.texts("architectures")
    architecture = architectures[0] if architectures else "none given"
    projector = fields.nested("dflash_config").text("projector_type") or fields.text(
        "projector_type"
    )
    if projector not in ("", "dflash", "dspark"):
        raise DrafterError(f"drafters with a projector of type {projector!r} are not supported")
    if "speculators_model_type" in fields:
        kind = fields.text("speculators_model_type")
        if kind not in SPECULATORS:
            raise DrafterError(f"speculators of type {kind!r} are not supported")
        return SPECULATORS[kind], "speculators", architecture
    if architecture.startswith("Gemma"):
        raise DrafterError(f"{architecture} is not supported: layers of Gemma have more norms")
    if any(name.startswith("mtp.") for name in names):
        raise DrafterError("the file holds stages of a larger model (mtp.*): not supported")
    if architecture == "DFlashDraftModel" and projector == "dspark":
        return "dspark", "SpecForge", architecture
    if architecture in ARCHITECTURES:
        return (*ARCHITECTURES[architecture], architecture)
    family = _family_of_tensors(names)
    if family is None:
        raise DrafterError(
            f"no drafter: neither the architecture ({architecture}) nor the tensors are those of "
            "EAGLE, EAGLE-3, DFlash, DSpark or DFlash-2"
        )
    fields.readings.append(f"the architecture {architecture} names no drafter: {family} by tensors")
    return family, DIALECTS[family], architecture


def _family_of_tensors(names: Collection[str]) -> Family | None:
    def some(*prefixes: str) -> bool:
        return any(name.startswith(prefixes) for name in names)

    if "fc.weight" not in names:
        return None
    if some("candidate_selector.", "layers.0.attention_conv."):
        return "dflash2"
    if some("markov_head.", "confidence_head."):
        return "dspark"
    if some("layers.0.hidden_norm."):
        return "eagle3"
    if some("hidden_norm."):
        return "dflash"
    if some("layers.0.self_attn.") and not some("layers.0.input_layernorm.", "norm."):
        return "eagle"
    return None
