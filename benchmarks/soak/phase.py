"""One phase of a soak: an engine of random sizes under random requests, and what must hold."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specfast.drafters import Drafter, NgramDrafter, PlainDecoding
from specfast.engine import Engine, RoundOutput, VerifyTiers
from specfast.sampling_params import SamplingParams
from specfast.status import FinishReason, Status
from transformers import PreTrainedModel

from benchmarks.soak.plans import planned
from benchmarks.soak.texts import TextDrafter, Texts, is_tie
from benchmarks.soak.trained import PLANNED, TRAINED, trained_drafter

# What differs most comes first.
DRAFTERS = (
    *("dspark planned", "tree", "eagle trees", "none", "dflash", "eagle trees planned", "chain"),
    *("eagle3 drawn trees", "ngram", "dspark", "ngram tree", "eagle3", "dflash2", "eagle"),
)


@dataclass
class Asked:
    """A request and what it has got; ``prompt`` is a number of the texts."""

    prompt: int
    params: SamplingParams
    token_ids: list[int] = field(default_factory=list)


class Phase:
    """Random joins, cancellations and ends on one engine, all drawn from ``seed``.

    counts : of requests, tokens, rounds and ends
    failures : sentences; empty is what is wanted
    """

    def __init__(
        self,
        model: PreTrainedModel,
        texts: Texts,
        kind: str,
        seed: int,
        rounds: Sequence[str],
        engine_options: dict[str, Any],
    ) -> None:
        """``rounds`` are ways to run them, of which one is drawn: "graphs", "padded", "eager"."""
        self._draw = random.Random(seed)
        self._model, self._texts = model, texts
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self._open: dict[int, Asked] = {}
        self._longest = max(len(text) for text in texts.plain)
        sizes: dict[str, Any] = {
            "page_size": self._draw.choice([1, 4, 16, 64]),
            "max_batch_size": self._draw.choice([1, 3, 8, 16]),
            "verify_width": self._draw.choice([2, 5, 8, 16]),
            **engine_options,
        }
        way, width = self._draw.choice(rounds), sizes["verify_width"]
        tiers, planning = None, None
        if kind in PLANNED:
            way = "padded" if way == "eager" else way
            mode = self._draw.choice(("compact", "cap-accept"))
            tiers, planning = planned(model, mode, sizes["max_batch_size"], width, way)
        elif way != "eager":
            capture = way == "graphs"
            tiers = VerifyTiers.up_to(sizes["max_batch_size"], width, capture=capture)
        drafter = self._drafter(kind, seed, width - 1)
        self._engine = Engine(model, drafter, seed=seed, tiers=tiers, planning=planning, **sizes)
        self.conditions: dict[str, Any] = {
            "drafter": kind,
            "dtype": str(model.dtype).removeprefix("torch."),
            "rounds": way if planning is None else f"{way}, {planning.mode}",
            "seed": seed,
            **sizes,
            "num_pages": self._engine.pool.num_pages,
        }

    def _drafter(self, kind: str, seed: int, num_drafts: int) -> Drafter:
        if kind == "none":
            return PlainDecoding()
        if kind in TRAINED:
            return trained_drafter(kind, self._model, self._texts, num_drafts)
        if kind.startswith("ngram"):
            return NgramDrafter(tree=kind.endswith("tree"))
        return TextDrafter(self._texts, kind == "tree", seed)

    def run(self, seconds: float) -> None:
        """Go on for so long, then cancel some of what is left and decode the rest to its end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            while self._draw.random() < 0.3 and len(self._open) < 40:
                self._join()
            if self._open and self._draw.random() < 0.05:
                self._engine.cancel(self._draw.choice(list(self._open)))
            self._step()
        for request_id in list(self._open)[::2]:
            self._engine.cancel(request_id)
        while self._engine.has_unfinished:
            self._step()
        if self._open:
            self._fail(f"{len(self._open)} requests have no end")
        pool = self._engine.pool
        if pool.num_free_pages != pool.num_pages:
            self._fail(f"{pool.num_pages - pool.num_free_pages} pages were not returned")

    def _join(self) -> None:
        draw, prompt = self._draw, self._draw.randrange(len(self._texts.prompts))
        options: dict[str, Any] = {"max_new_tokens": draw.randint(1, self._longest)}
        if draw.random() < 0.3:
            options["stop_token_ids"] = (draw.choice(self._texts.plain[prompt]),)
        if draw.random() < 0.4:
            options["temperature"] = draw.choice([0.3, 1.0, 1.5])
            options["top_k"] = draw.choice([0, 1, 20])
            options["top_p"] = draw.choice([1.0, 0.9, 0.2])
            options["min_p"] = draw.choice([0.0, 0.05])
            options["seed"] = draw.randrange(2**64)
        if draw.random() < 0.1:
            options["presence_penalty"] = 0.5
        params = SamplingParams(**options)
        request_id = self._engine.add_request(self._texts.prompts[prompt], params)
        self._open[request_id] = Asked(prompt, params)
        self.counts["greedy requests" if params.is_plain_greedy else "other requests"] += 1

    def _step(self) -> None:
        outputs = self._engine.step()
        self.counts["steps"] += 1
        for output in outputs:
            self._take(output)

    def _take(self, output: RoundOutput) -> None:
        asked = self._open.get(output.request_id)
        if asked is None:
            self._fail(f"request {output.request_id} goes on after its end")
            return
        asked.token_ids += output.token_ids
        self.counts["tokens"] += len(output.token_ids)
        self.counts["accepted drafts"] += output.num_accepted
        if output.status != Status.OK:
            self._fail(f"request {output.request_id} has the status {output.status!r}")
        if output.finish_reason:
            self.counts[f"ended by {output.finish_reason.name}"] += 1
            del self._open[output.request_id]
            self._judge(output.request_id, asked, output.finish_reason)

    def _judge(self, request_id: int, asked: Asked, reason: FinishReason) -> None:
        got, params = asked.token_ids, asked.params
        if len(got) > params.max_new_tokens:
            self._fail(f"request {request_id} has more than {params.max_new_tokens} tokens")
        if not params.is_plain_greedy:
            return
        want = self._texts.plain[asked.prompt][: params.max_new_tokens]
        ends = [i for i, token in enumerate(want) if token in params.stop_token_ids]
        want = want[: ends[0] + 1] if ends else want
        if got == want or (reason is FinishReason.ABORT and got == want[: len(got)]):
            self.counts["equal to plain decoding"] += 1
            return
        self._judge_difference(request_id, asked, want)

    def _judge_difference(self, request_id: int, asked: Asked, want: list[int]) -> None:
        """Where two tokens are as good as equal, rounding in another batch may prefer the other."""
        got = asked.token_ids
        first = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), None)
        if first is None:
            self._fail(f"request {request_id} has {len(got)} tokens instead of {len(want)}")
            return
        prefix = [*self._texts.prompts[asked.prompt], *got[:first]]
        tied, gap = is_tie(self._model, prefix, (got[first], want[first]))
        if tied:
            self.counts["other way at a tie"] += 1
        else:
            self._fail(f"request {request_id} leaves plain decoding at {first}, {gap} from the top")

    def _fail(self, sentence: str) -> None:
        self.failures.append(sentence)
