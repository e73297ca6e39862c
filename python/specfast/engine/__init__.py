"""A small engine: continuous batching over a transformers target and a paged KV pool."""

from specfast.engine.engine import Engine
from specfast.engine.rank_agreement import RankAgreement, Site
from specfast.engine.requests import Generation, RoundOutput

__all__ = ["Engine", "Generation", "RankAgreement", "RoundOutput", "Site"]
