"""A small engine: continuous batching over a transformers target and a paged KV pool."""

from specfast.engine.engine import Engine
from specfast.engine.requests import Generation, RoundOutput

__all__ = ["Engine", "Generation", "RoundOutput"]
