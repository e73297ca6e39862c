"""Sigmoid and hyperbolic tangent in float32 from operations that the ops have as well."""

from __future__ import annotations

import torch
from torch import Tensor

from specfast.reference.distribution import weights


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)); NaN of NaN."""
    e = weights(-x.abs(), 0.0, 1.0)
    return torch.where(x.isnan(), x, torch.where(x < 0, e, 1.0) / (1.0 + e))


def tanh(x: Tensor) -> Tensor:
    """By the sigmoid, as the ops do."""
    return 2.0 * sigmoid(2.0 * x) - 1.0
