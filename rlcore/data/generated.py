"""Tasks whose prompts are drawn: what there is to draw from, and the draw.

A task is counted out: kinds (lengths of words, digits of numbers and the sign), and of each kind so many
prompts, numbered. Kinds are drawn alike, so that few short words stand beside many long ones, not one beside hundreds.
"""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from math import isqrt
from string import ascii_lowercase
from typing import NamedTuple

from rlcore.data import recommendation
from rlcore.errors import InvalidValueError
from rlcore.seeds import key


class Example(NamedTuple):
    """A prompt and its right completion."""

    prompt: str
    answer: str


class Kind(NamedTuple):
    """Prompts that are alike in size."""

    num_examples: int
    """All of them different."""
    example: Callable[[int], Example]
    """By its number, from 0."""


class Exercise(NamedTuple):
    """A task that is drawn."""

    alphabet: str
    """Every character of its prompts and answers."""
    kinds: Callable[[int, int], list[Kind]]
    """Of the lengths from the first to the second."""


def _reversed(number: int, length: int) -> Example:
    word = _word(number, length)
    return Example(f"{word}>", word[::-1])


def _sorted(number: int, length: int) -> Example:
    word = _word(number, length)
    return Example(f"{word}|", "".join(sorted(word)))


def _word(number: int, length: int) -> str:
    """The `number`-th word of this length."""
    letters = []
    for _ in range(length):
        number, letter = divmod(number, len(ascii_lowercase))
        letters.append(ascii_lowercase[letter])
    return "".join(letters)


def _words(example: Callable[[int, int], Example]) -> Callable[[int, int], list[Kind]]:
    def kinds(shortest: int, longest: int) -> list[Kind]:
        return [_word_kind(example, length) for length in range(shortest, longest + 1)]

    return kinds


def _word_kind(example: Callable[[int, int], Example], length: int) -> Kind:
    return Kind(len(ascii_lowercase) ** length, lambda number: example(number, length))


def _histories(shortest: int, longest: int) -> list[Kind]:
    return [_history_kind(length) for length in range(shortest, longest + 1)]


def _history_kind(length: int) -> Kind:
    """Histories of so many items; an item may come again."""

    def example(number: int) -> Example:
        items = recommendation.history(number, length)
        return Example("".join(items) + recommendation.ASKS, recommendation.completion(items))

    return Kind(recommendation.NUM_ITEMS**length, example)


def _calculations(shortest: int, longest: int) -> list[Kind]:
    return [kind(digits) for digits in range(shortest, longest + 1) for kind in (_sum_kind, _difference_kind)]


def _sum_kind(digits: int) -> Kind:
    """Two numbers of so many digits, and their sum, which has one more."""
    num_numbers = 10**digits

    def example(number: int) -> Example:
        one, two = divmod(number, num_numbers)
        return Example(f"{_written(one, digits)}+{_written(two, digits)}=", _written(one + two, digits + 1))

    return Kind(num_numbers**2, example)


def _difference_kind(digits: int) -> Kind:
    """Two numbers of so many digits, the second no larger, and their difference."""
    num_numbers = 10**digits

    def example(number: int) -> Example:
        one = (isqrt(8 * number + 1) - 1) // 2  # before it come 1 + 2 + ... + one pairs
        two = number - one * (one + 1) // 2
        return Example(f"{_written(one, digits)}-{_written(two, digits)}=", _written(one - two, digits))

    return Kind(num_numbers * (num_numbers + 1) // 2, example)


def _written(number: int, digits: int) -> str:
    """Units first, as a sum is done by hand, with zeros at the end up to so many digits.

    A digit of the answer then follows from two digits at fixed distances and what is carried from those before it,
    which has been written down already.
    """
    return f"{number:0{digits}}"[::-1]


EXERCISES = {
    "reverse_text": Exercise(ascii_lowercase + ">", _words(_reversed)),
    "sorting": Exercise(ascii_lowercase + "|", _words(_sorted)),
    "arithmetic": Exercise("0123456789+-=", _calculations),
    "recommendation": Exercise(recommendation.ALPHABET, _histories),
}
"""reverse_text: "abc>" is "cba". sorting: "dacb|" is "abcd". arithmetic, units first: "21+39=" is "501"
(12 + 93 = 105), "39-21=" is "18". recommendation: `rlcore.data.recommendation`."""


def draw(name: str, lengths: tuple[int, int], num_examples: int, seed: int) -> list[Example]:
    """So many different examples; the first n of more are the same n.

    Raises InvalidValueError where there are fewer.
    """
    kinds = EXERCISES[name].kinds(*lengths)
    _check_enough(name, lengths, num_examples)
    return list(islice(_drawn(kinds, random.Random(key("task", name, seed, *lengths))), num_examples))


def _drawn(kinds: list[Kind], drawing: random.Random) -> Iterator[Example]:
    """All there are, in the order in which they are drawn."""
    taken: list[set[int]] = [set() for _ in kinds]
    left = list(range(len(kinds)))
    while left:
        kind = left[drawing.randrange(len(left))]
        number = drawing.randrange(kinds[kind].num_examples)
        if number in taken[kind]:
            continue
        taken[kind].add(number)
        if len(taken[kind]) == kinds[kind].num_examples:
            left.remove(kind)
        yield kinds[kind].example(number)


def _check_enough(name: str, lengths: tuple[int, int], wanted: int) -> None:
    kinds, (shortest, longest) = EXERCISES[name].kinds, lengths
    if (given := _count(kinds(*lengths))) >= wanted:
        return
    while _count(kinds(shortest, longest)) < wanted:
        longest += 1
    raise InvalidValueError(
        f"{name} with lengths {lengths[0]} to {lengths[1]} has {given} prompts, and {wanted} are wanted",
        legal=f"task.num_prompts + task.num_heldout at most {given}",
        remedy=f"task.max_length {longest} makes {_count(kinds(shortest, longest))}",
    )


def _count(kinds: list[Kind]) -> int:
    return sum(kind.num_examples for kind in kinds)
