"""What ``--graphs`` comes to for a target."""

from __future__ import annotations

from specfast.cli.errors import CliError
from specfast.cli.options import GraphMode
from specfast.cli.target import TargetModel
from specfast.engine.window_attention import why_not_padded


def graph_mode(
    target: TargetModel, asked: GraphMode, num_requests: int, verify_width: int
) -> GraphMode:
    """On, padded or off; what cannot be had is refused, or is what ``auto`` leaves off."""
    on_gpu = target.device.type == "cuda"
    # Layers of transformers may wait for the device in ways that no capture has been tried with.
    can_capture = on_gpu and not target.is_recurrent
    if asked is GraphMode.OFF or (asked is GraphMode.AUTO and not can_capture):
        return GraphMode.OFF
    if asked is GraphMode.ON and not on_gpu:
        raise CliError(f"--graphs on needs a GPU, and the device is {target.device.type}")
    why_not = why_not_padded(target.probed.kv_shapes.values(), num_requests, verify_width)
    if why_not is None:
        return GraphMode.PADDED if asked is GraphMode.PADDED else GraphMode.ON
    if asked is GraphMode.AUTO:
        return GraphMode.OFF
    raise CliError(f"--graphs {asked.value} cannot be used: {why_not}")
