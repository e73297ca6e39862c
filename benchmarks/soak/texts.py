"""Prompts of a soak, the texts that plain decoding gives them, and drafts that know those texts."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import torch
from specfast.drafters import DraftBatch, DraftRequest, DraftSlots
from specfast.engine import Engine
from specfast.sampling_params import SamplingParams
from transformers import PreTrainedModel

FLOAT32_TIE = 1e-3


class Texts:
    """Random prompts and their greedy continuations, decoded one by one without drafts."""

    def __init__(
        self, model: PreTrainedModel, count: int, longest: int, length: int, seed: int
    ) -> None:
        draw = random.Random(seed)
        vocab = model.config.get_text_config().vocab_size
        self.vocab_size = vocab
        self.prompts = [
            [draw.randrange(vocab) for _ in range(draw.randint(1, longest))] for _ in range(count)
        ]
        engine = Engine(model, max_batch_size=1, seed=seed)
        greedy = SamplingParams(max_new_tokens=length)
        self.plain = [engine.generate([p], greedy)[0].token_ids for p in self.prompts]


class TextHints:
    """The plain texts of an engine's requests on the device, for drafts of greedy ones.

    A drafter with random weights is hardly ever right: with hints its rounds accept any number.
    """

    def __init__(self, texts: Texts, num_slots: int, device: torch.device) -> None:
        self._texts = {tuple(p): [*p, *t] for p, t in zip(texts.prompts, texts.plain, strict=True)}
        self._longest = max(len(text) for text in self._texts.values())
        self._rows = torch.full((num_slots, self._longest), -1, device=device)

    def know(self, requests: Sequence[DraftRequest]) -> None:
        """Requests with nothing but their prompt and one token are new in their slots."""
        for request in requests:
            text = self._texts.get(tuple(request.token_ids[:-1]))
            if text is not None:
                row = torch.tensor([*text, *[-1] * (self._longest - len(text))])
                self._rows[request.slot] = row.to(self._rows.device)

    def hide(self, slots: DraftSlots) -> None:
        """Write the next tokens of the text over the first drafts, of a number that varies."""
        steps = torch.arange(1, slots.tokens.shape[1], device=self._rows.device)
        at = slots.prefix_lens[:, None] + steps
        true = self._rows.index_select(0, slots.page_table_rows)
        true = true.gather(1, at.clamp(max=self._longest - 1))
        known = steps <= (7 * slots.prefix_lens + slots.page_table_rows)[:, None] % (len(steps) + 1)
        known &= (at < self._longest) & (true >= 0) & (slots.sampling.temperature[:, None] == 0)
        slots.tokens[:, 1:] = torch.where(known, true, slots.tokens[:, 1:])


class TextDrafter:
    """Drafts the plain text up to a random depth, then anything; so paths of all lengths occur."""

    def __init__(self, texts: Texts, tree: bool, seed: int) -> None:
        self._texts = {tuple(p): [*p, *t] for p, t in zip(texts.prompts, texts.plain, strict=True)}
        self._lengths = sorted({len(prompt) for prompt in texts.prompts})
        self._vocab_size = texts.vocab_size
        self._tree = tree
        self._draw = random.Random(seed)

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        drafts, parents = [], []
        for request in requests:
            rows = self._draw.randrange(verify_width)
            path = self._path(request, self._draw.randint(0, rows))
            tokens, above = self._spread(path, rows)
            drafts.append(tokens)
            parents.append(above)
        return DraftBatch.from_lists(requests, drafts, parents if self._tree else None)

    def _path(self, request: DraftRequest, length: int) -> list[int]:
        done = request.token_ids
        for prompt_len in self._lengths:
            text = self._texts.get(tuple(done[:prompt_len]))
            if text is not None and text[: len(done)] == done:
                return text[len(done) : len(done) + length]
        return []

    def _spread(self, path: list[int], rows: int) -> tuple[list[int], list[int]]:
        """The path among wrong nodes; in a tree they are siblings of true ones, and first."""
        tokens: list[int] = []
        parents: list[int] = []
        above = 0
        for token in path:
            if self._tree and self._draw.random() < 0.5:
                tokens.append(self._draw.randrange(self._vocab_size))
                parents.append(above)
            tokens.append(token)
            parents.append(above)
            above = len(tokens)
        while len(tokens) < rows:
            tokens.append(self._draw.randrange(self._vocab_size))
            parents.append(len(tokens) - 1)
        return tokens[:rows], parents[:rows]

    def release(self, request_id: int) -> None:
        pass


@torch.inference_mode()
def is_tie(model: PreTrainedModel, prefix: list[int], tokens: Sequence[int]) -> tuple[bool, float]:
    """Whether a plain forward puts all ``tokens`` after ``prefix`` next to the top, and how far the
    lowest lies under it.

    Next to it: in fp32 within ``FLOAT32_TIE``, in bf16 within twice what ``specfast generate
    --check`` tolerates, by its rounding in as many layers: two texts are compared.
    """
    ids = torch.tensor([prefix], device=model.device)
    row = model(input_ids=ids, use_cache=False).logits[0, -1].float()
    gap = float(row.max() - row[list(tokens)].min())
    if model.dtype == torch.float32:
        return gap <= FLOAT32_TIE, gap
    layers = model.config.get_text_config().num_hidden_layers
    return gap <= 2**-6 * math.sqrt(2 * layers) * float(row.abs().max()), gap
