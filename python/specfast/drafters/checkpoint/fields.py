"""Typed access to config.json."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.spec import Question


class Fields:
    """A JSON object; null counts as absent.

    ``readings`` and ``open_questions`` collect what was not written there and had to be assumed;
    nested objects share them.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str = "", parent: Fields | None = None
    ) -> None:
        self._values = values
        self._where = where
        self.readings: list[str] = [] if parent is None else parent.readings
        self.open_questions: list[Question] = [] if parent is None else parent.open_questions

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def nested(self, name: str) -> Fields:
        """The object under ``name``; empty if it is absent."""
        value = self._values.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self._fault(name, "an object")
        return Fields(value, f"{self._where}{name}.", self)

    def merged_over(self, base: Fields) -> Fields:
        """These fields, and those of ``base`` where they are absent here."""
        here = {name: value for name, value in self._values.items() if value is not None}
        return Fields({**base._values, **here}, base._where, self)

    def integer(
        self,
        name: str,
        default: int | None = None,
        minimum: int = 1,
        maximum: int | None = None,
    ) -> int:
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self._fault(name, f"an integer of at least {minimum}")
        if maximum is not None and value > maximum:
            raise self._fault(name, f"an integer of at most {maximum}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A positive finite number."""
        value = self._value(name, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise self._fault(name, "a number")
        if not 0 < value <= sys.float_info.max:  # an integer may be beyond it
            raise self._fault(name, "a positive number")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._fault(name, "true or false")
        return value

    def text(self, name: str, default: str = "") -> str:
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._fault(name, "a string")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._fault(name, "a list of strings")
        return tuple(value)

    def layer_ids(self, name: str) -> tuple[int, ...]:
        """A list of distinct integers, not empty."""
        value = self._values.get(name)
        if (
            not isinstance(value, list)
            or not value
            or not all(isinstance(item, int) and not isinstance(item, bool) for item in value)
            or len(set(value)) < len(value)
        ):
            raise self._fault(name, "a list of distinct layer ids")
        return tuple(value)

    def refuse(self, name: str, unless: Any = None) -> None:
        """Raise for a field whose meaning is not built, except for the value that is neutral."""
        value = self._values.get(name)
        if value is not None and value is not False and value != unless:
            raise DrafterError(
                f"config.json: {self._where}{name} = {_shown(value)} is not supported"
            )

    def assume(self, name: str, value: object, why: str) -> None:
        self.readings.append(f"{self._where}{name} is absent: {_shown(value)}, {why}")

    def _value(self, name: str, default: object) -> Any:
        value = self._values.get(name)
        if value is None and default is None:
            raise DrafterError(f"config.json: {self._where}{name} is missing")
        return default if value is None else value

    def _fault(self, name: str, expected: str) -> DrafterError:
        got = _shown(self._values.get(name))
        return DrafterError(
            f"config.json: expected {self._where}{name} to be {expected}, got {got}"
        )


def _shown(value: object) -> str:
    """Of a value as much as fits into a sentence."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
