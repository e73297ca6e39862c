"""Stop strings end a text before them, wherever tokens and rounds end."""

from __future__ import annotations

import string
from functools import lru_cache

import pytest
from engine.drafters import OracleDrafter
from engine.models import VOCAB, plain_greedy, random_prompt, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from specfast import FinishReason, SamplingParams
from specfast.engine import Engine
from specfast.engine.detokenizer import StoppingDetokenizer
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

PROMPT = random_prompt(9, seed=4)
NUM_TOKENS = 40


@lru_cache
def one_letter_per_token() -> PreTrainedTokenizerFast:
    letters = (string.ascii_letters + string.digits)[:VOCAB]
    words = Tokenizer(models.WordLevel({c: i for i, c in enumerate(letters)}, unk_token="a"))
    words.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=words)


@lru_cache
def expected() -> tuple[int, ...]:
    return tuple(plain_greedy(tiny_model(), PROMPT, NUM_TOKENS))


def engine(tree: bool) -> Engine:
    drafter = OracleDrafter([[*PROMPT, *expected()]], tree)
    return Engine(tiny_model(), drafter, verify_width=16, tokenizer=one_letter_per_token())


@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@pytest.mark.parametrize("end", range(3, NUM_TOKENS, 4))
def test_tokens_after_a_stop_string_are_discarded(end: int, tree: bool) -> None:
    text = one_letter_per_token().decode(list(expected()))
    stop = text[end - 3 : end]
    length = text.index(stop) + 3
    # An end that comes later, at times in the same round, has no say.
    later = [token for token in expected()[length:] if token not in expected()[:length]]
    params = SamplingParams(
        max_new_tokens=NUM_TOKENS,
        # The absent one is longer, and begins as the other.
        stop=(stop + "!", stop),
        eos_token_ids=tuple(later),
    )
    under_test = engine(tree)
    (generation,) = under_test.generate([PROMPT], params)
    assert tuple(generation.token_ids) == expected()[:length]
    assert generation.finish_reason is FinishReason.STOP
    assert all(r.num_accepted <= len(r.token_ids) for r in generation.rounds)
    assert under_test.pool.num_free_pages == under_test.pool.num_pages
    assert not under_test.has_unfinished


def test_an_end_that_comes_first_counts() -> None:
    text = one_letter_per_token().decode(list(expected()))
    # A token that is new where it comes, and the string that ends with it.
    at = next(i for i in range(4, NUM_TOKENS) if expected()[i] not in expected()[:i])
    stop, last = text[at - 2 : at + 1], expected()[at]
    for params, reason in (
        (SamplingParams(stop=(stop,), eos_token_ids=(last,)), FinishReason.EOS),
        (SamplingParams(stop=(stop,), max_new_tokens=at + 1), FinishReason.STOP),
        (SamplingParams(stop=(stop,), max_new_tokens=at), FinishReason.LENGTH),
    ):
        (generation,) = engine(tree=False).generate([PROMPT], params)
        assert generation.finish_reason is reason
        assert last not in generation.token_ids[:-1]


def test_a_stop_string_before_the_minimum_is_passed_over() -> None:
    text = one_letter_per_token().decode(list(expected()))
    stop = text[1:4]
    again = text.find(stop, 2)
    assert again == -1
    params = SamplingParams(max_new_tokens=NUM_TOKENS, min_new_tokens=5, stop=(stop,))
    (generation,) = engine(tree=False).generate([PROMPT], params)
    assert tuple(generation.token_ids) == expected()
    params = SamplingParams(max_new_tokens=NUM_TOKENS, min_new_tokens=4, stop=(stop,))
    (generation,) = engine(tree=False).generate([PROMPT], params)
    assert tuple(generation.token_ids) == expected()[:4]


def test_stop_strings_need_a_tokenizer() -> None:
    without = Engine(tiny_model())
    with pytest.raises(ValueError, match="expected an engine with a tokenizer for stop strings"):
        without.add_request(PROMPT, SamplingParams(stop=("end",)))
    assert not without.has_unfinished


def pieces(text: str, stop: tuple[str, ...], min_tokens: int = 0) -> list[str]:
    tokenizer = one_letter_per_token()
    detokenizer = StoppingDetokenizer(tokenizer, stop, min_tokens)
    ids = tokenizer.convert_tokens_to_ids(list(text))
    return [*(detokenizer.push(i) for i in ids), detokenizer.flush()]


def test_the_beginning_of_a_stop_string_is_held_back() -> None:
    assert pieces("xaay", ("aab",)) == ["x", "", "", "aay", ""]
    assert pieces("xaaaby", ("aab",)) == ["x", "", "", "a", "", "", ""]
    assert pieces("xaa", ("aab",)) == ["x", "", "", "aa"]
    # The shorter one ends the text, though the longer one has begun before.
    assert pieces("xabz", ("abc", "b")) == ["x", "", "a", "", ""]
    # Complete before the third token: text like any other.
    assert pieces("xbabc", ("b",), min_tokens=3) == ["x", "b", "a", "", "", ""]
    assert pieces("xabd", ("abc", "b"), min_tokens=4) == ["x", "", "", "abd", ""]
    assert pieces("abcd", ("b", "abc"), min_tokens=3) == ["", "", "", "", ""]


texts = st.text(alphabet="ab", max_size=12)


@given(text=texts, stop=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3))
def test_pieces_add_up_to_the_text_before_the_first_complete_stop_string(
    text: str, stop: list[str]
) -> None:
    shown = pieces(text, tuple(stop))
    ends = [n for n in range(len(text) + 1) for s in stop if text[:n].endswith(s)]
    if not ends:
        assert "".join(shown) == text
        return
    complete = text[: min(ends)]
    longest = max((s for s in stop if complete.endswith(s)), key=len)
    assert "".join(shown) == complete.removesuffix(longest)
    assert shown[-1] == ""
