"""Whether drafter and target mean the same tokens by their ids, where both bring a tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specfast.drafters.checkpoint.errors import DrafterError

TOKENIZER = "tokenizer.json"


def match_tokenizers(drafter: Path, target: Path | None) -> None:
    """Compare the tokens of the ids that both files name; without both files, nothing.

    Ids that one of them lacks are fine: a drafter may have a mask token of its own.

    Raises
    ------
    DrafterError
        An id with two tokens; names both. A file that cannot be read.
    """
    if target is None or not all((path / TOKENIZER).exists() for path in (drafter, target)):
        return
    own, theirs = (_tokens(path / TOKENIZER) for path in (drafter, target))
    differing = sorted(token for token in own.keys() & theirs if own[token] != theirs[token])
    if differing:
        first = differing[0]
        raise DrafterError(
            f"the drafter's tokenizer has {own[first]!r} at id {first}, the target's "
            f"{theirs[first]!r}; {len(differing)} of the {len(own.keys() & theirs)} ids that both "
            "have differ"
        )


def _tokens(file: Path) -> dict[int, str]:
    """The token of each id, added ones included."""
    try:
        content: Any = json.loads(file.read_text(encoding="utf-8"))
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, dict):
            tokens = {int(number): str(token) for token, number in vocabulary.items()}
        else:
            # Pairs of a token and its score, in the order of their ids.
            tokens = {number: str(token) for number, (token, _) in enumerate(vocabulary)}
        for added in content.get("added_tokens") or ():
            tokens[int(added["id"])] = str(added["content"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DrafterError(f"cannot read {file}: {type(error).__name__}: {error}") from error
    return tokens
