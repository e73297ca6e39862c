"""Which hidden states of the target a drafter reads: three spellings, two conventions."""

from __future__ import annotations

from dataclasses import replace

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.fields import Fields
from specfast.drafters.checkpoint.spec import DrafterSpec, TapSpec

EAGLE3_DEFAULT = "absent: inputs of layers 2, n/2 and n-3 of a target of n"
BLOCK_DEFAULT = "absent: spread over the target's layers"
# Each tap is the input of the layer that is named, the output of the one before.
BEFORE_FIELDS = ("eagle_aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids")


def read_taps(fields: Fields, width: int, *, num_layers: int, eagle3: bool) -> TapSpec:
    """The taps that ``fields`` name, as "after layer k" with k from 0.

    Raises
    ------
    DrafterError
        Two fields that name different layers.
    """
    found: dict[str, tuple[int, ...]] = {}
    nested = [("dflash_config", "target_layer_ids")]
    if eagle3:
        nested.append(("eagle_config", "eagle_aux_hidden_state_layer_ids"))
    for group, name in nested:
        if name in fields.nested(group):
            found[f"{group}.{name}, after the layer"] = fields.nested(group).layer_ids(name)
    if "target_layer_ids" in fields:
        found["target_layer_ids, after the layer"] = fields.layer_ids("target_layer_ids")
    for name in BEFORE_FIELDS:
        if name in fields:
            before = tuple(layer - 1 for layer in fields.layer_ids(name))
            found[f"{name}, before the layer"] = before
            if not any(taps == before for source, taps in found.items() if "after" in source):
                fields.open_questions.append("taps")
                fields.readings.append(
                    f"{name} is read as the inputs of those layers, as speculators and vLLM do; "
                    "a file that means their outputs drafts badly, not wrongly"
                )
    if not found:
        source = EAGLE3_DEFAULT if eagle3 else BLOCK_DEFAULT
        fields.readings.append(f"the layer ids are {source}")
        return TapSpec(None, 3 if eagle3 else num_layers, width, source)
    (source, layers), *others = found.items()
    for other_source, other in others:
        if other != layers:
            raise DrafterError(
                f"config.json names two sets of taps: {source}, gives {list(layers)}, and "
                f"{other_source}, gives {list(other)} (counted after layers)"
            )
    if min(layers) < -1:
        raise DrafterError(f"config.json: {source}, gives layer {min(layers)}; the least is -1")
    return TapSpec(layers, len(layers), width, source)


def resolve_taps(spec: DrafterSpec, num_layers: int) -> DrafterSpec:
    """``spec`` with the taps that it has on a target of ``num_layers``.

    Raises
    ------
    DrafterError
        The target does not have these layers, or not as many as the file says.
    """
    if spec.num_target_layers not in (None, num_layers):
        raise DrafterError(
            f"the drafter is for a target of {spec.num_target_layers} layers, this one has "
            f"{num_layers}"
        )
    if spec.taps is None:
        return spec
    layers = spec.taps.layers
    if layers is None and spec.family == "eagle3":
        layers = (1, num_layers // 2 - 1, num_layers - 4)
    elif layers is None:
        layers = _spread(spec.taps.num_taps, num_layers)
    if min(layers) < -1 or max(layers) >= num_layers or len(set(layers)) < len(layers):
        raise DrafterError(
            f"the drafter reads the target after layers {list(layers)}, but the target has layers "
            f"0 to {num_layers - 1}"
        )
    return replace(spec, taps=replace(spec.taps, layers=layers))


def _spread(num_taps: int, num_layers: int) -> tuple[int, ...]:
    if num_taps == 1:
        return (num_layers // 2,)
    step = (num_layers - 4) / (num_taps - 1)
    return tuple(round(1 + i * step) for i in range(num_taps))
