"""Weights, masses and filters of one row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from specfast import RowKind, RowRecord, Status
from specfast.reference.distribution import (
    GRID,
    INT32_MAX,
    RowDistribution,
    row_distribution,
    weights,
)
from specfast.reference.request_rules import RequestRules

INF, NAN = math.inf, math.nan


def rules(**changes: float) -> RequestRules:
    filters = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    penalties = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return RequestRules(**{**filters, **penalties, **changes})


def distribution(
    values: list[float], allowed: list[bool] | None = None, **changes: float
) -> RowDistribution:
    mask = None if allowed is None else torch.tensor(allowed)
    return row_distribution(torch.tensor(values), mask, rules(**changes))


@pytest.mark.parametrize("temperature", [0.1, 0.7, 1.0, 3.0])
def test_weights_are_exponentials(temperature: float) -> None:
    values = -torch.linspace(0, 27 * temperature, 40_001)
    scale = torch.tensor(1 / temperature).item()
    got = weights(values, 0.0, scale).double()
    distances = values.double() * scale
    # Besides the polynomial, the two products before it round relative to the distance.
    allowed = 2.5e-7 + distances.abs() * 2.0**-23
    assert bool(((got / distances.exp() - 1).abs() <= allowed).all())
    near = distances > -0.3
    assert bool(((got / distances.exp() - 1).abs()[near] <= 2.5e-7).all())
    assert got[0] == 1
    # Neighbours are in the wrong order by rounding alone.
    assert bool((got[1:] <= got[:-1] * (1 + 2.5e-7)).all())


def test_weights_end_at_40_powers_of_two() -> None:
    values = torch.tensor([0.0, -27.7, -27.8, -INF, NAN])
    got = weights(values, 0.0, 1.0)
    assert got[0] == 1
    assert 0 < got[1] < 2.0**-39
    assert got[2:].tolist() == [0, 0, 0]


def test_the_argmax_has_the_whole_grid() -> None:
    p = distribution([-5.0, 3.25, 1.0, 3.25])
    assert p.masses[[1, 3]].tolist() == [GRID, GRID]
    assert p.token == 1
    assert p.total == int(p.masses.sum())


@given(st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=70), st.floats(1, 4))
def test_masses_are_softmax(values: list[float], temperature: float) -> None:
    p = distribution(values, temperature=temperature)
    exact = (torch.tensor(values).double() / temperature).softmax(0)
    assert torch.allclose(p.masses.double() / p.total, exact, rtol=5e-6, atol=1e-11)
    assert torch.allclose(p.probabilities.double(), exact, rtol=5e-6, atol=1e-11)


# Weights 2, 4, 1, 3.
ROW = [math.log(w) for w in (2, 4, 1, 3)]
FILTERS = {
    "off": ({}, [0, 1, 2, 3]),
    "top_k": ({"top_k": 2}, [1, 3]),
    "top_k of the vocabulary": ({"top_k": 4}, [0, 1, 2, 3]),
    "top_p": ({"top_p": 0.65}, [1, 3]),
    "top_p that a token crosses": ({"top_p": 0.75}, [0, 1, 3]),
    "tiny top_p": ({"top_p": 1e-30}, [1]),
    "min_p": ({"min_p": 0.4}, [0, 1, 3]),
    "min_p 1": ({"min_p": 1.0}, [1]),
    "top_p of what top_k kept": ({"top_k": 3, "top_p": 0.75}, [1, 3]),
    "all three": ({"top_k": 3, "top_p": 0.95, "min_p": 0.6}, [1, 3]),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filters(name: str) -> None:
    changes, kept = FILTERS[name]
    p = distribution(ROW, **changes)
    assert p.masses.nonzero().flatten().tolist() == kept
    assert p.total == int(p.masses.sum())
    assert (p.cut_id == INT32_MAX) == (len(kept) == 4)
    values = torch.tensor(ROW).tolist()
    by_cut = [v > p.cut_value or (v == p.cut_value and i <= p.cut_id) for i, v in enumerate(values)]
    assert by_cut == [i in kept for i in range(4)]


def test_ties_at_the_cut_keep_the_lowest_id() -> None:
    # cases.md B31: top_k 1 agrees with greedy.
    assert distribution([3.0, 3.0, 1.0], top_k=2).masses.nonzero().flatten().tolist() == [0, 1]
    assert distribution([1.0, 3.0, 3.0, 3.0], top_k=2).cut_id == 2
    greedy = distribution([3.0, 3.0, 1.0], top_k=1)
    assert (greedy.kind, greedy.token, greedy.total) == (RowKind.POINT_MASS, 0, GRID)


STRANGE_ROWS = {
    "NaN": ([NAN, NAN, NAN], None, RowKind.UNUSABLE, 0, Status.NAN_LOGITS),
    "NaN and mask": (
        [-INF, -INF, NAN],
        [False, True, True],
        RowKind.UNUSABLE,
        1,
        Status.NAN_LOGITS,
    ),
    "-inf": ([-INF, -INF, -INF], None, RowKind.UNUSABLE, 0, Status.EMPTY_SUPPORT),
    "no id": ([NAN, 1.0, 2.0], [False] * 3, RowKind.UNUSABLE, 0, Status.EMPTY_SUPPORT),
    "masked NaN": ([NAN, 1.0, 2.0], [False, True, True], RowKind.ORDINARY, 2, Status.OK),
    "one NaN": ([NAN, 1.0, 2.0], None, RowKind.ORDINARY, 2, Status.NAN_LOGITS),
    "inf": ([1.0, INF, INF], None, RowKind.POINT_MASS, 1, Status.OK),
    "masked inf": ([1.0, INF, 5.0], [True, False, True], RowKind.ORDINARY, 2, Status.OK),
    "two zeros": ([-0.0, 0.0], None, RowKind.ORDINARY, 0, Status.OK),
}


@pytest.mark.parametrize("name", STRANGE_ROWS)
def test_strange_rows(name: str) -> None:
    # cases.md B01
    values, allowed, kind, token, status = STRANGE_ROWS[name]
    p = distribution(values, allowed)
    assert (p.kind, p.token, p.status) == (kind, token, status)


BAD_PARAMETERS = [
    {"temperature": -1.0},
    {"temperature": NAN},
    {"temperature": INF},
    {"top_k": -2},
    {"top_p": 0.0},
    {"top_p": 1.5},
    {"top_p": NAN},
    {"min_p": -0.1},
    {"min_p": 1.1},
    {"repetition_penalty": 0.0},
    {"repetition_penalty": INF},
    {"presence_penalty": NAN},
    {"frequency_penalty": -INF},
]


@pytest.mark.parametrize("change", BAD_PARAMETERS, ids=str)
def test_bad_parameters_are_greedy(change: dict[str, float]) -> None:
    assert not rules(**change).sound
    assert distribution([1.0, 2.0], **change).kind == RowKind.POINT_MASS


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 9.9e-6])
def test_small_temperatures_are_greedy(temperature: float) -> None:
    # cases.md B33
    assert rules(temperature=temperature).sound
    assert distribution([1.0, 2.0], temperature=temperature).kind == RowKind.POINT_MASS


def test_a_record_holds_the_distribution() -> None:
    p = distribution(ROW, temperature=0.5, top_k=2)
    record = RowRecord(torch.tensor([p.record_words], dtype=torch.int32))
    values = torch.tensor(ROW)
    assert record.scale.tolist() == [2.0]
    assert record.max.tolist() == [values[1].item()]
    assert record.cut_value.tolist() == [values[3].item()]
    assert record.cut_id.tolist() == [3]
    assert record.mass.tolist() == [p.total]
    assert record.argmax.tolist() == [1]
    assert record.kind.tolist() == [RowKind.ORDINARY]
