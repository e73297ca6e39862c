"""Token ids to text, piece by piece and up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence

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


class StoppingDetokenizer:
    """The text of one output up to its first stop string, which is no part of it.

    The pieces, ``flush()`` included, add up to that text. What may be the beginning of a stop
    string is held back until it is decided, so nothing has to be taken back.

    Parameters
    ----------
    stop : sequence of str
        None of them empty. Special tokens have no text, so no stop string matches one.
    min_tokens : int
        A stop string that is complete before so many tokens is text like any other.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, stop: Sequence[str] = (), min_tokens: int = 0
    ) -> None:
        self._detokenizer = StreamingDetokenizer(tokenizer)
        self._stop = tuple(stop)
        self._tokens_to_pass = min_tokens
        self._held = ""
        self.has_stopped = False

    def push(self, token_id: int) -> str:
        """Add a token and return the text that may now be shown; nothing once stopped."""
        if self.has_stopped:
            return ""
        self._tokens_to_pass -= 1
        piece = self._detokenizer.push(token_id)
        if not self._stop:
            return piece
        text = self._held + piece
        end = self._first_stop(text) if self._tokens_to_pass <= 0 else -1
        self.has_stopped = end >= 0
        if not self.has_stopped:
            end = len(text) - self._num_undecided(text)
        self._held = "" if self.has_stopped else text[end:]
        return text[:end]

    def push_all(self, token_ids: Sequence[int]) -> int | None:
        """Add tokens until a stop string ends the text: the number added, or None if none does."""
        for length, token_id in enumerate(token_ids, start=1):
            self.push(token_id)
            if self.has_stopped:
                return length
        return None

    def flush(self) -> str:
        """Return what is still held back, once the output has ended."""
        if self.has_stopped:
            return ""
        held, self._held = self._held, ""
        return held + self._detokenizer.flush()

    def _first_stop(self, text: str) -> int:
        """Where the first stop string begins that the text past ``_held`` completes, or -1."""
        # One that was complete before was passed over.
        firsts = (text.find(s, max(len(self._held) + 1 - len(s), 0)) for s in self._stop)
        return min((first for first in firsts if first >= 0), default=-1)

    def _num_undecided(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        longest = max(len(s) for s in self._stop) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(len(s) > length and s.startswith(end) for s in self._stop):
                return length
        return 0


def decode_text(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> str:
    """The text of ``token_ids`` without special tokens and without any tidying."""
    text = tokenizer.decode(token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return str(text)
