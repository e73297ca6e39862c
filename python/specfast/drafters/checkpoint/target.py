"""What a drafter needs of its target, and whether the two belong together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.fields import Fields
from specfast.drafters.checkpoint.spec import DrafterSpec
from specfast.drafters.checkpoint.taps import resolve_taps

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TargetSizes:
    """Of a target; ``vocab_size`` as its config says."""

    hidden_size: int
    vocab_size: int
    num_layers: int

    @classmethod
    def read(cls, path: Path) -> TargetSizes:
        """From the config.json in ``path``; of a multimodal model, from its text part."""
        file = path / "config.json"
        try:
            config: Any = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DrafterError(f"cannot read the target's {file}: {error}") from error
        if not isinstance(config, dict):
            raise DrafterError(f"the target's {file} is no JSON object")
        fields = Fields(config)
        if "text_config" in fields:
            fields = fields.nested("text_config")
        return cls(
            fields.integer("hidden_size"),
            fields.integer("vocab_size"),
            fields.integer("num_hidden_layers"),
        )


@dataclass(frozen=True)
class DraftTarget:
    """A target as its drafter sees it.

    embedding : [at least vocab_size, hidden_size]
    lm_head : the same shape; may be the same tensor
    directory : where the target was loaded from, if it was; its tokenizer may be there
    """

    sizes: TargetSizes
    embedding: Tensor
    lm_head: Tensor
    directory: Path | None = None

    @classmethod
    def of(cls, model: PreTrainedModel) -> DraftTarget:
        """The embedding and the head of ``model``, not copies of them.

        Raises
        ------
        DrafterError
            A model whose hidden states cannot be captured after each layer, or without a plain
            embedding and head.
        """
        config = model.config.get_text_config()
        sizes = TargetSizes(config.hidden_size, config.vocab_size, config.num_hidden_layers)
        decoder_layers(model)
        embedding = model.get_input_embeddings()
        lm_head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        if not isinstance(embedding, nn.Embedding) or not isinstance(lm_head, nn.Linear):
            raise DrafterError(f"{type(model).__name__} has no plain embedding and LM head")
        directory = Path(model.name_or_path) if model.name_or_path else None
        return cls(sizes, embedding.weight.detach(), lm_head.weight.detach(), directory)


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The layers behind which taps are captured.

    Raises
    ------
    DrafterError
        They are not a list of as many modules as the config names.
    """
    count = model.config.get_text_config().num_hidden_layers
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, nn.ModuleList) or len(layers) != count:
        raise DrafterError(
            f"{type(model).__name__} cannot be tapped: it has no list of {count} decoder layers"
        )
    return layers


def match_target(spec: DrafterSpec, target: TargetSizes) -> DrafterSpec:
    """``spec`` with its taps resolved for ``target``.

    Raises
    ------
    DrafterError
        The two differ in what they must share; names both values.
    """
    width = spec.backbone.hidden_size if spec.taps is None else spec.taps.width
    for name, own, theirs in (
        ("hidden size", width, target.hidden_size),
        ("vocabulary", spec.vocab_size, target.vocab_size),
    ):
        if own != theirs:
            raise DrafterError(
                f"the drafter is for a target of {name} {own}, this one has {theirs}"
            )
    return resolve_taps(spec, target.num_layers)
