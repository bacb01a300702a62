"""Where the randomness of sampling and of orders comes from: keys made of what a draw is for, so that there is no state
to lose or to share. Generators of the seed draw new weights and made-up prompts alone, before anything else.

A draw is the same in any thread, at any time, and beside any other: that makes completions independent of the
order of arrival, of concurrency, preemption and resume. Keys are hashes of named parts, never sums or products of
small numbers, which collide.
"""

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache


def key(*parts: str | int) -> int:
    """64 bits for these parts, each taken with its type and length: ("a", "b") is not ("ab",), nor 1 "1"."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        encoded = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{'i' if isinstance(part, int) else 's'}{len(encoded)}:".encode() + encoded)
    return int.from_bytes(digest.digest(), "big")


def completion_key(*, seed: int, step: int, prompt_id: str, sample_index: int, turn: int = 0) -> int:
    """The key of one completion's noise; a position's is this and the position."""
    return key("completion", seed, step, prompt_id, sample_index, turn)


def permutation(num_items: int, *parts: str | int) -> list[int]:
    """The numbers 0 to num_items - 1 in the order of their keys: the same for the same parts, on any machine."""
    return sorted(range(num_items), key=lambda item: (key("permutation", *parts, item), item))


def epoch_items(first: int, count: int, num_items: int, *parts: str | int) -> list[int]:
    """Draws `first` to first + count - 1 of an endless series of permutations: every item once an epoch.

    A pure function of its arguments: a resumed run continues where the other stopped, also amid an epoch.
    """
    drawn: list[int] = []
    for epoch in range(first // num_items, (first + count - 1) // num_items + 1):
        begin = max(first - epoch * num_items, 0)
        drawn += _epoch_order(num_items, *parts, "epoch", epoch)[begin : first + count - epoch * num_items]
    return drawn


@lru_cache(maxsize=4, typed=True)  # each step asks for a few items of an epoch's permutation
def _epoch_order(num_items: int, *parts: str | int) -> list[int]:
    return permutation(num_items, *parts)


def prompt_ids(contents: Iterable[str | Sequence[int]]) -> list[str]:
    """An id for each prompt, of its content and of how often the same content came before it."""
    seen: dict[str, int] = {}
    ids = []
    for content in contents:
        parts: tuple[str | int, ...] = (content,) if isinstance(content, str) else tuple(content)
        digest = f"{key('prompt', *parts):016x}"
        occurrence = seen.get(digest, 0)
        seen[digest] = occurrence + 1
        ids.append(f"{digest}-{occurrence}")
    return ids
