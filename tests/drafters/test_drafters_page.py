"""The examples of docs/drafters.md run as they stand, and mean what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from drafters.eagle_files import eagle3_cases
from engine.models import plain_greedy
from specfast.drafters import DraftTarget, EagleChain, load_drafter
from specfast.drafters.eagle3 import Eagle3Model
from transformers import LlamaConfig, LlamaForCausalLM

PAGE = (Path(__file__).parents[2] / "docs/drafters.md").read_text()


def test_examples(tmp_path: Path) -> None:
    in_engine, alone = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    case = next(case for case in eagle3_cases() if case.name == "speculators")
    path = case.write(tmp_path)
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=12,
        intermediate_size=16,
        num_hidden_layers=12,
        num_attention_heads=2,
        num_key_value_heads=2,
        initializer_range=0.5,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.tensor([4, 30, 2, 11, 9])
    names: dict[str, Any] = {"model": model, "prompt_ids": prompt, "torch": torch}
    with torch.no_grad():
        exec(in_engine.replace("path/to/drafter", str(path)), names)
        exec(alone, names)
        out = model(prompt[None], output_hidden_states=True)
        taps = torch.cat([out.hidden_states[k + 1][0] for k in case.taps], dim=-1)
        drafter = load_drafter(path, DraftTarget.of(model))
        assert isinstance(drafter, Eagle3Model)
        chain = EagleChain(drafter)
        chain.extend(torch.tensor([*prompt[1:], out.logits[0, -1].argmax()]), taps)
        expected, drafts = chain.draft(4), names["chain"].draft(4)
    assert drafts.tokens.tolist() == expected.tokens.tolist()
    torch.testing.assert_close(drafts.logits, expected.logits)
    assert names["generation"].token_ids == plain_greedy(model, prompt.tolist(), 16)
