"""Keys and values kept in float8: what is stored, and that drafts do not change the text."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.drafters import OracleDrafter
from engine.models import random_prompt, tiny_model
from safetensors.torch import save_file
from specfast import SamplingParams
from specfast.drafters import NgramDrafter
from specfast.engine import Engine, Float8Kv, VerifyTiers
from specfast.engine.layer_kv import LayerKv
from specfast.engine.target import Target
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

FLOAT8 = torch.float8_e4m3fn
NUM_TOKENS = 24
PROMPTS = [random_prompt(length, seed=length) for length in (5, 17, 31)]
# Of three layers with two KV heads; the last has 1.0.
SCALES = Float8Kv({0: 0.05, 1: [0.02, 0.3]}, {0: [0.01, 0.2], 1: 0.07})


def numbers() -> list[float]:
    """What the format has above 0, by its definition."""
    subnormal = [units * 2.0**-9 for units in range(1, 8)]
    normal = [(8 + units) * 2.0 ** (e - 10) for e in range(1, 16) for units in range(8)]
    return [*subnormal, *normal[:-1]]  # the last place is NaN


def layer_on(device: str, key_scale: float, value_scale: float, slots: int = 1024) -> LayerKv:
    storages = (torch.zeros(slots, 1, 1, device=device).to(FLOAT8) for _ in range(2))
    return LayerKv(*storages, key_scale, value_scale)


def stored(layer: LayerKv, values: list[float], device: str) -> list[float]:
    rows = torch.tensor(values, device=device).view(-1, 1, 1)
    slots = torch.arange(len(values), device=device)
    layer.write(slots, rows, rows.flip(0))
    assert torch.equal(
        layer.values.view(torch.uint8)[slots].flip(0), layer.keys.view(torch.uint8)[slots]
    )
    return layer.keys[slots].float().flatten().tolist()


def test_elements_become_the_nearest_number(device: str) -> None:
    kept = [0.0, *numbers()]
    layer = layer_on(device, 0.5, 0.5)
    for sign in (1.0, -1.0):
        assert stored(layer, [sign * x / 2 for x in kept], device) == [sign * x for x in kept]
        middles = [(low + high) / 2 for low, high in pairwise(kept)]
        # Half-way numbers go to the one with an even fraction, which is every other one.
        even = [pair[n % 2] for n, pair in enumerate(pairwise(kept))]
        assert stored(layer, [sign * x / 2 for x in middles], device) == [sign * x for x in even]
        for factor, side in ((1 - 2**-20, 0), (1 + 2**-20, 1)):
            got = stored(layer, [sign * factor * x / 2 for x in middles], device)
            assert got == [sign * pair[side] for pair in pairwise(kept)]


def test_what_is_too_large_is_the_largest_and_nan_stays(device: str) -> None:
    layer = layer_on(device, 2.0, 2.0)
    large = [896.0, 897.0, 928.0, 1e30, float("inf"), -1000.0, float("-inf")]
    assert stored(layer, large, device) == [448.0] * 5 + [-448.0] * 2
    rows = torch.full((2, 1, 1), float("nan"), device=device)
    layer.write(torch.tensor([1, 3], device=device), rows, rows)
    assert layer.keys.float().isnan().flatten().nonzero().flatten().tolist() == [1, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_come_back_within_what_the_format_promises(device: str, dtype: torch.dtype) -> None:
    shape, scale = (40, 2, 16), torch.tensor([0.3, 0.02], device=device)
    storages = (torch.zeros(shape, device=device).to(FLOAT8) for _ in range(2))
    layer = LayerKv(*storages, scale.tolist(), 0.02)
    keys, values = torch.randn(2, 20, 2, 16, device=device).to(dtype)
    slots = torch.randperm(40, device=device)[:20]
    layer.write(slots, keys, values)
    rounding = torch.finfo(dtype).eps
    got = layer.read(slots, dtype)
    for back, rows, scales in zip(got, (keys, values), (scale, scale[1:]), strict=True):
        assert back.dtype == dtype
        off = (back.float() - rows.float()).abs()
        assert bool(
            (off <= rows.float().abs() * (1 / 16 + rounding) + scales[:, None] / 1024).all()
        )
        assert bool((off > 0).any())
    others = torch.ones(40, dtype=torch.bool, device=device)
    others[slots] = False
    assert layer.keys.float()[others].count_nonzero() == 0
    assert layer.values.float()[others].count_nonzero() == 0


class QuantizedLayers:
    """Causal attention over the whole text, its keys and values rounded as ``scales`` say."""

    def __init__(self, scales: Float8Kv) -> None:
        self.scales = scales

    def attend(
        self,
        module: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float | None,
        options: dict[str, Any],
    ) -> Tensor:
        def rounded(rows: Tensor, scales: Any) -> Tensor:
            factor = torch.tensor(scales.get(module.layer_idx, 1.0)).reshape(1, -1, 1, 1)
            table = torch.tensor([0.0, *numbers()])
            scaled = rows / factor
            # No element of these models lies half-way between two numbers.
            near = (scaled.abs()[..., None] - table).abs().argmin(-1)
            return table[near] * scaled.sign() * factor

        groups = query.shape[1] // key.shape[1]
        keys = rounded(key, self.scales.key_scales).repeat_interleave(groups, dim=1)
        values = rounded(value, self.scales.value_scales).repeat_interleave(groups, dim=1)
        out = scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scale)
        return out.transpose(1, 2)


class Formula:
    """Greedy texts of a model on the CPU by the formula, and what engines may make of them."""

    def __init__(self, scales: Float8Kv) -> None:
        self.target, self.layers = Target(tiny_model(head_dim=64)), QuantizedLayers(scales)
        self.texts = [self._plain_greedy(prompt) for prompt in PROMPTS]

    @torch.inference_mode()
    def _row(self, text: list[int]) -> Tensor:
        """The logits behind the whole text."""
        ids, positions = torch.tensor(text), torch.arange(len(text))
        return self.target.forward(ids, positions, self.layers)[-1]

    def _plain_greedy(self, prompt: list[int]) -> list[int]:
        text = list(prompt)
        for _ in range(NUM_TOKENS):
            text.append(int(self._row(text).argmax()))
        return text[len(prompt) :]

    def assert_texts(self, got: list[list[int]], device: str) -> None:
        """Equal; on a GPU up to a token that is almost as likely.

        There other sums of keys and values differ in the last bit, and where one lies at the edge
        of two numbers of the format, it becomes the other: off by a sixteenth, not by a bit.
        """
        if device == "cpu":
            assert got == self.texts
        for prompt, text, want in zip(PROMPTS, got, self.texts, strict=True):
            assert len(text) == len(want)
            first = next((i for i in range(NUM_TOKENS) if text[i] != want[i]), None)
            if first is None:
                continue
            row = self._row(prompt + want[:first])
            assert row[want[first]] - row[text[first]] < 0.1 * row.std()


def texts(engine: Engine) -> list[list[int]]:
    done = engine.generate(PROMPTS, SamplingParams(max_new_tokens=NUM_TOKENS))
    assert engine.pool.num_free_pages == engine.pool.num_pages
    return [generation.token_ids for generation in done]


@pytest.fixture(scope="module")
def expected() -> dict[str, Formula]:
    """With scales and without."""
    return {"scaled": Formula(SCALES), "plain": Formula(Float8Kv())}


@pytest.mark.parametrize("scales", ["scaled", "plain"])
def test_plain_decoding_is_what_the_formula_says(
    scales: str, expected: dict[str, Formula], device: str
) -> None:
    """And not what float32 says."""
    model = tiny_model(head_dim=64).to(device)
    float8 = SCALES if scales == "scaled" else Float8Kv()
    engine = Engine(model, page_size=4, float8_kv=float8)
    assert {storage.dtype for storage in (*engine.pool.keys, *engine.pool.values)} == {FLOAT8}
    expected[scales].assert_texts(texts(engine), device)
    assert texts(Engine(model, page_size=4)) != expected[scales].texts


@pytest.mark.parametrize("rounds", ["eager", "padded", "captured"])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_drafts_do_not_change_the_text(
    rounds: str, tree: bool, expected: dict[str, Formula], device: str
) -> None:
    """Nor do padding and graphs. Nodes of a tree are moved, byte for byte."""
    if rounds == "captured" and device == "cpu":
        pytest.skip("graphs are captured on GPUs")
    tiers = None
    if rounds != "eager":
        tiers = VerifyTiers((1, 2, 4), 8, capture=rounds == "captured")
    model = tiny_model(head_dim=64).to(device)
    answers = [p + t for p, t in zip(PROMPTS, expected["scaled"].texts, strict=True)]
    for drafter in (OracleDrafter(answers, tree), NgramDrafter(num_drafts=7, tree=tree)):
        engine = Engine(model, drafter, page_size=4, verify_width=8, tiers=tiers, float8_kv=SCALES)
        expected["scaled"].assert_texts(texts(engine), device)


def test_sps_tables_of_other_caches_are_others() -> None:
    model = tiny_model()
    backends = []
    for float8 in (None, Float8Kv()):
        engine = Engine(model, tiers=VerifyTiers([2], 4, capture=False), float8_kv=float8)
        assert engine.graphs is not None
        backends.append(engine.graphs.sps_setting().backend)
    assert backends == [
        "verify_attention, padded, fp32",
        "verify_attention, padded, fp32 with fp8 KV",
    ]


def test_scales_of_a_checkpoint(tmp_path: Path) -> None:
    """Under either of the names that are in use, in any shard."""
    first = {
        "model.layers.0.self_attn.k_proj.k_scale": torch.tensor(0.5),
        "model.layers.0.self_attn.v_proj.v_scale": torch.tensor([0.25]),
        "model.layers.0.self_attn.k_proj.weight_scale": torch.tensor(3.0),
        "model.layers.0.self_attn.q_scale": torch.tensor(3.0),
    }
    second = {
        "model.language_model.layers.11.self_attn.k_scale": torch.tensor([0.5, 2.0]).bfloat16(),
        "model.layers.11.mlp.down_proj.weight": torch.zeros(2),
    }
    save_file(first, tmp_path / "model-00001-of-00002.safetensors")
    save_file(second, tmp_path / "model-00002-of-00002.safetensors")
    scales = Float8Kv.of_checkpoint(tmp_path)
    assert scales == Float8Kv({0: [0.5], 11: [0.5, 2.0]}, {0: [0.25]})


def test_a_checkpoint_without_scales_is_refused(tmp_path: Path) -> None:
    save_file({"layers.0.k_proj.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"expected scales of keys or values in .*, got none"):
        Float8Kv.of_checkpoint(tmp_path)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), [], [1.0, 0.0]])
def test_scales_that_are_none_are_refused(scale: Any) -> None:
    with pytest.raises(
        ValueError, match=r"expected value_scales above 0 and finite, got .*layer 2"
    ):
        Float8Kv({}, {2: scale})


def test_scales_that_do_not_fit_the_target_are_refused() -> None:
    model = tiny_model()
    with pytest.raises(ValueError, match=r"scales of the layers \[0, 1, 2\], got some of \[3\]"):
        Engine(model, float8_kv=Float8Kv({3: 1.0}))
    with pytest.raises(ValueError, match="one of key_scales, or 2 for as many KV heads, got 3"):
        Engine(model, float8_kv=Float8Kv({1: [1.0, 1.0, 1.0]}))
