"""Prompt lookup: what followed the last few tokens when they occurred before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from specfast.drafters.base import DraftBatch, DraftRequest

# Occurrences looked at per branch wanted: most repeat a continuation that is already drafted.
_OCCURRENCES_PER_BRANCH = 4


class NgramDrafter:
    """Drafts the continuations of earlier occurrences of the request's last tokens.

    The longest suffix of prompt + output that occurred before wins, the most recent occurrence
    first. A copy may run into its own drafts, so a loop is continued for as long as asked.

    Parameters
    ----------
    max_ngram : int
        Longest suffix that is looked up; shorter ones follow, down to one token.
    num_drafts : int
        Drafts per request and round, further limited by the engine's ``verify_width`` and by what
        the request may still emit.
    tree : bool
        Draft several continuations at once. They are merged: siblings are distinct tokens.
    num_branches : int
        Continuations in a tree. Each takes half of the drafts that the earlier ones left; what
        nobody takes lengthens the first.

    Raises
    ------
    ValueError
        A number below 1.

    Notes
    -----
    The index is kept up to date incrementally: a round costs O(new tokens · max_ngram +
    num_drafts) per request. Method: prompt lookup decoding (Saxena, 2023); the merged tree is that
    of token-tree verification (Miao et al., SpecInfer, 2024).
    """

    def __init__(
        self, max_ngram: int = 3, num_drafts: int = 7, tree: bool = False, num_branches: int = 3
    ) -> None:
        for name, value in (
            ("max_ngram", max_ngram),
            ("num_drafts", num_drafts),
            ("num_branches", num_branches),
        ):
            if value < 1:
                raise ValueError(f"NgramDrafter: expected {name} >= 1, got {value}")
        self.max_ngram = max_ngram
        self.num_drafts = num_drafts
        self.tree = tree
        self.num_branches = num_branches
        self._histories: dict[int, _History] = {}

    def propose(self, requests: Sequence[DraftRequest], verify_width: int) -> DraftBatch:
        limit = min(self.num_drafts, verify_width - 1)
        tries = [self._draft(request, limit) for request in requests]
        return DraftBatch.from_lists(
            requests,
            [trie.tokens for trie in tries],
            [trie.parents for trie in tries] if self.tree else None,
        )

    def release(self, request_id: int) -> None:
        self._histories.pop(request_id, None)

    def _draft(self, request: DraftRequest, limit: int) -> _Trie:
        history = self._histories.setdefault(request.request_id, _History(self.max_ngram))
        history.extend(request.token_ids[len(history.tokens) :])
        # The bonus comes on top of the deepest path.
        depth = min(limit, request.tokens_left - 1)
        wanted = self.num_branches if self.tree else 1
        starts = islice(history.matches(), wanted * _OCCURRENCES_PER_BRANCH)
        paths = [history.continuation(start, depth) for start in starts]
        trie = _Trie()
        for path in paths:
            if wanted > 0 and trie.branches_off(path):
                trie.insert(path, (limit - len(trie.tokens) + 1) // 2)
                wanted -= 1
        if paths:
            trie.insert(paths[0], limit - len(trie.tokens))
        return trie


class _History:
    """The tokens of one request, and after which positions each n-gram of them was continued."""

    def __init__(self, max_ngram: int) -> None:
        self.max_ngram = max_ngram
        self.tokens: list[int] = []
        self._continued_at: dict[tuple[int, ...], list[int]] = {}

    def extend(self, new_tokens: Sequence[int]) -> None:
        for token in new_tokens:
            # Every n-gram that ends here has now been continued. The suffix has not, so it never
            # matches itself.
            for ngram in self._suffixes():
                self._continued_at.setdefault(ngram, []).append(len(self.tokens))
            self.tokens.append(token)

    def matches(self) -> Iterator[int]:
        """Positions after earlier occurrences of the suffix: longest first, then most recent."""
        seen: set[int] = set()
        for ngram in self._suffixes():
            for position in reversed(self._continued_at.get(ngram, ())):
                if position not in seen:
                    seen.add(position)
                    yield position

    def continuation(self, start: int, length: int) -> list[int]:
        """``length`` tokens from ``start``; past the end the copy reads what it has written."""
        period = len(self.tokens) - start
        return [self.tokens[start + i % period] for i in range(length)]

    def _suffixes(self) -> Iterator[tuple[int, ...]]:
        for n in range(min(self.max_ngram, len(self.tokens)), 0, -1):
            yield tuple(self.tokens[-n:])


class _Trie:
    """Continuations that share their common beginnings; node 0 is the anchor."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def branches_off(self, path: Sequence[int]) -> bool:
        """Whether ``path`` leaves the trie beside a node, not only below a leaf."""
        node = 0
        for token in path:
            child = self._children.get((node, token))
            if child is None:
                return node == 0 or node in self.parents
            node = child
        return False

    def insert(self, path: Sequence[int], budget: int) -> None:
        """Add the part of ``path`` that is not there yet, at most ``budget`` nodes of it."""
        node = 0
        for token in path:
            child = self._children.get((node, token))
            if child is None:
                if budget == 0:
                    break
                budget -= 1
                self.tokens.append(token)
                self.parents.append(node)
                child = len(self.tokens)
                self._children[node, token] = child
            node = child
