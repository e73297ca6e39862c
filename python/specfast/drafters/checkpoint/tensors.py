"""The tensors of each family: their names in every dialect, and the shapes that they must have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from specfast.drafters.checkpoint.errors import DrafterError
from specfast.drafters.checkpoint.spec import DrafterSpec

# Applied in this order. The canonical names are those that most files have.
RENAMES = (
    (r"^model\.", ""),
    (r"^logit_head\.", ""),
    (r"^midlayer\.", "layers.0."),
    (r"^encoder\.fc\.", "fc."),
    (r"^encoder\.output_norm_enc\.", "hidden_norm."),
    (r"^aux_norm_low\.", "fc_norm.0."),
    (r"^aux_norm_mid\.", "fc_norm.1."),
    (r"^aux_norm_high\.", "fc_norm.2."),
)
# Computed from the config, or of the target alone.
UNUSED = re.compile(r"(^|\.)rotary_emb\.inv_freq$|^verifier_(norm|lm_head)\.weight$")
NAMES_SHOWN = 4


@dataclass(frozen=True)
class Expected:
    """Shape of a tensor; ``required`` unless the drafter does as well without."""

    shape: tuple[int, ...]
    required: bool = True


def canonical_names(names: Iterable[str]) -> dict[str, str]:
    """Canonical name to name in the file, without tensors that nobody reads.

    Raises
    ------
    DrafterError
        Two tensors with one meaning.
    """
    found: dict[str, str] = {}
    for name in names:
        canonical = name
        for pattern, replacement in RENAMES:
            canonical = re.sub(pattern, replacement, canonical)
        if UNUSED.search(canonical):
            continue
        if canonical in found:
            raise DrafterError(f"{found[canonical]} and {name} are the same tensor under two names")
        found[canonical] = name
    return found


def expected_tensors(spec: DrafterSpec) -> dict[str, Expected]:
    """Every tensor that a checkpoint of ``spec`` may hold."""
    return dict(_expected(spec))


def check_tensors(spec: DrafterSpec, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare canonical names and shapes with what ``spec`` asks for.

    Raises
    ------
    DrafterError
        Tensors that are unknown, missing or misshaped; names them.
    """
    expected = expected_tensors(spec)
    unknown = sorted(shapes.keys() - expected.keys())
    missing = sorted(n for n, e in expected.items() if e.required and n not in shapes)
    misshaped = [
        f"{name} is {list(shapes[name])} instead of {list(expected[name].shape)}"
        for name in sorted(shapes.keys() & expected.keys())
        if shapes[name] != expected[name].shape
    ]
    faults = [
        f"{what}: {_listed(names)}"
        for what, names in (("unknown", unknown), ("missing", missing), ("misshaped", misshaped))
        if names
    ]
    if faults:
        raise DrafterError(
            f"tensors do not fit {spec.family} ({spec.dialect}); {'; '.join(faults)}"
        )


def _listed(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _expected(spec: DrafterSpec) -> Iterator[tuple[str, Expected]]:
    hidden = spec.backbone.hidden_size
    target = hidden if spec.taps is None else spec.taps.width
    num_taps = 1 if spec.taps is None else spec.taps.num_taps
    features = 2 * hidden if spec.family == "eagle" else num_taps * target
    yield "fc.weight", Expected((hidden, features))
    if spec.fc_bias:
        yield "fc.bias", Expected((hidden,))
    # The target's embedding serves where the sizes are one.
    yield "embed_tokens.weight", Expected((spec.vocab_size, hidden), required=target != hidden)
    for layer in range(spec.backbone.num_layers):
        yield from _layer(spec, f"layers.{layer}.")
    if spec.family != "eagle":
        yield "norm.weight", Expected((hidden,))
    reduced = spec.draft_vocab_size < spec.vocab_size
    own_head = spec.family == "eagle3" or reduced or target != hidden
    yield "lm_head.weight", Expected((spec.draft_vocab_size, hidden), required=own_head)
    if reduced:
        yield "d2t", Expected((spec.draft_vocab_size,))
        yield "t2d", Expected((spec.vocab_size,), required=False)
    if spec.eagle3 is not None:
        if spec.eagle3.fc_norm:
            yield from ((f"fc_norm.{i}.weight", Expected((target,))) for i in range(num_taps))
        if spec.eagle3.input_norm:
            yield "input_norm.weight", Expected((features,))
    if spec.block is not None:
        yield "hidden_norm.weight", Expected((hidden,))
        if spec.block.own_mask_embedding:
            yield "mask_embedding", Expected((hidden,))
    yield from _heads(spec)


def _layer(spec: DrafterSpec, prefix: str) -> Iterator[tuple[str, Expected]]:
    sizes = spec.backbone
    hidden, inner = sizes.hidden_size, sizes.intermediate_size
    inputs = 2 * hidden if spec.family == "eagle3" else hidden
    queries = sizes.num_heads * sizes.head_dim
    keys = sizes.num_kv_heads * sizes.head_dim
    attention = prefix + "self_attn."
    for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield f"{attention}{name}.weight", Expected((rows, inputs))
        if sizes.qkv_bias:
            yield f"{attention}{name}.bias", Expected((rows,))
    yield f"{attention}o_proj.weight", Expected((hidden, queries))
    if sizes.output_bias:
        yield f"{attention}o_proj.bias", Expected((hidden,))
    if sizes.qk_norm:
        yield f"{attention}q_norm.weight", Expected((sizes.head_dim,))
        yield f"{attention}k_norm.weight", Expected((sizes.head_dim,))
    yield f"{prefix}mlp.gate_proj.weight", Expected((inner, hidden))
    yield f"{prefix}mlp.up_proj.weight", Expected((inner, hidden))
    yield f"{prefix}mlp.down_proj.weight", Expected((hidden, inner))
    norms = {
        "eagle": ("post_attention_layernorm",),
        "eagle3": ("input_layernorm", "hidden_norm", "post_attention_layernorm"),
    }.get(spec.family, ("input_layernorm", "post_attention_layernorm"))
    for name in norms:
        yield f"{prefix}{name}.weight", Expected((hidden,))
    if spec.convolution is not None:
        taps = spec.convolution.num_taps
        coefficients = 2 * taps * (hidden // spec.convolution.group_size)
        for name in ("attention_conv", "mlp_conv"):
            yield f"{prefix}{name}.base_kernel", Expected((2, taps, hidden))
            yield f"{prefix}{name}.kernel_projection.weight", Expected((coefficients, hidden))


def _heads(spec: DrafterSpec) -> Iterator[tuple[str, Expected]]:
    hidden = spec.backbone.hidden_size
    rank = 0
    if spec.markov is not None:
        rank = spec.markov.rank
        yield "markov_head.markov_w1.weight", Expected((spec.vocab_size, rank))
        yield "markov_head.markov_w2.weight", Expected((spec.draft_vocab_size, rank))
        name, rows, columns = {
            "vanilla": ("", 0, 0),
            "gated": ("gate_proj", rank, hidden + rank),
            "rnn": ("joint_proj", 3 * rank, 2 * rank + hidden),
        }[spec.markov.kind]
        if name:
            yield f"markov_head.{name}.weight", Expected((rows, columns))
            yield f"markov_head.{name}.bias", Expected((rows,))
    if spec.confidence is not None:
        inputs = hidden + (rank if spec.confidence.with_markov else 0)
        yield "confidence_head.proj.weight", Expected((1, inputs))
        yield "confidence_head.proj.bias", Expected((1,))
    if spec.selector is not None:
        codebook = Expected((spec.vocab_size, spec.selector.rank))
        yield (
            "candidate_selector.hidden_projection.weight",
            Expected((spec.selector.rank, hidden)),
        )
        yield "candidate_selector.predecessor_codebook", codebook
        yield "candidate_selector.successor_codebook", codebook
