"""How long a round takes, by its rows: what an SPS table is made of."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specfast.drafters.base import DeviceDrafts, DraftBatch, DraftSlots, PlainDecoding
from specfast.engine.captured_round import LaunchedRound
from specfast.engine.pool import PageTable
from specfast.engine.requests import Request
from specfast.engine.sps_setting import WayOfRounds, sps_setting
from specfast.engine.state_adapter import StateAdapter
from specfast.engine.state_pool import StatePool
from specfast.engine.target import Target, as_target
from specfast.engine.verifier import Verifier
from specfast.engine.verify_graphs import VerifyGraphs
from specfast.engine.verify_tiers import VerifyTiers
from specfast.planner import CaptureSlots
from specfast.sampling_params import SamplingParams


class StepTimer:
    """Runs greedy rounds of chains that commit nothing, so that each is like the one before.

    A step is what an engine does in a round, without its drafter. ``"eager"``: from the layout of
    the rows to the record on the host. Otherwise a planned round, at the tier of the step: a launch
    one round ahead, then the record of the round before; ``"graphs"`` replays it.

    Parameters
    ----------
    model : transformers causal LM, or Target
        Any that ``Target`` supports.
    num_requests : int
        Requests at most; fewer where there are fewer rows.
    width : int
        Rows of a request at most.
    tiers : ints
        Rows of steps. Padded rounds have at least one per request, and a tier of all rows besides.
    context_len : int
        Committed tokens of each request. Their keys and values are zeros.
    page_size : int
        Tokens per KV page.
    rounds : "eager" | "padded" | "graphs"
        How rounds run.
    state_adapter : StateAdapter, optional
        Of a model with recurrent layers, whose states begin with zeros.

    Attributes
    ----------
    setting : SpsSetting
        What a table of these steps is true of; its ``tiers`` are the steps that can be timed.

    Raises
    ------
    ValueError
        A context that leaves a round no room, a model that cannot be a target, or none of such
        rounds.
    """

    def __init__(
        self,
        model: PreTrainedModel | Target,
        *,
        num_requests: int,
        width: int,
        tiers: Iterable[int],
        context_len: int,
        page_size: int = 16,
        rounds: WayOfRounds = "eager",
        state_adapter: StateAdapter | None = None,
    ) -> None:
        target = as_target(model, state_adapter)
        limit = target.context_length
        if limit is not None and context_len + width > limit:
            raise ValueError(
                f"expected at most {limit - width} committed tokens before {width} rows, "
                f"got {context_len}"
            )
        self.width = width
        pages_per_request = -(-(context_len + width) // page_size)
        pool = target.kv_pool(num_requests * pages_per_request, page_size)
        for storage in (*pool.keys, *pool.values):
            storage.zero_()
        page_table = PageTable(num_requests, pages_per_request, page_size, target.device)
        state_pool = StatePool.of(target, num_requests)
        if state_pool is not None:
            state_pool.clear()
        rng = torch.Generator().manual_seed(0)
        self._drafts = torch.randint(0, target.vocab_size, (num_requests, width), generator=rng)
        self._requests = []
        for number in range(num_requests):
            pages = pool.allocate(pages_per_request)
            slot = page_table.take_row()
            page_table.write(slot, 0, pages)
            request = Request(
                request_id=number,
                params=SamplingParams(),
                token_ids=[0] * (context_len + 1),
                num_prompt_tokens=context_len + 1,
                max_len=context_len + 1 + width,
                reserved_pages=pages_per_request,
                committed_len=context_len,
                pages=pages,
                slot=slot,
            )
            self._requests.append(request)
        self._verifier = Verifier(target, pool, page_table, state_pool=state_pool)
        self._graphs: VerifyGraphs | None = None
        if rounds == "eager":
            self.setting = sps_setting(target, num_requests, tiers, rounds)
            return
        self._graphs = VerifyGraphs(
            target,
            pool,
            page_table,
            VerifyTiers([num_requests], width, tiers, capture=rounds == "graphs"),
            drafter=_FixedDrafts(self._drafts[:, 1:].to(target.device, torch.int32)),
            context_len=context_len + width,
            plan_mode="compact",
            state_pool=state_pool,
        )
        self.setting = self._graphs.sps_setting()

    def requests_of(self, num_rows: int) -> int:
        """How many requests share so many rows."""
        return min(num_rows, len(self._requests))

    @torch.inference_mode()
    def seconds(self, num_rows: int, num_steps: int) -> list[float]:
        """Time so many steps of so many rows, a tier of ``setting``, one after the other.

        Raises
        ------
        ValueError
            No such tier.
        """
        if num_rows not in self.setting.tiers:
            raise ValueError(f"expected rows of a tier, {self.setting.tiers}, got {num_rows}")
        if self._graphs is None:
            return [self._eager_seconds(num_rows) for _ in range(num_steps)]
        return self._padded_seconds(self._graphs, num_rows, num_steps)

    def _eager_seconds(self, num_rows: int) -> float:
        count = self.requests_of(num_rows)
        lens = list(CaptureSlots.even(num_rows, count, self.width).lens)
        draft = DraftBatch(self._drafts[:count, : max(lens)], lens)
        begin = time.perf_counter()
        self._verifier.verify(self._requests[:count], draft, lens)
        return time.perf_counter() - begin

    def _padded_seconds(self, graphs: VerifyGraphs, num_rows: int, num_steps: int) -> list[float]:
        count = len(self._requests)
        (tier,) = (tier for tier in graphs.tiers.tiers if tier.num_rows == num_rows)
        captured = graphs.load(self._requests, None, [self.width] * count, tier)
        inputs = captured.round.inputs
        inputs.budget.fill_(num_rows - count)
        start = inputs.snapshot()

        def launch() -> LaunchedRound:
            inputs.restore(start)
            return captured.launch()

        seconds, launched = [], launch()
        begin = time.perf_counter()
        for _ in range(num_steps):
            ahead = launch()
            launched.read()
            launched, end = ahead, time.perf_counter()
            seconds.append(end - begin)
            begin = end
        launched.read()
        return seconds


class _FixedDrafts(PlainDecoding):
    """The same drafts in each round, none surer than another: a budget is spread evenly.

    drafts : int32 [B, width - 1]
    """

    def __init__(self, drafts: Tensor) -> None:
        self._drafts = drafts
        self._confidence = torch.ones(drafts.shape, device=drafts.device)

    def draft(self, slots: DraftSlots) -> DeviceDrafts:
        slots.tokens[:, 1:].copy_(self._drafts)
        return DeviceDrafts(confidence=self._confidence)
