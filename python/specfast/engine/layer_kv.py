"""Keys and values of one layer in the pool: how rows get there and come back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

FLOAT8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(FLOAT8).max

# One number of a layer, or one of each of its KV heads.
Scale = float | Sequence[float]

_SCALE_NAME = re.compile(r"(?:^|\.)layers\.(\d+)\.(?:\w+\.)*([kv])_scale$")


@dataclass(frozen=True)
class Float8Kv:
    """Keys and values kept in float8_e4m3fn: half the bytes of bfloat16, 3 bits of fraction.

    An element x is kept as the number of the format nearest to x / scale, 448 where that is larger,
    and read as that number times the scale; NaN stays NaN. So it is off by 1/16 of itself at most,
    or by scale / 1024 where it is below scale / 64.

    Attributes
    ----------
    key_scales, value_scales : Mapping of layer to scale
        Of the layers by their index in the model, one above 0 for all KV heads or one for each; 1.0
        for a layer that is not named.

    Raises
    ------
    ValueError
        A scale that is not finite or not above 0.
    """

    key_scales: Mapping[int, Scale] = field(default_factory=dict)
    value_scales: Mapping[int, Scale] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, scales in (("key", self.key_scales), ("value", self.value_scales)):
            for layer, scale in scales.items():
                numbers = _numbers(scale)
                if not numbers or not all(math.isfinite(n) and n > 0 for n in numbers):
                    raise ValueError(
                        f"Float8Kv: expected {name}_scales above 0 and finite, "
                        f"got {scale} for layer {layer}"
                    )

    @classmethod
    def of_checkpoint(cls, directory: str | Path) -> Float8Kv:
        """The scales in a checkpoint's ``*.safetensors``: ``layers.N. ... .k_scale``, ``v_scale``.

        Raises
        ------
        ValueError
            Without any: a cache in float8 is then to be asked for by ``Float8Kv()``.
        """
        found: dict[str, dict[int, Scale]] = {"k": {}, "v": {}}
        for path, name, kind, layer in _scales_in(Path(directory)):
            with safe_open(path, framework="pt") as file:
                found[kind][layer] = file.get_tensor(name).float().flatten().tolist()
        if not found["k"] and not found["v"]:
            raise ValueError(
                f"Float8Kv: expected scales of keys or values in {directory}, got none"
            )
        return cls(found["k"], found["v"])


def has_scales(directory: Path) -> bool:
    """Whether :meth:`Float8Kv.of_checkpoint` finds some there."""
    return next(_scales_in(directory), None) is not None


def _scales_in(directory: Path) -> Iterator[tuple[Path, str, str, int]]:
    """File, name, "k" or "v", and layer of the scales in ``*.safetensors``."""
    for path in sorted(directory.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
        for name in names:
            match = _SCALE_NAME.search(name)
            if match is not None:
                yield path, name, match[2], int(match[1])


class LayerKv:
    """Keys and values of one layer in all slots of the pool.

    keys, values : [slots, heads, dim]
    key_scale, value_scale : float32 [1] | [heads]    of float8_e4m3fn; None for other types
    """

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        key_scale: Scale | None = None,
        value_scale: Scale | None = None,
    ) -> None:
        self.keys = keys
        self.values = values
        self.key_scale = _scale_tensor("key", key_scale, keys)
        self.value_scale = _scale_tensor("value", value_scale, values)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store rows [R, heads, dim] in ``slots`` int64 [R]."""
        _write(self.keys, self.key_scale, slots, keys)
        _write(self.values, self.value_scale, slots, values)

    def read(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values [K, heads, dim] in ``slots`` int64 [K], in this type."""
        return (
            _read(self.keys, self.key_scale, slots, dtype),
            _read(self.values, self.value_scale, slots, dtype),
        )


def _write(storage: Tensor, scale: Tensor | None, slots: Tensor, rows: Tensor) -> None:
    if scale is not None:
        # Beyond the largest number the conversion makes NaN, in some versions of torch.
        scaled = (rows / scale[:, None]).clamp_(-_LARGEST, _LARGEST)
        # Copies by index know no float8.
        storage, rows = storage.view(torch.uint8), scaled.to(FLOAT8).view(torch.uint8)
    storage.index_copy_(0, slots, rows)


def _read(storage: Tensor, scale: Tensor | None, slots: Tensor, dtype: torch.dtype) -> Tensor:
    if scale is None:
        return storage.index_select(0, slots)
    kept = storage.view(torch.uint8).index_select(0, slots).view(FLOAT8)
    return (kept.float() * scale[:, None]).to(dtype)


def _scale_tensor(name: str, scale: Scale | None, storage: Tensor) -> Tensor | None:
    if scale is None:
        return None
    numbers, heads = _numbers(scale), storage.shape[1]
    if len(numbers) not in (1, heads):
        raise ValueError(
            f"Float8Kv: expected one of {name}_scales, or {heads} for as many KV heads, "
            f"got {len(numbers)}"
        )
    return torch.tensor(numbers, dtype=torch.float32, device=storage.device)


def _numbers(scale: Scale) -> list[float]:
    return list(scale) if isinstance(scale, Sequence) else [scale]
