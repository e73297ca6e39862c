"""The target over the paged pool against plain transformers forwards."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
from engine.models import plain_logits, random_prompt, tiny_model
from specfast import SamplingParams
from specfast.engine.attention import PagedAttention
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.requests import Request
from specfast.engine.rows import lay_out_rows
from specfast.engine.target import Target
from torch import Tensor
from transformers import AttentionMaskInterface, PreTrainedModel

SUPPORTED = ("llama", "qwen3", "qwen2", "gpt2", "deepseek_v3", "opt", "mixtral", "phi")


class Paged:
    """Requests whose pages lie scattered over a pool full of NaN."""

    def __init__(self, model: PreTrainedModel, page_size: int, lengths: list[int]) -> None:
        self.target = Target(model)
        pages_per_request = -(-max(lengths) // page_size)
        num_pages = pages_per_request * len(lengths)
        self.pool = PagedKvPool(
            self.target.kv_shapes,
            num_pages=num_pages,
            page_size=page_size,
            dtype=self.target.kv_dtype,
            device=self.target.device,
        )
        for storage in (*self.pool.keys, *self.pool.values):
            storage.fill_(torch.nan)
        self.table = PageTable(len(lengths), pages_per_request, page_size, self.target.device)
        self.requests = []
        order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(5)).tolist()
        for i in range(len(lengths)):
            pages = order[i * pages_per_request : (i + 1) * pages_per_request]
            request = Request(i, SamplingParams(), [], 0, 0, 0, pages=pages)
            request.slot = self.table.take_row()
            self.table.write(request.slot, 0, pages)
            self.requests.append(request)

    @torch.inference_mode()
    def run(
        self,
        requests: list[Request],
        tokens: list[list[int]],
        positions: list[list[int]],
        window_mask: Tensor | None = None,
    ) -> list[Tensor]:
        """Logits of each request's rows."""
        lengths = [len(row) for row in tokens]
        device = self.target.device
        rows = lay_out_rows(requests, lengths, self.table, device)
        if window_mask is not None:
            window_mask = window_mask.to(device)
        logits = self.target.forward(
            torch.tensor(list(chain(*tokens)), device=device),
            torch.tensor(list(chain(*positions)), device=device),
            PagedAttention(self.pool, rows, window_mask),
        )
        return list(logits.split(lengths))

    def extend(self, requests: list[Request], tokens: list[list[int]]) -> list[Tensor]:
        """Run a chain per request and commit all of it."""
        positions = [
            list(range(request.committed_len, request.committed_len + len(row)))
            for request, row in zip(requests, tokens, strict=True)
        ]
        logits = self.run(requests, tokens, positions)
        for request, row in zip(requests, tokens, strict=True):
            request.committed_len += len(row)
            request.token_ids += row
        return logits


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_prefill_and_windows_equal_one_plain_forward(architecture: str) -> None:
    model = tiny_model(architecture)
    text = random_prompt(40, seed=1)
    expected = plain_logits(model, text)
    paged = Paged(model, 16, [40])
    # Prefill, a window, a single row, and a window across a page boundary.
    for begin, end in ((0, 11), (11, 15), (15, 16), (16, 40)):
        (logits,) = paged.extend(paged.requests, [text[begin:end]])
        assert_close(logits, expected[begin:end])


@pytest.mark.parametrize("page_size", [1, 7, 16, 64])
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_ragged_batch_equals_each_request_alone(
    architecture: str, page_size: int, device: str
) -> None:
    model = tiny_model(architecture).to(device)
    texts = [random_prompt(length, seed=length) for length in (33, 70, 18)]
    expected = [plain_logits(model, text) for text in texts]
    paged = Paged(model, page_size, [33, 70, 18])
    for request, text, prompt_len in zip(paged.requests, texts, (30, 61, 17), strict=True):
        paged.extend([request], [text[:prompt_len]])
    # Windows of 3, 9 and 1 rows in one forward, in another order than that of the table.
    order = (2, 0, 1)
    requests = [paged.requests[i] for i in order]
    windows = [texts[i][paged.requests[i].committed_len :] for i in order]
    for i, logits in zip(order, paged.extend(requests, windows), strict=True):
        assert_close(logits, expected[i][-len(logits) :])


#        0              tokens along each branch: 0-1-3, 0-1-4-6, 0-2-5
#      1   2
#     3 4   5
#       6
TREE_PARENTS = [-1, 0, 0, 1, 1, 2, 4]


def ancestors(node: int) -> list[int]:
    path = [node]
    while TREE_PARENTS[path[0]] >= 0:
        path.insert(0, TREE_PARENTS[path[0]])
    return path


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "gpt2"])
def test_tree_window_equals_a_forward_per_branch(
    architecture: str, page_size: int, device: str
) -> None:
    model = tiny_model(architecture).to(device)
    prompts = [random_prompt(20, seed=3), random_prompt(13, seed=4)]
    # The second request verifies the first four nodes only.
    windows = [random_prompt(7, seed=8), random_prompt(4, seed=9)]
    paged = Paged(model, page_size, [32, 32])
    for request, prompt in zip(paged.requests, prompts, strict=True):
        paged.extend([request], [prompt])
    paths = [ancestors(node) for node in range(7)]
    mask = torch.zeros(2, 7, 7, dtype=torch.bool)
    for node, path in enumerate(paths):
        mask[:, node, path] = True
    positions = [
        [len(prompt) + len(paths[node]) - 1 for node in range(len(window))]
        for prompt, window in zip(prompts, windows, strict=True)
    ]
    all_logits = paged.run(paged.requests, windows, positions, mask)
    for prompt, window, logits in zip(prompts, windows, all_logits, strict=True):
        for node in range(len(window)):
            branch = [window[i] for i in paths[node]]
            assert_close(logits[node], plain_logits(model, prompt + branch)[-1])


def test_no_mask_of_transformers_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise AssertionError("a dense mask was built")

    paged = Paged(tiny_model(), 16, [32])
    monkeypatch.setitem(AttentionMaskInterface._global_mapping, "sdpa", refuse)
    paged.extend(paged.requests, [random_prompt(12, seed=1)])
    paged.extend(paged.requests, [random_prompt(5, seed=2)])


def test_the_model_stays_usable_outside_the_engine() -> None:
    model = tiny_model()
    ids = torch.tensor([[0, 0, 5, 6, 7], [1, 2, 3, 4, 5]])
    padding = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.inference_mode():
        before = model(input_ids=ids, attention_mask=padding).logits
        Target(model)
        after = model(input_ids=ids, attention_mask=padding).logits
    assert model.config._attn_implementation == "specfast"
    assert torch.equal(before[padding.bool()], after[padding.bool()])


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("mistral", {"sliding_window": 8}, "attention with sliding_window"),
        ("gemma3_text", {}, "layers of type sliding_attention"),
        ("mamba", {}, "linear_attention|bypass"),
        ("bloom", {"n_head": 4}, "3 layers that bypass transformers' attention function"),
    ],
)
def test_unsupported_models_are_refused_by_name(
    architecture: str, changes: dict[str, object], reason: str
) -> None:
    model = tiny_model(architecture, **changes)
    before = model.config._attn_implementation
    with pytest.raises(ValueError, match=rf"{type(model).__name__} is not supported.*({reason})"):
        Target(model)
    assert model.config._attn_implementation == before


def test_longrope_is_limited_to_the_length_its_frequencies_hold_for() -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "original_max_position_embeddings": 32,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
        "factor": 6.0,
    }
    assert Target(tiny_model("llama", rope_parameters=rope)).context_length == 32
    assert Target(tiny_model()).context_length == 192
