"""The device and the target model of a command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import torch
from rich.console import Console
from rich.progress import Progress
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from specfast.cli.errors import CliError, first_line
from specfast.cli.versions import missing_for_cuda
from specfast.engine import CacheStates
from specfast.engine.target import Target as EngineTarget
from specfast.engine.target_probe import is_recurrent
from specfast.models import ensure_smollm2

DEFAULT_MODEL = "SmolLM2-135M-Instruct (4-bit file, dequantised)"


class DeviceName(str, Enum):
    """Where the target runs."""

    CPU = "cpu"
    CUDA = "cuda"


class DtypeName(str, Enum):
    """What the target computes in."""

    FP32 = "fp32"
    BF16 = "bf16"

    @property
    def torch_dtype(self) -> torch.dtype:
        return torch.float32 if self is DtypeName.FP32 else torch.bfloat16


@dataclass(frozen=True)
class TargetModel:
    """A causal language model, probed once for all engines of a command, and its tokenizer."""

    name: str
    probed: EngineTarget
    tokenizer: PreTrainedTokenizerBase
    dtype: DtypeName

    @property
    def model(self) -> PreTrainedModel:
        return self.probed.model

    @property
    def device(self) -> torch.device:
        return self.probed.device

    @property
    def context_length(self) -> int | None:
        """None without a limit."""
        return self.probed.context_length

    @property
    def is_recurrent(self) -> bool:
        """Whether it has recurrent layers: its drafts are chains."""
        return self.probed.is_recurrent

    def room_after(self, prompt_ids: Sequence[int]) -> int:
        """Tokens that the context still holds."""
        limit = sys.maxsize if self.context_length is None else self.context_length
        return limit - len(prompt_ids)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Every id that the model or its tokenizer names as an end."""
        named = self.model.generation_config.eos_token_id
        ids = set(named if isinstance(named, list) else [named])
        ids.add(self.tokenizer.eos_token_id)
        return tuple(sorted(i for i in ids if i is not None))


def choose_device(name: DeviceName | None) -> torch.device:
    """The device asked for, or a GPU where torch and this build can use one."""
    if name is DeviceName.CPU:
        return torch.device("cpu")
    missing = missing_for_cuda()
    if missing is None:
        return torch.device("cuda", torch.cuda.current_device())
    if name is DeviceName.CUDA:
        raise CliError(f"--device cuda cannot be used: {missing}")
    return torch.device("cpu")


def load_target(
    model: str | None, device: torch.device, dtype: DtypeName | None, console: Console
) -> TargetModel:
    """Load ``model``, a directory or an id of the hub, or the default model if it is None.

    fp32 on a CPU and bf16 on a GPU unless ``dtype`` says otherwise. TF32 is off.
    """
    torch.set_float32_matmul_precision("highest")
    if dtype is None:
        dtype = DtypeName.FP32 if device.type == "cpu" else DtypeName.BF16
    name = DEFAULT_MODEL if model is None else model
    path = _default_model(console) if model is None else _model_path(model)
    # What goes wrong is said below, once; a closed network would be reported at every retry.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        loaded, report = cast(Any, AutoModelForCausalLM).from_pretrained(
            path, dtype=dtype.torch_dtype, output_loading_info=True
        )
        loaded = loaded.to(device)
        state_adapter = CacheStates() if is_recurrent(loaded) else None
        probed = EngineTarget(loaded, state_adapter)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # loaders of a hundred architectures: anything may come
        raise CliError(f"cannot load the model {name}: {first_line(error)}") from error
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        raise CliError(
            f"the model {name} is incomplete: it lacks {missing[0]}, one of {len(missing)} weights"
        )
    return TargetModel(name, probed, tokenizer, dtype)


def _model_path(model: str) -> str:
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path)
    if path.exists():
        raise CliError(f"the model {model} is a file; expected a directory or an id of the hub")
    if path.is_absolute() or model.startswith((".", "~")):
        raise CliError(f"the model directory {model} does not exist")
    return model


def _default_model(console: Console) -> str:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("Converting SmolLM2-135M-Instruct, once", visible=False)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        return str(ensure_smollm2(show))
