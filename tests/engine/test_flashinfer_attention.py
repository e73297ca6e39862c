"""FlashInfer's place in the engine, with a few lines of torch in place of the library.

The stand-in has the names and arguments of version 0.7.4 and their documented meaning. The library
itself is not run here.
"""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from engine.drafters import OracleDrafter
from engine.models import plain_greedy, random_prompt, tiny_model
from specfast import SamplingParams
from specfast.engine import Engine, Float8Kv, VerifyTiers, flashinfer_attention
from specfast.engine.flashinfer_attention import why_not_flashinfer
from specfast.engine.pool import KvShape
from torch import Tensor

PROMPTS = [random_prompt(length, seed=length) for length in (1, 6, 17)]
NUM_TOKENS = 20


class PagedPrefill:
    """Attends request by request, over the keys that the page indices name."""

    plans: list[dict[str, Any]] = []  # noqa: RUF012  shared, for the tests to look at

    def __init__(self, float_workspace_buffer: Tensor, kv_layout: str = "NHD") -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"

    def plan(
        self,
        qo_indptr: Tensor,
        paged_kv_indptr: Tensor,
        paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        custom_mask: Tensor | None = None,
        causal: bool = False,
        sm_scale: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        self.planned = dict(locals())
        self.plans.append(self.planned)
        places = (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert all(tensor.dtype == torch.int32 for tensor in places)

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        p = self.planned
        assert q.shape[1:] == (p["num_qo_heads"], p["head_dim_qk"])
        assert q.is_contiguous()
        assert (q.dtype, paged_kv_cache[0].dtype) == (p["q_data_type"], p["kv_data_type"])
        first, pages = p["qo_indptr"].tolist(), p["paged_kv_indptr"].tolist()
        outputs, mask_begin = [], 0
        for b, last in enumerate(p["paged_kv_last_page_len"].tolist()):
            indices = p["paged_kv_indices"][pages[b] : pages[b + 1]].long()
            length = (len(indices) - 1) * p["page_size"] + last
            keys, values = (cache[indices].flatten(0, 1)[:length] for cache in paged_kv_cache)
            rows = q[first[b] : first[b + 1]]
            offset = length - len(rows)
            seen = torch.ones(len(rows), length, dtype=torch.bool, device=q.device).tril(offset)
            if p["custom_mask"] is not None:
                size = len(rows) * length
                seen = p["custom_mask"][mask_begin : mask_begin + size].view(len(rows), length)
                mask_begin += size
            elif not p["causal"]:
                seen.fill_(True)
            groups = p["num_qo_heads"] // p["num_kv_heads"]
            keys, values = (x.repeat_interleave(groups, dim=1) for x in (keys, values))
            scores = torch.einsum("qhd,khd->hqk", rows, keys) * p["sm_scale"]
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            outputs.append(torch.einsum("hqk,khd->qhd", weights, values))
        return torch.cat(outputs)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> type[PagedPrefill]:
    """On a CPU and in float32, too."""
    module: Any = ModuleType("flashinfer")
    module.__spec__ = importlib.machinery.ModuleSpec("flashinfer", None)
    module.BatchPrefillWithPagedKVCacheWrapper = PagedPrefill
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer_attention, "_DEVICES", ("cuda", "cpu"))
    monkeypatch.setattr(flashinfer_attention, "_DTYPES", (torch.float32,))
    monkeypatch.setattr(flashinfer_attention, "_WORKSPACE_BYTES", 64)
    PagedPrefill.plans.clear()
    return PagedPrefill


@pytest.mark.parametrize("page_size", [1, 4, 64])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_text_is_plain_decoding(
    library: type[PagedPrefill], tree: bool, page_size: int, device: str
) -> None:
    model = tiny_model().to(device)
    plain = [plain_greedy(model, prompt, NUM_TOKENS) for prompt in PROMPTS]
    drafter = OracleDrafter([p + t for p, t in zip(PROMPTS, plain, strict=True)], tree)
    engine = Engine(model, drafter, page_size=page_size, attention_backend="flashinfer")
    generations = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert [generation.token_ids for generation in generations] == plain
    accepted = [output.num_accepted for g in generations for output in g.rounds]
    assert max(accepted) >= 2
    # One for each forward: all layers are of one kind.
    masked = [plan["custom_mask"] is not None for plan in library.plans]
    assert masked[: len(PROMPTS)] == [False] * len(PROMPTS)
    assert set(masked[len(PROMPTS) :]) == {tree}
    assert all(plan["causal"] is not mask for plan, mask in zip(library.plans, masked, strict=True))
    assert len(library.plans) <= len(PROMPTS) + len(accepted)


def test_sampled_text_is_that_of_the_own_backend(library: type[PagedPrefill]) -> None:
    def run(backend: Any) -> list[list[int]]:
        engine = Engine(tiny_model(), seed=3, attention_backend=backend)
        params = SamplingParams(max_new_tokens=NUM_TOKENS, temperature=0.8, top_k=20)
        return [g.token_ids for g in engine.generate(PROMPTS, params)]

    assert run("flashinfer") == run(None)
    assert library.plans


SHAPE = KvShape(2, 64, 64)


@pytest.mark.parametrize(
    ("shape", "dtype", "device", "reason"),
    [
        (SHAPE, torch.bfloat16, "cpu", "needs a GPU, and the target is on cpu"),
        (SHAPE, torch.float32, "cuda", "in float16 and bfloat16, and the target in float32"),
        (KvShape(1, 192, 128), torch.bfloat16, "cuda", "keys of width 192 and values of width 128"),
        (SHAPE, torch.bfloat16, "cuda", None),
    ],
)
def test_targets_that_it_does_not_know(
    library: type[PagedPrefill],
    shape: KvShape,
    dtype: torch.dtype,
    device: str,
    reason: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flashinfer_attention, "_DEVICES", ("cuda",))
    monkeypatch.setattr(flashinfer_attention, "_DTYPES", (torch.float16, torch.bfloat16))
    why_not = why_not_flashinfer([shape], dtype, torch.device(device))
    assert (why_not is None) if reason is None else (why_not is not None and reason in why_not)


def test_is_refused_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flashinfer_attention, "find_spec", lambda name: None)
    message = '^attention_backend "flashinfer" cannot be used: the package flashinfer-python is not'
    with pytest.raises(ValueError, match=message):
        Engine(tiny_model(), attention_backend="flashinfer")


def test_is_refused_with_a_pool_in_float8(library: type[PagedPrefill]) -> None:
    with pytest.raises(ValueError, match="keys and values in float8_e4m3fn, whose scales it is"):
        Engine(tiny_model(), float8_kv=Float8Kv(), attention_backend="flashinfer")


def test_is_refused_with_tiers_and_under_another_name() -> None:
    with pytest.raises(ValueError, match="expected no tiers with attention_backend"):
        Engine(tiny_model(), tiers=VerifyTiers([1], 4), attention_backend="flashinfer")
    with pytest.raises(ValueError, match="expected attention_backend None or"):
        Engine(tiny_model(), attention_backend="triton")  # type: ignore[arg-type]
