"""RoPE that follows the longest position of a batch is held at the original length's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from engine.models import plain_greedy, random_prompt, tiny_model
from specfast import SamplingParams
from specfast.drafters import NgramDrafter
from specfast.engine import Engine, VerifyTiers
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

ORIGINAL = 64
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "original_max_position_embeddings": ORIGINAL,
    "short_factor": [1.0] * 32,
    "long_factor": [4.0] * 32,
    "factor": 3.0,
}


def model_of(rope: dict[str, Any], device: str) -> PreTrainedModel:
    longest = ORIGINAL if rope is DYNAMIC else 3 * ORIGINAL
    changes = {"head_dim": 64, "rope_parameters": dict(rope), "max_position_embeddings": longest}
    return tiny_model(**changes).to(device)


class Waits(TorchFunctionMode):
    """Counts what reads a value of a tensor on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("__bool__", "__int__", "__index__", "item", "tolist", "cpu", "numpy"):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


@contextmanager
def counted_in(engine: Engine) -> Iterator[Waits]:
    """Within forwards of its target alone."""
    forward, waits = engine.target.forward, Waits()

    def counting(*arguments: Any, **options: Any) -> Any:
        with waits:
            return forward(*arguments, **options)

    engine.target.forward = counting  # type: ignore[method-assign]
    yield waits


@pytest.mark.parametrize("rope", [DYNAMIC, LONGROPE], ids=["dynamic", "longrope"])
@pytest.mark.parametrize("way", ["eager", "padded", "captured"])
def test_text_is_that_of_the_original_length(rope: dict[str, Any], way: str, device: str) -> None:
    """Also after somebody ran the model at a greater length, and the model stays as it was left."""
    if way == "captured" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    prompts = [random_prompt(length, seed=length) for length in (5, 17)]
    plain = [plain_greedy(model_of(rope, device), prompt, 20) for prompt in prompts]
    model = model_of(rope, device)
    long = torch.arange(2 * ORIGINAL, device=device)[None] % 50
    with torch.inference_mode():
        before = model(long, use_cache=False).logits
    tiers = None if way == "eager" else VerifyTiers([2], 4, capture=way == "captured")
    drafter = NgramDrafter(num_drafts=3, max_ngram=1)
    engine = Engine(model, drafter, verify_width=4, tiers=tiers)
    assert engine.context_length == ORIGINAL
    with counted_in(engine) as waits:
        generations = engine.generate(prompts, SamplingParams(max_new_tokens=20))
    assert [generation.token_ids for generation in generations] == plain
    assert waits.names == []
    with torch.inference_mode():
        torch.testing.assert_close(model(long, use_cache=False).logits, before)
