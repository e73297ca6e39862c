"""What the loader refuses of block drafters, and the readings it takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.block_files import MASK, BlockCase, dflash2_cases, dflash_cases, dspark_cases
from drafters.checkpoints import make_target
from safetensors.torch import load_file, save_file
from specfast.drafters.checkpoint import CheckpointFiles, DrafterError, DrafterSpec, read_spec
from specfast.drafters.checkpoint.spec import SpanSpec
from specfast.drafters.checkpoint.taps import resolve_taps
from specfast.drafters.loader import load_drafter

CASES = {case.name: case for case in [*dflash_cases(), *dspark_cases(), *dflash2_cases()]}
BOTH, CAUSAL = SpanSpec(False, None), SpanSpec(True, None)
SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4}


def changed(path: Path, name: str, changes: Mapping[str, Any]) -> Path:
    """A case with fields of its config, or of dflash_config where they stand there, replaced."""
    case = CASES[name]
    case.write(path)
    config = {**case.config}
    nested = dict(changes.get("dflash_config", config.get("dflash_config", {})))
    for field, value in changes.items():
        (nested if field in nested else config)[field] = value
    if nested:
        config["dflash_config"] = nested
    (path / "config.json").write_text(json.dumps(config))
    return path


def spec_of(path: Path, name: str, **changes: Any) -> DrafterSpec:
    return read_spec(CheckpointFiles(changed(path, name, changes)))


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("dflash", {"mask_token_id": None}, "mask_token_id is missing"),
        ("dflash", {"mask_token_id": 40}, "mask_token_id 40 is outside of vocab_size 40"),
        ("dflash", {"block_size": 1}, "block_size to be an integer of at least 2, got 1"),
        ("dflash", {"layer_types": ["full_attention"]}, "layer_types"),
        ("dflash", {"layer_types": ["linear_attention"] * 2}, "layer_types"),
        ("dflash", {"layer_types": ["sliding_attention"] * 2}, "sliding_window is missing"),
        ("dflash", {"use_sliding_window": True}, "use_sliding_window without layer_types"),
        ("dflash", {"use_swa": True}, "use_swa"),
        ("dflash", {"attention_sink_bias": True}, "attention_sink_bias"),
        ("dflash", {"aux_hidden_norms": True}, "aux_hidden_norms"),
        ("dflash", {"projector_type": "domino"}, "'domino'"),
        ("dflash", {"target_layer_ids": [-2, 1, 5]}, "layer -2"),
        ("dflash", {"eagle_aux_hidden_state_layer_ids": [1, 5, 9]}, "two sets of taps"),
        ("dspark", {"markov_head_type": "cubic"}, "'cubic'"),
        ("dspark", {"markov_rank": 0}, "markov_rank is 0"),
        ("dspark", {"markov_rank": 1025}, "markov_rank to be an integer of at most 1024"),
        ("dspark", {"markov_rank": 4}, "markov_w1.weight is [40, 5] instead of [40, 4]"),
        ("dspark", {"enable_confidence_head": False}, "unknown: confidence_head"),
        ("dspark", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ("dspark", {"logits_mup_width_multiplier": 2.0}, "logits_mup_width_multiplier"),
        ("deepspec-dflash", {"architectures": ["DFlashDraftModel"], "markov_rank": 5}, None),
        ("dflash2", {"conv_group_size": 5}, "no multiple of conv_group_size 5"),
        ("dflash2", {"selector_top_k": 33}, "selector_top_k to be an integer of at most 32"),
        ("dflash2", {"selector_rank": 513}, "selector_rank to be an integer of at most 512"),
        ("dflash2", {"selector_rank": None}, "selector_rank is missing"),
        ("dflash2", {"architectures": ["DFlashDraftModel"]}, "unknown: candidate_selector"),
    ],
)
def test_refused(name: str, changes: dict[str, Any], words: str | None, tmp_path: Path) -> None:
    path = changed(tmp_path, name, changes)
    if words is None:
        # The layout of DSpark cannot be seen in tensors alone: what the config says is believed.
        assert read_spec(CheckpointFiles(path)).family == "dflash"
        return
    with pytest.raises(DrafterError) as caught:
        load_drafter(path, make_target(CASES[name].sizes))
    assert words in str(caught.value)


class TestSpans:
    def spans(self, path: Path, **changes: Any) -> tuple[SpanSpec, ...]:
        block = spec_of(path, "dflash", **changes).block
        assert block is not None
        return block.spans

    def test_types_of_layers(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path / "a") == (BOTH, BOTH)
        assert self.spans(tmp_path / "b", **SLIDING) == (SpanSpec(True, 4), BOTH)

    def test_is_causal_is_of_all_layers(self, tmp_path: Path) -> None:
        assert self.spans(tmp_path / "a", is_causal=True) == (CAUSAL, CAUSAL)
        both = self.spans(tmp_path / "b", is_causal=False, **SLIDING)
        assert both == (SpanSpec(False, 4), BOTH)

    def test_is_causal_before_dflash_configs_own(self, tmp_path: Path) -> None:
        nested = {**CASES["dflash"].config["dflash_config"], "causal": True}
        assert self.spans(tmp_path / "a", dflash_config=nested) == (CAUSAL, CAUSAL)
        spans = self.spans(tmp_path / "b", dflash_config=nested, is_causal=False)
        assert spans == (BOTH, BOTH)


def test_a_share_of_rotated_channels_is_the_targets(tmp_path: Path) -> None:
    rope = {"rope_theta": 700.0, "partial_rotary_factor": 0.25, "mrope_section": [1, 1, 1]}
    spec = spec_of(tmp_path, "dflash", rope_parameters=rope)
    assert spec.backbone.rope.rotary_dim == 6
    assert any("partial_rotary_factor" in reading for reading in spec.readings)


class TestAnchor:
    def test_defaults(self, tmp_path: Path) -> None:
        native = spec_of(tmp_path / "a", "dspark", sample_from_anchor=None)
        assert native.block is not None
        assert native.block.sample_from_anchor
        other = spec_of(tmp_path / "b", "dspark-speculators")
        assert other.block is not None
        assert (other.block.num_rows, other.block.num_proposals) == (4, 3)
        for spec in (native, other):
            assert any("sample_from_anchor is absent" in reading for reading in spec.readings)

    def test_explicit(self, tmp_path: Path) -> None:
        spec = spec_of(tmp_path, "dspark-speculators", sample_from_anchor=True)
        assert spec.block is not None
        assert (spec.block.num_rows, spec.block.num_proposals) == (4, 4)


class TestHeads:
    def test_by_their_tensors(self, tmp_path: Path) -> None:
        fields = ("markov_rank", "enable_confidence_head", "confidence_head_with_markov")
        spec = spec_of(tmp_path, "dspark", **dict.fromkeys(fields))
        assert replace(spec, readings=()) == replace(spec_of(tmp_path, "dspark"), readings=())
        for field in fields:
            assert any(reading.startswith(f"{field} is absent") for reading in spec.readings)

    def test_a_config_that_says_nothing(self, tmp_path: Path) -> None:
        for name in ("dflash", "dspark", "dflash2"):
            spec = spec_of(tmp_path / name, name, architectures=["Other"])
            assert spec.family == name
            assert any("names no drafter" in reading for reading in spec.readings)


@pytest.mark.parametrize(
    ("num_layers", "num_taps", "expected"),
    # By hand: 1 + i * (n - 4) / (taps - 1), rounded; one tap is in the middle.
    [(36, 5, (1, 9, 17, 25, 33)), (28, 3, (1, 13, 25)), (12, 2, (1, 9)), (36, 1, (18,))],
)
def test_taps_without_ids(
    num_layers: int, num_taps: int, expected: tuple[int, ...], tmp_path: Path
) -> None:
    spec = replace(spec_of(tmp_path, "dflash-sliding"), num_target_layers=None)
    assert spec.taps is not None
    assert spec.taps.layers is None
    spec = replace(spec, taps=replace(spec.taps, num_taps=num_taps))
    resolved = resolve_taps(spec, num_layers).taps
    assert resolved is not None
    assert resolved.layers == expected


class TestMaskEmbedding:
    def test_a_file_of_its_own(self, tmp_path: Path) -> None:
        case: BlockCase = CASES["dflash-causal"]
        target = make_target(case.sizes)
        inside = load_drafter(case.write(tmp_path), target)
        tensors = load_file(tmp_path / "model.safetensors")
        row = tensors.pop("mask_embedding")
        save_file(tensors, tmp_path / "model.safetensors")
        torch.save({"embedding": row[None], "mask_token_id": MASK}, tmp_path / "mask_embedding.pt")
        outside = load_drafter(tmp_path, target)
        assert outside.spec == inside.spec
        assert torch.equal(outside.weights["mask_embedding"], row)
        torch.save({"embedding": row, "mask_token_id": 3}, tmp_path / "mask_embedding.pt")
        with pytest.raises(DrafterError, match=r"token 3, but .* mask_token_id 33"):
            load_drafter(tmp_path, target)
