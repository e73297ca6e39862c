"""What an engine cannot be built from."""

from __future__ import annotations

from specfast.engine.verify_tiers import VerifyTiers


def check_options(
    sizes: dict[str, int | None],
    *,
    verify_width: int,
    seed: int | None,
    tiers: VerifyTiers | None,
    has_planning: bool,
) -> None:
    """Raise ValueError for sizes below 1 (None is none), and for options that contradict others."""
    for name, value in {**sizes, "verify_width": verify_width}.items():
        if value is not None and value < 1:
            raise ValueError(f"Engine: expected {name} >= 1, got {value}")
    if seed is not None and not 0 <= seed < 2**64:
        raise ValueError(f"Engine: expected seed in [0, 2^64), got {seed}")
    if tiers is None and has_planning:
        raise ValueError("Engine: expected tiers for planning, got none")
    if tiers is not None and tiers.width > verify_width:
        raise ValueError(
            f"Engine: expected tiers of at most verify_width = {verify_width} rows per request, "
            f"got {tiers.width}"
        )
