"""The engine: admits requests, drafts, verifies, commits."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specfast.drafters.base import Drafter
from specfast.engine.agreed_draft import agreed_draft, agreed_plan
from specfast.engine.draft_checks import check_draft
from specfast.engine.intake import RequestIntake
from specfast.engine.invariants import check_pages, check_round
from specfast.engine.layer_kv import Float8Kv
from specfast.engine.observer import Observer
from specfast.engine.options import check_engine_options, checked_drafter
from specfast.engine.output_streams import OutputStreams
from specfast.engine.pool import PageTable, default_num_pages
from specfast.engine.rank_agreement import RankAgreement
from specfast.engine.request_pages import RequestPages
from specfast.engine.requests import Generation, Request, RoundOutput
from specfast.engine.round_outputs import round_outputs, until_stop_string
from specfast.engine.rounds_at_tiers import RoundsAtTiers
from specfast.engine.state_adapter import StateAdapter
from specfast.engine.state_pool import StatePool
from specfast.engine.target import Target, as_target
from specfast.engine.verified_round import VerifiedRound
from specfast.engine.verifier import Verifier
from specfast.engine.verify_graphs import VerifyGraphs
from specfast.engine.verify_tiers import VerifyTiers
from specfast.planner import Planning
from specfast.sampling_params import SamplingParams


class Engine:
    """Speculative decoding of several requests at once over a paged KV pool, greedy or sampled.

    Requests join and leave between rounds. A request joins when the pool has room for the longest
    it may become, so a running request never waits for pages.

    Parameters
    ----------
    target : transformers causal LM, or Target
        Any that :class:`~specfast.engine.target.Target` supports, on its device and in its dtype.
    drafter : Drafter, optional
        Without one every round emits one token per request: plain decoding.
    max_batch_size : int
        Requests decoded at once.
    page_size : int
        Tokens per KV page.
    num_pages : int, optional
        Size of the pool; a request cannot grow beyond it. Default: 2048 tokens for each of
        ``max_batch_size`` requests, at least 16384, but no more than their contexts hold.
    verify_width : int
        Rows verified per request and round at most, the anchor included.
    seed : int, optional
        From which requests that bring no seed get theirs: request number n the one that
        :func:`~specfast.sampling_params.derived_seed` gives, no two of them equal. Drawn at random
        if absent, and then kept in ``engine.seed``.
    tokenizer : transformers tokenizer, optional
        Finds stop strings; needed for requests that have some.
    agreement : RankAgreement, optional
        For one engine per rank of a process group, each with the same requests in the same order
        and with the same ``seed``: whose drafts, plan and accepted paths hold. Absent: each its
        own.
    tiers : VerifyTiers, optional
        Sizes that verify rounds are padded to and, on a GPU, captured for as CUDA Graphs (see
        :class:`~specfast.engine.verify_graphs.VerifyGraphs`). Absent: every round is laid out by
        itself and runs kernel by kernel.
    planning : Planning, optional
        How many drafts a round verifies, where ``drafter`` has confidences; needs ``tiers``.
    state_adapter : StateAdapter, optional
        Knows the states of a target with recurrent layers, which is refused without one. Drafts
        for such a target are chains.
    float8_kv : Float8Kv, optional
        Keeps keys and values in float8_e4m3fn, with these scales; absent: in the target's dtype.
    attention_backend : "flashinfer", optional
        Who attends in prefills and rounds, without tiers (docs/engine.md). Absent: torch's SDPA.
    check_invariants : bool
        Check the invariants of a round after each one, on the host; a violation raises
        RuntimeError.

    Raises
    ------
    ValueError
        A size below 1, a model that is no target, half a drafter, tiers or scales not for this
        target;
        planning without tiers, in a mode not for this drafter, by an SPS table of another setting.

    Notes
    -----
    A greedy request's tokens are the argmax of their rows, so its output is that of plain decoding
    as far as the target gives a row the same logits in every batch (see docs/numerics.md).

    A sampled request's output has the law of plain sampling, whoever drafts. Its random numbers
    depend on its seed, on the length of its text before the round, and on the node of the draft,
    so that, the logits being equal, its tokens are the same alone and in any batch. Other drafts
    give another output of the same law. Greedy and sampled requests share rounds.

    Not here: prefix sharing between requests, chunked prefill, preemption.
    """

    def __init__(
        self,
        target: PreTrainedModel | Target,
        drafter: Drafter | None = None,
        *,
        max_batch_size: int = 8,
        page_size: int = 16,
        num_pages: int | None = None,
        verify_width: int = 8,
        seed: int | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        agreement: RankAgreement | None = None,
        tiers: VerifyTiers | None = None,
        planning: Planning | None = None,
        state_adapter: StateAdapter | None = None,
        float8_kv: Float8Kv | None = None,
        attention_backend: Literal["flashinfer"] | None = None,
        check_invariants: bool = True,
    ) -> None:
        check_engine_options(
            {"max_batch_size": max_batch_size, "page_size": page_size, "num_pages": num_pages},
            verify_width=verify_width,
            seed=seed,
            tiers=tiers,
            has_planning=planning is not None,
            attention_backend=attention_backend,
        )
        self.target = as_target(target, state_adapter)
        self.drafter = checked_drafter(drafter)
        self.verify_width = verify_width
        self.seed = secrets.randbits(64) if seed is None else seed
        self.check_invariants = check_invariants
        if num_pages is None:
            num_pages = default_num_pages(self.target.context_length, max_batch_size, page_size)
        self.pool = self.target.kv_pool(num_pages, page_size, float8_kv)
        pool_tokens = num_pages * page_size
        self.context_length = min(self.target.context_length or pool_tokens, pool_tokens)
        pages_per_request = self.pool.pages_for(self.context_length)
        self._page_table = PageTable(
            max_batch_size, pages_per_request, page_size, self.target.device
        )
        self._pages = RequestPages(self.pool, self._page_table, self.drafter)
        self.state_pool = StatePool.of(self.target, max_batch_size)
        self._agreement = agreement
        self._observer = Observer(self.target.model, self.drafter)
        recorder = self._observer.recorder
        shared = self.target, self.pool, self._page_table, agreement, recorder, self.state_pool
        self._verifier = Verifier(*shared, attention_backend)
        at_tiers = RoundsAtTiers()
        if tiers is not None:
            graphs = VerifyGraphs(
                self.target,
                self.pool,
                self._page_table,
                tiers,
                drafter=self.drafter,
                context_len=self.context_length,
                recorder=recorder,
                plan_mode="static" if planning is None else planning.mode,
                state_pool=self.state_pool,
                agreement=agreement,
            )
            reserve = self._pages.reserve
            at_tiers = RoundsAtTiers.of(graphs, self.drafter, planning, max_batch_size, reserve)
        self.graphs, self._planner = at_tiers.graphs, at_tiers.planner
        self._ahead, self._host_plan = at_tiers.ahead, at_tiers.host_plan
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []
        self._intake = RequestIntake(
            vocab_size=self.target.vocab_size,
            context_length=self.context_length,
            verify_width=verify_width,
            page_size=page_size,
            seed=self.seed,
            tokenizer=tokenizer,
        )
        self._streams = OutputStreams(self.step, self.cancel)

    @property
    def has_unfinished(self) -> bool:
        """Whether :meth:`step` has something to do or to tell."""
        return bool(self._waiting or self._running or self._streams.has_untold)

    def add_request(self, prompt_ids: Sequence[int], params: SamplingParams | None = None) -> int:
        """Queue a prompt and return the request's id.

        Raises
        ------
        ValueError
            An empty prompt, an id outside the vocabulary, or a prompt that leaves the context no
            room for a new token; params that this engine cannot follow.
        """
        request = self._intake.new_request(prompt_ids, params)
        self._waiting.append(request)
        return request.request_id

    def cancel(self, request_id: int) -> bool:
        """End a request between two steps, waiting or running; its pages are free at once.

        The next step returns its last output, without tokens and with ``FinishReason.ABORT``. False
        where there is no such request any more: it may have ended just before. Engines with an
        agreement have to be told alike.
        """
        waiting = next((r for r in self._waiting if r.request_id == request_id), None)
        running = next((r for r in self._running if r.request_id == request_id), None)
        if waiting is not None:
            self._waiting.remove(waiting)
        elif running is not None:
            self._leave(running)
        else:
            return False
        self._streams.abort(request_id)
        if running is not None:
            self.drafter.release(request_id)
        return True

    def seed_of(self, request_id: int, params: SamplingParams) -> int:
        """The seed that the request uses: its own, or what the engine's seed gives it."""
        return self._intake.seed_of(request_id, params)

    @torch.inference_mode()
    def step(self) -> list[RoundOutput]:
        """Prefill one request that has joined, or else run one round of all that are running.

        A step whose forward fails (out of memory) commits nothing; the next one tries it again, or,
        where the target is recurrent, prefills each running request's text to have its state.
        Where the drafter fails at what was committed, the next step returns that.
        Returns one output for each request that took part, at least one token in each; or, where
        requests were cancelled since the last step, their last outputs alone.

        Raises
        ------
        RuntimeError
            A draft of wrong shape, a drafter that serves another engine, a broken invariant.
        """
        try:
            with self._streams.in_step():
                return self._step()
        except BaseException:
            if self._planner is not None:
                self._planner.forget()
            if self.target.is_recurrent:
                if self._ahead is not None:
                    self._ahead.forget()
                self._start_over(self._running)
            raise

    def _step(self) -> list[RoundOutput]:
        if self._streams.has_untold:
            return self._streams.take_untold()
        self._pages.require_drafter()
        self._admit()
        fresh = next((r for r in self._running if r.committed_len == 0), None)
        if self._ahead is not None and self._ahead.in_flight:
            aboard = [request for request in self._running if request.committed_len > 0]
            flown = self._ahead.proceed(aboard, has_joined=fresh is not None)
            if flown is not None:
                return self._commit(*flown)
        if fresh is not None:
            return [self._prefill(fresh)]
        if not self._running:
            return []
        if self._ahead is not None and self._ahead.can_go_on(self._running):
            return self._commit(*self._ahead.advance(self._running))
        return self._round(list(self._running))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams | None = None,
        on_round: Callable[[RoundOutput], None] | None = None,
    ) -> list[Generation]:
        """Decode all prompts to their ends; ``on_round`` sees every output as it is decided.

        Raises ValueError as :meth:`add_request` does, before anything is decoded. Where a step or
        ``on_round`` raises, what is left of the prompts is cancelled.
        """
        requests = [self._intake.new_request(prompt, params) for prompt in prompts]
        self._waiting += requests
        generations = {r.request_id: Generation(r.request_id, list(r.token_ids)) for r in requests}
        with self._streams.cancelled_if_it_fails(generations):
            while any(not g.finish_reason for g in generations.values()):
                for output in self.step():
                    if on_round is not None:
                        on_round(output)
                    if output.request_id in generations:
                        generations[output.request_id].append(output)
        return list(generations.values())

    def stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams | None = None
    ) -> Iterator[RoundOutput]:
        """The outputs of these prompts as they are decided, an iterator to be used at once.

        The prompts are queued by this call, which raises ValueError as :meth:`add_request` does;
        decoding goes on as the iterator is read. Several streams may be read in turns: each turn
        decodes for all. A stream that is closed early cancels what it has left.
        """
        requests = [self._intake.new_request(prompt, params) for prompt in prompts]
        self._waiting += requests
        return self._streams.read([request.request_id for request in requests])

    def _admit(self) -> None:
        """Take from the queue, in order, what fits beside the running requests."""
        reserved = sum(request.reserved_pages for request in self._running)
        while self._waiting and self._page_table.has_free_row:
            reserved += self._waiting[0].reserved_pages
            if reserved > self.pool.num_pages:
                break
            request = self._waiting.popleft()
            request.slot = self._page_table.take_row()
            self._running.append(request)

    def _prefill(self, request: Request) -> RoundOutput:
        prompt_len = len(request.token_ids)
        self._pages.allocate(request, prompt_len)
        verified = self._verifier.prefill(request)
        # The last prompt token was the anchor of a round without drafts.
        request.committed_len = prompt_len - 1
        return self._commit([request], verified)[0]

    def _round(self, requests: list[Request]) -> list[RoundOutput]:
        draft = self.drafter.propose(requests, self.verify_width)
        check_draft(draft, len(requests), self.verify_width, chains_only=self.target.is_recurrent)
        if self._agreement is not None:
            draft = agreed_draft(self._agreement, draft, self.verify_width, self.target.device)
        prefix_lens = [request.committed_len for request in requests]
        verify_lens = [
            max(1, min(wanted, draft.tokens.shape[1], self.context_length - prefix_len))
            for wanted, prefix_len in zip(draft.verify_lens, prefix_lens, strict=True)
        ]
        if self._host_plan is not None:
            draft, verify_lens = self._host_plan.cut(requests, draft, verify_lens)
        graphs = self.graphs
        at_tier = graphs is not None and bool(graphs.tier_of(requests, draft, sum(verify_lens)))
        if self._agreement is not None:
            draft, verify_lens, at_tier = agreed_plan(
                self._agreement, draft, verify_lens, at_tier, self.target.device
            )
        for request, prefix_len, rows in zip(requests, prefix_lens, verify_lens, strict=True):
            self._pages.allocate(request, prefix_len + rows)
        verified = graphs.verify(requests, draft, verify_lens) if graphs and at_tier else None
        if verified is None:
            verified = self._verifier.verify(requests, draft, verify_lens)
        if draft.status is not None:
            verified.record.status.bitwise_or_(torch.tensor(draft.status, dtype=torch.int32))
        return self._commit(requests, verified)

    def _start_over(self, requests: Sequence[Request]) -> None:
        """Make what is kept of these requests beside their KV from their texts.

        As if they had just joined: a round may have gone on that the host, or the drafter, knows
        nothing of.
        """
        for request in requests:
            if request.committed_len > 0:
                request.committed_len = 0
                self.drafter.release(request.request_id)

    def _commit(self, requests: Sequence[Request], verified: VerifiedRound) -> list[RoundOutput]:
        record, verify_lens = verified.record, verified.verify_lens
        prefix_lens = [request.committed_len for request in requests]
        outputs = round_outputs(requests, verified)
        for request, output, new_len in zip(
            requests, outputs, record.new_seq_lens.tolist(), strict=True
        ):
            request.token_ids += output.token_ids
            request.committed_len = new_len
        if self.check_invariants:
            check_round(requests, prefix_lens, verify_lens, record, self.pool, verified.first_rows)
        outputs = [until_stop_string(*pair) for pair in zip(requests, outputs, strict=True)]
        ended = [r for r, output in zip(requests, outputs, strict=True) if output.finish_reason]
        for request in ended:
            self._leave(request)
        if self.check_invariants:
            check_pages(self._running, self.pool)
        self._streams.deliver(outputs)
        try:
            for request in ended:
                self.drafter.release(request.request_id)
            self._observer.committed(requests, outputs, verified.taps)
        except BaseException:
            # What is decided is told, if only by the next step.
            self._streams.keep(outputs)
            if verified.taps is not None:
                self._start_over([request for request in requests if request not in ended])
            raise
        return outputs

    def _leave(self, request: Request) -> None:
        self._pages.release(request)
        self._running.remove(request)
