"""What a graph cannot hold is refused on the CPU as well."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capturable import NotCapturableError, only_capturable
from torch import Tensor

REFUSED: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "a branch": lambda x: 1 if x[0] > 0 else 2,
    "a range": lambda x: range(x[0]),
    "numpy": lambda x: x.numpy(),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "a boolean mask": lambda x: x[x > 0],
    "writing by a mask": lambda x: x.__setitem__(x > 0, 1),
    "masked_select": lambda x: x.masked_select(x > 0),
    "repeats": lambda x: x.repeat_interleave(x),
    "unique": lambda x: x.unique(),
    "a tensor of numbers": lambda x: torch.tensor([1, 2]),
    "new_tensor": lambda x: x.new_tensor([1, 2]),
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    x = torch.arange(3)
    REFUSED[name](x.clone())
    with pytest.raises(NotCapturableError), only_capturable():
        REFUSED[name](x)


def test_allowed() -> None:
    x = torch.arange(3)
    with only_capturable():
        y = torch.where(x > 0, x, -1)[x] + torch.arange(3) * 2
        y[1:].fill_(4)
        torch.zeros(3).masked_fill(x > 0, torch.inf).index_copy_(0, x, torch.ones(3))
        x.repeat_interleave(2)
    assert y.tolist() == [-1, 4, 4]


def nowhere() -> Tensor:
    return torch.zeros(3, dtype=torch.int64, device="meta")


@pytest.mark.parametrize("copy", [lambda x: x.to("meta"), lambda x: nowhere().copy_(x)])
def test_copies_to_the_device_are_refused(copy: Callable[[Tensor], object]) -> None:
    x = torch.arange(3)
    copy(x)
    with pytest.raises(NotCapturableError), only_capturable():
        copy(x)
