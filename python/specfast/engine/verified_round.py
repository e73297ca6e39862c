"""What a verify round gives the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor

from specfast.records import AcceptRecord


@dataclass(frozen=True)
class VerifiedRound:
    """One round of B requests.

    record : AcceptRecord      on the host
    verify_lens : B ints       rows that were verified
    first_rows : B ints        where they begin in ``record.predict``
    taps : B tensors [n, W]    hidden states of the n committed rows of each request, on the device;
                               None where no drafter reads them
    """

    record: AcceptRecord
    verify_lens: list[int]
    first_rows: list[int]
    taps: list[Tensor] | None = None

    @classmethod
    def of(
        cls, record: AcceptRecord, verify_lens: Sequence[int], taps: list[Tensor] | None = None
    ) -> VerifiedRound:
        """A round whose requests lie one behind the other."""
        lens = list(verify_lens)
        return cls(record, lens, list(accumulate(lens[:-1], initial=0)), taps)

    def of_slots(self, slots: Sequence[int]) -> VerifiedRound:
        """What concerns the requests at ``slots``, in this order."""
        record, chosen = self.record, list(slots)
        return VerifiedRound(
            AcceptRecord(
                per_request=record.per_request[:, chosen],
                per_step=record.per_step[:, chosen],
                predict=record.predict,
                slots=None if record.slots is None else record.slots[chosen],
                logprobs=None if record.logprobs is None else record.logprobs[chosen],
            ),
            [self.verify_lens[slot] for slot in chosen],
            [self.first_rows[slot] for slot in chosen],
            None if self.taps is None else [self.taps[slot] for slot in chosen],
        )
