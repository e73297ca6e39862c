"""The relay: survivals of earlier rounds on the host, or what to think without them.

round        0         1         2         3
publishes    a         b         c         d
reads        -         -         a         b        (lag 2)
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from late_copies import LateCopies
from specfast.planner import ConfidenceRelay, LaggedSurvival

CPU = torch.device("cpu")


def publish(
    relay: ConfidenceRelay,
    values: Sequence[float],
    rows: Sequence[int],
    generations: Sequence[int] | None = None,
) -> None:
    """A chain of two drafts per request: a value and half of it."""
    survival = torch.tensor([[value, value / 2] for value in values])
    relay.publish(survival, torch.tensor(rows), rows, generations or [row + 1 for row in rows])


def firsts(lagged: LaggedSurvival | None) -> list[float] | None:
    """The survival of each request's first draft."""
    return None if lagged is None else lagged.survival[:, 0].tolist()


@pytest.mark.parametrize("lag", [1, 2, 3, 5])
def test_the_lag(lag: int) -> None:
    relay = ConfidenceRelay(4, 2, CPU, lag=lag)
    for number in range(12):
        expected = None if number < lag else [(number - lag) / 16]
        assert firsts(relay.read([2], [3])) == expected
        publish(relay, [number / 16], [2])


def test_a_lag_of_none_is_refused() -> None:
    for lag in (0, 1.5):
        with pytest.raises(ValueError, match=f"at least 1 round, a whole number, got {lag}"):
            ConfidenceRelay(4, 2, CPU, lag=lag)  # type: ignore[arg-type]


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_what_is_forgotten_is_not_read(lag: int) -> None:
    relay = ConfidenceRelay(4, 2, CPU, lag=lag)
    for number in range(12):
        if number in (5, 6):
            relay.forget()
        expected = None if number < lag or 5 <= number < 6 + lag else [(number - lag) / 16]
        assert firsts(relay.read([2], [3])) == expected
        publish(relay, [number / 16], [2])


def test_requests_are_found_by_their_place() -> None:
    relay = ConfidenceRelay(4, 2, CPU)
    publish(relay, [0.5, 0.25, 0.75], [3, 0, 1])
    publish(relay, [0.125], [0])
    # A batch of another order.
    lagged = relay.read([0, 1, 3], [1, 2, 4])
    assert firsts(lagged) == [0.25, 0.75, 0.5]
    assert lagged is not None
    assert lagged.num_stale == 0
    # Request 3 sat out round 1: its last survivals are those of round 0.
    publish(relay, [0.0], [2])
    assert firsts(relay.read([3, 0], [4, 1])) == [0.5, 0.125]


def test_a_late_copy_is_not_waited_for() -> None:
    copies = LateCopies()
    relay = ConfidenceRelay(2, 2, CPU, copies=copies)
    publish(relay, [0.5], [0])
    publish(relay, [0.25], [0])
    assert relay.read([0], [1]) is None  # published, but not here
    copies.started[0].arrive()
    assert firsts(relay.read([0], [1])) == [0.5]
    publish(relay, [0.125], [0])
    assert relay.read([0], [1]) is None  # that of round 1; round 0 is no substitute


def test_the_next_publication_leaves_a_pending_copy_alone() -> None:
    """A copy that has not run reads its source before that is written again."""
    copies = LateCopies()
    relay = ConfidenceRelay(2, 2, CPU, copies=copies)
    for number in range(9):
        publish(relay, [number / 16], [0])
        if number >= 1:
            copies.started[number - 1].arrive()
            assert firsts(relay.read([0], [1])) == [(number - 1) / 16]


def test_a_new_request_is_sure_of_its_drafts() -> None:
    relay = ConfidenceRelay(4, 2, CPU)
    publish(relay, [0.5], [0])
    publish(relay, [0.5, 0.25], [0, 1])
    lagged = relay.read([0, 1], [1, 2])  # of round 0, in which 1 did not take part
    assert lagged is not None
    assert lagged.survival.tolist() == [[0.5, 0.25], [1.0, 1.0]]
    assert lagged.num_stale == 1


def test_a_reused_place_does_not_pass_its_survivals_on() -> None:
    relay = ConfidenceRelay(2, 2, CPU)
    publish(relay, [0.5, 0.75], [0, 1], generations=[7, 8])
    publish(relay, [0.25, 0.75], [0, 1], generations=[9, 8])
    # In round 0 the place was request 7's; 9 has it now.
    assert firsts(relay.read([0, 1], [9, 8])) == [1.0, 0.75]
    publish(relay, [0.125, 0.75], [0, 1], generations=[9, 8])
    assert firsts(relay.read([0, 1], [9, 8])) == [0.25, 0.75]
    # And whoever still asks for 7 gets nothing of 9's.
    stale = relay.read([0], [7])
    assert firsts(stale) == [1.0]
    assert stale is not None
    assert stale.num_stale == 1


def test_the_generation_is_that_of_the_copy() -> None:
    """The place is taken over before the copy of the one before is read."""
    copies = LateCopies()
    relay = ConfidenceRelay(1, 2, CPU, copies=copies)
    publish(relay, [0.5], [0], generations=[1])
    copies.started[0].arrive()
    publish(relay, [0.25], [0], generations=[2])
    assert firsts(relay.read([0], [1])) == [0.5]
    assert firsts(relay.read([0], [2])) == [1.0]


def test_padded_slots_publish_nothing() -> None:
    relay = ConfidenceRelay(2, 2, CPU, lag=1)
    survival = torch.tensor([[0.5, 0.25], [0.0, 0.0], [0.0, 0.0]])
    rows = torch.tensor([1, relay.padding_place, relay.padding_place])
    relay.publish(survival, rows, [1], [5])
    assert firsts(relay.read([0, 1], [3, 5])) == [1.0, 0.5]


def test_what_was_read_does_not_change() -> None:
    relay = ConfidenceRelay(1, 2, CPU, lag=1)
    publish(relay, [0.5], [0])
    lagged = relay.read([0], [1])
    for value in (0.125, 0.25, 0.375):
        publish(relay, [value], [0])
    assert firsts(lagged) == [0.5]


def test_copies_from_a_gpu(device: str) -> None:
    if device == "cpu":
        pytest.skip("streams and events need a GPU")
    relay = ConfidenceRelay(3, 2, torch.device(device, 0))
    published = torch.rand(40, 2, 2)
    survivals, rows = published.to(device), torch.tensor([2, 0], device=device)
    for number in range(40):
        # Copies start late, when the next publication has been enqueued.
        with torch.cuda.stream(relay._copies._stream):
            torch.cuda._sleep(2_000_000)
        relay.publish(survivals[number], rows, [2, 0], [3, 1])
        if number >= 1:
            lagged = relay.read([2, 0], [3, 1])
            assert lagged is None or torch.equal(lagged.survival, published[number - 1])
    torch.cuda.synchronize()
    lagged = relay.read([2, 0], [3, 1])
    assert lagged is not None
    assert torch.equal(lagged.survival, published[38])


def test_a_busy_gpu_is_not_waited_for(device: str) -> None:
    if device == "cpu":
        pytest.skip("streams and events need a GPU")
    relay = ConfidenceRelay(1, 2, torch.device(device, 0), lag=1)
    survival = torch.full((1, 2), 0.25, device=device)
    row = torch.tensor([0], device=device)
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # about a second
    relay.publish(survival, row, [0], [1])
    assert relay.read([0], [1]) is None
    torch.cuda.synchronize()
    assert firsts(relay.read([0], [1])) == [0.25]
