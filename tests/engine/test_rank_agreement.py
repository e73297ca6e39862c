"""Two ranks in two processes: decisions from shards, and one rank that decides for both.

rank 0   4: 2.5   11: 2.5              the lower id: 4
rank 1   4: 2.5   11: 2.5 + 1 ulp      11
"""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accept_batches import int32
from engine.rank_rounds import (
    NUM_RANKS,
    OFFSETS,
    TIED,
    TIMEOUT,
    B,
    N,
    V,
    decided,
    round_inputs,
    rules,
    run,
    tied_logits,
)
from specfast import RowStats, ops
from specfast.engine.rank_agreement import RankAgreement, Site


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What each rank has found."""
    folder = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=run, args=(i, str(folder))) for i in range(NUM_RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT.total_seconds() + 30)
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0] * NUM_RANKS
    return [torch.load(Path(folder) / f"rank{i}.pt") for i in range(NUM_RANKS)]


def assert_equal(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["plain", "top_k"])
def test_ranks_decide_from_shards_as_one_process_does(ranks: list, name: str) -> None:
    assert_equal(ranks[0]["sharded", name], ranks[1]["sharded", name])
    drafts, prefix_lens, logits = round_inputs()
    sampling = rules(top_k=int32([4, 0, 6]) if name == "top_k" else None)
    shards = [
        ops.row_stats(
            drafts,
            prefix_lens,
            logits[:, begin:end],
            sampling,
            vocab_size=V,
            vocab_offset=begin,
            max_candidates=1,
            max_top_k=6,
        ).packed
        for begin, end in zip(OFFSETS, (*OFFSETS[1:], V), strict=True)
    ]
    merged = ops.merge_row_stats(
        RowStats(torch.stack(shards), 1, 6), prefix_lens, sampling, vocab_size=V
    )
    assert_equal(ranks[0]["sharded", name][0], merged.target_predict)
    if name == "top_k":
        sampled = rules(top_k=int32([4, 0, 6]))
        whole = ops.accept_chain(
            drafts, prefix_lens, target_logits=logits, rule="target_only", sampling=sampled
        )
        # The second request is greedy, the others have lists.
        assert_equal(ranks[0]["sharded", name][1], whole.out_tokens)


def test_one_ulp_in_a_shard_moves_all_ranks_or_none(ranks: list) -> None:
    assert_equal(ranks[0]["sharded", "1 ulp"], ranks[1]["sharded", "1 ulp"])
    # It is seen by the rank that has the shard, and decides for both.
    assert ranks[0]["sharded", "1 ulp"][0].tolist() == [TIED[1]] * (B * N)


@pytest.mark.parametrize("site", [site.value for site in Site])
def test_one_ulp_on_one_rank_does_not_split_a_decision(ranks: list, site: str) -> None:
    first, second = (rank["decided"][site] for rank in ranks)
    assert_equal(first, second)
    # Without the agreement it does, and what holds is what rank 0 computed.
    alone = [rank["off", site][site] for rank in ranks]
    assert not all(torch.equal(a, b) for a, b in zip(*alone, strict=True))
    assert_equal(first, alone[0])


@pytest.mark.parametrize("site", [site.value for site in Site])
def test_divergence_is_logged_where_a_site_is_off(ranks: list, site: str) -> None:
    for rank in ranks:
        (message,) = rank["log", site]
        assert message.startswith(f"ranks disagree at site {site}, between its rounds 0 and 0")


def test_a_divergence_is_found_at_the_next_comparison(ranks: list) -> None:
    for rank in ranks:
        said, texts = rank["rounds"]
        # Compared after rounds 3, 7, 11 and at the end; read one comparison later.
        assert said == [0] * 11 + [1] * 2
        (message,) = texts
        assert "between its rounds 4 and 7" in message


def test_engines_of_two_ranks_emit_what_rank_0_decides(ranks: list) -> None:
    first, second = ranks
    assert first["generated"] == second["generated"]
    assert first["generated"] == first["generated alone"]
    # Each of its texts would have gone another way on rank 1.
    alone = zip(first["generated alone"], second["generated alone"], strict=True)
    assert all(a != b for a, b in alone)


@pytest.mark.parametrize("kind", ["host", "device", "plain"])
def test_rounds_at_tiers_are_those_of_rank_0(ranks: list, kind: str) -> None:
    """Collectives stand within the rounds, also those that run ahead of the host."""
    first, second = ranks
    assert first["at tiers", kind] == second["at tiers", kind]
    assert first["at tiers", kind] == first["at tiers alone", kind]
    alone = zip(first["at tiers alone", kind], second["at tiers alone", kind], strict=True)
    assert all(a != b for a, b in alone)


@pytest.mark.parametrize("site", ["draft", "accept"])
def test_divergence_at_tiers_is_logged_where_a_site_is_off(ranks: list, site: str) -> None:
    for rank in ranks:
        assert rank["log at tiers", site]
        assert all(
            message.startswith(f"ranks disagree at site {site}")
            for message in rank["log at tiers", site]
        )


def test_states_follow_the_text_of_rank_0(ranks: list) -> None:
    """By each rank's own model, as the processes have checked after every round."""
    (text, own), (same, other) = (rank["recurrent"] for rank in ranks)
    assert text == same == own
    assert other != own


def test_comparisons_can_be_switched_off(ranks: list) -> None:
    assert [rank["never"] for rank in ranks] == [[], []]


def test_tensors_of_any_kind_are_those_of_rank_0(ranks: list) -> None:
    for rank in ranks:
        flag, values, nothing, wide = rank["mixed"]
        assert flag.tolist() is True
        assert values.dtype == torch.bfloat16
        assert values.tolist() == [[0.0, 0.0]] * 3
        assert nothing.shape == (0,)
        assert wide.tolist() == [[2**40]]


@pytest.fixture
def single_rank(tmp_path: Path) -> Any:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/one", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("single_rank")
def test_one_rank_agrees_with_itself() -> None:
    agreement = RankAgreement(check_every=1)
    assert decided(0, agreement)["draft"][0].tolist() == [TIED[0]] * B
    agreement.flush()


@pytest.mark.usefixtures("single_rank")
def test_wrong_arguments() -> None:
    with pytest.raises(ValueError, match="check_every >= 0, got -1"):
        RankAgreement(check_every=-1)
    tensors = torch.zeros(1), torch.zeros(1, device="meta")
    with pytest.raises(RuntimeError, match="one device at site draft, got cpu, meta"):
        RankAgreement().decide(Site.DRAFT, *tensors)


def test_the_tie_is_one() -> None:
    same, other = tied_logits(0), tied_logits(1)
    assert_equal(same[:, TIED[0]], same[:, TIED[1]])
    assert int((same != other).sum()) == B * N
