"""Inputs that broke verifiers by a q that was not what the drafts were drawn from."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from chi_square import assert_follows
from hand_written_rounds import log
from implementations import Implementation
from specfast import Coins, Proposal
from toy_models import plain_sampling

RULES = ("rejection", "block")


def first_tokens(
    impl: Implementation, rule: str, count: int, draw: dict[str, int], tell: dict[str, int]
) -> Counter[int]:
    """Of rounds whose draft is drawn under the filters ``draw``; q is told with ``tell``."""
    p, q = (log(row).expand(count, -1) for row in ([0.5, 0.5, 0, 0], [0.4, 0.3, 0.2, 0.1]))
    p, q = p.repeat_interleave(2, 0).to(impl.device), q.to(impl.device)
    prefix_lens = torch.full((count,), 3, dtype=torch.int32, device=impl.device)
    drawn, told = (
        impl.sample_rows(q, plain_sampling(count, impl.device, **options), prefix_lens)
        for options in (draw, tell)
    )
    record = impl.accept_chain(
        torch.cat([torch.zeros_like(drawn.tokens), drawn.tokens], 1),
        prefix_lens,
        target_logits=p,
        rule=rule,
        sampling=plain_sampling(count, impl.device),
        proposal=Proposal(logits=q, records=told.records),
    )
    return Counter(record.out_tokens[:, 0].tolist())


@pytest.mark.parametrize("rule", RULES)
def test_b16_drafts_drawn_from_a_filtered_q(
    impl: Implementation, num_draws: int, rule: str
) -> None:
    law = {0: 0.5, 1: 0.5}
    assert_follows(first_tokens(impl, rule, num_draws, {"top_k": 2}, {"top_k": 2}), law)


def test_b16_a_raw_q_breaks_the_law(impl: Implementation) -> None:
    if impl.draws < 1000:
        pytest.skip("takes thousands of draws")
    counts = first_tokens(impl, "rejection", 20_000, {"top_k": 2}, {})
    assert_follows(counts, {0: 4 / 7, 1: 3 / 7})
    with pytest.raises(AssertionError):
        assert_follows(counts, {0: 0.5, 1: 0.5})


@pytest.mark.parametrize("rule", RULES)
def test_b17_q_of_16_bits_is_the_q_that_was_drawn_from(impl: Implementation, rule: str) -> None:
    # Target and drafter agree, so that no coin rejects a draft if q is what it was drawn from.
    row = torch.tensor([8.03125, 8.0, 0.0, 0.0], dtype=torch.bfloat16, device=impl.device)
    count = 64
    prefix_lens = torch.full((count,), 3, dtype=torch.int32, device=impl.device)
    largest = torch.full((count, 2), 1 - 2.0**-24, device=impl.device)
    sampling = plain_sampling(count, impl.device, temperature=0.7)
    drawn = impl.sample_rows(row.expand(count, -1).contiguous(), sampling, prefix_lens)
    assert len(set(drawn.tokens.flatten().tolist())) > 1
    sampling.coins = Coins(accept=largest)
    record = impl.accept_chain(
        torch.cat([torch.zeros_like(drawn.tokens), drawn.tokens], 1),
        prefix_lens,
        target_logits=row.expand(2 * count, -1).contiguous(),
        rule=rule,
        sampling=sampling,
        proposal=Proposal(logits=row.expand(count, -1).contiguous(), records=drawn.records),
    )
    assert record.num_correct_drafts.tolist() == [1] * count
