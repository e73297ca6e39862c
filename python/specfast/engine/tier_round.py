"""One verify round at a tier, from inputs at fixed addresses to a record at fixed addresses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from specfast import ops
from specfast.drafters.base import DeviceDrafter, DeviceDrafts, Drafter, DraftSlots
from specfast.drafters.taps import TapRecorder, recording
from specfast.engine.packed_record import RecordShape
from specfast.engine.pool import PagedKvPool, PageTable
from specfast.engine.rank_agreement import RankAgreement, Site
from specfast.engine.round_form import RoundForm
from specfast.engine.round_inputs import RoundInputs
from specfast.engine.state_adapter import ChainRows
from specfast.engine.state_pool import StatePool
from specfast.engine.target import Target
from specfast.engine.verified_round import VerifiedRound
from specfast.engine.verify_tiers import VerifyTier
from specfast.engine.window_attention import WindowAttention
from specfast.planner import PlannerMode
from specfast.records import FinishRules, TreeRecord, VerifySchedule, VerifyWindow
from specfast.sampling import Proposal, SamplingRules

SampledRule = Literal["rejection", "target_only"]


@dataclass(frozen=True)
class RoundPlace:
    """Where rounds take place: what all tiers of an engine share."""

    target: Target
    pool: PagedKvPool
    page_table: PageTable
    recorder: TapRecorder | None
    attention_workspace: Tensor | None
    drafter: Drafter
    plan_mode: PlannerMode
    context_len: int
    width: int
    state_pool: StatePool | None = None
    agreement: RankAgreement | None = None


class TierRound:
    """Draft, layout, target, accept, relocation and the next inputs, on the device alone.

    :meth:`run` reads ``inputs`` and the pools and writes the pools and the tensors below, all of
    which stay where they are: it can be captured once and replayed. It allocates nothing that has
    to outlive it.

    packed : int32     the record, rows that the target read [B] and, with "cap-accept", rows that
                       accept looked at [B]; valid until the next run
    record : views of it
    schedule : survivals and lengths, where the drafter has confidences
    has_confidence : whether the drafter gave some in the last run
    taps : [B, N, W]   hidden states of the committed rows, in their order; what follows them
                       repeats a row. None without a recorder, or before the first run
    """

    def __init__(
        self,
        place: RoundPlace,
        tier: VerifyTier,
        form: RoundForm,
        inputs: RoundInputs,
        proposal: Proposal | None = None,
    ) -> None:
        self.inputs = inputs
        self._proposal = proposal
        self._place = place
        self._tier = tier
        self._form = form
        device = place.target.device
        slots, width = tier.num_requests, place.width
        self._shape = RecordShape(slots, width, tier.num_rows, form.logprobs is not None)
        # Each request's rows: those that the target reads and, where they differ, accept.
        is_capped = place.plan_mode == "cap-accept"
        sizes = [self._shape.num_elements, slots, slots if is_capped else 0]
        self.packed = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        self._packed_record, window_lens, capped_lens = torch.split(self.packed, sizes)
        self.record = self._shape.unpack(self._packed_record)
        self._accept_lens = capped_lens if is_capped else window_lens
        # The round's status begins with that of its window.
        self._window = replace(
            VerifyWindow.empty(slots, tier.num_rows, device, tokens_dtype=torch.int32),
            verify_lens=window_lens,
            status=self.record.status,
        )
        self._tree = None
        if form.tree:
            self._tree = TreeRecord.empty(slots, width, device, tokens_dtype=torch.int32)
        self.schedule = VerifySchedule.empty(slots, width - 1, device)
        # Of this round alone, and zeros: whoever captures it runs it before, and it resets them.
        self._accept_workspaces: dict[SampledRule, Tensor | None] = {}
        if form.rule != "greedy" and not form.tree:
            self._accept_workspaces = {
                rule: ops.accept_workspace(slots, width, device, rule=rule)
                for rule in get_args(SampledRule)
            }
        self.taps: Tensor | None = None
        self.has_confidence = False
        self._finish = FinishRules(
            stop_token_ids=inputs.stop_token_ids,
            max_tokens_left=inputs.max_tokens_left,
            min_tokens_left=inputs.min_tokens_left,
        )
        self._sampling = SamplingRules(inputs.temperature, inputs.seeds)
        if form.rule == "filtered":
            self._sampling = replace(
                self._sampling, top_k=inputs.top_k, top_p=inputs.top_p, min_p=inputs.min_p
            )

    @property
    def num_rows(self) -> int:
        """Of the target's forward, padding included."""
        return self._tier.num_rows

    def run(self) -> None:
        agreement = self._place.agreement
        place, inputs, record = self._place, self.inputs, self.record
        on_device = self._form.drafted == "device"
        # What a drafter leaves out, it leaves out of this round.
        max_lens = inputs.verify_lens.clone() if on_device else inputs.verify_lens
        slots = self._draft_slots(max_lens)
        drafts = self._draft(slots)
        if on_device and agreement is not None and Site.DRAFT in agreement.sites:
            agreement.decide(Site.DRAFT, max_lens, *self._drafted())
        self._lay_out(drafts, max_lens)
        tree_mask = self._lay_out_tree()
        attention = WindowAttention(
            place.pool,
            self._window,
            place.page_table.pages,
            inputs.page_table_rows,
            inputs.prefix_lens,
            place.width,
            place.attention_workspace,
            tree_mask,
        )
        states = None
        if place.state_pool is not None:
            rows = ChainRows.of_window(self._window, place.width)
            states = place.state_pool.over(rows, inputs.page_table_rows)
        with recording(place.recorder):
            logits = place.target.forward(
                self._window.input_ids, self._positions(), attention, states
            )
        self._accept(logits, drafts)
        if agreement is not None and Site.ACCEPT in agreement.sites:
            # Before anything moves.
            agreement.decide(Site.ACCEPT, self._packed_record)
        if self._tree is not None:
            assert place.pool.layout is not None  # recurrent targets have no trees
            ops.relocate_kv(
                place.pool.layout,
                record.accept_index,
                record.commit_lens,
                out_cache_loc=self._window.out_cache_loc,
                qo_indptr=self._window.qo_indptr,
                status=record.status,
                accumulate_status=True,
            )
        if states is not None:
            states.commit(record)
        self._commit_taps()
        if on_device:
            cast(DeviceDrafter, place.drafter).committed(slots, record, self.taps)
        inputs.advance(record)

    def watch(self) -> None:
        """After a run: have the ranks compared at sites where each of them decides for itself."""
        agreement = self._place.agreement
        if agreement is None:
            return
        if Site.ACCEPT not in agreement.sites:
            agreement.decide(Site.ACCEPT, self._packed_record)
        if self._form.drafted == "device" and Site.DRAFT not in agreement.sites:
            agreement.decide(Site.DRAFT, *self._drafted())

    def _drafted(self) -> list[Tensor]:
        return [self.inputs.tokens, *([self.inputs.parents] if self._form.tree else [])]

    def unpack(self, packed: Tensor) -> VerifiedRound:
        """The round, of all slots, from a copy of ``packed`` on the host."""
        size = self._shape.num_elements
        record = self._shape.unpack(packed[:size])
        window_lens, *capped_lens = packed[size:].view(-1, self._tier.num_requests).tolist()
        taps = None
        # A drafter on the device has seen them in the round; the next one is overwriting them.
        if self.taps is not None and self._form.drafted == "host":
            counts = record.commit_lens.tolist()
            taps = [rows[:n] for rows, n in zip(self.taps, counts, strict=True)]
        first_rows = VerifiedRound.of(record, window_lens).first_rows
        accept_lens = capped_lens[0] if capped_lens else window_lens
        return VerifiedRound(record, accept_lens, first_rows, taps)

    def _draft_slots(self, max_lens: Tensor) -> DraftSlots:
        inputs = self.inputs
        return DraftSlots(
            tokens=inputs.tokens,
            verify_lens=max_lens,
            tokens_left=inputs.max_tokens_left,
            prefix_lens=inputs.prefix_lens,
            page_table_rows=inputs.page_table_rows,
            sampling=self._sampling,
            is_sampled=self._form.is_sampled,
            parents=inputs.parents if self._form.tree else None,
        )

    def _draft(self, slots: DraftSlots) -> DeviceDrafts:
        if self._form.drafted == "host":
            return DeviceDrafts(self._proposal)
        drafts = cast(DeviceDrafter, self._place.drafter).draft(slots)
        if not isinstance(drafts, DeviceDrafts):
            raise RuntimeError(
                f"drafter: expected draft to return DeviceDrafts, got {type(drafts).__name__}"
            )
        return drafts

    def _lay_out(self, drafts: DeviceDrafts, max_lens: Tensor) -> None:
        """Lay the target's rows out, and say how many of them accept may look at."""
        place, inputs, window, record = self._place, self.inputs, self._window, self.record
        is_planned = self._plan(drafts, max_lens)
        planned_lens = self.schedule.verify_lens if is_planned else max_lens
        is_capped = self._accept_lens is not window.verify_lens
        ops.build_verify_window(
            inputs.tokens,
            inputs.prefix_lens,
            place.page_table.pages,
            num_rows=self._tier.num_rows,
            page_size=place.pool.page_size,
            verify_lens=max_lens if is_capped else planned_lens,
            page_table_rows=inputs.page_table_rows,
            context_len=place.context_len,
            vocab_size=place.target.vocab_size,
            padding_slot=place.pool.padding_slot,
            out=window,
        )
        if is_capped:
            torch.minimum(window.verify_lens, planned_lens, out=self._accept_lens)
        if is_planned:
            record.status.bitwise_or_(self.schedule.status)
        if drafts.status is not None:
            record.status.bitwise_or_(drafts.status)

    def _plan(self, drafts: DeviceDrafts, max_lens: Tensor) -> bool:
        """Fill ``schedule``, if there is something to plan by."""
        inputs = self.inputs
        self.has_confidence = drafts.confidence is not None
        if drafts.confidence is None or self._place.plan_mode == "static":
            return False
        ops.schedule_verify_lens(
            drafts.confidence,
            inputs.budget,
            form=drafts.confidence_form,
            temperatures=drafts.temperatures,
            max_lens=max_lens,
            anchors=inputs.tokens[:, 0].contiguous(),
            # The tier is chosen: a row that is left out would only be padding.
            epsilon=0.0,
            out=self.schedule,
        )
        return True

    def _lay_out_tree(self) -> Tensor | None:
        """The window's mask."""
        if self._tree is None:
            return None
        inputs = self.inputs
        ops.tree_from_parents(
            inputs.tokens,
            inputs.parents,
            inputs.prefix_lens,
            verify_lens=self._window.verify_lens,
            out=self._tree,
        )
        self.record.status.bitwise_or_(self._tree.status)
        return self._tree.mask

    def _positions(self) -> Tensor:
        if self._tree is None:
            return self._window.positions
        node = self._window.window_index.clamp(min=0)
        return self._tree.positions.flatten().index_select(0, node)

    def _accept(self, logits: Tensor, drafts: DeviceDrafts) -> None:
        inputs, window, tree = self.inputs, self._window, self._tree
        if tree is None:
            accept = partial(ops.accept_chain, inputs.tokens, inputs.prefix_lens)
        else:
            accept = partial(
                ops.accept_tree,
                inputs.tokens,
                tree.retrieve_next_token,
                tree.retrieve_next_sibling,
                inputs.prefix_lens,
                width=self._place.width,
            )
        accept = partial(
            accept,
            target_logits=logits,
            qo_indptr=window.qo_indptr,
            verify_lens=self._accept_lens,
            finish=self._finish,
            out_cache_loc=window.out_cache_loc,
            out=self.record,
            accumulate_status=True,
        )
        if self._form.rule == "greedy":
            accept()
            return
        accept = partial(accept, sampling=self._sampling, logprobs=self._form.logprobs)
        rule: SampledRule = "target_only"
        if drafts.proposal is not None:
            rule = "rejection"
            accept = partial(accept, proposal=drafts.proposal)
        if tree is None:
            accept = partial(accept, workspace=self._accept_workspaces[rule])
        accept(rule=rule)

    def _commit_taps(self) -> None:
        recorder = self._place.recorder
        if recorder is None:
            return
        taps = recorder.taps()[0]
        slots, width = self.record.accept_index.shape
        if self.taps is None:
            self.taps = taps.new_empty(slots, width, taps.shape[1])
        rows = self.record.accept_index.clamp(min=0).flatten()
        torch.index_select(taps, 0, rows, out=self.taps.view(slots * width, -1))
