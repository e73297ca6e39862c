"""Load a drafter from the files that others published."""

from __future__ import annotations

from pathlib import Path

import torch

from specfast.drafters.checkpoint import (
    CheckpointFiles,
    DrafterError,
    DrafterSpec,
    DraftTarget,
    match_target,
    match_tokenizers,
    read_spec,
)
from specfast.drafters.checkpoint.other_readings import other_readings
from specfast.drafters.checkpoint.weights import Weights, load_weights
from specfast.drafters.dflash import DFlashModel
from specfast.drafters.dflash2 import DFlash2Model
from specfast.drafters.dspark import DSparkModel
from specfast.drafters.eagle import EagleModel
from specfast.drafters.eagle3 import Eagle3Model

DrafterModel = EagleModel | DFlashModel
MODELS: dict[str, type[EagleModel] | type[DFlashModel]] = {
    "eagle": EagleModel,
    "eagle3": Eagle3Model,
    "dflash": DFlashModel,
    "dspark": DSparkModel,
    "dflash2": DFlash2Model,
}


def load_drafter(
    path: str | Path, target: DraftTarget, dtype: torch.dtype = torch.float32
) -> DrafterModel:
    """The drafter in the directory ``path``, on the device of ``target``.

    Family and dialect are recognised from config.json and the names of the tensors; ``spec`` of the
    result says what was understood and, in ``readings``, what had to be assumed.

    Parameters
    ----------
    path : directory
        config.json and model.safetensors, its shards, or pytorch_model.bin.
    target : DraftTarget
        ``DraftTarget.of(model)`` of a transformers model.
    dtype : torch.dtype
        That the drafter computes in.

    Raises
    ------
    DrafterError
        A file that is missing or damaged; a field of the config that is missing or not supported; a
        tensor that is unknown, missing or misshaped; a target of another hidden size, vocabulary,
        number of layers or, where both bring a tokenizer.json, with other tokens. Names them, and
        both values.
    """
    return _model(*_spec_and_weights(Path(path), target, dtype))


def load_readings(
    path: str | Path, target: DraftTarget, dtype: torch.dtype = torch.float32
) -> dict[str, DrafterModel]:
    """Every way to read ``path``: first that of ``load_drafter``, then one for each open question.

    They share their weights. Parameters and errors are those of ``load_drafter``.
    """
    spec, weights = _spec_and_weights(Path(path), target, dtype)
    others = other_readings(spec, target.sizes.num_layers)
    return {name: _model(one, weights) for name, one in {"as read": spec, **others}.items()}


def _spec_and_weights(
    path: Path, target: DraftTarget, dtype: torch.dtype
) -> tuple[DrafterSpec, Weights]:
    files = CheckpointFiles(path)
    try:
        spec = match_target(read_spec(files), target.sizes)
        match_tokenizers(path, target.directory)
        return spec, load_weights(files, spec, target, dtype)
    except DrafterError as error:
        raise DrafterError(f"{path}: {error}") from error


def _model(spec: DrafterSpec, weights: Weights) -> DrafterModel:
    return MODELS[spec.family](spec, weights)
