"""What a step of the target costs, by rows: measured once, kept in a file, true of one setting."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specfast.planner.tiers import Tiers


@dataclass(frozen=True)
class TierRates:
    """Steps per second of each tier, in the order of the tiers."""

    tiers: tuple[int, ...]
    steps_per_second: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.steps_per_second) != len(self.tiers):
            raise ValueError(
                f"SPS table: expected steps_per_second of {len(self.tiers)} tiers, "
                f"got {len(self.steps_per_second)}"
            )
        _require_positive("steps_per_second", self.steps_per_second)

    def rate(self, num_requests: int, tier: int) -> float:
        """Steps per second of a step of ``tier`` rows."""
        return self.steps_per_second[bisect.bisect_left(self.tiers, tier)]


@dataclass(frozen=True)
class AdditiveSeconds:
    """Seconds of a step as a sum: a constant, a part by requests, a part by rows.

    Parts are points (number, seconds), ascending, with straight lines between them and constant
    outside.
    """

    bias: float
    by_requests: tuple[tuple[int, float], ...]
    by_rows: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        _require_positive("seconds.bias", [self.bias])
        for name, points in (("by_requests", self.by_requests), ("by_rows", self.by_rows)):
            numbers = [number for number, _ in points]
            if not points or numbers != sorted(set(numbers)):
                raise ValueError(
                    f"SPS table: expected ascending points in seconds.{name}, got {numbers}"
                )
            _require_positive(f"seconds.{name}", [seconds for _, seconds in points], zero=True)

    def rate(self, num_requests: int, tier: int) -> float:
        """Steps per second of a step of ``tier`` rows for ``num_requests`` requests."""
        parts = _interpolated(self.by_requests, num_requests), _interpolated(self.by_rows, tier)
        return 1.0 / (self.bias + sum(parts))


@dataclass(frozen=True)
class SpsSetting:
    """What a table is true of.

    card : of the target
    model : the target
    backend : its attention, how its rounds run, its dtype: "verify_attention, graphs, bf16"
    num_requests : slots that share the rows of a step, padded ones included
    tiers : rows of a step, ascending
    """

    card: str
    model: str
    backend: str
    num_requests: int
    tiers: tuple[int, ...]

    def __post_init__(self) -> None:
        if self.tiers != Tiers(self.tiers).rows:
            raise ValueError(f"SPS table: expected ascending tiers, got {list(self.tiers)}")
        if self.num_requests < 1:
            raise ValueError(f"SPS table: expected num_requests >= 1, got {self.num_requests}")


@dataclass(frozen=True)
class SpsTable:
    """Steps per second of one target on one card, as a function of the rows that it verifies.

    setting : what was measured
    commit : by which version
    cost : rates per tier, or seconds as a sum
    conditions : how it was measured, for readers
    """

    setting: SpsSetting
    commit: str
    cost: TierRates | AdditiveSeconds
    conditions: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.cost, TierRates) and self.cost.tiers != self.tiers:
            raise ValueError(
                f"SPS table: expected rates of the tiers {list(self.tiers)}, "
                f"got those of {list(self.cost.tiers)}"
            )

    @property
    def tiers(self) -> tuple[int, ...]:
        return self.setting.tiers

    def rate(self, num_requests: int, tier: int) -> float:
        return self.cost.rate(num_requests, tier)

    def require(self, setting: SpsSetting) -> None:
        """Refuse to plan with numbers of another setting.

        Raises
        ------
        ValueError
            Names what differs, both values.
        """
        for name, expected in vars(setting).items():
            measured = getattr(self.setting, name)
            if measured != expected:
                raise ValueError(
                    f"SPS table: expected one measured with {name} {expected!r}, got {measured!r}"
                )

    def as_json(self) -> dict[str, Any]:
        """What a file of the table holds, which :meth:`read` reads."""
        table: dict[str, Any] = {**vars(self.setting), "commit": self.commit}
        table["conditions"] = self.conditions
        if isinstance(self.cost, TierRates):
            table["steps_per_second"] = self.cost.steps_per_second
        else:
            table["seconds"] = vars(self.cost)
        return table

    @classmethod
    def read(cls, path: Path) -> SpsTable:
        """Read a file of :meth:`as_json`.

        Raises
        ------
        OSError
            The file cannot be read.
        ValueError
            The file is no JSON of a table; says what is missing or out of range.
        """
        try:
            table = json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"SPS table {path} is not JSON: {error}") from error
        if not isinstance(table, dict):
            raise ValueError(f"SPS table {path}: expected an object, got {type(table).__name__}")
        missing = [name for name in (*_TEXTS, *_NUMBERS) if name not in table]
        forms = [name for name in ("steps_per_second", "seconds") if name in table]
        if missing or len(forms) != 1:
            raise ValueError(
                f"SPS table {path}: expected {', '.join((*_TEXTS, *_NUMBERS))} and one of "
                f"steps_per_second and seconds, got {', '.join(table)}"
            )
        try:
            texts = {name: str(table[name]) for name in _TEXTS if name != "commit"}
            tiers = tuple(_whole(tier) for tier in table["tiers"])
            setting = SpsSetting(**texts, num_requests=_whole(table["num_requests"]), tiers=tiers)
            cost = _cost(tiers, table)
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"SPS table {path}: a number is missing or none: {error}") from error
        return cls(setting, str(table["commit"]), cost, table.get("conditions", {}))


_TEXTS = ("card", "model", "backend", "commit")
_NUMBERS = ("num_requests", "tiers")


def _cost(tiers: tuple[int, ...], table: dict[str, Any]) -> TierRates | AdditiveSeconds:
    if "steps_per_second" in table:
        return TierRates(tiers, tuple(_real(rate) for rate in table["steps_per_second"]))
    seconds = table["seconds"]
    by_requests, by_rows = (
        tuple((_whole(number), _real(part)) for number, part in seconds[name])
        for name in ("by_requests", "by_rows")
    )
    return AdditiveSeconds(_real(seconds["bias"]), by_requests, by_rows)


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"expected a whole number, got {number!r}")
    if abs(number) >= 2**63:
        raise OverflowError("a whole number of more than 64 bits")
    return number


def _real(number: Any) -> float:
    if type(number) not in (int, float):
        raise TypeError(f"expected a number, got {number!r}")
    return float(number)


def _interpolated(points: Sequence[tuple[int, float]], number: int) -> float:
    place = bisect.bisect_left([at for at, _ in points], number)
    if place == 0 or place == len(points):
        return points[min(place, len(points) - 1)][1]
    (low, before), (high, after) = points[place - 1], points[place]
    return before + (after - before) * (number - low) / (high - low)


def _require_positive(name: str, values: Sequence[float], *, zero: bool = False) -> None:
    for value in values:
        if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            least = "of at least 0" if zero else "above 0"
            raise ValueError(f"SPS table: expected {name} {least} and finite, got {value}")
