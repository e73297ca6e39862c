"""A GGUF file written as llama.cpp writes it converts back to the model it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

gguf = pytest.importorskip("gguf")

from specfast.models.gguf_llama import LAYER_NAMES, OTHER_NAMES, convert_gguf  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM, HIDDEN, LAYERS = 4, 2, 8, 32, 2
TOKENS = ["<|none|>", "<|start|>", "<|end|>", "a", "b", "Ġ", "ab", "1", "Ġ1", "11"]


def interleave(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Row 2 i + h of a head is row i of its half h: what a llama.cpp conversion does."""
    out = torch.empty_like(rows)
    for head in range(num_heads):
        for i in range(HEAD_DIM):
            half, place = divmod(i, HEAD_DIM // 2)
            out[head * HEAD_DIM + 2 * place + half] = rows[head * HEAD_DIM + i]
    return out


@pytest.fixture
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=64,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
        # What bf16 holds exactly survives the conversion.
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model


@pytest.fixture
def gguf_path(model: LlamaForCausalLM, tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(len(TOKENS))
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(48)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_context_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(500.0)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3, *[1] * 7])
    writer.add_token_merges(["a b", "Ġ 1", "1 1"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    weights = model.state_dict()
    for layer in range(LAYERS):
        for theirs, ours in LAYER_NAMES.items():
            values = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs == "attn_q":
                values = interleave(values, HEADS)
            elif theirs == "attn_k":
                values = interleave(values, KV_HEADS)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", values.numpy())
    for theirs, ours in OTHER_NAMES.items():
        writer.add_tensor(f"{theirs}.weight", weights[f"model.{ours}.weight"].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_converted_model_is_the_original(
    model: LlamaForCausalLM, gguf_path: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(gguf_path, out)
    converted = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    for name, values in model.state_dict().items():
        assert torch.equal(values, converted.state_dict()[name]), name
    ids = torch.tensor([[3, 4, 6, 5, 3]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, converted(ids).logits)
    assert converted.generation_config.eos_token_id == 2
    assert converted.config.max_position_embeddings == 64


def test_the_tokenizer_comes_along(gguf_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(gguf_path, out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    # Digits come one by one, whatever merges there are.
    assert tokenizer("ab<|end|> 11a").input_ids == [6, 2, 5, 7, 7, 3]
    assert tokenizer.decode([6, 2, 5, 7], skip_special_tokens=True) == "ab 1"
    assert tokenizer.eos_token == "<|end|>"
    messages = [{"role": "user", "content": "a b"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == "a b"
