"""Converts a GGUF file of the Llama architecture to what ``from_pretrained`` loads."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

CONTROL_TOKEN = 3  # token_type of special tokens

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "embed_tokens", "output_norm": "norm"}


def convert_gguf(
    gguf_path: Path, directory: Path, on_progress: Callable[[int, int], None] | None = None
) -> None:
    """Write config, bf16 weights, tokenizer and chat template of ``gguf_path`` to ``directory``.

    Embeddings are tied, as the file has no output matrix. ``on_progress`` is called with
    (tensors done, tensors in all).
    """
    reader = GGUFReader(gguf_path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    config = _config(fields)
    weights: dict[str, Tensor] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        values = torch.tensor(dequantize(tensor.data, tensor.tensor_type))
        if ".attn_q." in tensor.name:
            values = _split_rotary_halves(values, fields["llama.attention.head_count"])
        elif ".attn_k." in tensor.name:
            values = _split_rotary_halves(values, fields["llama.attention.head_count_kv"])
        weights[_weight_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
        if on_progress is not None:
            on_progress(done, len(reader.tensors))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(directory)
    GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
    ).save_pretrained(directory)
    _tokenizer(fields).save_pretrained(directory)


def _weight_name(gguf_name: str) -> str:
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", gguf_name):
        return f"model.layers.{match[1]}.{LAYER_NAMES[match[2]]}.weight"
    return f"model.{OTHER_NAMES[gguf_name.removesuffix('.weight')]}.weight"


def _split_rotary_halves(rows: Tensor, num_heads: int) -> Tensor:
    """Reorder each head's rows from rotary pairs (0, 1), (2, 3), … to two halves.

    GGUF keeps the two rows that one rotation mixes side by side; ``transformers`` keeps them half
    a head apart.
    """
    return rows.view(num_heads, -1, 2, rows.shape[1]).transpose(1, 2).reshape(rows.shape)


def _config(fields: dict[str, Any]) -> LlamaConfig:
    def llama(name: str) -> Any:
        return fields[f"llama.{name}"]

    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=llama("vocab_size"),
        hidden_size=llama("embedding_length"),
        intermediate_size=llama("feed_forward_length"),
        num_hidden_layers=llama("block_count"),
        num_attention_heads=llama("attention.head_count"),
        num_key_value_heads=llama("attention.head_count_kv"),
        max_position_embeddings=llama("context_length"),
        rms_norm_eps=round(llama("attention.layer_norm_rms_epsilon"), 12),  # 1e-5, kept as fp32
        rope_parameters={"rope_type": "default", "rope_theta": llama("rope.freq_base")},
        tie_word_embeddings=True,
        bos_token_id=fields["tokenizer.ggml.bos_token_id"],
        eos_token_id=fields["tokenizer.ggml.eos_token_id"],
        pad_token_id=fields["tokenizer.ggml.padding_token_id"],
        dtype="bfloat16",
    )


def _tokenizer(fields: dict[str, Any]) -> PreTrainedTokenizerFast:
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)]
    )
    bpe.decoder = decoders.ByteLevel()
    bpe.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
            if kind == CONTROL_TOKEN
        ]
    )
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=bpe,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"]],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"]],
        pad_token=tokens[fields["tokenizer.ggml.padding_token_id"]],
        chat_template=fields["tokenizer.chat_template"],
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
