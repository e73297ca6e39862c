"""A small engine: continuous batching over a transformers target and a paged KV pool."""

from specfast.engine.cache_states import CacheStates
from specfast.engine.engine import Engine
from specfast.engine.layer_kv import Float8Kv
from specfast.engine.rank_agreement import RankAgreement, Site
from specfast.engine.requests import Generation, RoundOutput
from specfast.engine.round_form import RoundForm
from specfast.engine.state_adapter import ChainRows, StateAdapter, StateItem
from specfast.engine.verify_tiers import VerifyTier, VerifyTiers

__all__ = [
    "CacheStates",
    "ChainRows",
    "Engine",
    "Float8Kv",
    "Generation",
    "RankAgreement",
    "RoundForm",
    "RoundOutput",
    "Site",
    "StateAdapter",
    "StateItem",
    "VerifyTier",
    "VerifyTiers",
]
