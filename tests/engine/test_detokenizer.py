"""Streaming text: the pieces add up to the whole, and no character comes in halves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from specfast.engine.detokenizer import REPLACEMENT, StreamingDetokenizer, decode_text
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast


def stream(tokenizer: PreTrainedTokenizerFast, token_ids: list[int]) -> list[str]:
    detokenizer = StreamingDetokenizer(tokenizer)
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


@given(text=st.text())
def test_pieces_add_up_and_characters_stay_whole(
    tokenizer: PreTrainedTokenizerFast, text: str
) -> None:
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    if REPLACEMENT not in text:
        assert REPLACEMENT not in "".join(pieces)
        assert pieces[-1] == ""


@given(token_ids=st.lists(st.integers(0, 260), max_size=30))
def test_any_tokens_add_up_to_the_decoded_whole(
    tokenizer: PreTrainedTokenizerFast, token_ids: list[int]
) -> None:
    assert "".join(stream(tokenizer, token_ids)) == decode_text(tokenizer, token_ids)


def test_a_text_drops_its_first_space_only_once() -> None:
    # As SentencePiece does: the space before the first word is no part of the text.
    words = Tokenizer(models.WordLevel({"▁a": 0, "▁b": 1, "c": 2}, unk_token="c"))
    words.decoder = decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    assert tokenizer.decode([0, 1, 2, 1]) == "a bc b"
    assert stream(tokenizer, [0, 1, 2, 1]) == ["a", " b", "c", " b", ""]


@pytest.mark.parametrize("character", ["é", "漢", "😀"])
def test_a_split_character_comes_with_its_last_token(
    tokenizer: PreTrainedTokenizerFast, character: str
) -> None:
    token_ids = tokenizer.encode(character)
    assert len(token_ids) == len(character.encode())
    assert stream(tokenizer, [*token_ids, *token_ids]) == [
        *[""] * (len(token_ids) - 1),
        character,
        *[""] * (len(token_ids) - 1),
        character,
        "",
    ]


def test_an_output_that_ends_inside_a_character(tokenizer: PreTrainedTokenizerFast) -> None:
    token_ids = tokenizer.encode("a漢")[:-1]
    assert stream(tokenizer, token_ids) == ["a", "", "", REPLACEMENT]


def test_special_tokens_are_not_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    a, end = *tokenizer.encode("a"), tokenizer.eos_token_id
    assert stream(tokenizer, [a, end, a, end]) == ["a", "", "a", "", ""]
