"""The files of a checkpoint: config.json and the tensors, without loading more than is asked."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specfast.drafters.checkpoint.errors import DrafterError

MASK_EMBEDDING = "mask_embedding.pt"


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a file; ``dtype`` as the file spells it."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class CheckpointFiles:
    """config.json and a table of tensors; values are read by :meth:`tensors`.

    safetensors, whole or in shards, before ``pytorch_model.bin``, which is opened without running
    anything that it contains.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise DrafterError(f"{path} {what}; expected the directory of a drafter")
        self.path = path
        self.config = _read_object(path / "config.json")
        self._pickled: dict[Path, dict[str, Tensor]] = {}
        # The token that mask_embedding.pt is the embedding of, where it says so.
        self.mask_embedding_id: int | None = None
        self.entries: dict[str, TensorEntry] = {}
        for file in self._weight_files():
            for name, entry in self._entries_of(file):
                if name in self.entries:
                    other = self.entries[name].file.name
                    raise DrafterError(f"{path}: {name} is in both {other} and {file.name}")
                self.entries[name] = entry

    def tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """The values of ``names``, as stored."""
        values: dict[str, Tensor] = {}
        by_file: dict[Path, list[str]] = {}
        for name in names:
            by_file.setdefault(self.entries[name].file, []).append(name)
        for file, wanted in by_file.items():
            if file in self._pickled:
                values.update({name: self._pickled[file][name] for name in wanted})
                continue
            with safe_open(file, framework="pt") as reader:
                values.update({name: reader.get_tensor(name) for name in wanted})
        return values

    def _weight_files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        extra = [file for file in [self.path / MASK_EMBEDDING] if file.exists()]
        if index.exists():
            names = _read_object(index).get("weight_map")
            if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
                raise DrafterError(f"{index} has no weight_map")
            return [*(self.path / name for name in sorted(set(names.values()))), *extra]
        for name in ("model.safetensors", "pytorch_model.bin"):
            if (self.path / name).exists():
                return [self.path / name, *extra]
        raise DrafterError(
            f"{self.path} holds no weights: neither model.safetensors nor pytorch_model.bin"
        )

    def _entries_of(self, file: Path) -> list[tuple[str, TensorEntry]]:
        if file.suffix == ".safetensors":
            try:
                with safe_open(file, framework="pt") as reader:
                    slices = {name: reader.get_slice(name) for name in reader.keys()}  # noqa: SIM118
                    return [
                        (name, TensorEntry(file, tuple(part.get_shape()), part.get_dtype()))
                        for name, part in slices.items()
                    ]
            except (OSError, SafetensorError) as error:
                raise DrafterError(f"cannot read {file}: {error}") from error
        values = _read_pickled(file)
        if file.name == MASK_EMBEDDING:
            # A table of its own form: {embedding, mask_token_id}.
            token = values.pop("mask_token_id", None)
            self.mask_embedding_id = None if token is None else int(token)
            values = {"mask_embedding": values.get("embedding")}
        if not all(isinstance(value, Tensor) for value in values.values()):
            raise DrafterError(f"{file} is no table of tensors")
        self._pickled[file] = values
        return [
            (name, TensorEntry(file, tuple(value.shape), str(value.dtype).removeprefix("torch.")))
            for name, value in values.items()
        ]


def _read_pickled(file: Path) -> dict[str, Any]:
    try:
        # The form before torch 1.6 is no archive, and cannot be mapped.
        values = torch.load(
            file, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(file)
        )
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else "it is damaged"
        raise DrafterError(f"cannot read {file}: {reason}") from error
    if not isinstance(values, dict):
        raise DrafterError(f"{file} is no table of tensors")
    return values


def _read_object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DrafterError(f"{file.parent} has no {file.name}") from None
    except (OSError, ValueError) as error:
        raise DrafterError(f"cannot read {file}: {error}") from error
    if not isinstance(value, dict):
        raise DrafterError(f"{file} is no JSON object")
    return value
