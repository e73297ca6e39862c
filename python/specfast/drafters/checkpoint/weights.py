"""The values of a checkpoint, ready for the maths."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specfast import ops
from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.files import CheckpointFiles
from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.target import DraftTarget
from specfast.drafters.checkpoint.tensors import canonical_names

EMBEDDING, LM_HEAD = "embed_tokens.weight", "lm_head.weight"
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
# Bytes at a multiple of which a tensor begins, as the ops expect it.
_ALIGNMENT = 16


# Projections of the same rows, which are one product.
_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_HEAD_NORMS = ("q_norm.weight", "k_norm.weight")


class Weights:
    """Tensors by canonical name, with the layers that are made of them.

    ``qkv_proj`` and ``gate_up_proj`` are those parts one behind the other, which are views of them.
    """

    def __init__(self, tensors: dict[str, Tensor], norm_eps: float) -> None:
        self._tensors = {**tensors, **_joined(tensors)}
        self._head_norms = {
            name: value.float() for name, value in tensors.items() if name.endswith(_HEAD_NORMS)
        }
        self.norm_eps = norm_eps

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        return self._tensors.get(name)

    def head_norm(self, name: str) -> Tensor | None:
        """Of queries or keys, in float32; None if it is not there."""
        return self._head_norms.get(f"{name}.weight")

    def linear(self, name: str, x: Tensor) -> Tensor:
        # Where requests lie apart, torch would make a product of each and read the weights anew.
        x = x.contiguous()
        return functional.linear(x, self[f"{name}.weight"], self._tensors.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMSNorm over the last dimension, in fp32; rounded before the weight, as Llama has it."""
        normed, _ = ops.fused_add_rms_norm(x, None, self[f"{name}.weight"], eps=self.norm_eps)
        return normed

    def add_norm(self, name: str, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The same of ``x + residual``, and that sum."""
        return ops.fused_add_rms_norm(x, residual, self[f"{name}.weight"], eps=self.norm_eps)


def _joined(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Joined projections, and their parts as views, which take no memory of their own."""
    out = {}
    for whole, parts in _JOINED.items():
        for name in [name for name in tensors if f".{parts[0]}." in name]:
            names = [name.replace(f".{parts[0]}.", f".{part}.") for part in parts]
            if all(part in tensors for part in names):
                joined = torch.cat([tensors[part] for part in names])
                sizes = [len(tensors[part]) for part in names]
                out[name.replace(f".{parts[0]}.", f".{whole}.")] = joined
                out.update(zip(names, torch.split(joined, sizes), strict=True))
    return out


def load_weights(
    files: CheckpointFiles, spec: DrafterSpec, target: DraftTarget, dtype: torch.dtype
) -> Weights:
    """All tensors of ``spec`` on the target's device; embedding and head are always there.

    A copy of the target's embedding or head is dropped for the target's own, and EAGLE-1/2 always
    takes the target's head.

    Raises
    ------
    DrafterError
        Numbers of a type that cannot be used, or a vocabulary map that is none.
    """
    names = canonical_names(files.entries)
    device = target.embedding.device
    tensors: dict[str, Tensor] = {}
    for name, value in files.tensors(names.values()).items():
        canonical = next(c for c, own in names.items() if own == name)
        if canonical not in ("d2t", "t2d") and value.dtype not in FLOATS:
            raise DrafterError(f"{name} holds {value.dtype}; expected fp16, bf16 or fp32")
        tensors[canonical] = value
    _check_vocabulary_map(spec, tensors)
    _sort_draft_vocabulary(tensors)
    tensors.pop("t2d", None)
    if spec.family == "eagle":
        tensors.pop(LM_HEAD, None)
    for name, shared in ((EMBEDDING, target.embedding), (LM_HEAD, target.lm_head)):
        rows = shared[: spec.vocab_size]
        own = tensors.get(name)
        if own is None or _same(own, rows):
            tensors[name] = rows
    for name, value in tensors.items():
        kept = (value if name == "d2t" else value.to(dtype)).to(device)
        # What a file is mapped to begins anywhere, and may be a view of anything.
        kept = kept.contiguous()
        tensors[name] = kept if kept.data_ptr() % _ALIGNMENT == 0 else kept.clone()
    if "mask_embedding" in tensors:
        tensors["mask_embedding"] = tensors["mask_embedding"].reshape(-1)
    return Weights(tensors, spec.backbone.norm_eps)


def _same(own: Tensor, theirs: Tensor) -> bool:
    """Whether the numbers are equal, in whatever types they are held."""
    return own.shape == theirs.shape and torch.equal(own.float(), theirs.to("cpu").float())


def _sort_draft_vocabulary(tensors: dict[str, Tensor]) -> None:
    """Number the draft vocabulary in the order of the target's ids, as a ``Proposal`` needs it."""
    if "d2t" not in tensors:
        return
    numbers = torch.arange(len(tensors["d2t"]))
    ids, order = (tensors["d2t"] + numbers).sort()
    if torch.equal(order, numbers):
        return
    tensors["d2t"] = ids - numbers
    for name in (LM_HEAD, "markov_head.markov_w2.weight"):
        if name in tensors:
            tensors[name] = tensors[name][order]


def _check_vocabulary_map(spec: DrafterSpec, tensors: dict[str, Tensor]) -> None:
    """d2t holds offsets: draft id j is target id j + d2t[j]; t2d marks those target ids."""
    if "d2t" not in tensors:
        return
    offsets = tensors["d2t"]
    if offsets.dtype not in (torch.int32, torch.int64):
        raise DrafterError(f"d2t holds {offsets.dtype}; expected integers")
    offsets = tensors["d2t"] = offsets.to(torch.int64)
    ids = offsets + torch.arange(spec.draft_vocab_size)
    if ids.min() < 0 or ids.max() >= spec.vocab_size:
        raise DrafterError(
            f"d2t maps draft ids to [{int(ids.min())}, {int(ids.max())}], outside of the "
            f"vocabulary of {spec.vocab_size}; it must hold offsets, not ids"
        )
    if len(set(ids.tolist())) < len(ids):
        raise DrafterError("d2t maps two draft ids to one target id")
    if "t2d" in tensors:
        marked = torch.zeros(spec.vocab_size, dtype=torch.bool)
        marked[ids] = True
        if not torch.equal(tensors["t2d"].bool(), marked):
            raise DrafterError("d2t and t2d name different tokens")
