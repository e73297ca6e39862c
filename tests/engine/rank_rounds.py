"""What each of two ranks does in the tests of agreement, in a process of its own."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accept_batches import int32
from engine.drafters import OracleDrafter
from engine.hybrid_model import hybrid_model
from engine.models import VOCAB, plain_greedy, tiny_model
from engine.test_recurrent_states import check_states
from engine.test_recurrent_target import engine_of
from specfast import Engine, RowStats, SamplingParams, SamplingRules, ops
from specfast.drafters import (
    DeviceDrafts,
    DraftBatch,
    Drafter,
    DraftPages,
    DraftRequest,
    DraftSlots,
)
from specfast.engine import VerifyTiers
from specfast.engine.rank_agreement import RankAgreement, Site
from specfast.records import AcceptRecord
from torch import Tensor
from transformers import PreTrainedModel

NUM_RANKS = 2
# Long enough for a busy machine; nothing waits longer, whatever goes wrong.
TIMEOUT = timedelta(seconds=120)

B, N, V = 3, 4, 20
OFFSETS = (0, 7)
# The token that rank 1 finds 1 ulp likelier than rank 0 does. It ties with a lower id.
TIED = (4, 11)


def next_up(values: Tensor) -> Tensor:
    return torch.nextafter(values, torch.tensor(torch.inf))


def rules(**options: Any) -> SamplingRules:
    options.setdefault("temperature", torch.tensor([1.0, 0.0, 0.7]))
    return SamplingRules(seeds=torch.tensor([3, 4, 5]), **options)


def round_inputs(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Chains, prefix lengths and logits float32 [B * N, V] whose drafts are often likely."""
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(B * N, V, generator=rng)
    drafts = logits.argmax(1).view(B, N).roll(1, dims=1)
    return drafts, int32([5, 6, 7]), logits


def tied_logits(rank: int) -> Tensor:
    """Rows of two equal maxima; of rank 1 the later one is 1 ulp above."""
    logits = torch.zeros(B * N, V)
    logits[:, TIED] = 2.5
    if rank == 1:
        logits[:, TIED[1]] = next_up(logits[:, TIED[1]])
    return logits


