"""Verify rounds as CUDA Graphs: captured once per tier and form, replayed."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import torch

from specfast.drafters.base import DeviceDrafter, DraftBatch, Drafter
from specfast.drafters.taps import TapRecorder
from specfast.engine.captured_round import CapturedRound
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.rank_agreement import RankAgreement
from specfast.engine.requests import Request
from specfast.engine.round_form import RoundForm, why_eager
from specfast.engine.round_inputs import RoundInputs
from specfast.engine.round_proposal import ProposalForm, RoundProposal
from specfast.engine.sps_setting import WayOfRounds, sps_setting
from specfast.engine.state_pool import StatePool
from specfast.engine.target import Target
from specfast.engine.tier_round import RoundPlace, TierRound
from specfast.engine.verified_round import VerifiedRound
from specfast.engine.verify_tiers import VerifyTier, VerifyTiers
from specfast.engine.window_attention import attention_workspace, why_not_padded
from specfast.planner import PlannerMode, SpsSetting
from specfast.sampling import Proposal

_logger = logging.getLogger(__name__)


class VerifyGraphs:
    """Verify rounds padded to tiers, on a GPU as one replay each.

    One graph holds a whole round: rows and trees, the target's forward, accept with truncation, the
    relocation of KV, the hidden states of committed rows, and what the next round starts from. Its
    inputs come in one copy, its record goes in one.

    A form of rounds (chains or trees, greedy or sampled ...) is captured when it is first met or
    when :meth:`capture` is called, for all tiers, the largest first, so that the smaller ones find
    room in its memory pool. What no graph holds runs eagerly, and the reason is logged once.

    Lifetimes: a tier's tensors keep their addresses until the object ends; the record of a round
    and its taps are good until the next round of the tier, or, on the host, the next but one.

    Parameters
    ----------
    target, pool, page_table
        Whose rounds these are; they keep their storage.
    tiers : VerifyTiers
    drafter : Drafter
        Of forms that are drafted on the device it has to be a ``DeviceDrafter``.
    context_len : int
        Positions that a request may have.
    recorder : TapRecorder, optional
        Of the hidden states that the drafter reads.
    plan_mode : PlannerMode
        What a round does with confidences of a drafter on the device; with "static" nothing.
    state_pool : StatePool, optional
        Of a target with recurrent layers.
    agreement : RankAgreement, optional
        Whose drafts and accepted paths hold, by collectives within the rounds.

    Raises
    ------
    ValueError
        Tiers to be captured for a target on a CPU; a target whose attention
        ``ops.verify_attention`` does not know; trees of the device for one with recurrent layers.
    """

    def __init__(
        self,
        target: Target,
        pool: PagedKvPool,
        page_table: PageTable,
        tiers: VerifyTiers,
        *,
        drafter: Drafter,
        context_len: int,
        recorder: TapRecorder | None = None,
        plan_mode: PlannerMode = "static",
        state_pool: StatePool | None = None,
        agreement: RankAgreement | None = None,
    ) -> None:
        most = max(tier.num_requests for tier in tiers.tiers)
        why_not = why_not_padded(target.kv_shapes.values(), most, tiers.width)
        if why_not is not None:
            raise ValueError(f"rounds of this target cannot be padded to these tiers: {why_not}")
        if state_pool is not None and isinstance(drafter, DeviceDrafter) and drafter.drafts_trees:
            raise ValueError(
                "drafter: expected chains for a target with recurrent layers, got one of trees"
            )
        self.tiers = tiers
        self.device = target.device
        self._on_gpu = target.device.type == "cuda"
        self._captures = self._on_gpu if tiers.capture is None else tiers.capture
        if self._captures and not self._on_gpu:
            raise ValueError(
                f"expected a target on a GPU to capture its rounds, got one on {target.device}"
            )
        if self._captures and agreement is not None:
            self._captures = False
            _logger.info("rounds at tiers run kernel by kernel: they hold collectives")
        self._place = RoundPlace(
            target=target,
            pool=pool,
            page_table=page_table,
            recorder=recorder,
            attention_workspace=attention_workspace(
                target, tiers, context_len, pool.num_pages * pool.page_size
            ),
            drafter=drafter,
            plan_mode=plan_mode,
            context_len=context_len,
            width=tiers.width,
            state_pool=state_pool,
            agreement=agreement,
        )
        self._memory_pool = torch.cuda.graph_pool_handle() if self._captures else None
        self._inputs = {
            size: RoundInputs(size, tiers.width, target.device)
            for size in {tier.num_requests for tier in tiers.tiers}
        }
        self._proposals: dict[tuple[ProposalForm, int], RoundProposal] = {}
        self._rounds: dict[RoundForm, dict[VerifyTier, CapturedRound]] = {}
        self._logged: set[str] = set()

    @property
    def has_agreement(self) -> bool:
        return self._place.agreement is not None

    def sps_setting(self) -> SpsSetting:
        """What an SPS table of these rounds is true of.

        Raises
        ------
        ValueError
            Tiers of several batch sizes: rows cost another time in each.
        """
        sizes = sorted(self._inputs)
        if len(sizes) > 1:
            raise ValueError(f"SPS table: expected tiers of one batch size, got those of {sizes}")
        rows = [tier.num_rows for tier in self.tiers.tiers]
        way: WayOfRounds = "graphs" if self._captures else "padded"
        return sps_setting(self._place.target, sizes[0], rows, way, self._place.pool.dtype)

    def tier_of(
        self, requests: Sequence[Request], draft: DraftBatch | None, num_rows: int
    ) -> VerifyTier | None:
        """The tier that a round will run at; None, and the reason logged, if it runs eagerly."""
        reason = why_eager(requests, draft)
        width = 1 if draft is None else draft.tokens.shape[1]
        if reason is None and width > self.tiers.width:
            reason = f"drafts have {width} rows, and tiers {self.tiers.width} per request"
        tier = self.tiers.holding(len(requests), num_rows)
        if reason is None and tier is None:
            reason = f"no tier holds {len(requests)} requests of {num_rows} rows"
        if reason is None:
            return tier
        kind = re.sub(r"\d+", "#", reason)
        if kind not in self._logged:
            self._logged.add(kind)
            _logger.info("a round runs eagerly: %s", reason)
        return None

    def form_of(self, requests: Sequence[Request], draft: DraftBatch | None) -> RoundForm:
        """Of a round that :meth:`tier_of` has a tier for; without a ``draft`` the device drafts."""
        return RoundForm.of(requests, draft, self._place.drafter)

    def at(self, form: RoundForm, tier: VerifyTier) -> CapturedRound:
        """A round of ``form`` at ``tier``; those of one batch size share their inputs."""
        if form not in self._rounds:
            self.capture(form)
        return self._rounds[form][tier]

    def load(
        self,
        requests: Sequence[Request],
        draft: DraftBatch | None,
        verify_lens: Sequence[int],
        tier: VerifyTier,
    ) -> CapturedRound:
        """Make a round at ``tier`` ready to be launched."""
        form = self.form_of(requests, draft)
        if form.proposal is not None and draft is not None and draft.proposal is not None:
            self._room_for(form.proposal, draft.proposal)
            place = self._proposals[form.proposal, tier.num_requests]
            place.load(draft.proposal, draft.tokens)
        captured = self.at(form, tier)
        self._place.page_table.flush()
        captured.round.inputs.load(requests, draft, verify_lens)
        return captured

    def _room_for(self, form: ProposalForm, like: Proposal) -> None:
        for size in self._inputs:
            if (form, size) not in self._proposals:
                room = RoundProposal(like, size, self.tiers.width, self.device)
                self._proposals[form, size] = room

    def verify(
        self, requests: Sequence[Request], draft: DraftBatch, verify_lens: Sequence[int]
    ) -> VerifiedRound | None:
        """Run a round at the smallest tier that holds it; None if it has to run eagerly."""
        tier = self.tier_of(requests, draft, sum(verify_lens))
        if tier is None:
            return None
        launched = self.load(requests, draft, verify_lens, tier).launch()
        return launched.read().of_slots(range(len(requests)))

    @torch.inference_mode()
    def capture(self, form: RoundForm) -> None:
        """Make the rounds of ``form`` for every tier, if there are none yet.

        Raises
        ------
        ValueError
            A proposal that no draft has had yet.
        RuntimeError
            From torch: a target, or a drafter, that waits for the device cannot be captured.
        """
        if form in self._rounds:
            return
        if form.proposal is not None and not any(f == form.proposal for f, _ in self._proposals):
            raise ValueError("VerifyGraphs.capture: no draft has had a proposal of this form yet")
        rounds = {}
        for tier in reversed(self.tiers.tiers):
            inputs = self._inputs[tier.num_requests]
            proposal = None
            if form.proposal is not None:
                proposal = self._proposals[form.proposal, tier.num_requests].proposal
            round_ = TierRound(self._place, tier, form, inputs, proposal)
            if self._captures:
                rounds[tier] = CapturedRound.capture(round_, self.device, self._memory_pool)
            else:
                rounds[tier] = CapturedRound(round_, None)
        self._rounds[form] = rounds
