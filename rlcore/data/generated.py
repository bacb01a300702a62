"""Tasks whose prompts are drawn: what there is to draw from, and the draw.

A task is counted out: kinds (lengths of words, digits of numbers and the sign), and of each kind so many
prompts, numbered. Kinds are drawn alike, so that few short words stand beside many long ones, not one beside hundreds.
"""

import random
from collections.abc import Callable, Iterator
from functools import partial
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
    turns: tuple[str, ...] = ()
    """What a policy with a calculator says; empty in tasks without tools."""


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
    kinds: Callable[[int], list[Kind]]
    """Of a length."""


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


def _words(example: Callable[[int, int], Example], length: int) -> list[Kind]:
    return [Kind(len(ascii_lowercase) ** length, lambda number: example(number, length))]


def _histories(length: int) -> list[Kind]:
    """Histories of so many items; an item may come again."""

    def example(number: int) -> Example:
        items = recommendation.history(number, length)
        return Example("".join(items) + recommendation.ASKS, recommendation.completion(items))

    return [Kind(recommendation.NUM_ITEMS**length, example)]


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


def _product_kind(digits: int) -> Kind:
    """Two numbers of so many digits, and their product by a calculator."""
    num_numbers = 9 * 10 ** (digits - 1)

    def example(number: int) -> Example:
        one, two = (each + 10 ** (digits - 1) for each in divmod(number, num_numbers))
        answer = str(one * two)
        return Example(f"{one}*{two}=", answer, (f"<calc>{one}*{two}</calc>", answer))

    return Kind(num_numbers**2, example)


def _written(number: int, digits: int) -> str:
    """Units first, as a sum is done by hand, with zeros at the end up to so many digits.

    A digit of the answer then follows from two digits at fixed distances and what is carried from those before it,
    which has been written down already.
    """
    return f"{number:0{digits}}"[::-1]


EXERCISES = {
    "reverse_text": Exercise(ascii_lowercase + ">", partial(_words, _reversed)),
    "sorting": Exercise(ascii_lowercase + "|", partial(_words, _sorted)),
    "arithmetic": Exercise("0123456789+-=", lambda digits: [_sum_kind(digits), _difference_kind(digits)]),
    "recommendation": Exercise(recommendation.ALPHABET, _histories),
    "products": Exercise("0123456789*=", lambda digits: [_product_kind(digits)]),
}
"""reverse_text: "abc>" is "cba". sorting: "dacb|" is "abcd". arithmetic, units first: "21+39=" is "501"
(12 + 93 = 105), "39-21=" is "18". recommendation: `rlcore.data.recommendation`. products: "12*34=" is "408", after
`<calc>12*34</calc>` where a calculator answers."""


def draw(name: str, lengths: tuple[int, int], num_examples: int, seed: int) -> list[Example]:
    """So many different examples; the first n of more are the same n.

    Raises InvalidValueError where there are fewer.
    """
    shortest, longest = lengths
    kinds = _kinds(name, shortest, longest)
    if (given := _count(kinds)) < num_examples:
        while _count(_kinds(name, shortest, longest)) < num_examples:
            longest += 1
        raise InvalidValueError(
            f"{name} with lengths {shortest} to {lengths[1]} has {given} prompts, and {num_examples} are wanted",
            legal=f"task.num_prompts + task.num_heldout at most {given}",
            remedy=f"task.max_length {longest} makes {_count(_kinds(name, shortest, longest))}",
        )
    return list(islice(_drawn(kinds, random.Random(key("task", name, seed, *lengths))), num_examples))


def _kinds(name: str, shortest: int, longest: int) -> list[Kind]:
    return [kind for length in range(shortest, longest + 1) for kind in EXERCISES[name].kinds(length)]


def _count(kinds: list[Kind]) -> int:
    return sum(kind.num_examples for kind in kinds)


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
