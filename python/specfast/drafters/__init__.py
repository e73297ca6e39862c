"""Drafters: the families, on the host and on the device, and a loader of public checkpoints."""

from specfast.drafters.base import (
    DeviceDrafter,
    DeviceDrafts,
    DraftBatch,
    Drafter,
    DraftPages,
    DraftRequest,
    DraftSlots,
    PlainDecoding,
    TapDrafter,
)
from specfast.drafters.checkpoint import DrafterError, DrafterSpec, DraftTarget
from specfast.drafters.device_trained import DeviceTrainedDrafter, why_not_on_device
from specfast.drafters.device_tree import DeviceTreeDrafter
from specfast.drafters.eagle_chain import EagleChain
from specfast.drafters.loader import load_drafter, load_readings
from specfast.drafters.ngram import NgramDrafter
from specfast.drafters.taps import TapRecorder
from specfast.drafters.trained import TrainedDrafter
from specfast.drafters.tree_drafter import TreeDrafter

__all__ = [
    "DeviceDrafter",
    "DeviceDrafts",
    "DeviceTrainedDrafter",
    "DeviceTreeDrafter",
    "DraftBatch",
    "DraftPages",
    "DraftRequest",
    "DraftSlots",
    "DraftTarget",
    "Drafter",
    "DrafterError",
    "DrafterSpec",
    "EagleChain",
    "NgramDrafter",
    "PlainDecoding",
    "TapDrafter",
    "TapRecorder",
    "TrainedDrafter",
    "TreeDrafter",
    "load_drafter",
    "load_readings",
    "why_not_on_device",
]
