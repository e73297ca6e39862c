"""What was understood of a checkpoint: all that the maths of a drafter depends on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Family = Literal["eagle", "eagle3", "dflash", "dspark", "dflash2"]
# What files leave open in a way that acceptance can tell.
Question = Literal["taps", "norm_output", "sample_from_anchor"]
Dialect = Literal["SafeAILab/SpecForge", "SpecForge", "DeepSpec", "speculators", "z-lab"]


@dataclass(frozen=True)
class RopeSpec:
    """Rotary embedding of the drafter itself, never that of its target.

    rotary_dim : leading channels of a head that are rotated, in two halves
    factor, low_freq_factor, high_freq_factor, original_max_position : of "linear" and "llama3"
    """

    rope_type: Literal["default", "linear", "llama3"]
    theta: float
    rotary_dim: int
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0


@dataclass(frozen=True)
class BackboneSpec:
    """Sizes of the drafter's decoder layers.

    qk_norm : RMSNorm per head on queries and keys, as Qwen3 has it
    qkv_bias, output_bias : of the attention's projections
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    qk_norm: bool
    qkv_bias: bool
    output_bias: bool


@dataclass(frozen=True)
class TapSpec:
    """Which hidden states of the target the drafter reads, in this order.

    layers : k is the residual stream after decoder layer k, from 0, before the next layer's norm;
        -1 is the output of the embedding. None: by the number of the target's layers, see
        ``resolve_taps``
    width : of one tap, the target's hidden size
    source : the field that they come from, and its convention
    """

    layers: tuple[int, ...] | None
    num_taps: int
    width: int
    source: str


@dataclass(frozen=True)
class Eagle3Spec:
    """Switches of EAGLE-3.

    norm_before_residual : the residual of layer 0 is the normalised feature
    norm_output : the next step's feature is the hidden state after the final norm
    fc_norm : an RMSNorm per tap before ``fc``
    input_norm : one RMSNorm over all taps before ``fc``
    """

    norm_before_residual: bool
    norm_output: bool
    fc_norm: bool
    input_norm: bool


@dataclass(frozen=True)
class SpanSpec:
    """What a layer of a block drafter attends to: ``window`` counts the query's own position."""

    causal: bool
    window: int | None


@dataclass(frozen=True)
class BlockSpec:
    """The block that DFlash, DSpark and DFlash-2 fill in one forward.

    num_rows : rows of the forward, the anchor first, mask tokens behind it
    num_proposals : drafts per block
    sample_from_anchor : row j proposes the token after it; else row j proposes its own, and row 0
        nothing
    spans : one per layer
    own_mask_embedding : the checkpoint brings the embedding of the mask token
    """

    num_rows: int
    num_proposals: int
    sample_from_anchor: bool
    mask_token_id: int
    spans: tuple[SpanSpec, ...]
    embedding_scale: float
    own_mask_embedding: bool


@dataclass(frozen=True)
class MarkovSpec:
    """The bias that the token before adds to the logits of a row."""

    kind: Literal["vanilla", "gated", "rnn"]
    rank: int


@dataclass(frozen=True)
class ConfidenceSpec:
    """The head that predicts acceptance; ``with_markov``: it reads W1 of the token before, too."""

    with_markov: bool


@dataclass(frozen=True)
class ConvolutionSpec:
    """The grouped dynamic convolutions around each sublayer of DFlash-2."""

    num_taps: int
    group_size: int


@dataclass(frozen=True)
class SelectorSpec:
    """The candidate selector of DFlash-2; ``softcap`` is None without one."""

    rank: int
    top_k: int
    output_multiplier: float
    softcap: float | None


@dataclass(frozen=True)
class DrafterSpec:
    """A checkpoint as it was understood.

    architecture : what config.json calls it
    vocab_size : ids that the drafter reads, the target's
    draft_vocab_size : ids that it proposes; fewer than ``vocab_size``: d2t maps them
    num_target_layers : of the target, where the file says it
    taps : None for EAGLE-1/2, which reads the target's last hidden state after the final norm
    fc_bias : whether the projection of the features has a bias
    readings : defaults taken and ambiguities settled, a sentence each
    open_questions : those among them that ``other_readings`` knows another answer to
    """

    family: Family
    dialect: Dialect
    architecture: str
    backbone: BackboneSpec
    vocab_size: int
    draft_vocab_size: int
    num_target_layers: int | None
    taps: TapSpec | None
    fc_bias: bool
    eagle3: Eagle3Spec | None
    block: BlockSpec | None
    markov: MarkovSpec | None
    confidence: ConfidenceSpec | None
    convolution: ConvolutionSpec | None
    selector: SelectorSpec | None
    readings: tuple[str, ...]
    open_questions: tuple[Question, ...]
