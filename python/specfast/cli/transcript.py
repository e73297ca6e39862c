"""The text on the terminal, as it is decided."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from specfast.engine import RoundOutput
from specfast.engine.detokenizer import StoppingDetokenizer
from specfast.sampling_params import SamplingParams
from specfast.status import FinishReason

DRAFT_STYLE = Style(color="green", underline=True)
# A model may emit any character; those that steer a terminal are shown as symbols.
CONTROL_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\n\t"},
    0x7F: 0x2421,
    **dict.fromkeys(range(0x80, 0xA0), 0xFFFD),
}


class Transcript:
    """Streams the outputs of several prompts one below the other.

    The first unfinished prompt streams. What is decided for later ones meanwhile is kept, and
    shown at once when their turn comes. A stop string ends a text before it.
    """

    def __init__(
        self,
        console: Console,
        tokenizer: PreTrainedTokenizerBase,
        titles: Sequence[str],
        params: SamplingParams,
    ) -> None:
        self._console = console
        self._titles = titles
        self._detokenizers = [
            StoppingDetokenizer(tokenizer, params.stop, params.min_new_tokens) for _ in titles
        ]
        self._waiting: list[list[Segment]] = [[] for _ in titles]
        self._finished = [False for _ in titles]
        self._current = 0
        self._print_legend()
        self._print_title()

    def add(self, index: int, output: RoundOutput) -> None:
        """Take what one round gave the prompt ``index``."""
        waiting, detokenizer = self._waiting[index], self._detokenizers[index]
        for i, token_id in enumerate(output.token_ids):
            style = DRAFT_STYLE if i < output.num_accepted else None
            waiting.append(_segment(detokenizer.push(token_id), style))
        if output.finish_reason is not FinishReason.NOT_FINISHED:
            waiting.append(_segment(detokenizer.flush()))
            self._finished[index] = True
        self._stream()

    def _stream(self) -> None:
        while True:
            # Segments are written as they are: rich would wrap a Text and expand its tabs.
            segments = Segments(Segment.simplify(self._waiting[self._current]))
            self._console.print(segments, end="", soft_wrap=True)
            self._waiting[self._current].clear()
            if not self._finished[self._current]:
                return
            self._console.print()
            self._current += 1
            if self._current == len(self._titles):
                return
            self._print_title()

    def _print_legend(self) -> None:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            legend = Text.assemble(("accepted drafts", DRAFT_STYLE), ", the target's own tokens\n")
            self._console.print(legend)

    def _print_title(self) -> None:
        if len(self._titles) > 1:
            heading = f"[{self._current + 1}/{len(self._titles)}] {self._titles[self._current]}"
            title = Text(heading.translate(CONTROL_PICTURES), "bold")
            self._console.print()
            self._console.print(title, no_wrap=True, overflow="ellipsis")


def _segment(text: str, style: Style | None = None) -> Segment:
    return Segment(text.translate(CONTROL_PICTURES), style)
