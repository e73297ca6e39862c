"""The examples of docs/drafters.md run as they stand, and mean what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from capturable import only_capturable
from drafters.eagle_files import eagle3_cases
from engine.models import plain_greedy, tiny_model
from specfast import SamplingParams
from specfast.drafters import DraftTarget, EagleChain, load_drafter
from specfast.drafters.eagle3 import Eagle3Model
from specfast.engine import Engine, Generation
from transformers import LlamaConfig, LlamaForCausalLM

PAGE = (Path(__file__).parents[2] / "docs/drafters.md").read_text()


def examples(section: str) -> list[str]:
    (text,) = re.findall(rf"^##? {section}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_examples(tmp_path: Path) -> None:
    in_engine, alone = examples("Trained drafters")
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


def test_a_drafter_of_your_own() -> None:
    """On the device it proposes what it does on the host; slots serve request after request."""
    on_host, on_device = examples("A drafter of your own")
    model = tiny_model(head_dim=64)
    names: dict[str, Any] = {"model": model, "Engine": Engine}
    prompts = [[1, 2, 3, 1, 2, 3, 1, 2], [7, 8, 9, 7], [5], [2, 4, 2, 4, 2]]

    def texts() -> list[Generation]:
        engine: Engine = names["engine"]
        return engine.generate(prompts, SamplingParams(max_new_tokens=40))

    exec(on_host, names)
    host = texts()
    exec(on_device, names)
    drafter = names["drafter"]
    draft, committed = drafter.draft, drafter.committed
    calls = []

    def capturable(*arguments: Any) -> Any:
        calls.append(len(arguments))
        with only_capturable():
            return (draft if len(arguments) == 1 else committed)(*arguments)

    drafter.draft = drafter.committed = capturable
    device = texts()
    assert set(calls) == {1, 3}
    for prompt, one, other in zip(prompts, host, device, strict=True):
        assert one.token_ids == other.token_ids == plain_greedy(model, prompt, 40)
    accepted = [sum(r.num_accepted for g in of for r in g.rounds) for of in (host, device)]
    proposed = [sum(r.num_proposed for g in of for r in g.rounds) for of in (host, device)]
    assert accepted[0] == accepted[1] > 0
    assert proposed[0] == proposed[1]
