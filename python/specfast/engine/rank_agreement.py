"""What the ranks of a process group decide together in a round."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

import torch
import torch.distributed as dist
from torch import Tensor

_logger = logging.getLogger(__name__)

_WORD_BYTES = 8
# Odd factors lose nothing modulo 2^64: any single word that differs changes the digest.
_FACTOR = 0x9E3779B97F4A7C15 - (1 << 64)


class Site(Enum):
    """Where ranks that computed for themselves could part.

    DRAFT : the drafted tokens, and their parents
    PLAN : how many rows are verified: ``verify_lens``, the budget, the tier
    ACCEPT : what the round accepted: lengths, tokens, bonus, trim
    """

    DRAFT = "draft"
    PLAN = "plan"
    ACCEPT = "accept"


@dataclass
class _Watch:
    """The values of a site since ranks were last compared, and a comparison under way."""

    digest: Tensor | None = None
    rounds: int = 0
    first_round: int = 0
    comparison: tuple[dist.Work, Tensor, int, int] | None = None


class RankAgreement:
    """One policy for all ranks of a group: where rank 0 decides, and where divergence is noticed.

    Ranks that compute logits apart may differ in the last bit, and a tied argmax or a coin beside
    its threshold makes of that another token, another path, other collectives: a hang. At a site
    that is on, the values of rank 0 take the place of those of the others, in one message. At a
    site that is off every rank goes on with its own, which are equal where all of them come from
    equal bytes (``merge_row_stats``); 64-bit digests of them are compared now and then, without
    waiting, and a difference is logged as a warning by every rank. The last comparison is the
    caller's: who ends the group calls :meth:`flush` before.

    Parameters
    ----------
    sites : collection of Site
        Where rank 0 decides.
    group : process group, optional
        Its backend has to move tensors of the devices that :meth:`decide` gets; the default group
        if absent.
    check_every : int
        Calls of a site that is off between two comparisons; 0: never.

    Raises
    ------
    ValueError
        ``check_every`` is negative.
    """

    def __init__(
        self,
        sites: Collection[Site] = tuple(Site),
        group: dist.ProcessGroup | None = None,
        *,
        check_every: int = 16,
    ) -> None:
        if check_every < 0:
            raise ValueError(f"RankAgreement: expected check_every >= 0, got {check_every}")
        self.sites = frozenset(sites)
        self._group = group
        self._check_every = check_every
        self._watches = {site: _Watch() for site in Site}

    def decide(self, site: Site, *tensors: Tensor) -> None:
        """Make the tensors those of rank 0, in place; or, where the site is off, watch them.

        All ranks call the same sites in the same order, with tensors of the same shapes and dtypes
        on one device. At a site that is on nothing is read on the host.

        Raises RuntimeError for tensors of several devices.
        """
        message = _packed(site, tensors)
        if dist.get_world_size(self._group) == 1:
            return
        if site not in self.sites:
            self._watch(site, message)
            return
        dist.broadcast(message, group=self._group, group_src=0)
        if dist.get_rank(self._group) != 0:
            _unpack(message, tensors)

    def flush(self) -> None:
        """Compare what has not been compared yet, and wait for it: all ranks, before they part."""
        for site, watch in self._watches.items():
            self._finish(site)
            if watch.digest is not None:
                self._compare(site)
                self._finish(site)

    def _watch(self, site: Site, message: Tensor) -> None:
        if self._check_every == 0:
            return
        watch = self._watches[site]
        digest = _digest(message)
        if watch.digest is not None:
            digest = watch.digest * _FACTOR + digest
        watch.digest = digest
        watch.rounds += 1
        if watch.rounds - watch.first_round == self._check_every:
            self._finish(site)
            self._compare(site)

    def _compare(self, site: Site) -> None:
        """Start to find the largest and the smallest digest of all ranks."""
        watch = self._watches[site]
        assert watch.digest is not None
        # The complement of the smallest is the largest complement.
        extremes = torch.stack([watch.digest, ~watch.digest])
        work = dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._group, async_op=True)
        watch.comparison = (work, extremes, watch.first_round, watch.rounds)
        watch.digest, watch.first_round = None, watch.rounds

    def _finish(self, site: Site) -> None:
        """Say what the comparison under way has found, if there is one."""
        watch = self._watches[site]
        if watch.comparison is None:
            return
        work, extremes, first, end = watch.comparison
        watch.comparison = None
        work.wait()
        largest, complement = extremes.tolist()
        if largest != ~complement:
            _logger.warning(
                "ranks disagree at site %s, between its rounds %d and %d: rank 0 does not decide "
                "there, and what they compute from differs",
                site.value,
                first,
                end - 1,
            )


def _packed(site: Site, tensors: tuple[Tensor, ...]) -> Tensor:
    """The bytes of the tensors, in whole words."""
    devices = {str(tensor.device) for tensor in tensors}
    if len(devices) > 1:
        raise RuntimeError(
            f"RankAgreement: expected tensors of one device at site {site.value}, got "
            f"{', '.join(sorted(devices))}"
        )
    parts = [tensor.reshape(-1).view(torch.uint8) for tensor in tensors]
    parts.append(parts[0].new_zeros(-sum(part.numel() for part in parts) % _WORD_BYTES))
    return torch.cat(parts)


def _unpack(message: Tensor, tensors: tuple[Tensor, ...]) -> None:
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    rest = message.numel() - sum(sizes)
    for tensor, part in zip(tensors, torch.split(message, [*sizes, rest]), strict=False):
        # A copy starts at an address that suits any dtype.
        tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))


def _digest(message: Tensor) -> Tensor:
    """int64: of the words and their places, modulo 2^64."""
    words = message.view(torch.int64)
    places = torch.arange(len(words), device=words.device)
    return (words * (places * _FACTOR * 2 + _FACTOR)).sum()
