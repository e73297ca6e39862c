"""What the terminal shows while several prompts are decoded."""

from __future__ import annotations

import io

from rich.console import Console
from round_outputs import round_output
from specfast import SamplingParams
from specfast.cli.transcript import Transcript
from transformers import PreTrainedTokenizerFast

DRAFT_ON, DRAFT_OFF = "\x1b[4;32m", "\x1b[0m"


class Screen:
    """A transcript and what it has written."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        *titles: str,
        terminal: bool = False,
        stop: tuple[str, ...] = (),
    ) -> None:
        self._file = io.StringIO()
        console = Console(
            file=self._file,
            force_terminal=terminal,
            color_system="standard" if terminal else None,
            highlight=False,
            markup=False,
            width=40,
            _environ={"TERM": "xterm"},
        )
        self._ids = tokenizer.encode
        self.transcript = Transcript(console, tokenizer, titles, SamplingParams(stop=stop))

    def add(self, index: int, text: str, accepted: int = 0, *, last: bool = False) -> None:
        self.transcript.add(index, round_output(self._ids(text), accepted=accepted, last=last))

    @property
    def text(self) -> str:
        return self._file.getvalue()


def test_accepted_drafts_are_marked_on_a_terminal(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "a title", terminal=True)
    assert f"{DRAFT_ON}accepted drafts{DRAFT_OFF}" in screen.text
    screen.add(0, "x")
    screen.add(0, "abc", accepted=2, last=True)
    assert screen.text.endswith(f"x{DRAFT_ON}ab{DRAFT_OFF}c\n")


def test_a_pipe_gets_the_text_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "a title")
    screen.add(0, "x" * 99)
    screen.add(0, "[b]c\n", accepted=2, last=True)
    assert screen.text == "x" * 99 + "[b]c\n\n"


def test_text_streams_round_by_round(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "a title")
    screen.add(0, "é"[:1])
    assert screen.text == "é"
    screen.transcript.add(0, round_output(tokenizer.encode("漢")[:2]))
    assert screen.text == "é"
    screen.transcript.add(0, round_output(tokenizer.encode("漢")[2:]))
    assert screen.text == "é漢"


def test_a_stop_string_is_never_shown(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "a title", stop=("END",))
    screen.add(0, "abE")
    assert screen.text == "ab"
    screen.add(0, "NE")
    assert screen.text == "abEN"
    screen.add(0, "ND", last=True)
    assert screen.text == "abEN\n"


def test_prompts_come_in_order_one_below_the_other(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "first", "second", "third")
    screen.add(1, "B1")
    screen.add(0, "A1")
    screen.add(2, "C1", last=True)
    assert screen.text == "\n[1/3] first\nA1"
    screen.add(1, "B2", last=True)
    screen.add(0, "A2", last=True)
    assert screen.text == "\n[1/3] first\nA1A2\n\n[2/3] second\nB1B2\n\n[3/3] third\nC1\n"


def test_a_long_title_is_cut(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "t" * 99, "second")
    assert screen.text == "\n[1/2] " + "t" * 33 + "…\n"


def test_a_model_cannot_steer_the_terminal(tokenizer: PreTrainedTokenizerFast) -> None:
    screen = Screen(tokenizer, "a title")
    screen.add(0, "\x1b[2J\x07\r\x9b\t\n", last=True)
    assert screen.text == "␛[2J␇␍\N{REPLACEMENT CHARACTER}\t\n\n"
