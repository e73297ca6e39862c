"""Token ids to text, piece by piece."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class StreamingDetokenizer:
    """Turns the tokens of one output into text that may be shown at once.

    The pieces, ``flush()`` included, add up to the decoded whole. A character that is split over
    several tokens is held back until its last one; a token decodes differently at the beginning
    of a text, so the previous piece is decoded along as context.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Add a token and return the text that it completes, which may be empty."""
        self._pending.append(token_id)
        piece = self._pending_text()
        # An incomplete character decodes to replacement characters at the end.
        if not piece or piece.endswith(REPLACEMENT):
            return ""
        self._context, self._pending = self._pending, []
        return piece

    def flush(self) -> str:
        """Return what is still held back: the output ends inside a character."""
        return self._pending_text()

    def _pending_text(self) -> str:
        shown = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(shown) :]

    def _decode(self, token_ids: list[int]) -> str:
        return decode_text(self._tokenizer, token_ids)


def decode_text(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """The text of ``token_ids`` without special tokens and without any tidying."""
    text = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)
