"""A byte-level tokenizer with a chat template, trained on the spot."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'critic' %}{{ raise_exception('no critics here') }}{% endif %}"
    "<|user|>{{ m['content'] }}{% endfor %}<|end|>"
)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, a few merges, and two special tokens: <|end|> is 0."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = [AddedToken("<|end|>", special=True), AddedToken("<|user|>", special=True)]
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["the hash of the key is the index of the slot"] * 9, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )
