"""Drafters: one file per family."""

from specfast.drafters.base import DraftBatch, Drafter, DraftRequest, PlainDecoding
from specfast.drafters.ngram import NgramDrafter

__all__ = ["DraftBatch", "DraftRequest", "Drafter", "NgramDrafter", "PlainDecoding"]
