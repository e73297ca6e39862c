"""``--float8-kv``: keys and values in float8, by the scales of the checkpoint."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from cli.test_generate import read, run
from safetensors.torch import save_file
from torch import Tensor

PROMPTS = ("the key of the slot of the key of the slot", "漢 hash")


def with_scales(model_path: Path, directory: Path, scales: dict[str, Tensor]) -> Path:
    shutil.copytree(model_path, directory)
    save_file(scales, directory / "kv-scales.safetensors", metadata={"format": "pt"})
    return directory


def texts(model_path: Path, out: Path, *options: object, device: str) -> list[list[int]]:
    arguments = ("--model", model_path, "--max-new-tokens", 40, "--json", out, "--ignore-eos")
    arguments += ("--dtype", "fp32", "--no-plain")
    result = run(*PROMPTS, *arguments, *options, device=device)
    assert result.exit_code == 0, result.stderr
    return [prompt["token_ids"] for prompt in read(out)["prompts"]]


def test_drafts_and_tiers_do_not_change_the_text(model_path: Path, tmp_path: Path) -> None:
    """On a CPU; on a GPU a last bit of a key may become a sixteenth."""
    out, device = tmp_path / "out.json", "cpu"
    plain = texts(model_path, out, "--float8-kv", "--drafter", "none", device=device)
    assert read(out)["params"]["float8_kv"] is True
    for options in ((), ("--tree",), ("--graphs", "padded")):
        assert texts(model_path, out, "--float8-kv", *options, device=device) == plain
    assert texts(model_path, out, device=device) != plain
    assert read(out)["params"]["float8_kv"] is False


def test_the_scales_are_those_of_the_checkpoint(
    model_path: Path, tmp_path: Path, device: str
) -> None:
    """With scales this large all values become 0."""
    scales = {f"model.layers.{i}.self_attn.v_scale": torch.tensor(1e6) for i in range(2)}
    blind = with_scales(model_path, tmp_path / "blind", scales)
    out = tmp_path / "out.json"
    got = texts(blind, out, "--float8-kv", "--drafter", "none", device=device)
    assert got != texts(model_path, out, "--float8-kv", "--drafter", "none", device=device)
    # Without attention a token depends on the one before alone.
    for text in got:
        after = dict(pairwise(text))
        assert text[1:] == [after[token] for token in text[:-1]]


def test_what_does_not_fit_is_one_sentence(model_path: Path, tmp_path: Path) -> None:
    scales = {"model.layers.7.self_attn.k_scale": torch.tensor(1.0)}
    other = with_scales(model_path, tmp_path / "other", scales)
    result = run("a", "--model", other, "--float8-kv")
    assert result.exit_code == 2
    assert "expected scales of the layers [0, 1], got some of [7]" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("more", [(), ("--graphs", "padded")])
def test_no_check_against_the_model_itself(model_path: Path, more: tuple[str, ...]) -> None:
    result = run("a", "--model", model_path, "--check", "--float8-kv", *more)
    assert result.exit_code == 2
    assert "leave out --float8-kv" in result.stderr
