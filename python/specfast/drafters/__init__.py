"""Drafters: one file per family, and a loader of public checkpoints."""

from specfast.drafters.base import DraftBatch, Drafter, DraftRequest, PlainDecoding
from specfast.drafters.checkpoint import DrafterError, DrafterSpec, DraftTarget
from specfast.drafters.eagle_chain import EagleChain
from specfast.drafters.loader import load_drafter
from specfast.drafters.ngram import NgramDrafter
from specfast.drafters.taps import TapRecorder

__all__ = [
    "DraftBatch",
    "DraftRequest",
    "DraftTarget",
    "Drafter",
    "DrafterError",
    "DrafterSpec",
    "EagleChain",
    "NgramDrafter",
    "PlainDecoding",
    "TapRecorder",
    "load_drafter",
]
