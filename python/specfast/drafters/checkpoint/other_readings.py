"""The other answers to what a checkpoint leaves open."""

from __future__ import annotations

from dataclasses import replace

from specfast.drafters.checkpoint.spec import DrafterSpec


def other_readings(spec: DrafterSpec, num_layers: int) -> dict[str, DrafterSpec]:
    """A spec for each open question of ``spec``, which has the taps of its target, by a short name.

    Only what a target of ``num_layers`` can give; one question at a time.
    """
    others: dict[str, DrafterSpec] = {}
    for question in spec.open_questions:
        if question == "taps" and spec.taps is not None and spec.taps.layers is not None:
            layers = tuple(layer + 1 for layer in spec.taps.layers)
            if max(layers) < num_layers:
                taps = replace(spec.taps, layers=layers, source="one layer later")
                others[f"taps after layers {list(layers)}"] = replace(spec, taps=taps)
        if question == "norm_output" and spec.eagle3 is not None:
            eagle3 = replace(spec.eagle3, norm_output=False)
            others["the next feature is not normalised"] = replace(spec, eagle3=eagle3)
        if question == "sample_from_anchor" and spec.block is not None:
            from_anchor = not spec.block.sample_from_anchor
            block = replace(
                spec.block,
                sample_from_anchor=from_anchor,
                num_proposals=spec.block.num_rows - (0 if from_anchor else 1),
            )
            name = "the anchor's row drafts" if from_anchor else "the anchor's row drafts nothing"
            others[name] = replace(spec, block=block)
    return others
