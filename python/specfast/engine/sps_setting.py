"""What an SPS table of an engine is true of: its card, its target, how its rounds run."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from typing import Literal

import torch
from transformers import PreTrainedModel

from specfast.engine.target import Target
from specfast.planner import SpsSetting

# Each laid out by itself; padded to tiers, kernel by kernel; the same, replayed as CUDA Graphs.
WayOfRounds = Literal["eager", "padded", "graphs"]

_DTYPES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
}


def sps_setting(
    target: Target,
    num_requests: int,
    tiers: Iterable[int],
    rounds: WayOfRounds,
    pool_dtype: torch.dtype | None = None,
) -> SpsSetting:
    """The setting of steps of ``tiers`` rows that ``num_requests`` slots share.

    ``pool_dtype`` is what keys and values are kept in; absent: the target's.

    Raises
    ------
    ValueError
        As ``SpsSetting`` does.
    """
    attention = "sdpa" if rounds == "eager" else "verify_attention"
    dtype = _DTYPES.get(target.kv_dtype, str(target.kv_dtype))
    if pool_dtype not in (None, target.kv_dtype):
        dtype += f" with {_DTYPES.get(pool_dtype, pool_dtype)} KV"
    return SpsSetting(
        card=device_name(target.device),
        model=model_name(target.model),
        backend=f"{attention}, {rounds}, {dtype}",
        num_requests=num_requests,
        tiers=tuple(sorted(tiers)),
    )


def device_name(device: torch.device) -> str:
    """The card, or what torch makes of the processor."""
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        return f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})"
    capability = torch.backends.cpu.get_cpu_capability()
    return f"CPU ({platform.machine()}, {capability}, {torch.get_num_threads()} threads)"


def model_name(model: PreTrainedModel) -> str:
    """What was loaded: the last part of its path or hub id, the class, the size.

    The same wherever the files lie, and another for other files of one name.
    """
    size = sum(parameter.numel() for parameter in model.parameters())
    kind = f"{type(model).__name__}, {size} parameters"
    path = model.name_or_path
    return f"{os.path.basename(os.path.abspath(path))} ({kind})" if path else kind
