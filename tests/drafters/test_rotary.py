"""Rotary embeddings of each type are those of transformers for the same fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from drafters.eagle_files import eagle3_cases
from specfast.drafters.checkpoint import CheckpointFiles, read_spec
from specfast.drafters.layers import Rotary
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

HEAD_DIM, THETA = 64, 5e5
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def rotary_of(path: Path, changes: dict[str, Any]) -> Rotary:
    case = eagle3_cases()[1]
    case.write(path)
    config = {**case.config, "head_dim": 6, "rope_theta": THETA, **changes}
    (path / "config.json").write_text(json.dumps(config))
    rope = read_spec(CheckpointFiles(path)).backbone.rope
    # The checkpoint's heads are small; the frequencies of large ones are more of a test.
    return Rotary(type(rope)(**{**vars(rope), "rotary_dim": HEAD_DIM}), torch.device("cpu"))


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        ({}, {"rope_type": "default"}),
        (
            {"rope_scaling": {"type": "linear", "factor": 3.0}},
            {"rope_type": "linear", "factor": 3.0},
        ),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, {"rope_type": "llama3", **LLAMA3}),
        ({"rope_parameters": {"rope_type": "llama3", **LLAMA3}}, {"rope_type": "llama3", **LLAMA3}),
    ],
)
def test_as_transformers(
    fields: dict[str, Any], parameters: dict[str, Any], tmp_path: Path
) -> None:
    config = LlamaConfig(
        head_dim=HEAD_DIM,
        max_position_embeddings=64,
        rope_parameters={"rope_theta": THETA, **parameters},
    )
    heads = torch.randn(1, 2, 9, HEAD_DIM, generator=torch.Generator().manual_seed(2))
    positions = torch.tensor([[0, 1, 2, 17, 63, 64, 200, 1000, 4000]])
    cos, sin = LlamaRotaryEmbedding(config)(heads, positions)
    expected, _ = apply_rotary_pos_emb(heads, heads, cos, sin)
    ours = rotary_of(tmp_path, fields).at(positions[0], heads.dtype)(heads[0].transpose(0, 1))
    # Angles of thousands of radians hold about four decimals in fp32.
    torch.testing.assert_close(ours.transpose(0, 1), expected[0], rtol=0, atol=2e-3)
    plain = rotary_of(tmp_path, {}).at(positions[0], heads.dtype)(heads[0].transpose(0, 1))
    assert torch.allclose(ours, plain, atol=2e-2) == (not fields)