def sharded_round(rank: int, logits: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The token after every row and the emitted tokens, as this rank decides from both shards."""
    drafts, prefix_lens, _ = round_inputs()
    begin, end = (*OFFSETS, V)[rank : rank + 2]
    sampling = rules(**options)
    sizes = {"max_candidates": 1, "max_top_k": 6}
    stats = ops.row_stats(
        drafts,
        prefix_lens,
        logits[:, begin:end],
        sampling,
        vocab_size=V,
        vocab_offset=begin,
        **sizes,
    )
    gathered = RowStats.empty(B * N, "cpu", **sizes, num_shards=NUM_RANKS)
    dist.all_gather(list(gathered.packed), stats.packed)
    merged = ops.merge_row_stats(gathered, prefix_lens, sampling, vocab_size=V)
    record = ops.accept_chain(drafts, prefix_lens, target_predict=merged.target_predict)
    return merged.target_predict, record.out_tokens


def decided(rank: int, agreement: RankAgreement) -> dict[str, list[Tensor]]:
    """At each site, what a rank has after its own computation and the agreement."""
    logits = tied_logits(rank)
    draft = logits[:B].argmax(1)
    agreement.decide(Site.DRAFT, draft)

    confidence = torch.full((B, N - 1), 0.5)
    if rank == 1:
        confidence[2] = next_up(confidence[2])
    plan = ops.schedule_verify_lens(confidence, int32([1])).verify_lens
    budget = torch.tensor(4 + rank)
    agreement.decide(Site.PLAN, plan, budget)

    drafts = torch.tensor([[0, *TIED, TIED[0]]]).expand(B, N).contiguous()
    record = ops.accept_chain(drafts, int32([5, 6, 7]), target_logits=logits)
    accept = [record.per_request, record.per_step, record.predict]
    agreement.decide(Site.ACCEPT, *accept)
    return {"draft": [draft], "plan": [plan, budget], "accept": accept}


class RankDrafter:
    """Other drafts, of other widths and forms, on every rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        length = len(requests[0].token_ids) + self.rank
        drafts = [
            [(request.token_ids[-1] * 5 + 7 * i + self.rank) % VOCAB for i in range(length % 4)]
            for request in requests
        ]
        parents = [[i // 2 for i in range(len(row))] for row in drafts] if length % 3 else None
        return DraftBatch.from_lists(requests, drafts, parents)

    def release(self, request_id: int) -> None:
        pass


class RankDeviceDrafter(RankDrafter):
    """On the device; rank 1 leaves out its last draft."""

    drafts_trees = False

    def attach(self, pages: DraftPages) -> None:
        pass

    def begin(self, requests: Sequence[DraftRequest]) -> None:
        pass

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        steps = torch.arange(1, slots.tokens.shape[1], device=slots.tokens.device)
        drafts = (slots.tokens[:, :1] * 5 + 7 * steps + self.rank) % VOCAB
        slots.tokens[:, 1:].copy_(drafts)
        slots.verify_lens.copy_(slots.verify_lens.clamp(max=len(steps) + 1 - self.rank))
        return DeviceDrafts()

    def committed(self, slots: DraftSlots, record: AcceptRecord, taps: object) -> None:
        pass


def drafter_of(kind: str, rank: int) -> Drafter | None:
    if kind == "plain":
        return None
    return RankDeviceDrafter(rank) if kind == "device" else RankDrafter(rank)


def at_tiers(
    rank: int,
    agreement: RankAgreement | None,
    kind: str,
    device: str = "cpu",
    capture: bool | None = False,
) -> list[list[int]]:
    """Texts of an engine per rank whose rounds run at tiers; none of them may be eager."""
    model = rounded(tiny_model(head_dim=64), rank).to(device)
    texts = []
    for params in (
        SamplingParams(max_new_tokens=12),
        SamplingParams(max_new_tokens=12, temperature=0.8, top_k=20),
    ):
        tiers = VerifyTiers([2], 5, [6], capture=capture)
        drafter = drafter_of(kind, rank)
        engine = Engine(model, drafter, seed=9, verify_width=5, agreement=agreement, tiers=tiers)
        engine._verifier.verify = None  # type: ignore[assignment, method-assign]
        texts += [text.token_ids for text in engine.generate([[3, 1, 4], [1, 5]], params)]
    return texts


def watched_rounds(rank: int, agreement: RankAgreement) -> None:
    """A few rounds at a tier, on each rank as many."""
    model = rounded(tiny_model(head_dim=64), rank)
    tiers = VerifyTiers([1], 5, capture=False)
    drafter = RankDeviceDrafter(rank)
    engine = Engine(
        model, drafter, max_batch_size=1, verify_width=5, agreement=agreement, tiers=tiers
    )
    engine.add_request([3, 1, 4], SamplingParams(max_new_tokens=100, temperature=1.5, seed=1))
    for _ in range(12):
        engine.step()


def rounded(model: PreTrainedModel, rank: int) -> PreTrainedModel:
    if rank == 1:
        rng = torch.Generator().manual_seed(1)
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=rng)
            parameter.data *= 1 + 0.02 * noise
    return model


def generated(rank: int, agreement: RankAgreement | None) -> list[list[int]]:
    """Texts of an engine per rank; the models differ as if each had its own rounding."""
    model = rounded(tiny_model(), rank)
    texts = []
    for params in (
        SamplingParams(max_new_tokens=12),
        SamplingParams(max_new_tokens=12, temperature=0.8, top_k=20),
    ):
        engine = Engine(model, RankDrafter(rank), seed=9, verify_width=5, agreement=agreement)
        texts += [text.token_ids for text in engine.generate([[3, 1, 4], [1, 5]], params)]
    return texts


def recurrent(rank: int, agreement: RankAgreement) -> tuple[list[int], list[int]]:
    """A text of recurrent targets, whose states are their own model's of that text.

    What rank 0 will say is drafted, and rank 1 would not accept all of it. Second, its own text.
    """
    prompt, model = [3, 1, 4], rounded(hybrid_model(), rank)
    drafter = OracleDrafter([prompt + plain_greedy(hybrid_model(), prompt, 20)])
    engine = engine_of(model, drafter, agreement=agreement)
    engine.add_request(prompt, SamplingParams(max_new_tokens=20))
    text = []
    while engine.has_unfinished:
        (output,) = engine.step()
        text += output.token_ids
        check_states(engine, model)
    return text, plain_greedy(model, prompt, 20)


class Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def scenarios(rank: int) -> dict[str, Any]:
    """What the tests look at, by name."""
    results: dict[str, Any] = {}
    for name, options in {"plain": {}, "top_k": {"top_k": int32([4, 0, 6])}}.items():
        results["sharded", name] = sharded_round(rank, round_inputs()[2], **options)
    results["sharded", "1 ulp"] = sharded_round(rank, tied_logits(rank), temperature=torch.zeros(B))

    results["generated"] = generated(rank, RankAgreement())
    results["generated alone"] = generated(rank, None)
    results["recurrent"] = recurrent(rank, RankAgreement())
    for kind in ("host", "device", "plain"):
        results["at tiers", kind] = at_tiers(rank, RankAgreement(), kind)
        results["at tiers alone", kind] = at_tiers(rank, None, kind)

    logger = logging.getLogger("specfast.engine.rank_agreement")
    messages = Messages()
    logger.addHandler(messages)
    results["decided"] = decided(rank, RankAgreement())
    for off in Site:
        agreement = RankAgreement({*Site} - {off}, check_every=1)
        results["off", off.value] = decided(rank, agreement)
        agreement.flush()
        results["log", off.value] = list(messages.texts)
        messages.texts.clear()

    for off in (Site.DRAFT, Site.ACCEPT):
        agreement = RankAgreement({*Site} - {off}, check_every=2)
        watched_rounds(rank, agreement)
        agreement.flush()
        results["log at tiers", off.value] = list(messages.texts)
        messages.texts.clear()

    agreement = RankAgreement((), check_every=4)
    said = []
    for i in range(13):
        # The ranks differ in round 5 alone, in the last word of three.
        tokens = torch.arange(5)
        tokens[4] += rank if i == 5 else 0
        agreement.decide(Site.DRAFT, tokens, torch.tensor([True, False]))
        said.append(len(messages.texts))
    agreement.flush()
    results["rounds"] = said, list(messages.texts)
    messages.texts.clear()

    silent = RankAgreement((), check_every=0)
    silent.decide(Site.DRAFT, torch.tensor([rank]))
    silent.flush()
    results["never"] = list(messages.texts)

    mixed = [
        torch.tensor(rank == 0),
        torch.full((2, 3), float(rank), dtype=torch.bfloat16).T,
        torch.empty(0),
        torch.tensor([[2**40 + rank]]),
    ]
    RankAgreement().decide(Site.ACCEPT, *mixed)
    results["mixed"] = mixed
    return results


def run(rank: int, folder: str) -> None:
    """The process of one rank: its results go to a file."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{Path(folder) / 'store'}",
        rank=rank,
        world_size=NUM_RANKS,
        timeout=TIMEOUT,
    )
    torch.save(scenarios(rank), Path(folder) / f"rank{rank}.pt")
    dist.destroy_process_group()
