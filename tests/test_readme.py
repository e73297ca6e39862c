"""The README's example runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from torch import Tensor

README = (Path(__file__).parents[1] / "README.md").read_text()
VOCAB_SIZE = 32


def test_example_decodes_what_the_target_says() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

    def target_forward(tokens: Tensor, positions: Tensor, mask: Tensor, slots: Tensor) -> Tensor:
        """A target that counts: after token t comes t + 1. Its KV is the position."""
        pool[slots.long(), 0, 0] = positions.flatten().float()
        return torch.nn.functional.one_hot(tokens.flatten().long() + 1, VOCAB_SIZE).float()

    pool = torch.full((64, 1, 1), -1.0)
    names = {
        "kv_pools": [pool],
        "target_forward": target_forward,
        "eos_token_ids": torch.tensor([0], dtype=torch.int32),
    }
    exec(example, names)

    # k = 4: four children of the root, then of each frontier slot four children; depth 2. The
    # drafter's best guess after 7 is 9, its second 8; under 8 it has 9.
    first_scores = torch.tensor([-0.1, -0.2, -3.0, -3.1])
    second_scores = torch.full((4, 4), -4.0)
    second_scores[1, 0] = -0.3
    tokens = torch.full((1, 20), 30, dtype=torch.int32)
    tokens[0, :4] = torch.tensor([9, 8, 1, 2])
    tokens[0, 4 + 4] = 9
    record = names["verify_round"](
        torch.tensor([7], dtype=torch.int32),
        torch.cat([first_scores, second_scores.flatten()])[None],
        tokens,
        torch.tensor([[-1, 0, 1, 2, 3]], dtype=torch.int32),
        torch.tensor([10], dtype=torch.int32),
        torch.arange(20, 36, dtype=torch.int32),
    )
    # Anchor 7 and drafts 8, 9 are committed; 8, 9, 10 are emitted.
    assert record.commit_lens.tolist() == [3]
    assert record.out_tokens[0, :3].tolist() == [8, 9, 10]
    assert record.new_seq_lens.tolist() == [13]
    assert pool[20:23, 0, 0].tolist() == [10.0, 11.0, 12.0]


def test_readme_stays_short() -> None:
    assert README.count("\n") <= 150
