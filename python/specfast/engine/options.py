"""What an engine cannot be built from."""

from __future__ import annotations

from inspect import getattr_static

from specfast.drafters.base import Drafter, PlainDecoding
from specfast.engine.verify_tiers import VerifyTiers

# Of ``Drafter``, ``TapDrafter`` and ``DeviceDrafter``.
_ALWAYS = ("propose", "release")
_OF_TAPS = ("tap_layers", "observe")
_ON_DEVICE = ("drafts_trees", "attach", "begin", "draft", "committed")


def check_engine_options(
    sizes: dict[str, int | None],
    *,
    verify_width: int,
    seed: int | None,
    tiers: VerifyTiers | None,
    has_planning: bool,
    attention_backend: str | None,
) -> None:
    """Raise ValueError for sizes below 1 (None is none), and for options that contradict others."""
    for name, value in {**sizes, "verify_width": verify_width}.items():
        if value is not None and value < 1:
            raise ValueError(f"Engine: expected {name} >= 1, got {value}")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"Engine: expected seed in [0, 2^64), got {seed}")
    if attention_backend not in (None, "flashinfer"):
        raise ValueError(
            f'Engine: expected attention_backend None or "flashinfer", got {attention_backend!r}'
        )
    if tiers is not None and attention_backend is not None:
        raise ValueError(
            'Engine: expected no tiers with attention_backend "flashinfer", which plans each round '
            "on the host"
        )
    if tiers is None and has_planning:
        raise ValueError("Engine: expected tiers for planning, got none")
    if tiers is not None and tiers.width > verify_width:
        raise ValueError(
            f"Engine: expected tiers of at most verify_width = {verify_width} rows per request, "
            f"got {tiers.width}"
        )


def checked_drafter(drafter: Drafter | None) -> Drafter:
    """Plain decoding for None; ValueError for a drafter that is one in part.

    What has a few members of a ``DeviceDrafter`` would otherwise be taken for a drafter on the
    host, and nobody would say so.
    """
    if drafter is None:
        return PlainDecoding()

    def lacking(names: tuple[str, ...]) -> list[str]:
        absent = object()
        return [name for name in names if getattr_static(drafter, name, absent) is absent]

    wanted, lacks = [*_ALWAYS], lacking(_ALWAYS)
    for names in (_OF_TAPS, _ON_DEVICE):
        if len(lacking(names)) < len(names):
            wanted += names
            lacks += lacking(names)
    if lacks:
        raise ValueError(
            f"Engine: expected drafter with {', '.join(wanted)}, "
            f"got {type(drafter).__name__} without {', '.join(lacks)}"
        )
    return drafter
