"""Models of directories, for benchmarks that decode with real weights."""

from __future__ import annotations

import torch
from specfast.cli.errors import first_line
from specfast.engine.target import Target
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging


class ModelRefusedError(Exception):
    """Why a model cannot be used, in a sentence."""


def load_model(path: str, device: str, dtype: torch.dtype) -> PreTrainedModel:
    """A target for the engine, from a directory or the hub.

    Raises ModelRefusedError.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        model = model.to(device).eval()  # type: ignore[arg-type]
        Target(model)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # loaders of a hundred architectures: anything may come
        raise ModelRefusedError(f"cannot load the model {path}: {first_line(error)}") from error
    return model
