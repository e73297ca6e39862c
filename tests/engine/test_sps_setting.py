"""An engine takes an SPS table of its own setting, and no other."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine.models import tiny_model
from engine.sps_tables import costly_rows
from specfast.drafters import NgramDrafter
from specfast.engine import Engine, RankAgreement, VerifyTiers
from specfast.engine.sps_setting import device_name, model_name, sps_setting
from specfast.engine.target import Target
from specfast.planner import Planning
from transformers import AutoModelForCausalLM

TIERS = VerifyTiers([2], 4, [4, 6], capture=False)


@pytest.mark.parametrize("drafter", [None, NgramDrafter()])
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("card", "NVIDIA H200 (sm_90)"),
        ("model", "Qwen3-8B (Qwen3ForCausalLM, 8190735360 parameters)"),
        ("backend", "verify_attention, graphs, fp32"),
        ("backend", "verify_attention, padded, bf16"),
        ("num_requests", 3),
    ],
)
def test_a_table_of_another_setting_is_refused(name: str, other: Any, drafter: Any) -> None:
    model = tiny_model()
    table = costly_rows(Target(model), TIERS)
    options = {"max_batch_size": 2, "verify_width": 4, "tiers": TIERS}
    Engine(model, drafter, planning=Planning("compact", table), **options)
    measured = replace(table.setting, **{name: other})
    own = getattr(table.setting, name)
    message = f"SPS table: expected one measured with {name} {own!r}, got {other!r}"
    planning = Planning("compact", replace(table, setting=measured))
    with pytest.raises(ValueError, match=re.escape(message)):
        Engine(model, drafter, planning=planning, **options)


def test_a_table_of_other_tiers_is_refused() -> None:
    model = tiny_model()
    table = costly_rows(Target(model), VerifyTiers([2], 4, [4], capture=False))
    with pytest.raises(ValueError, match=re.escape("with tiers (4, 6, 8), got (4, 8)")):
        Engine(model, verify_width=4, tiers=TIERS, planning=Planning("compact", table))


def test_ranks_that_agree_take_a_table_of_rounds_at_tiers() -> None:
    """Which is what they run."""
    model = tiny_model()
    padded = costly_rows(Target(model), TIERS)
    eager = replace(padded, setting=sps_setting(Target(model), 2, padded.tiers, "eager"))
    options = {"verify_width": 4, "tiers": TIERS, "agreement": RankAgreement()}
    Engine(model, NgramDrafter(), planning=Planning("compact", padded), **options)
    with pytest.raises(ValueError, match="with backend 'verify_attention, padded, fp32', got 'sdp"):
        Engine(model, NgramDrafter(), planning=Planning("compact", eager), **options)


def test_a_mode_that_needs_no_table_takes_tiers_of_all_sizes() -> None:
    tiers = VerifyTiers([1, 2], 4, capture=False)
    Engine(tiny_model(), verify_width=4, tiers=tiers, planning=Planning("static"))


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(torch.float32, "fp32"), (torch.bfloat16, "bf16"), (torch.float16, "fp16")],
)
def test_the_backend_names_attention_rounds_and_dtype(dtype: torch.dtype, name: str) -> None:
    target = Target(tiny_model().to(dtype))
    backends = [sps_setting(target, 1, [1], way).backend for way in ("eager", "padded", "graphs")]
    assert backends == [
        f"sdpa, eager, {name}",
        f"verify_attention, padded, {name}",
        f"verify_attention, graphs, {name}",
    ]


def test_a_model_is_its_name_and_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever its files lie; other files of one name are another model."""
    model = tiny_model()
    size = sum(parameter.numel() for parameter in model.parameters())
    kind = f"LlamaForCausalLM, {size} parameters"
    assert model_name(model) == kind

    def name_at(path: Path | str) -> str:
        return model_name(AutoModelForCausalLM.from_pretrained(path))

    for folder in ("here", "there"):
        model.save_pretrained(tmp_path / folder / "tiny")
        assert name_at(tmp_path / folder / "tiny") == f"tiny ({kind})"
    monkeypatch.chdir(tmp_path / "here" / "tiny")
    assert name_at(".") == f"tiny ({kind})"
    tiny_model(hidden_size=16).save_pretrained(tmp_path / "other" / "tiny")
    assert name_at(tmp_path / "other" / "tiny") != f"tiny ({kind})"


def test_a_processor_is_its_threads() -> None:
    """Which decide what a step costs."""
    names = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        names.add(device_name(torch.device("cpu")))
    assert len(names) == 2
